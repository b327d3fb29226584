"""Exact search (branch and bound): the most probable text, proved; and enumeration to check it.

A prefix can only lose probability, so its score is a bound on the score of all its completions.
Prefixes that cannot beat the best text so far are pruned.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from saccade.decoding.search import LOG_P, Hypothesis, Length, Step
from saccade.errors import ConfigError
from saccade.nn.state import concat, select

MAX_ROWS_PER_STEP = 64  # prefixes of one length that are extended at once
Order = Literal["depth", "best"]


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best text found, whether it is proved to be the best of all, and after how many steps."""

    best: Hypothesis | None  # None where no output is allowed
    proved: bool
    steps: int

    @property
    def verdict(self) -> str:
        return "proved" if self.proved else "budget exhausted"


class Prefix(NamedTuple):
    """A prefix to be extended; the smallest is next in the heap."""

    key: tuple[float, float]
    created: int  # in which order: makes the order of the heap total
    score: float
    tokens: tuple[int, ...]
    state: Any  # after the prefix without its last token: a batch ...
    row: int  # ... and its row there


@torch.inference_mode()
def exact_search(
    step: Step,
    state: Any,
    first: Int[Tensor, "1"],
    *,
    end: int,
    limit: int,
    budget: int,
    length: Length = LOG_P,
    order: Order = "depth",
    incumbent: Hypothesis | None = None,
) -> Optimum:
    """The best text of at most `limit` tokens for one source, by log p or normalised for length.

    Depth first, or best first, and either way the likeliest continuations before the others. A
    prefix ends with at most the score it has, over at most `limit` + 1 tokens: where that is no
    more than the best so far, it is pruned. `budget` is how many prefixes may be extended;
    `incumbent` is a text to beat, as of a beam search.
    """
    if budget < 1:
        raise ConfigError(f"a budget of {budget}: exact search needs at least 1 step")
    best, steps, created = incumbent, 0, 0
    heap = [Prefix((0.0, 0.0), 0, 0.0, (), state, 0)]

    while heap and steps < budget:
        bound = -inf if best is None else best.value
        batch: list[Prefix] = []
        while heap and len(batch) < min(MAX_ROWS_PER_STEP, budget - steps):
            if batch and len(heap[0].tokens) != len(batch[0].tokens):
                break
            prefix = heapq.heappop(heap)
            if length(prefix.score, limit + 1) > bound:
                batch.append(prefix)
        if not batch:
            break
        batch.sort(key=lambda prefix: prefix.created)  # so that those of one state are together
        steps += len(batch)
        log_probs, after = step(_last(batch, first), _states(batch, first.device))
        scores = log_probs.double() + torch.tensor(
            [[p.score] for p in batch], dtype=torch.float64, device=log_probs.device
        )
        depth = len(batch[0].tokens)
        for row, prefix in enumerate(batch):
            score = float(scores[row, end])
            value = length(score, depth + 1)
            if score > -inf and value > bound:
                best, bound = Hypothesis(list(prefix.tokens), score, value), value
        if depth == limit:
            continue
        scores[:, end] = -inf
        for row, token in (length(scores, limit + 1) > bound).nonzero().tolist():
            score, created = float(scores[row, token]), created + 1
            key = (-score, 0.0) if order == "best" else (-(depth + 1.0), -score)
            tokens = (*batch[row].tokens, token)
            heapq.heappush(heap, Prefix(key, created, score, tokens, after, row))
    bound = -inf if best is None else best.value
    left = any(length(prefix.score, limit + 1) > bound for prefix in heap)
    return Optimum(best, not left, steps)


def _last(batch: Sequence[Prefix], first: Int[Tensor, "1"]) -> Int[Tensor, "N"]:
    """The last token of each prefix; of the empty one the start symbol."""
    if not batch[0].tokens:
        return first
    return torch.tensor([prefix.tokens[-1] for prefix in batch], device=first.device)


def _states(batch: Sequence[Prefix], device: torch.device) -> Any:
    """The states of prefixes, which come from one batch or from several, as one."""
    parts = []
    for _, rows_of_state in groupby(batch, key=lambda prefix: id(prefix.state)):
        group = list(rows_of_state)
        rows = torch.tensor([prefix.row for prefix in group], device=device)
        parts.append(select(group[0].state, rows))
    return concat(parts)


@torch.inference_mode()
def exhaustive(
    step: Step,
    state: Any,
    first: Int[Tensor, "1"],
    *,
    end: int,
    limit: int,
    length: Length = LOG_P,
    max_texts: int = 1_000_000,
) -> list[Hypothesis]:
    """Every text of at most `limit` tokens that has a probability, the best first.

    The reference for the other searches, on tiny vocabularies: more than `max_texts` texts are
    refused.
    """
    hypotheses: list[Hypothesis] = []
    texts: list[tuple[int, ...]] = [()]
    scores, tokens = torch.zeros(1, dtype=torch.float64, device=first.device), first
    for n in range(limit + 1):
        log_probs, state = step(tokens, state)
        V = log_probs.size(-1)
        total = scores[:, None] + log_probs.double()  # (rows, V)
        for text, score in zip(texts, total[:, end].tolist(), strict=True):
            if score > -inf:
                hypotheses.append(Hypothesis(list(text), score, length(score, n + 1)))
        total[:, end] = -inf
        row, token = (total > -inf).nonzero().unbind(1)
        if n == limit or not len(row):
            break
        if len(hypotheses) + len(row) > max_texts:
            raise ConfigError(
                f"enumeration: more than {max_texts:,} texts of at most {limit} tokens from "
                f"{V} different ones; use exact search"
            )
        texts = [(*texts[r], t) for r, t in zip(row.tolist(), token.tolist(), strict=True)]
        scores, tokens, state = total[row, token], token, select(state, row)
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.value)
