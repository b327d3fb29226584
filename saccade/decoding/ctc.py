"""Connectionist temporal classification as a step, so that it takes part in any search.

Every position of a source says a token, or nothing (blank); a text is what is left when repetitions
and then blanks are taken away. The probability that a text begins with a prefix is a sum over
alignments, and each continuation of the prefix, the end among them, has a share of it: that is
log p of a next token, as a decoder gives it.
B sources, S positions, N rows, V vocabulary.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.decoding.search import Step
from saccade.nn.state import Fixed

IMPOSSIBLE = -1e4  # in place of log 0 of a position: differences of sums stay finite


class Prefix(NamedTuple):
    """The forward variables of a prefix; row s of S + 1 is for the first s positions.

    All are logarithms: of the probability that these positions say just the prefix.
    """

    spoken: Tensor  # (N, S + 1) ... and the last of them says its last token
    blank: Tensor  # (N, S + 1) ... and the last of them says nothing
    score: Tensor  # (N,) that a text begins with the prefix
    last: Tensor  # (N,) its last token; of the empty prefix the blank, which no text has


class Aligned(NamedTuple):
    """What positions say, and each row's prefix; before the first token there is none."""

    heard: Fixed  # (B, S, V) log-probabilities, and the same as probabilities
    prefix: Prefix | None


def start(
    log_probs: Float[Tensor, "B S V"], keep: Bool[Tensor, "B S"] | None, blank: int
) -> Aligned:
    """The state of a search before the first token; positions not in `keep` say nothing."""
    # Sums over hundreds of positions need more than single precision; mps has no more.
    precise = torch.float32 if log_probs.device.type == "mps" else torch.float64
    log_probs = log_probs.to(precise).clamp(min=IMPOSSIBLE)
    if keep is not None:
        silence = log_probs.new_full((log_probs.size(-1),), IMPOSSIBLE)
        silence[blank] = 0.0
        log_probs = torch.where(keep.unsqueeze(-1), log_probs, silence)
    return Aligned(Fixed((log_probs, log_probs.exp())), None)


def ctc_step(blank: int, end: int) -> Step:
    """The step that says how a prefix goes on by CTC alone, from the state of `start`.

    Graves 2008 (prefix search); beside attention Watanabe et al. 2017, IEEE JSTSP 11(8)
    """

    def step(tokens: Int[Tensor, "N"], state: Aligned) -> tuple[Tensor, Aligned]:
        log_probs, probs = state.heard.tree
        if state.prefix is None:  # the first token was not said, but given
            prefix = empty(log_probs, blank)
        else:
            prefix = extended(state.prefix, tokens, log_probs, blank)
        found = continuations(prefix, log_probs, probs, blank, end)
        return found, Aligned(state.heard, prefix)

    return step


def joint(step: Step, other: Step, weight: float) -> Step:
    """(1 - weight) log p of a step + weight log p of another; the state is a pair of theirs.

    The weight is above 0 and below 1: what either forbids is forbidden.
    """

    def both(
        tokens: Int[Tensor, "N"], state: tuple[object, object]
    ) -> tuple[Tensor, tuple[object, object]]:
        log_probs, mine = step(tokens, state[0])
        others, theirs = other(tokens, state[1])
        return (1.0 - weight) * log_probs + weight * others, (mine, theirs)

    return both


def empty(log_probs: Float[Tensor, "B S V"], blank: int) -> Prefix:
    """The empty prefix of each source: positions that have said nothing so far."""
    silent = log_probs[:, :, blank].cumsum(1)  # (B, S)
    nothing = silent.new_zeros(len(silent), 1)
    silent = torch.cat([nothing, silent], 1)
    last = torch.full((len(silent),), blank, device=silent.device)
    return Prefix(torch.full_like(silent, -inf), silent, nothing[:, 0], last)


