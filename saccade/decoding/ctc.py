"""Connectionist temporal classification as a step, so that it takes part in any search.

Every position of a source emits a token or a blank; the text is what is left when repetitions
and then blanks are removed. The probability that a text begins with a prefix is a sum over
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

    All are logarithms: of the probability that these positions emit just the prefix.
    """

    nonblank: Tensor  # (N, S + 1) ... and the last of them emits its last token
    blank: Tensor  # (N, S + 1) ... and the last of them emits a blank
    score: Tensor  # (N,) that a text begins with the prefix
    last: Tensor  # (N,) its last token; of the empty prefix the blank, which no text has


class CTCState(NamedTuple):
    """The output of the CTC head, and each row's prefix; None before the first token."""

    frames: Fixed  # (B, S, V) log-probabilities, and the same as probabilities
    prefix: Prefix | None


def start(
    log_probs: Float[Tensor, "B S V"], keep: Bool[Tensor, "B S"] | None, blank: int
) -> CTCState:
    """The state of a search before the first token; positions not in `keep` emit blanks."""
    # Sums over hundreds of positions need more than single precision; mps has no more.
    precise = torch.float32 if log_probs.device.type == "mps" else torch.float64
    log_probs = log_probs.to(precise).clamp(min=IMPOSSIBLE)
    if keep is not None:
        only_blank = log_probs.new_full((log_probs.size(-1),), IMPOSSIBLE)
        only_blank[blank] = 0.0
        log_probs = torch.where(keep.unsqueeze(-1), log_probs, only_blank)
    return CTCState(Fixed((log_probs, log_probs.exp())), None)


def ctc_step(blank: int, end: int) -> Step:
    """The step that continues a prefix by CTC alone, from the state of `start`.

    Graves 2008 (prefix search); beside attention Watanabe et al. 2017, IEEE JSTSP 11(8)
    """

    def step(tokens: Int[Tensor, "N"], state: CTCState) -> tuple[Tensor, CTCState]:
        log_probs, probs = state.frames.tree
        if state.prefix is None:  # the first token is the start symbol, not output
            prefix = empty_prefix(log_probs, blank)
        else:
            prefix = extend(state.prefix, tokens, log_probs, blank)
        next_log_probs = continuations(prefix, log_probs, probs, blank, end)
        return next_log_probs, CTCState(state.frames, prefix)

    return step


def joint(step: Step, other: Step, weight: float) -> Step:
    """(1 - weight) log p of a step + weight log p of another; the state is a pair of theirs.

    The weight is above 0 and below 1: what either forbids is forbidden.
    """

    def joint_step(
        tokens: Int[Tensor, "N"], state: tuple[object, object]
    ) -> tuple[Tensor, tuple[object, object]]:
        log_probs, state_a = step(tokens, state[0])
        other_log_probs, state_b = other(tokens, state[1])
        return (1.0 - weight) * log_probs + weight * other_log_probs, (state_a, state_b)

    return joint_step


def empty_prefix(log_probs: Float[Tensor, "B S V"], blank: int) -> Prefix:
    """The empty prefix of each source: all positions so far are blank."""
    blanks = log_probs[:, :, blank].cumsum(1)  # (B, S)
    nothing = blanks.new_zeros(len(blanks), 1)
    blanks = torch.cat([nothing, blanks], 1)
    last = torch.full((len(blanks),), blank, device=blanks.device)
    return Prefix(torch.full_like(blanks, -inf), blanks, nothing[:, 0], last)


def extend(
    prefix: Prefix, tokens: Int[Tensor, "N"], log_probs: Float[Tensor, "B S V"], blank: int
) -> Prefix:
    """Each row's prefix with one more token."""
    source = _sources(len(tokens), log_probs)
    own, blanks = log_probs[source, :, tokens], log_probs[source, :, blank]  # (N, S)
    # Between two tokens that are the same there must be a blank, or they would be one.
    same = (tokens == prefix.last)[:, None]
    before = torch.where(same, prefix.blank, torch.logaddexp(prefix.blank, prefix.nonblank))[:, :-1]
    nonblank = _stay(before, own)
    score = torch.logsumexp(before + own, 1)
    return Prefix(nonblank, _stay(nonblank[:, :-1], blanks), score, tokens)


def _sources(rows: int, log_probs: Float[Tensor, "B S V"]) -> Int[Tensor, "N"]:
    """The source of each of `rows` rows."""
    return torch.arange(rows, device=log_probs.device) // (rows // len(log_probs))


def _stay(enter: Float[Tensor, "N S"], emit: Float[Tensor, "N S"]) -> Float[Tensor, "N S1"]:
    """r(s) = (r(s - 1) + enter(s - 1)) emit(s) from r(0) = 0, all in logarithms, without a loop."""
    total = emit.cumsum(1)
    since = torch.logcumsumexp(enter - (total - emit), 1) + total
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
    complete = torch.logaddexp(prefix.blank, prefix.nonblank)
    before = complete[:, :-1]  # (N, S)
    peak = before.amax(1, keepdim=True).clamp(min=-1e30)
    sums = (before - peak).exp().view(B, N // B, S) @ probs  # (B, N / B, V)
    scores = sums.view(N, -1).log() + peak  # of the prefix and the next token
    own = log_probs[_sources(N, log_probs), :, prefix.last]  # (N, S)
    repeated = torch.logsumexp(prefix.blank[:, :-1] + own, 1, keepdim=True)
    scores.scatter_(1, prefix.last[:, None], repeated)
    scores[:, blank] = -inf
    scores[:, end] = complete[:, -1]
    unused = (prefix.score == -inf)[:, None]  # rows of the beam without a hypothesis
    return (scores - prefix.score[:, None]).masked_fill(unused, -inf).clamp(max=0.0).float()


def forced_alignment(
    log_probs: Float[Tensor, "S V"], text: Sequence[int], blank: int
) -> list[tuple[int, int]] | None:
    """The span of each token of a text on its likeliest alignment: first position, and end.

    None where the text is too long for the number of positions.
    """
    if not text:
        return []
    with_blanks = [blank, *(label for token in text for label in (token, blank))]
    labels = torch.tensor(with_blanks, device="cpu")
    emit = log_probs.cpu()[:, labels]  # (S, 2 * len + 1)
    # A blank may be left out between two tokens, unless they are the same.
    may_skip = torch.zeros_like(labels, dtype=torch.bool)
    may_skip[3::2] = labels[3::2] != labels[1:-2:2]
    score = torch.full_like(emit[0], -inf)
    score[:2] = emit[0, :2]
    moves = []
    for row in emit[1:]:
        one, two = (F.pad(score, (n, 0), value=-inf)[: len(labels)] for n in (1, 2))
        best, move = torch.stack([score, one, two.masked_fill(~may_skip, -inf)]).max(0)
        score = best + row
        moves.append(move)
    label_at = len(labels) - 1 if score[-1] >= score[-2] else len(labels) - 2
    if score[label_at] == -inf:
        return None
    path = [label_at]
    for move in reversed(moves):
        label_at -= int(move[label_at])
        path.append(label_at)
    path.reverse()
    spans = []
    for t in range(len(text)):
        first = path.index(2 * t + 1)
        spans.append((first, first + path.count(2 * t + 1)))
    return spans
