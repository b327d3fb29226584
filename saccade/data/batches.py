"""Batches: examples of like lengths side by side, or a stream cut into columns.

What an epoch's batches are, and their order, is a function of (seed, epoch) alone: batch i of epoch
e is found in constant time, and resuming needs no history. Neither the number of threads that make
batches ahead of time nor their speed changes what is trained on.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from saccade.data.corpora import AnyColumn, Array, Column, Corpus
from saccade.data.media import Draw, Features
from saccade.data.windows import Windows
from saccade.errors import CheckpointError
from saccade.nn.dropout import RowSlice
from saccade.nn.padded import Padded

BATCHES_AHEAD = 4  # for each worker


@dataclass(frozen=True)
class Batch:
    """Some examples side by side: a padded tensor for each source, and one for the target."""

    sources: tuple[Padded, ...]
    target: Padded
    part: RowSlice | None = None  # which rows of a whole these are, where not all were read

    def to(self, device: torch.device) -> "Batch":
        if self.target.values.device == device:
            return self
        return Batch(tuple(source.to(device) for source in self.sources), self.target.to(device))

    def rows(self, index: Int[Tensor, "n"]) -> "Batch":
        """Some of the examples, as wide as the whole; `index` counts those that are here."""
        return Batch(tuple(s.rows(index) for s in self.sources), self.target.rows(index))

    @property
    def count(self) -> int:
        """How many examples there are; of the whole, where these are a part of it."""
        return self.target.values.size(0) if self.part is None else self.part.whole

    @property
    def width(self) -> int:
        """How many positions an example has, of all columns together, padding included."""
        return sum(padded.values.size(1) for padded in (*self.sources, self.target))

    @property
    def words(self) -> int:
        """How many words the sentence with the most has; 0 where words do not count."""
        if self.part is not None:
            return self.part.words
        found = [int(s.words.max()) + 1 for s in self.sources if s.words is not None]
        return max(found, default=0)


def collate(corpus: Corpus, rows: Array, draw: Draw | None = None) -> Batch:
    """These rows of a corpus as one batch; with a seed and an epoch, media are augmented."""
    if isinstance(corpus.target, Windows):
        return Batch(*corpus.target.parts(rows))
    sources = tuple(padded(column, rows, draw) for column in corpus.sources)
    return Batch(sources, padded(corpus.target, rows))


Split = Callable[[int], tuple[int, int]]  # of so many rows those that are wanted: from, up to


def collate_part(corpus: Corpus, rows: Array, split: Split, draw: Draw | None = None) -> Batch:
    """Some of the rows of a batch, ids as wide as in the whole; the others are not read.

    Whoever is to have none of them has the first, with an empty slice.
    """
    first, last = split(len(rows))
    some = rows[first:last] if last > first else rows[:1]
    words = 0
    sources: tuple[Padded, ...]
    if isinstance(corpus.target, Windows):
        sources, target = corpus.target.parts(some)
    else:
        widths = [c.longest(rows) if isinstance(c, Column) else 0 for c in corpus.columns]
        pairs = zip(corpus.sources, widths[:-1], strict=True)
        sources = tuple(padded(column, some, draw, width) for column, width in pairs)
        target = padded(corpus.target, some, None, widths[-1])
        columns = [column for column in corpus.sources if isinstance(column, Column)]
        words = max((column.most_words(rows) for column in columns), default=0)
    return Batch(sources, target, RowSlice(first, last, len(rows), words))


def padded(column: AnyColumn, rows: Array, draw: Draw | None = None, width: int = 0) -> Padded:
    """Some rows of a column as one tensor; ids have this width, or that of the longest."""
    if not isinstance(column, Column):
        assert isinstance(column, Features)
        return column.padded(rows, draw)
    starts = column.starts[rows]
    lengths = column.starts[rows + 1] - starts
    places = np.arange(width or lengths.max())
    index = np.minimum(starts[:, None] + places, len(column.ids) - 1)
    real = places < lengths[:, None]
    values = np.where(real, column.ids[index], column.pad).astype(np.int64)
    words = None
    if column.words is not None:
        words = torch.from_numpy(np.where(real, column.words[index], -1).astype(np.int64))
    return Padded(torch.from_numpy(values), torch.from_numpy(lengths), words)


class Batches(Protocol):
    """The batches of an epoch, by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> Batch: ...
    def __iter__(self) -> Iterator[Batch]: ...
    def examples(self, i: int, /) -> list[int]: ...


