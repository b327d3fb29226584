"""Search: from a step function to hypotheses, for every decoder alike.

A step is `(tokens, state) -> (log_probs, state)`; search never sees a model. Scores are summed
log-probabilities, the end token's included: higher is better.
B sources, G groups, W beam width, N = B * W rows, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.decoding.tree import Fate, Tree
from saccade.errors import ConfigError
from saccade.nn.state import reorder, select

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]  # ((N,) tokens, state) -> ((N, V), state)
Pick = Callable[[Tensor, list[int], int], Tensor]  # ((N, V), the rows' numbers, t) -> (N,) tokens
Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True, slots=True)
class Length:
    """How scores of different lengths are compared: log p over a power of the length.

    "power" is log p / |y|^alpha, "gnmt" log p / ((5 + |y|) / 6)^alpha (Wu et al. 2016,
    arxiv.org/abs/1609.08144), "none" log p. |y| counts the end token.
    """

    kind: Literal["power", "gnmt", "none"] = "power"
    alpha: float = 1.0

    def __call__(self, score: Number, length: Any) -> Number:
        match self.kind:
            case "power":
                return score / length**self.alpha  # type: ignore[no-any-return]
            case "gnmt":
                return score / ((5 + length) / 6) ** self.alpha  # type: ignore[no-any-return]
            case "none":
                return score


LOG_P = Length("none")


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished sequence without its end token, log p of it with the end token, and its rank."""

    tokens: list[int]
    score: float
    value: float  # what it is ranked by: the score normalised for length, plus any bonus


def walk(
    step: Step,
    state: Any,
    first: Int[Tensor, "B"],
    *,
    end: int,
    limits: Sequence[int],
    pick: Pick,
) -> Iterator[list[tuple[int, int, float]]]:
    """At each step (source, token, score so far) of the open sources; `pick` chooses the token.

    A source at its limit may only end; one that has ended leaves the batch.
    """
    _check(limits, first.size(0))
    limit = torch.tensor(limits, device=first.device)
    alive = torch.arange(first.size(0), device=first.device)
    total = torch.zeros(first.size(0), device=first.device)
    tokens, rows = first, alive.tolist()
    for t in range(max(limits, default=-1) + 1):
        with torch.inference_mode():  # not around `yield`: the mode is not the caller's
            log_probs, state = step(tokens, state)
            tokens = torch.where(limit[alive] <= t, end, pick(log_probs, rows, t))
            total = total + log_probs.gather(1, tokens[:, None]).squeeze(1)
            taken = list(zip(rows, tokens.tolist(), total.tolist(), strict=True))
            stay = (tokens != end).nonzero().squeeze(1)
            if 0 < len(stay) < len(tokens):
                tokens, total, alive = tokens[stay], total[stay], alive[stay]
                rows = alive.tolist()
                state = select(state, stay)
        yield taken
        if not len(stay):
            break


def generate(
    step: Step,
    state: Any,
    first: Int[Tensor, "B"],
    *,
    end: int,
    limits: Sequence[int],
    pick: Pick,
) -> list[Hypothesis]:
    """For each source the tokens that `pick` chooses one by one, up to the end token."""
    texts: list[list[int]] = [[] for _ in limits]
    scores = [0.0 for _ in limits]
    for taken in walk(step, state, first, end=end, limits=limits, pick=pick):
        for row, token, score in taken:
            scores[row] = score
            if token != end:
                texts[row].append(token)
    return [Hypothesis(text, score, score) for text, score in zip(texts, scores, strict=True)]


def greedy(
    step: Step, state: Any, first: Int[Tensor, "B"], *, end: int, limits: Sequence[int]
) -> list[Hypothesis]:
    """For each source the likeliest token, one by one, at most `limits[b]` and then the end."""
    return generate(step, state, first, end=end, limits=limits, pick=likeliest)


KEPT_HYPOTHESES = 250  # finished ones of a source, so that a wide beam takes no more memory
MIN_NUMBERS_FOR_BLOCKS = 2**19  # above it blocks are faster than torch's argmax


def likeliest(log_probs: Float[Tensor, "N V"], rows: list[int], t: int) -> Int[Tensor, "N"]:
    if log_probs.numel() < MIN_NUMBERS_FOR_BLOCKS or log_probs.device.type != "cpu":
        return log_probs.argmax(-1)
    return top(log_probs.new_zeros(len(log_probs), 1), log_probs[:, None], 1)[1].squeeze(1)