def extended(
    prefix: Prefix, tokens: Int[Tensor, "N"], log_probs: Float[Tensor, "B S V"], blank: int
) -> Prefix:
    """Each row's prefix with one more token."""
    source = _sources(len(tokens), log_probs)
    own, silent = log_probs[source, :, tokens], log_probs[source, :, blank]  # (N, S)
    # Between two tokens that are the same there must be a blank, or they would be one.
    same = (tokens == prefix.last)[:, None]
    before = torch.where(same, prefix.blank, torch.logaddexp(prefix.blank, prefix.spoken))[:, :-1]
    spoken = _stay(before, own)
    score = torch.logsumexp(before + own, 1)
    return Prefix(spoken, _stay(spoken[:, :-1], silent), score, tokens)


def _sources(rows: int, log_probs: Float[Tensor, "B S V"]) -> Int[Tensor, "N"]:
    """To which source each of so many rows belongs."""
    return torch.arange(rows, device=log_probs.device) // (rows // len(log_probs))


def _stay(enter: Float[Tensor, "N S"], say: Float[Tensor, "N S"]) -> Float[Tensor, "N S1"]:
    """r(s) = (r(s - 1) + enter(s - 1)) say(s) from r(0) = 0, all in logarithms, without a loop."""
    total = say.cumsum(1)
    since = torch.logcumsumexp(enter - (total - say), 1) + total
    return F.pad(since, (1, 0), value=-inf)


def continuations(
    prefix: Prefix,
    log_probs: Float[Tensor, "B S V"],
    probs: Float[Tensor, "B S V"],
    blank: int,
    end: int,
) -> Float[Tensor, "N V"]:
    """log p of every next token after each row's prefix, and of its end.

    A token other than the last can follow wherever the prefix is complete, whatever the token: for
    all of them that is one product of matrices.
    """
    (N, S), B = prefix.blank[:, :-1].shape, len(log_probs)
    whole = torch.logaddexp(prefix.blank, prefix.spoken)
    before = whole[:, :-1]  # (N, S)
    peak = before.amax(1, keepdim=True).clamp(min=-1e30)
    ways = (before - peak).exp().view(B, N // B, S) @ probs  # (B, N / B, V)
    found = ways.view(N, -1).log() + peak
    own = log_probs[_sources(N, log_probs), :, prefix.last]  # (N, S)
    again = torch.logsumexp(prefix.blank[:, :-1] + own, 1, keepdim=True)
    found.scatter_(1, prefix.last[:, None], again)
    found[:, blank] = -inf
    found[:, end] = whole[:, -1]
    none = (prefix.score == -inf)[:, None]  # a row of the beam that is empty
    return (found - prefix.score[:, None]).masked_fill(none, -inf).clamp(max=0.0).float()


def best_path(
    log_probs: Float[Tensor, "S V"], text: Sequence[int], blank: int
) -> list[tuple[int, int]] | None:
    """Where each token of a text is said on the likeliest alignment: first position, and end.

    None where the text has more tokens than positions can say.
    """
    if not text:
        return []
    spelled = [blank, *(label for token in text for label in (token, blank))]
    labels = torch.tensor(spelled, device="cpu")
    say = log_probs.cpu()[:, labels]  # (S, 2 * len + 1)
    # A blank may be left out between two tokens, unless they are the same.
    may_skip = torch.zeros_like(labels, dtype=torch.bool)
    may_skip[3::2] = labels[3::2] != labels[1:-2:2]
    score = torch.full_like(say[0], -inf)
    score[:2] = say[0, :2]
    moves = []
    for row in say[1:]:
        one, two = (F.pad(score, (n, 0), value=-inf)[: len(labels)] for n in (1, 2))
        best, move = torch.stack([score, one, two.masked_fill(~may_skip, -inf)]).max(0)
        score = best + row
        moves.append(move)
    at = len(labels) - 1 if score[-1] >= score[-2] else len(labels) - 2
    if score[at] == -inf:
        return None
    places = [at]
    for move in reversed(moves):
        at -= int(move[at])
        places.append(at)
    places.reverse()
    found = []
    for t in range(len(text)):
        first = places.index(2 * t + 1)
        found.append((first, first + places.count(2 * t + 1)))
    return found