@dataclass(frozen=True)
class Epoch:
    """The batches of one epoch, by number."""

    corpus: Corpus
    plan: list[Array]
    draw: Draw | None = None  # seed and epoch, by which media are augmented; None is not at all

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, i: int) -> Batch:
        return collate(self.corpus, self.plan[i], self.draw)

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def part(self, i: int, split: Split) -> Batch:
        """Some rows of a batch."""
        return collate_part(self.corpus, self.plan[i], split, self.draw)

    def examples(self, i: int) -> list[int]:
        """Which examples of the corpus a batch is made of."""
        return [int(row) for row in self.plan[i]]


def epoch_of(corpus: Corpus, batch_tokens: int, seed: int, epoch: int) -> Epoch:
    """All examples once, in batches of like lengths, in an order that (seed, epoch) decides."""
    rng = np.random.default_rng([seed, epoch])
    plan = by_length(corpus, batch_tokens, rng.permutation(len(corpus)))
    return Epoch(corpus, [plan[i] for i in rng.permutation(len(plan))], (seed, epoch))


def in_order(corpus: Corpus, batch_tokens: int, rows: int | None = None) -> Epoch:
    """The first examples (or all), batched by length, always the same way: for evaluation."""
    return Epoch(corpus, by_length(corpus, batch_tokens, np.arange(len(corpus))[:rows]))