@torch.inference_mode()
def beam_search(
    step: Step,
    state: Any,
    first: Int[Tensor, "B"],
    *,
    end: int,
    width: int,
    limits: Sequence[int],
    length: Length = Length(),  # noqa: B008
    nbest: int = 1,
    stop_after: int | None = None,
    groups: int = 1,
    diversity: float = 0.0,
    bonus: Callable[[Any], Tensor] | None = None,
    trees: list[Tree] | None = None,
) -> list[list[Hypothesis]]:
    """For each source its finished hypotheses, the best for its length first.

    At each step the `width` most probable continuations are examined. Those that have ended are
    set aside, and the next open ones take their places, unless all have ended. This goes on until
    no open one can still be among the `nbest`: a prefix can only lose probability, so the best it
    can end with is its score now, over the longest length. With `stop_after` the search also
    ends when so many have ended.

    `groups` share the width, and each subtracts `diversity` for every time that a group before it
    chose a token at the same step (Vijayakumar et al. 2018, arxiv.org/abs/1610.02424). `bonus` is a
    number, at most 0, for each row of a state, added when a hypothesis is ranked. `trees`, if
    given, gets the tree of each source. A source whose every continuation is forbidden has none.
    Of more than a few hundred finished ones the best are kept, the `nbest` in any case.
    """
    if width < 1:
        raise ConfigError(f"a beam of width {width}: the width must be at least 1")
    if groups < 1 or width % groups:
        raise ConfigError(f"{groups} groups in a beam of width {width}: they must share it evenly")
    _check(limits, first.size(0))
    device, W = first.device, width
    tokens = first  # (N,): at first one row for each source, then W
    alive = list(range(first.size(0)))  # the sources
    limit = torch.tensor(limits, device=device)
    score = torch.zeros(first.size(0), 1, device=device)
    prefixes = tokens.new_zeros(len(tokens), 0)  # (N, t)
    best = torch.full((first.size(0), nbest), -inf, device=device)  # of the finished
    found: list[list[Hypothesis]] = [[] for _ in limits]
    finished = [0 for _ in limits]  # the number of all, of which `found` keeps the best
    new_trees = None if trees is None else [Tree.of_width(W) for _ in limits]

    for t in range(max(limits, default=-1) + 1):
        log_probs, state = step(tokens, state)  # (N, V)
        (B, R), V = score.shape, log_probs.size(-1)
        at_limit = limit <= t
        if bool(at_limit.any()):  # at its limit a prefix may only end
            only_end = torch.full_like(log_probs, -inf)
            only_end[:, end] = log_probs[:, end]
            log_probs = torch.where(at_limit.repeat_interleave(R)[:, None], only_end, log_probs)
        score, index = _select(score, log_probs, W, groups, diversity)  # (B, G, 2 * W / G)
        base = torch.arange(B, device=device)[:, None, None] * R
        token, rows = index % V, index // V + base  # the parents' places among the N
        ends = (token == end) & (score > -inf)
        done = ends[:, :, : W // groups]  # among the best of its group
        all_scores = score
        if bool(done.any()):
            value = length(score, t + 1)
            if bonus is not None:
                value = value + bonus(state)[rows]
            for b, g, place in done.nonzero().tolist():
                text = prefixes[rows[b, g, place]].tolist()
                one = float(score[b, g, place]), float(value[b, g, place])
                found[alive[b]].append(Hypothesis(text, *one))
                finished[alive[b]] += 1
            for b in alive:
                if len(found[b]) > 2 * max(nbest, KEPT_HYPOTHESES):
                    found[b] = _ranked(found[b])[: max(nbest, KEPT_HYPOTHESES)]
            new = value[:, :, : W // groups].masked_fill(~done, -inf).flatten(1)
            best = torch.cat([best, new], -1).topk(nbest, -1).values
            score = score.masked_fill(ends | done.all(-1, keepdim=True), -inf)
        # The open ones, still in order; continuations that end outside the beam are dropped.
        order = ends.to(torch.uint8).argsort(dim=-1, stable=True)[:, :, : W // groups]
        if new_trees is not None:
            kept = order.masked_fill(score.gather(-1, order) == -inf, -1)
            _record_step(new_trees, alive, rows - base, token, all_scores, done, kept)
        score, token, rows = (x.gather(-1, order).flatten(1) for x in (score, token, rows))
        # An open prefix ends with at most the score it has, over at most limit + 1 tokens.
        going = length(score.amax(-1), limit + 1.0) > best[:, -1]
        if new_trees is not None:
            _record_stop(new_trees, alive, ~going, score, "could not win")
        if stop_after is not None:
            enough = torch.tensor([finished[b] >= stop_after for b in alive], device=device)
            if new_trees is not None:
                _record_stop(new_trees, alive, going & enough, score, "enough had ended")
            going &= ~enough
        if not bool(going.any()):
            break
        all_open = bool(going.all())
        stay = going.nonzero().squeeze(1)
        if not all_open:
            alive = [alive[b] for b in stay.tolist()]
            score, best, limit = score[stay], best[stay], limit[stay]
            rows, token = rows[stay], token[stay]
        rows, token = rows.flatten(), token.flatten()
        state = reorder(state, rows) if all_open else select(state, rows, stay)
        tokens, prefixes = token, torch.cat([prefixes[rows], token[:, None]], 1)
    if trees is not None and new_trees is not None:
        trees += new_trees
    return [_ranked(some) for some in found]


def _ranked(found: list[Hypothesis]) -> list[Hypothesis]:
    return sorted(found, key=lambda hypothesis: -hypothesis.value)


BLOCK_TOKENS = 256  # tokens of the vocabulary, read only if their maximum is among the k best


def _select(
    score: Float[Tensor, "B R"],
    log_probs: Float[Tensor, "N V"],
    width: int,
    groups: int,
    diversity: float,
) -> tuple[Float[Tensor, "B G k"], Int[Tensor, "B G k"]]:
    """Each group's best continuations, twice as many as it is wide: scores, and places in (R, V).

    Twice, so that enough stay open when some of them end. Where there are fewer, the rest is -inf.
    """
    (B, R), V, each = score.shape, log_probs.size(-1), width // groups
    table = log_probs.view(B, R, V)
    used = log_probs.new_zeros(B, V) if groups > 1 else None  # by how many beams of this step
    scores, places = [], []
    for g in range(groups):
        mine = slice(g * each, (g + 1) * each) if R > 1 else slice(0, 1)  # at first all share one
        here = table[:, mine]
        k = min(2 * each, here.size(1) * V)
        values, index = top(score[:, mine], here, k)
        if used is not None:
            _, index = top(score[:, mine], here - diversity * used[:, None], k)
            values = (score[:, mine, None] + here).flatten(1).gather(1, index)
            chosen = (values[:, :each] > -inf).to(used.dtype)
            used.scatter_add_(1, index[:, :each] % V, chosen)
        lacking = (0, 2 * each - k)
        scores.append(F.pad(values, lacking, value=-inf))
        places.append(F.pad(index, lacking) + (g * each * V if R > 1 else 0))
    return torch.stack(scores, 1), torch.stack(places, 1)


def top(
    score: Float[Tensor, "B W"], log_probs: Float[Tensor, "B W V"], k: int
) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
    """The k best sums of a row's score and a token's log-probability: values, places in (W, V).

    The k best lie in the k blocks with the largest maxima. Finding a block's maximum runs at memory
    speed; sorting does not.
    """
    B, W, V = log_probs.shape
    blocks = -(-V // BLOCK_TOKENS)
    if blocks < 8 or k > blocks:
        return (score[:, :, None] + log_probs).flatten(1).topk(k, -1)
    full = V // BLOCK_TOKENS
    largest = log_probs[:, :, : full * BLOCK_TOKENS].view(B, W, full, BLOCK_TOKENS).amax(-1)
    if full < blocks:
        largest = torch.cat([largest, log_probs[:, :, full * BLOCK_TOKENS :].amax(-1, True)], -1)
    chosen = (score[:, :, None] + largest).flatten(1).topk(k, -1).indices  # (B, k)
    row, block = chosen // blocks, chosen % blocks
    within = torch.arange(BLOCK_TOKENS, device=score.device)
    column = block[:, :, None] * BLOCK_TOKENS + within  # (B, k, BLOCK_TOKENS)
    place = (row[:, :, None] * V + column.clamp(max=V - 1)).flatten(1)
    values = log_probs.reshape(B, W * V).gather(1, place).view(B, k, BLOCK_TOKENS)
    values = values.masked_fill(column >= V, -inf) + score.gather(1, row)[:, :, None]
    best, index = values.flatten(1).topk(k, -1)
    return best, place.gather(1, index)


def _record_step(
    trees: list[Tree],
    alive: list[int],
    place: Int[Tensor, "B G k"],
    token: Int[Tensor, "B G k"],
    score: Float[Tensor, "B G k"],
    done: Bool[Tensor, "B G w"],
    kept: Int[Tensor, "B G w"],
) -> None:
    """Add the continuations of each source to its tree: ended, kept, and outside the beam."""
    for b, source in enumerate(alive):
        for g in range(kept.size(1)):
            some = zip(
                place[b, g].tolist(), token[b, g].tolist(), score[b, g].tolist(), strict=True
            )
            ended = done[b, g].nonzero().flatten().tolist()
            trees[source].add_step(list(some), ended, kept[b, g].tolist())
        trees[source].advance()


def _record_stop(
    trees: list[Tree],
    alive: list[int],
    stopped: Bool[Tensor, "B"],
    score: Float[Tensor, "B W"],
    fate: Fate,
) -> None:
    """Set the fate of the open prefixes of sources whose search is over."""
    for b in stopped.nonzero().flatten().tolist():
        open_places = [place for place, s in enumerate(score[b].tolist()) if s > -inf]
        trees[alive[b]].stop(open_places, fate)


def _check(limits: Sequence[int], rows: int) -> None:
    assert len(limits) == rows, "a limit for every row"
    assert min(limits, default=0) >= 0


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


@torch.inference_mode()
def top_alternatives(
    step: Step, state: Any, tokens: Int[Tensor, "B T"], first: Int[Tensor, "B"], k: int
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T k"], Int[Tensor, "B T k"]]:
    """Forced decoding: log p of each given token, and the k likeliest in its place with theirs."""
    columns, values, places = [], [], []
    for column in tokens.T:
        log_probs, state = step(first, state)
        columns.append(log_probs.gather(1, column[:, None]))
        best = log_probs.topk(min(k, log_probs.size(-1)), -1)
        values.append(best.values)
        places.append(best.indices)
        first = column
    return torch.cat(columns, 1), torch.stack(values, 1), torch.stack(places, 1)
