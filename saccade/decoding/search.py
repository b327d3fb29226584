"""Search: from a step function to hypotheses, for every decoder alike.

A step is `(tokens, state) -> (log_probs, state)`; search never sees a model. Scores are summed
log-probabilities, the end token's included: higher is better.
B sources, W beam width, N = B * W rows, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import ConfigError
from saccade.nn.state import reorder, repeat, select

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]  # ((N,) tokens, state) -> ((N, V), state)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished sequence, without its end token, and log p of it with the end token."""

    tokens: list[int]
    score: float

    def normalised(self, alpha: float) -> float:
        """log p / |y|^alpha, where |y| counts the end token."""
        return normalise(self.score, len(self.tokens) + 1, alpha)


def normalise(score: float, length: int, alpha: float) -> float:
    return float(score / length**alpha)


@torch.inference_mode()
def greedy(
    step: Step, state: Any, first: Int[Tensor, "B"], *, end: int, limits: Sequence[int]
) -> list[Hypothesis]:
    """For each source the tokens likeliest one by one, at most `limits[b]` and then the end."""
    B = first.size(0)
    _check(limits, B)
    limit = torch.tensor(limits, device=first.device)
    texts: list[list[int]] = [[] for _ in range(B)]
    total = torch.zeros(B, device=first.device)
    alive = torch.arange(B, device=first.device)
    tokens = first
    scores = [0.0] * B
    for t in range(max(limits) + 1):
        log_probs, state = step(tokens, state)
        best, tokens = log_probs.max(-1)
        at_limit = limit[alive] <= t
        tokens = torch.where(at_limit, end, tokens)
        total = total + torch.where(at_limit, log_probs[:, end], best)
        ended = tokens == end
        rows, sums = alive.tolist(), total.tolist()
        for row, token, done, score in zip(
            rows, tokens.tolist(), ended.tolist(), sums, strict=True
        ):
            if done:
                scores[row] = score
            else:
                texts[row].append(token)
        if bool(ended.all()):
            break
        if bool(ended.any()):  # finished rows leave the batch
            stay = (~ended).nonzero().squeeze(1)
            tokens, total, alive = tokens[stay], total[stay], alive[stay]
            state = select(state, stay)
    return [Hypothesis(text, score) for text, score in zip(texts, scores, strict=True)]


@torch.inference_mode()
def beam_search(
    step: Step,
    state: Any,
    first: Int[Tensor, "B"],
    *,
    end: int,
    width: int,
    limits: Sequence[int],
    alpha: float = 1.0,
    nbest: int = 1,
) -> list[list[Hypothesis]]:
    """For each source at least `nbest` finished hypotheses, the best by log p / |y|^alpha first.

    Of all continuations the `width` most probable are kept. One that has ended is set aside with
    its place in the beam, the others go on, until all places are taken or no open one can still be
    among the `nbest`: an open prefix can only lose probability, so the best it can end with is its
    score now, over the longest length.
    """
    if width < 1:
        raise ConfigError(f"a beam of width {width}: the width must be at least 1")
    _check(limits, first.size(0))
    device, W = first.device, width
    state = repeat(state, W)
    tokens = first.repeat_interleave(W)  # (N,)
    alive = list(range(first.size(0)))  # which source each group of W rows is about
    limit = torch.tensor(limits, device=device)
    score = torch.full((first.size(0), W), -inf, device=device)
    score[:, 0] = 0.0  # all W rows start alike: let only one of them speak
    places = torch.full((first.size(0), 1), W, device=device)  # of the beam, still open
    best = torch.full((first.size(0), nbest), -inf, device=device)  # of the finished, normalised
    history: list[
        list[tuple[list[int], list[int]]]
    ] = []  # of each step and source: tokens, parents
    ended: list[list[tuple[int, int, float]]] = [[] for _ in limits]  # (step, place, score)
    slots: list[dict[int, int]] = []  # of each step: source -> its place in the batch

    for t in range(max(limits) + 1):
        log_probs, state = step(tokens, state)  # (N, V)
        B, V = len(alive), log_probs.size(-1)
        here = limit[alive]
        if bool((here <= t).any()):  # at its limit a prefix may only end
            only_end = torch.full_like(log_probs, -inf)
            only_end[:, end] = log_probs[:, end]
            at_limit = (here <= t).repeat_interleave(W)
            log_probs = torch.where(at_limit[:, None], only_end, log_probs)
        total = (score.view(-1, 1) + log_probs).view(B, W * V)
        score, index = total.topk(W, -1)
        parent, token = index // V, index % V
        score = score.masked_fill(torch.arange(W, device=device) >= places, -inf)
        done = (token == end) & (score > -inf)
        history.append(list(zip(token.tolist(), parent.tolist(), strict=True)))
        slots.append({source: b for b, source in enumerate(alive)})
        if bool(done.any()):
            for b, place in done.nonzero().tolist():
                ended[alive[b]].append((t, place, float(score[b, place])))
            finished = (score / (t + 1) ** alpha).masked_fill(~done, -inf)
            best = torch.cat([best, finished], -1).topk(nbest, -1).values
            places = places - done.sum(-1, keepdim=True)
            score = score.masked_fill(done, -inf)
        # An open prefix ends with at most the score it has, over at most limit + 1 tokens.
        hope = score.amax(-1) / (here + 1.0) ** alpha
        going = (hope > best[:, -1]) & (score.amax(-1) > -inf)
        if not bool(going.any()):
            break
        rows = parent + torch.arange(B, device=device)[:, None] * W  # (B, W) in the batch of N
        if bool(going.all()):
            state, tokens = reorder(state, rows.flatten()), token.flatten()
        else:
            stay = going.nonzero().squeeze(1)
            alive = [alive[b] for b in stay.tolist()]
            state = select(state, rows[stay].flatten())
            score, tokens = score[stay], token[stay].flatten()
            places, best = places[stay], best[stay]
    return [
        sorted(
            (Hypothesis(_trace(history, slots, source, t, place), s) for t, place, s in ends),
            key=lambda hypothesis: -hypothesis.normalised(alpha),
        )
        for source, ends in enumerate(ended)
    ]


def _trace(
    history: list[list[tuple[list[int], list[int]]]],
    slots: list[dict[int, int]],
    source: int,
    t: int,
    place: int,
) -> list[int]:
    """The tokens that lead to a place in the beam, without the end token that stands there."""
    tokens = []
    for step in range(t, -1, -1):
        row_tokens, row_parents = history[step][slots[step][source]]
        tokens.append(row_tokens[place])
        place = row_parents[place]
    return tokens[:0:-1]


def _check(limits: Sequence[int], rows: int) -> None:
    assert len(limits) == rows, "a limit for every row"
    assert min(limits) >= 0


@torch.inference_mode()
def token_log_probs(
    step: Step, state: Any, tokens: Int[Tensor, "B T"], first: Int[Tensor, "B"]
) -> Float[Tensor, "B T"]:
    """Forced decoding: log p of each given token after those before it."""
    columns = []
    for column in tokens.T:
        log_probs, state = step(first, state)
        columns.append(log_probs.gather(1, column[:, None]))
        first = column
    return torch.cat(columns, 1)
