"""What `translate` and `model` share: teacher forcing, search with a decoder, and its results."""

import sys
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from saccade.config import Config, Decode
from saccade.decoding.search import Hypothesis, beam_search, greedy
from saccade.decoding.steps import ban, stepper
from saccade.models.decoders import Decoder
from saccade.nn.padded import Padded
from saccade.tasks.task import Prediction
from saccade.text.tokenizers import Tokenizer
from saccade.text.vocab import BOS, EOS, PAD, SEP, UNK


def shifted(target: Padded) -> tuple[Tensor, Padded]:
    """Teacher forcing's two views of a target: what the decoder reads, what it should say next."""
    said = Padded(target.values[:, 1:], (target.lengths - 1).clamp(min=0))
    return target.values[:, :-1], said


def search(
    decoder: Decoder,
    state: Any,
    first: Tensor,
    limits: Sequence[int],
    decode: Decode,
    width: int,
    nbest: int,
) -> list[list[Hypothesis]]:
    """For each row its hypotheses, the best first; what is no text is never said."""
    step = ban(stepper(decoder), [PAD, UNK, BOS, SEP])
    if width == 1:
        return [[found] for found in greedy(step, state, first, end=EOS, limits=limits)]
    return beam_search(
        step, state, first, end=EOS, width=width, limits=limits, alpha=decode.alpha, nbest=nbest
    )


def prediction(
    tokenizer: Tokenizer, hypotheses: Sequence[Hypothesis], nbest: int, prefix: Sequence[int] = ()
) -> Prediction:
    """The best hypotheses as text, each after the prefix."""
    some = hypotheses[:nbest]
    texts = tokenizer.decode([[*prefix, *found.tokens] for found in some])
    ranked = [(text, found.score) for text, found in zip(texts, some, strict=True)]
    return Prediction(*ranked[0], others=tuple(ranked[1:]))


def summed(decoder: Decoder, tokens: Tensor, said: Padded, state: Any) -> list[tuple[float, int]]:
    """For each row log p of what was said after `tokens`, and of how many tokens."""
    logits, _ = decoder(tokens, state)
    log_probs = logits.log_softmax(-1).gather(-1, said.values.unsqueeze(-1)).squeeze(-1)
    if (keep := said.keep) is not None:
        log_probs = log_probs.masked_fill(~keep, 0.0)
    return list(zip(log_probs.sum(1).tolist(), said.lengths.tolist(), strict=True))


def longest_output(config: Config) -> int:
    """How many positions a decoder has: all of them, unless they are learned."""
    learned = getattr(config.decoder, "positions", "") == "learned"
    return config.decoder.max_positions if learned else sys.maxsize  # type: ignore[union-attr]
