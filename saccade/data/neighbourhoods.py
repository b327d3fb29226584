"""Text as word2vec reads it: frequent words thinned out, in blocks that share their negatives.

What a batch is made of is a function of (seed, epoch, number) alone. All of it is drawn at once,
in numpy, for some thousand words.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from saccade.data.batches import Batch
from saccade.data.corpora import Array, Column
from saccade.nn.padded import Padded

BLOCK_WORDS = 16  # that share their negatives
SHARED_NEGATIVES = 32  # fewer are faster, and analogies worse
COUNTED_AT_ONCE = 1 << 22


def count_words(column: Column, size: int, special: tuple[int, ...]) -> Array:
    """How often each id comes; the special ones, of which nothing is learned, never."""
    counts = np.zeros(size, np.int64)
    for start in range(0, len(column.ids), COUNTED_AT_ONCE):
        counts += np.bincount(column.ids[start : start + COUNTED_AT_ONCE], minlength=size)
    counts[list(special)] = 0
    return counts


def kept_shares(counts: Array, sample: float) -> Array:
    """The share of each word's occurrences that is read; 0 of a word that never comes.

    With f its frequency min(1, sqrt(sample / f) + sample / f), as word2vec does; all if sample = 0.
    """
    if sample == 0.0:
        return (counts > 0).astype(np.float32)
    ratio = sample * max(counts.sum(), 1) / np.maximum(counts, 1)
    return np.where(counts > 0, np.minimum(1.0, np.sqrt(ratio) + ratio), 0.0).astype(np.float32)


class Noise:
    """Words drawn as often as their counts to a power say, two numbers for each (Walker 1977).

    A cell is drawn, and one of the two words that share it.
    """

    def __init__(self, counts: Array, power: float):
        weights = np.where(counts > 0, counts.astype(np.float64) ** power, 0.0)
        left = weights * len(weights) / weights.sum()
        self.share, self.other = np.ones(len(left)), np.arange(len(left))
        small, large = (list(np.flatnonzero(some)) for some in (left < 1.0, left >= 1.0))
        while small and large:
            low, high = small.pop(), large[-1]
            self.share[low], self.other[low] = left[low], high
            left[high] -= 1.0 - left[low]
            if left[high] < 1.0:
                small.append(large.pop())

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        cells = random.integers(0, len(self.share), shape)
        return np.where(random.random(shape) < self.share[cells], cells, self.other[cells])


@dataclass(frozen=True)
class Neighbourhoods:
    """The batches of an epoch, by number: a stretch of text each, in an order of their own."""

    column: Column
    end: int  # the id at the end of a line, over which no context reaches
    kept: Array  # the share of each word that is read
    noise: Noise
    window: int
    batch_words: int  # of the text, before it is thinned out
    seed: int = 0
    epoch: int = 0

    def __len__(self) -> int:
        return max(1, -(-len(self.column.ids) // self.batch_words))

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    @cached_property
    def _order(self) -> Array:
        return np.random.default_rng([self.seed, self.epoch]).permutation(len(self))

    def examples(self, i: int) -> list[int]:
        """The line of the text that a batch begins in."""
        start = int(self._order[i]) * self.batch_words
        return [int(self.column.starts.searchsorted(start, "right")) - 1]

    def __getitem__(self, i: int) -> Batch:
        """What a block sees is the target; its negatives, and how far words reach, the sources."""
        number = int(self._order[i])
        random = np.random.default_rng([self.seed, self.epoch, number])
        start = number * self.batch_words
        text = self.column.ids[start : start + self.batch_words]
        read = random.random(len(text), np.float32) < self.kept[text]
        line = np.cumsum(text == self.end)[read]
        words = text[read]
        n, w, r = len(words), BLOCK_WORDS, self.window
        blocks = max(1, -(-n // w))
        # how many words of its line stand before and after each word
        cuts = np.flatnonzero(np.diff(line)) + 1
        first, stop = np.concatenate([[0], cuts]), np.concatenate([cuts, [n]])
        lengths, place = stop - first, np.arange(n)
        reach = random.integers(1, r + 1, n)
        left, right = np.zeros(blocks * w, np.int64), np.zeros(blocks * w, np.int64)
        if n:
            left[:n] = np.minimum(reach, place - np.repeat(first, lengths))
            right[:n] = np.minimum(reach, np.repeat(stop, lengths) - 1 - place)
        around = np.zeros(blocks * w + 2 * r, np.int64)
        around[r : r + n] = words
        seen = np.lib.stride_tricks.sliding_window_view(around, w + 2 * r)[::w]
        noise = self.noise.draw(random, (blocks, SHARED_NEGATIVES))
        sources = noise, left.reshape(blocks, w), right.reshape(blocks, w)
        return Batch(tuple(map(_whole, sources)), _whole(seen.copy()))


def _whole(values: Array) -> Padded:
    """Rows of one length."""
    return Padded(torch.from_numpy(values), torch.full((len(values),), values.shape[1]))
