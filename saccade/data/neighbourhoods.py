"""Batches of word2vec: frequent words subsampled, in blocks that share their negatives.

A batch is a function of (seed, epoch, index) alone, and is drawn at once, vectorised in numpy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from saccade.data.batches import Batch
from saccade.data.corpora import Array, Column
from saccade.nn.padded import Padded

BLOCK_WORDS = 16  # consecutive words that share their negatives
SHARED_NEGATIVES = 32  # fewer are faster, and analogies worse
COUNTED_AT_ONCE = 1 << 22


def count_words(column: Column, size: int, special: tuple[int, ...]) -> Array:
    """How often each id occurs; 0 for special ids, of which nothing is learned."""
    counts = np.zeros(size, np.int64)
    for start in range(0, len(column.ids), COUNTED_AT_ONCE):
        counts += np.bincount(column.ids[start : start + COUNTED_AT_ONCE], minlength=size)
    counts[list(special)] = 0
    return counts


def kept_shares(counts: Array, sample: float) -> Array:
    """The share of each word's occurrences that subsampling keeps; 0 if a word does not occur.

    With frequency f it is min(1, sqrt(sample / f) + sample / f), as in word2vec; 1 if sample = 0.
    """
    if sample == 0.0:
        return (counts > 0).astype(np.float32)
    ratio = sample * max(counts.sum(), 1) / np.maximum(counts, 1)
    return np.where(counts > 0, np.minimum(1.0, np.sqrt(ratio) + ratio), 0.0).astype(np.float32)


class Noise:
    """Draws words in proportion to count ** power, by the alias method (Walker 1977)."""

    def __init__(self, counts: Array, power: float):
        weights = np.where(counts > 0, counts.astype(np.float64) ** power, 0.0)
        mass = weights * len(weights) / weights.sum()
        self.share, self.other = np.ones(len(mass)), np.arange(len(mass))
        small, large = (list(np.flatnonzero(mask)) for mask in (mass < 1.0, mass >= 1.0))
        while small and large:
            low, high = small.pop(), large[-1]
            self.share[low], self.other[low] = mass[low], high
            mass[high] -= 1.0 - mass[low]
            if mass[high] < 1.0:
                small.append(large.pop())

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        cells = random.integers(0, len(self.share), shape)
        return np.where(random.random(shape) < self.share[cells], cells, self.other[cells])


@dataclass(frozen=True)
class Neighbourhoods:
    """The batches of an epoch, by index: a slice of the text each, in shuffled order."""

    column: Column
    end: int  # the id at the end of a line, which no context crosses
    kept: Array  # the share of each word that subsampling keeps
    noise: Noise
    window: int
    batch_words: int  # of the text, before subsampling
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
        """The index of the line in which a batch begins."""
        start = int(self._order[i]) * self.batch_words
        return [int(self.column.starts.searchsorted(start, "right")) - 1]

    def __getitem__(self, i: int) -> Batch:
        """Target: the words around each block; sources: its negatives, and each word's context
        sizes to the left and right."""
        number = int(self._order[i])
        random = np.random.default_rng([self.seed, self.epoch, number])
        start = number * self.batch_words
        text = self.column.ids[start : start + self.batch_words]
        read = random.random(len(text), np.float32) < self.kept[text]
        line = np.cumsum(text == self.end)[read]
        words = text[read]
        n, w, r = len(words), BLOCK_WORDS, self.window
        blocks = max(1, -(-n // w))
        # context sizes, clipped at the ends of the line
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