def by_length(corpus: Corpus, batch_tokens: int, order: Array) -> list[Array]:
    """Batches of like lengths within a budget of padded tokens; `order` breaks the ties."""
    lengths = [column.lengths[order] for column in corpus.columns]
    rank = sorted_by(lengths)  # by the first source; stable: ties stay in the given order
    order, lengths = order[rank], [length[rank] for length in lengths]
    batches, start = [], 0
    while start < len(order):
        size = max(1, batch_tokens // max(1, int(sum(length[start] for length in lengths))))
        while size > 1:
            block = slice(start, start + size)
            rows = len(order[block])
            cost = int(sum(length[block].max() for length in lengths)) * rows
            if cost <= batch_tokens:
                break
            size = max(1, min(size - 1, size * batch_tokens // cost))
        batches.append(order[start : start + size])
        start += size
    return batches


def sorted_by(keys: Sequence[Array]) -> Array:
    """The order by the first key, then by the second ...; stable, as numpy's lexsort.

    Lengths are small: numbers of 16 bits are sorted by their digits, in a time that is linear.
    """
    if any(key.max(initial=0) >= 1 << 16 for key in keys):
        return np.lexsort(tuple(keys)[::-1])
    order = np.argsort(keys[-1].astype(np.uint16), kind="stable")
    for key in reversed(keys[:-1]):
        order = order[np.argsort(key.astype(np.uint16)[order], kind="stable")]
    return order


@dataclass(frozen=True)
class Stream:
    """One long text of ids, read as `streams` parallel rows, `context` columns at a time.

    With `carried` chunk i + 1 goes on where chunk i stopped, so that a recurrent state can be
    carried; else the chunks are windows whose order and offset the epoch decides.
    """

    ids: Array
    starts: Array  # of the lines
    streams: int
    context: int
    carried: bool
    seed: int = 0
    epoch: int = 0
    pad: int = 0

    def __len__(self) -> int:
        if self.carried:
            return max(1, -(-self._row // self.context))
        return -(-len(self._windows) // self.streams)

    def __getitem__(self, i: int) -> Batch:
        """Inputs and targets as one padded target: column t + 1 is what follows column t."""
        return replace(self.part(i, lambda rows: (0, rows)), part=None)

    def part(self, i: int, split: Split) -> Batch:
        """Some rows of a batch, as wide as the whole."""
        starts, stops = self.spans(i)
        stops = np.minimum(stops + 1, len(self.ids))
        first, last = split(len(starts))
        some = slice(first, last) if last > first else slice(1)
        rows = [self.ids[a:b] for a, b in zip(starts[some], stops[some], strict=True)]
        width = int(np.maximum(stops - starts, 0).max())
        values = np.full((len(rows), width), self.pad, np.int64)
        for b, row in enumerate(rows):
            values[b, : len(row)] = row
        target = Padded(torch.from_numpy(values), torch.tensor([len(r) for r in rows]))
        return Batch((), target, RowSlice(first, last, len(starts)))

    def spans(self, i: int) -> tuple[Array, Array]:
        """Where in the text the rows of a batch start and stop."""
        if self.carried:
            starts = np.arange(self.streams) * self._row
            stops = np.minimum(starts + self._row, starts + (i + 1) * self.context)
            return starts + i * self.context, stops
        starts = self._windows[i * self.streams : (i + 1) * self.streams]
        return starts, starts + self.context

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def examples(self, i: int) -> list[int]:
        """Which lines of the text the rows of a batch begin in."""
        return [int(self.starts.searchsorted(at, "right")) - 1 for at in self.spans(i)[0]]

    @property
    def _row(self) -> int:
        """The ids of a row; every id but the first is somebody's target."""
        return -(-(len(self.ids) - 1) // self.streams)

    @cached_property
    def _windows(self) -> Array:
        rng = np.random.default_rng([self.seed, self.epoch])
        shift = int(rng.integers(self.context)) if len(self.ids) > 2 * self.context else 0
        starts = np.arange(shift, max(len(self.ids) - 1, 1), self.context)
        return rng.permutation(starts)


class Loader:
    """The batches of every epoch, by number, made ahead of time by threads if there are any."""

    def __init__(
        self, epoch: Callable[[int], Batches], workers: int = 0, split: Split | None = None
    ):
        """With a `split` only those rows of a batch are read, where that is possible."""
        self.make_epoch, self.workers, self.split = epoch, workers, split
        self.pool = ThreadPoolExecutor(workers, "loader") if workers else None
        self.number, self.current = -1, None  # type: int, Batches | None
        self.coming: Future[Batches] | None = None  # the next epoch's
        self.ahead: deque[tuple[int, int, Future[Batch]]] = deque()

    def epoch(self, number: int) -> Batches:
        """The batches of an epoch."""
        if number != self.number or self.current is None:
            due = self.coming if number == self.number + 1 else None
            self.number = number
            self.current = due.result() if due else self.make_epoch(number)
            if self.pool:
                self.coming = self.pool.submit(self.make_epoch, number + 1)
        return self.current

    def take(self, number: int, start: int, count: int) -> list[Batch]:
        """So many batches of an epoch, or as many as it still has."""
        epoch = self.epoch(number)
        if start >= len(epoch):
            raise CheckpointError(f"the checkpoint is at batch {start} of {len(epoch)}: train anew")
        stop = min(start + count, len(epoch))
        if self.pool is None:
            return [self.make(epoch, i) for i in range(start, stop)]
        if self.ahead and self.ahead[0][:2] != (number, start):
            self.ahead.clear()
        first = self.ahead[-1][1] + 1 if self.ahead else start
        last = min(max(stop, start + BATCHES_AHEAD * self.workers), len(epoch))
        for i in range(first, last):
            self.ahead.append((number, i, self.pool.submit(self.make, epoch, i)))
        return [self.ahead.popleft()[2].result() for _ in range(start, stop)]

    def make(self, epoch: Batches, i: int) -> Batch:
        if self.split is None or not isinstance(epoch, Epoch | Stream):
            return epoch[i]
        return epoch.part(i, self.split)

    def close(self) -> None:
        if self.pool:
            self.pool.shutdown(wait=False, cancel_futures=True)
