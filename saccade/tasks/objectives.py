"""Pretraining objectives as pure functions.

An objective takes a row of ids and the random numbers of (seed, epoch, index) to the source and
target of a network, and an attention mask. It knows no network and no batch, so it can be checked
by hand.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from saccade import config as c
from saccade.data.corpora import Array
from saccade.nn.padded import UNSCORED_ID, UNSEEN
from saccade.text.tokenizers import Tokenizer
from saccade.text.vocab import Specials

Rng: TypeAlias = np.random.Generator
DEV_EPOCH = 0  # of the dev set, drawn once; the epochs of training count from 1


class RowView(NamedTuple):
    """`nn.padded.View` of one row."""

    key_order: Array
    query_order: Array
    position_ids: Array


class Sample(NamedTuple):
    """The training example of one row."""

    source: Array  # input ids
    # for an encoder the id to predict at each position, UNSCORED_ID where there is none; for a
    # decoder its output, between <bos> and <eos>
    target: Array
    view: RowView | None = None  # None: every position attends to every other


class VocabInfo(NamedTuple):
    """What an objective has to know about a vocabulary."""

    specials: Specials
    special: Array  # (V,) bool: ids without text
    plain: Array  # ids with text
    before: Array  # (V,) bool: a word ends before this id
    after: Array  # (V,) bool: a word ends after it

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "VocabInfo":
        special = np.zeros(len(tokenizer), bool)
        special[list(tokenizer.specials.ids)] = True
        before, after = (np.array(breaks) for breaks in tokenizer.word_breaks())
        return cls(tokenizer.specials, special, np.flatnonzero(~special), before, after)

    @property
    def mask(self) -> int:
        assert self.specials.mask is not None
        return self.specials.mask

    def words(self, row: Array) -> Array:
        """The number of the word at each position of a row, from 0."""
        begins = self.before[row]
        begins[1:] |= self.after[row[:-1]]
        begins[:1] = True
        return begins.cumsum() - 1


def rng_of(seed: int, epoch: int, index: int) -> Rng:
    """The generator of row `index` in an epoch, whatever its batch, and after resuming."""
    return np.random.default_rng([seed, epoch, index])


def masked(row: Array, rng: Rng, objective: c.Hidden, ids: VocabInfo) -> Sample:
    """Some tokens are to be predicted: most replaced by <mask>, some by others, some kept."""
    chosen = chosen_tokens(row, rng, objective.share, ids, whole=objective.whole_words)
    target = np.full(len(row), UNSCORED_ID, np.int64)
    target[chosen] = row[chosen]
    source = row.copy()
    drawn = rng.random(len(chosen))
    source[chosen[drawn < objective.mask]] = ids.mask
    other = (drawn >= objective.mask) & (drawn < objective.mask + objective.random)
    source[chosen[other]] = rng.choice(ids.plain, int(other.sum()))
    return Sample(source, target)


def pair_of(
    row: Array, other: Array, max_tokens: int, rng: Rng, ids: VocabInfo
) -> tuple[Array, int]:
    """A row as two segments, `<bos> A <sep> B <eos>`, and 0 if B follows A, 1 if it is random.

    Both are cut where a line begins, if one does; a random B at nearly the same position, so that
    lengths do not give the label away. A and B have at most `max_tokens` tokens.
    """
    special = ids.specials
    begins = line_starts(row, ids)
    cut = int(rng.choice(begins))
    first, second = row[:cut], row[cut:]
    label = int(rng.random() < 0.5)
    if label:
        starts = line_starts(other, ids)
        nearest = int(starts[np.abs(starts - cut).argmin()])
        second = other[nearest:][: max_tokens - cut]
    parts = (
        [special.bos],
        _without_eos(first, ids),
        [special.sep],
        _without_eos(second, ids),
        [special.eos],
    )
    return np.concatenate(parts).astype(np.int64), label


def line_starts(row: Array, ids: VocabInfo) -> Array:
    """Where lines begin inside a row; its middle if none does."""
    starts = np.flatnonzero(row[:-1] == ids.specials.eos) + 1
    return starts if len(starts) else np.array([len(row) // 2])


def _without_eos(text: Array, ids: VocabInfo) -> Array:
    """A text without <eos> at its end."""
    return text[:-1] if len(text) and text[-1] == ids.specials.eos else text


def unilm(row: Array, rng: Rng, objective: c.Unilm, ids: VocabInfo) -> Sample:
    """Masked tokens under one of three attention masks: bidirectional, causal, prefix."""
    sample = masked(row, rng, objective, ids)
    positions = np.arange(len(row))
    match int(rng.integers(3)):
        case 0:
            prefix = len(row)
        case 1:
            prefix = 0
        case _:
            prefix = int(rng.choice(line_starts(row, ids)))
    order = np.where(positions < prefix, 0, positions + 1)
    return Sample(sample.source, sample.target, RowView(order, order, positions))


def permuted(row: Array, rng: Rng, objective: c.Permuted, ids: VocabInfo) -> Sample:
    """Some tokens are predicted one after the other in a random order: two-stream attention.

    The content stream is the row itself: tokens that are not predicted are seen by all, the others
    by those later in the order. The query stream follows it: a <mask> for each predicted token, at
    its position, which sees what comes before it in the order and is seen by none.
    """
    chosen = chosen_tokens(row, rng, objective.share, ids, whole=objective.whole_words)
    ranks = np.zeros(len(row), np.int64)
    ranks[chosen] = rng.permutation(len(chosen)) + 1
    return two_streams(row, row, chosen, ranks, ids)


def two_streams(
    row: Array, source: Array, chosen: Array, ranks: Array, ids: VocabInfo, seen: bool = True
) -> Sample:
    """A row and a query for each chosen position, which sees all of lower rank.

    Without `seen` no position sees a chosen one, whose token is unknown.
    """
    key_order = ranks.copy()
    if not seen:
        key_order[chosen] = UNSEEN
    queries = np.full(len(chosen), ids.mask)
    view = RowView(
        np.append(key_order, np.full(len(chosen), UNSEEN)),
        np.append(ranks, ranks[chosen] - 1),
        np.append(np.arange(len(row)), chosen),
    )
    target = np.append(np.full(len(row), UNSCORED_ID), row[chosen])
    return Sample(np.append(source, queries), target, view)


def spans(row: Array, rng: Rng, objective: c.Spans, ids: VocabInfo) -> Sample:
    """Spans are replaced by sentinels; the target is each sentinel followed by its span.

    A row never begins with a hidden span.
    """
    text = joined_lines(row, ids)
    count = len(text)
    if count < 2:
        return encoder_decoder(text, text, ids)
    hidden = min(max(1, round(count * objective.share)), count - 1)
    number = min(objective.most_spans(count), len(ids.specials.sentinels))
    kept_runs, hidden_runs = (
        random_parts(total, number, rng) for total in (count - hidden, hidden)
    )
    source: list[Any] = []
    target: list[Any] = []
    at = 0
    runs = zip(ids.specials.sentinels, kept_runs.tolist(), hidden_runs.tolist(), strict=False)
    for sentinel, kept, dropped in runs:
        middle, end = at + kept, at + kept + dropped
        source += [text[at:middle], [sentinel]]
        target += [[sentinel], text[middle:end]]
        at = end
    return encoder_decoder(np.concatenate(source), np.concatenate(target), ids)


def random_parts(total: int, number: int, rng: Rng) -> Array:
    """`number` positive integers with this sum, uniformly at random."""
    cuts = np.sort(rng.permutation(total - 1)[: number - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def denoising(row: Array, rng: Rng, objective: c.Denoising, ids: VocabInfo) -> Sample:
    """A row whose lines are shuffled, and tokens deleted or infilled; the target is the row."""
    text = joined_lines(row, ids)
    source = text
    if objective.shuffle:
        lines = np.split(text, np.flatnonzero(text == ids.specials.sep))
        lines = [lines[0], *(line[1:] for line in lines[1:])]
        permuted_lines = [lines[i] for i in rng.permutation(len(lines))]
        source = np.concatenate([np.append(line, ids.specials.sep) for line in permuted_lines])[:-1]
    if objective.delete:
        source = source[rng.random(len(source)) >= objective.delete]
    return encoder_decoder(infilled(source, rng, objective, ids), text, ids)


def infilled(text: Array, rng: Rng, objective: c.Denoising, ids: VocabInfo) -> Array:
    """A text of which a share of the tokens is replaced, each span by a single <mask>.

    Span lengths have a Poisson distribution; an empty span inserts a <mask>. No two masks are
    adjacent.
    """
    left = round(objective.share * len(text))
    gaps = len(text) - left + 1  # between the tokens that stay, and at both ends
    lengths: list[int] = []
    while left > 0 and len(lengths) < gaps:
        lengths.append(min(int(rng.poisson(objective.length)), left))
        left -= lengths[-1]
    where = np.sort(rng.permutation(gaps)[: len(lengths)])
    pieces: list[Any] = []
    at, kept = 0, 0
    for gap, length in zip(where.tolist(), lengths, strict=True):
        stop = at + gap - kept
        pieces += [text[at:stop], [ids.mask]]
        at, kept = stop + length, gap
    return np.concatenate([*pieces, text[at:]]).astype(np.int64)


def joined_lines(row: Array, ids: VocabInfo) -> Array:
    """A row with <sep> between its lines and no <eos> at its end."""
    text = _without_eos(row, ids)
    return np.where(text == ids.specials.eos, ids.specials.sep, text)


def encoder_decoder(source: Array, target: Array, ids: VocabInfo) -> Sample:
    """The sample of an encoder and a decoder."""
    special = ids.specials
    output = np.concatenate([[special.bos], target, [special.eos]]).astype(np.int64)
    return Sample(np.append(source, special.eos), output)


def chosen_tokens(row: Array, rng: Rng, share: float, ids: VocabInfo, *, whole: bool) -> Array:
    """The positions of a share of the row's tokens, at least one; with `whole`, of whole words."""
    candidates = np.flatnonzero(~ids.special[row])
    count = max(1, round(share * len(candidates)))
    if not whole:
        return np.sort(rng.permutation(candidates)[:count])
    words = ids.words(row)[candidates]
    _, sizes = np.unique(words, return_counts=True)
    order = rng.permutation(len(sizes))
    taken: list[int] = []
    left = count
    for word in order.tolist():
        if sizes[word] <= left or not taken:  # the first one, however long
            taken.append(word)
            left -= int(sizes[word])
        if left <= 0:
            break
    numbers = np.unique(words, return_inverse=True)[1]
    return candidates[np.isin(numbers, taken)]
