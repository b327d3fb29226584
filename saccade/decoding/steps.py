"""Steps, and functions `Step -> Step` that change what a search may do."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor

from saccade.decoding.search import Step

Decoder = Callable[[Tensor, Any], tuple[Tensor, Any]]  # ((N, T), state) -> ((N, T, V), state)


def stepper(decoder: Decoder) -> Step:
    """The step of a decoder: one column in, the next token's log-probabilities out."""

    def step(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = decoder(tokens[:, None], state)
        return logits[:, 0].float().log_softmax(-1), state

    return step


def ban(step: Step, banned: Sequence[int]) -> Step:
    """The same step, but these tokens never come; the others keep their log-probabilities."""
    columns = torch.tensor(banned)

    def without(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        log_probs, state = step(tokens, state)
        return log_probs.index_fill(1, columns.to(log_probs.device), -inf), state

    return without
