"""Objectives: what a network learns from a row of plain text, as pure functions side by side.

An objective takes a row of ids and the random numbers of (seed, epoch, index) to what the network
reads, what it should say, and what each position may see. It knows no network and no batch, so what
it hides and what it asks for can be checked by hand.
"""

from typing import NamedTuple, TypeAlias

import numpy as np

from saccade import config as c
from saccade.data.corpora import Array
from saccade.nn.padded import UNSCORED_ID
from saccade.text.tokenizers import Tokenizer

Draws: TypeAlias = np.random.Generator
DEV_EPOCH = 0  # what is measured on is drawn once; the epochs of training count from 1


class Made(NamedTuple):
    """What a network learns from one row."""

    source: Array  # the ids that it reads
    target: Array  # the id to be said at each position, UNSCORED_ID where nothing is


class Alphabet(NamedTuple):
    """What an objective has to know of the ids that rows are made of."""

    size: int
    mask: int | None
    special: Array  # (V,) bool: ids that stand for no text
    plain: Array  # the others
    before: Array  # (V,) bool: a word ends before this id
    after: Array  # (V,) bool: a word ends after it

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Alphabet":
        special = np.zeros(len(tokenizer), bool)
        special[list(tokenizer.specials.ids)] = True
        before, after = (np.array(one) for one in tokenizer.word_breaks())
        mask = tokenizer.specials.mask
        return cls(len(tokenizer), mask, special, np.flatnonzero(~special), before, after)

    def words(self, row: Array) -> Array:
        """For each position of a row the number of its word, from 0."""
        begins = self.before[row]
        begins[1:] |= self.after[row[:-1]]
        begins[:1] = True
        return begins.cumsum() - 1


def draws_of(seed: int, epoch: int, index: int) -> Draws:
    """The random numbers of row `index` in an epoch: the same in every batch, and after a stop."""
    return np.random.default_rng([seed, epoch, index])


def masked(row: Array, draws: Draws, objective: c.Masked, ids: Alphabet) -> Made:
    """Some tokens are asked for: most of them are <mask>, some another token, some as they were.

    Devlin et al. 2019, arxiv.org/abs/1810.04805
    """
    chosen = chosen_tokens(row, draws, objective.share, ids, whole=objective.whole_words)
    target = np.full(len(row), UNSCORED_ID, np.int64)
    target[chosen] = row[chosen]
    source = row.copy()
    lot = draws.random(len(chosen))
    source[chosen[lot < objective.mask]] = ids.mask
    other = (lot >= objective.mask) & (lot < objective.mask + objective.random)
    source[chosen[other]] = draws.choice(ids.plain, int(other.sum()))
    return Made(source, target)


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
