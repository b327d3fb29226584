"""Objectives: what a network learns from a row of plain text, as pure functions side by side.

An objective takes a row of ids and the random numbers of (seed, epoch, index) to what the network
reads, what it should say, and what each position may see. It knows no network and no batch, so what
it hides and what it asks for can be checked by hand.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from saccade import config as c
from saccade.data.corpora import Array
from saccade.nn.padded import UNSCORED_ID, UNSEEN
from saccade.text.tokenizers import Tokenizer
from saccade.text.vocab import Specials

Draws: TypeAlias = np.random.Generator
DEV_EPOCH = 0  # what is measured on is drawn once; the epochs of training count from 1


class Sight(NamedTuple):
    """What each position of a row may see: see `nn.padded.View`."""

    order: Array
    sight: Array
    places: Array


class Made(NamedTuple):
    """What a network learns from one row."""

    source: Array  # the ids that it reads
    # the id to be said at each position, UNSCORED_ID where nothing is; of a decoder all that it
    # says, between <bos> and <eos>
    target: Array
    view: Sight | None = None  # None: every position sees every other


class Alphabet(NamedTuple):
    """What an objective has to know of the ids that rows are made of."""

    specials: Specials
    special: Array  # (V,) bool: ids that stand for no text
    plain: Array  # the others
    before: Array  # (V,) bool: a word ends before this id
    after: Array  # (V,) bool: a word ends after it

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Alphabet":
        special = np.zeros(len(tokenizer), bool)
        special[list(tokenizer.specials.ids)] = True
        before, after = (np.array(one) for one in tokenizer.word_breaks())
        return cls(tokenizer.specials, special, np.flatnonzero(~special), before, after)

    @property
    def mask(self) -> int:
        assert self.specials.mask is not None
        return self.specials.mask

    def words(self, row: Array) -> Array:
        """For each position of a row the number of its word, from 0."""
        begins = self.before[row]
        begins[1:] |= self.after[row[:-1]]
        begins[:1] = True
        return begins.cumsum() - 1


def draws_of(seed: int, epoch: int, index: int) -> Draws:
    """The random numbers of row `index` in an epoch: the same in every batch, and after a stop."""
    return np.random.default_rng([seed, epoch, index])


def masked(row: Array, draws: Draws, objective: c.Hidden, ids: Alphabet) -> Made:
    """Some tokens are asked for: most of them are <mask>, some another token, some as they were."""
    chosen = chosen_tokens(row, draws, objective.share, ids, whole=objective.whole_words)
    target = np.full(len(row), UNSCORED_ID, np.int64)
    target[chosen] = row[chosen]
    source = row.copy()
    lot = draws.random(len(chosen))
    source[chosen[lot < objective.mask]] = ids.mask
    other = (lot >= objective.mask) & (lot < objective.mask + objective.random)
    source[chosen[other]] = draws.choice(ids.plain, int(other.sum()))
    return Made(source, target)


def pair_of(row: Array, other: Array, room: int, draws: Draws, ids: Alphabet) -> tuple[Array, int]:
    """A row as two texts, `<bos> A <sep> B <eos>`, and 0 if B follows A, 1 if it is of another row.

    Both are cut where a line begins, if one does; of another row at much the same place, so that
    the lengths do not tell. `room` is how long A and B may be together.
    """
    special = ids.specials
    begins = line_starts(row, ids)
    cut = int(draws.choice(begins))
    first, second = row[:cut], row[cut:]
    label = int(draws.random() < 0.5)
    if label:
        starts = line_starts(other, ids)
        nearest = int(starts[np.abs(starts - cut).argmin()])
        second = other[nearest:][: room - cut]
    parts = ([special.bos], _open(first, ids), [special.sep], _open(second, ids), [special.eos])
    return np.concatenate(parts).astype(np.int64), label


def line_starts(row: Array, ids: Alphabet) -> Array:
    """Where lines begin inside a row; its middle if none does."""
    starts = np.flatnonzero(row[:-1] == ids.specials.eos) + 1
    return starts if len(starts) else np.array([len(row) // 2])


def _open(text: Array, ids: Alphabet) -> Array:
    """A text without the mark at its end."""
    return text[:-1] if len(text) and text[-1] == ids.specials.eos else text


def unilm(row: Array, draws: Draws, objective: c.Unilm, ids: Alphabet) -> Made:
    """Tokens that are asked for, under one of three masks: both ways, left to right, a prefix."""
    made = masked(row, draws, objective, ids)
    places = np.arange(len(row))
    match int(draws.integers(3)):
        case 0:
            prefix = len(row)
        case 1:
            prefix = 0
        case _:
            prefix = int(draws.choice(line_starts(row, ids)))
    order = np.where(places < prefix, 0, places + 1)
    return Made(made.source, made.target, Sight(order, order, places))


def permuted(row: Array, draws: Draws, objective: c.Permuted, ids: Alphabet) -> Made:
    """Some tokens are asked for, one after the other in an order that is drawn.

    The first stream is the row itself: what is not asked for is seen by all, the rest by what comes
    later in the order. The second stream follows it: a <mask> for each token that is asked for,
    which stands at the token's place, sees what comes before it in the order, and is seen by none.
    """
    chosen = chosen_tokens(row, draws, objective.share, ids, whole=objective.whole_words)
    ranks = np.zeros(len(row), np.int64)
    ranks[chosen] = draws.permutation(len(chosen)) + 1
    return two_streams(row, row, chosen, ranks, ids)


def two_streams(
    row: Array, source: Array, chosen: Array, ranks: Array, ids: Alphabet, seen: bool = True
) -> Made:
    """A row and a query for each chosen position, which sees all of lower rank.

    Without `seen` no position sees a chosen one: it is not known.
    """
    places = np.arange(len(row))
    order = ranks.copy()
    if not seen:
        order[chosen] = UNSEEN
    asked = np.full(len(chosen), ids.mask)
    view = Sight(
        np.append(order, np.full(len(chosen), UNSEEN)),
        np.append(ranks, ranks[chosen] - 1),
        np.append(places, chosen),
    )
    target = np.append(np.full(len(row), UNSCORED_ID), row[chosen])
    return Made(np.append(source, asked), target, view)


def spans(row: Array, draws: Draws, objective: c.Spans, ids: Alphabet) -> Made:
    """Spans that are hidden, each behind a sentinel; the target is all sentinels and their spans.

    <0> follows the first tokens, so that a row never begins with a hidden span.
    """
    text = joined_lines(row, ids)
    count = len(text)
    if count < 2:
        return said_whole(text, text, ids)
    hidden = min(max(1, round(count * objective.share)), count - 1)
    number = min(objective.most_spans(count), len(ids.specials.sentinels))
    kept_runs, hidden_runs = parts(count - hidden, number, draws), parts(hidden, number, draws)
    source: list[Any] = []
    target: list[Any] = []
    at = 0
    runs = zip(ids.specials.sentinels, kept_runs.tolist(), hidden_runs.tolist(), strict=False)
    for sentinel, kept, gone in runs:
        middle, end = at + kept, at + kept + gone
        source += [text[at:middle], [sentinel]]
        target += [[sentinel], text[middle:end]]
        at = end
    return said_whole(np.concatenate(source), np.concatenate(target), ids)


def parts(total: int, number: int, draws: Draws) -> Array:
    """So many positive numbers with this sum, every way as likely as any other."""
    cuts = np.sort(draws.permutation(total - 1)[: number - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def denoising(row: Array, draws: Draws, objective: c.Denoising, ids: Alphabet) -> Made:
    """A row whose lines are in another order, and of which tokens are missing; the row itself."""
    text = joined_lines(row, ids)
    source = text
    if objective.shuffle:
        lines = np.split(text, np.flatnonzero(text == ids.specials.sep))
        lines = [lines[0], *(line[1:] for line in lines[1:])]
        mixed = [lines[i] for i in draws.permutation(len(lines))]
        source = np.concatenate([np.append(line, ids.specials.sep) for line in mixed])[:-1]
    if objective.delete:
        source = source[draws.random(len(source)) >= objective.delete]
    return said_whole(infilled(source, draws, objective, ids), text, ids)


def infilled(text: Array, draws: Draws, objective: c.Denoising, ids: Alphabet) -> Array:
    """A text of which a share of the tokens is missing, in spans, each of which is one <mask>.

    Lengths are drawn from a Poisson distribution; a span of none is a <mask> where nothing is
    missing. No two masks are neighbours.
    """
    left = round(objective.share * len(text))
    gaps = len(text) - left + 1  # between the tokens that stay, and at both ends
    lengths: list[int] = []
    while left > 0 and len(lengths) < gaps:
        lengths.append(min(int(draws.poisson(objective.length)), left))
        left -= lengths[-1]
    where = np.sort(draws.permutation(gaps)[: len(lengths)])
    pieces: list[Any] = []
    at, kept = 0, 0
    for gap, length in zip(where.tolist(), lengths, strict=True):
        stop = at + gap - kept
        pieces += [text[at:stop], [ids.mask]]
        at, kept = stop + length, gap
    return np.concatenate([*pieces, text[at:]]).astype(np.int64)


def joined_lines(row: Array, ids: Alphabet) -> Array:
    """A row with <sep> between its lines and no mark at its end."""
    text = _open(row, ids)
    return np.where(text == ids.specials.eos, ids.specials.sep, text)


def said_whole(source: Array, target: Array, ids: Alphabet) -> Made:
    """What an encoder reads, and what a decoder should say."""
    special = ids.specials
    said = np.concatenate([[special.bos], target, [special.eos]]).astype(np.int64)
    return Made(np.append(source, special.eos), said)


def chosen_tokens(row: Array, draws: Draws, share: float, ids: Alphabet, *, whole: bool) -> Array:
    """The positions of a share of the row's tokens, at least one; with `whole`, of whole words."""
    able = np.flatnonzero(~ids.special[row])
    count = max(1, round(share * len(able)))
    if not whole:
        return np.sort(draws.permutation(able)[:count])
    words = ids.words(row)[able]  # of each position that may be chosen
    _, sizes = np.unique(words, return_counts=True)
    order = draws.permutation(len(sizes))
    taken: list[int] = []
    room = count
    for word in order.tolist():
        if sizes[word] <= room or not taken:  # a first one, however long
            taken.append(word)
            room -= int(sizes[word])
        if room <= 0:
            break
    numbers = np.unique(words, return_inverse=True)[1]
    return able[np.isin(numbers, taken)]
