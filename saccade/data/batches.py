"""Batches: examples of similar length padded to tensors, or a token stream cut into chunks.

An epoch's batches and their order are a function of (seed, epoch) alone: batch i of epoch e is
found in constant time, and resuming needs no history. The number and the speed of the loader's
threads do not change what is trained on.
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

BATCHES_AHEAD = 4  # prefetched for each worker


@dataclass(frozen=True)
class Batch:
    """Examples as padded tensors: one for each source, and one for the target."""

    sources: tuple[Padded, ...]
    target: Padded
    part: RowSlice | None = None  # which rows of the full batch these are, if only some were read

    def to(self, device: torch.device) -> "Batch":
        if self.target.values.device == device:
            return self
        sources = tuple(source.to(device) for source in self.sources)
        return Batch(sources, self.target.to(device), self.part)

    def rows(self, index: Int[Tensor, "n"]) -> "Batch":
        """Some of the examples, padded to the same width; `index` is into these."""
        return Batch(tuple(s.rows(index) for s in self.sources), self.target.rows(index))

    @property
    def count(self) -> int:
        """The number of examples; of the full batch, where only a part of it was read."""
        return self.target.values.size(0) if self.part is None else self.part.batch_rows

    @property
    def width(self) -> int:
        """The positions of an example, of all columns together, padding included."""
        return sum(padded.values.size(1) for padded in (*self.sources, self.target))

    @property
    def words(self) -> int:
        """The largest number of words in a sentence; 0 where no column has words."""
        if self.part is not None:
            return self.part.words
        counts = [int(s.words.max()) + 1 for s in self.sources if s.words is not None]
        return max(counts, default=0)


def collate(corpus: Corpus, rows: Array, draw: Draw | None = None) -> Batch:
    """These rows of a corpus as one batch; media are augmented if there is a `draw`."""
    if isinstance(corpus.target, Windows):
        return Batch(*corpus.target.parts(rows))
    sources = tuple(padded(column, rows, draw) for column in corpus.sources)
    return Batch(sources, padded(corpus.target, rows))


Split = Callable[[int], tuple[int, int]]  # number of rows -> which to read: first, stop


def collate_part(corpus: Corpus, rows: Array, split: Split, draw: Draw | None = None) -> Batch:
    """A slice of a batch's rows, ids padded as in the full batch; the other rows are not read.

    Of an empty slice the first row is read, and `part` is empty.
    """
    first, last = split(len(rows))
    selected = rows[first:last] if last > first else rows[:1]
    words = 0
    sources: tuple[Padded, ...]
    if isinstance(corpus.target, Windows):
        sources, target = corpus.target.parts(selected)
    else:
        widths = [c.longest(rows) if isinstance(c, Column) else 0 for c in corpus.columns]
        pairs = zip(corpus.sources, widths[:-1], strict=True)
        sources = tuple(padded(column, selected, draw, width) for column, width in pairs)
        target = padded(corpus.target, selected, None, widths[-1])
        columns = [column for column in corpus.sources if isinstance(column, Column)]
        words = max((column.most_words(rows) for column in columns), default=0)
    return Batch(sources, target, RowSlice(first, last, len(rows), words))


def padded(column: AnyColumn, rows: Array, draw: Draw | None = None, width: int = 0) -> Padded:
    """Rows of a column as one tensor; ids are padded to `width`, or to the longest row."""
    if not isinstance(column, Column):
        assert isinstance(column, Features)
        return column.padded(rows, draw)
    starts = column.starts[rows]
    lengths = column.starts[rows + 1] - starts
    positions = np.arange(width or lengths.max())
    index = np.minimum(starts[:, None] + positions, len(column.ids) - 1)
    keep = positions < lengths[:, None]
    values = np.where(keep, column.ids[index], column.pad).astype(np.int64)
    words = None
    if column.words is not None:
        words = torch.from_numpy(np.where(keep, column.words[index], -1).astype(np.int64))
    return Padded(torch.from_numpy(values), torch.from_numpy(lengths), words)


class Batches(Protocol):
    """The batches of an epoch, by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> Batch: ...
    def __iter__(self) -> Iterator[Batch]: ...
    def examples(self, i: int, /) -> list[int]: ...


@dataclass(frozen=True)
class Epoch:
    """The batches of one epoch, by index."""

    corpus: Corpus
    plan: list[Array]
    draw: Draw | None = None  # seeds the augmentation of media; None: no augmentation

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, i: int) -> Batch:
        return collate(self.corpus, self.plan[i], self.draw)

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def part(self, i: int, split: Split) -> Batch:
        """A slice of a batch's rows."""
        return collate_part(self.corpus, self.plan[i], split, self.draw)

    def examples(self, i: int) -> list[int]:
        """The indices in the corpus of a batch's examples."""
        return [int(row) for row in self.plan[i]]


def epoch_of(corpus: Corpus, batch_tokens: int, seed: int, epoch: int) -> Epoch:
    """All examples once, batched by length and shuffled by (seed, epoch)."""
    rng = np.random.default_rng([seed, epoch])
    plan = by_length(corpus, batch_tokens, rng.permutation(len(corpus)))
    return Epoch(corpus, [plan[i] for i in rng.permutation(len(plan))], (seed, epoch))


def in_order(corpus: Corpus, batch_tokens: int, rows: int | None = None) -> Epoch:
    """The first `rows` examples (or all), batched by length without shuffling: for evaluation."""
    return Epoch(corpus, by_length(corpus, batch_tokens, np.arange(len(corpus))[:rows]))


def by_length(corpus: Corpus, batch_tokens: int, order: Array) -> list[Array]:
    """Batches of similar length within a budget of padded tokens; `order` breaks the ties."""
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

    Lengths usually fit into 16 bits, which numpy radix-sorts in linear time.
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

    With `carried`, chunk i + 1 continues chunk i, so that a recurrent state can be carried over;
    else the chunks are windows, shuffled and offset by (seed, epoch).
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
            return max(1, -(-self._row_length // self.context))
        return -(-len(self._windows) // self.streams)

    def __getitem__(self, i: int) -> Batch:
        """Inputs and targets as one padded target: column t + 1 is the target of column t."""
        return replace(self.part(i, lambda rows: (0, rows)), part=None)

    def part(self, i: int, split: Split) -> Batch:
        """A slice of a batch's rows, padded as in the full batch."""
        starts, stops = self.spans(i)
        stops = np.minimum(stops + 1, len(self.ids))
        first, last = split(len(starts))
        selected = slice(first, last) if last > first else slice(1)
        rows = [self.ids[a:b] for a, b in zip(starts[selected], stops[selected], strict=True)]
        width = int(np.maximum(stops - starts, 0).max())
        values = np.full((len(rows), width), self.pad, np.int64)
        for b, row in enumerate(rows):
            values[b, : len(row)] = row
        target = Padded(torch.from_numpy(values), torch.tensor([len(r) for r in rows]))
        return Batch((), target, RowSlice(first, last, len(starts)))

    def spans(self, i: int) -> tuple[Array, Array]:
        """Where in the text the rows of a batch start and stop, as offsets."""
        if self.carried:
            starts = np.arange(self.streams) * self._row_length
            stops = np.minimum(starts + self._row_length, starts + (i + 1) * self.context)
            return starts + i * self.context, stops
        starts = self._windows[i * self.streams : (i + 1) * self.streams]
        return starts, starts + self.context

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def examples(self, i: int) -> list[int]:
        """The indices of the lines in which the rows of a batch begin."""
        return [int(self.starts.searchsorted(start, "right")) - 1 for start in self.spans(i)[0]]

    @property
    def _row_length(self) -> int:
        """The number of ids in a row; every id but the first is a target."""
        return -(-(len(self.ids) - 1) // self.streams)

    @cached_property
    def _windows(self) -> Array:
        rng = np.random.default_rng([self.seed, self.epoch])
        shift = int(rng.integers(self.context)) if len(self.ids) > 2 * self.context else 0
        starts = np.arange(shift, max(len(self.ids) - 1, 1), self.context)
        return rng.permutation(starts)


class Loader:
    """The batches of every epoch, prefetched by worker threads if there are any."""

    def __init__(
        self, epoch: Callable[[int], Batches], workers: int = 0, split: Split | None = None
    ):
        """With a `split`, only those rows of a batch are read, where the epoch supports it."""
        self.make_epoch, self.workers, self.split = epoch, workers, split
        self.pool = ThreadPoolExecutor(workers, "loader") if workers else None
        self.number, self.current = -1, None  # type: int, Batches | None
        self.next_epoch: Future[Batches] | None = None
        self.prefetched: deque[tuple[int, int, Future[Batch]]] = deque()  # (epoch, index, batch)

    def epoch(self, number: int) -> Batches:
        """The batches of an epoch."""
        if number != self.number or self.current is None:
            future = self.next_epoch if number == self.number + 1 else None
            self.number = number
            self.current = future.result() if future else self.make_epoch(number)
            if self.pool:
                self.next_epoch = self.pool.submit(self.make_epoch, number + 1)
        return self.current

    def take(self, number: int, start: int, count: int) -> list[Batch]:
        """`count` batches of an epoch from `start` on, or as many as it still has."""
        epoch = self.epoch(number)
        if start >= len(epoch):
            raise CheckpointError(f"the checkpoint is at batch {start} of {len(epoch)}: train anew")
        stop = min(start + count, len(epoch))
        if self.pool is None:
            return [self.make(epoch, i) for i in range(start, stop)]
        if self.prefetched and self.prefetched[0][:2] != (number, start):
            self.prefetched.clear()
        first = self.prefetched[-1][1] + 1 if self.prefetched else start
        last = min(max(stop, start + BATCHES_AHEAD * self.workers), len(epoch))
        for i in range(first, last):
            self.prefetched.append((number, i, self.pool.submit(self.make, epoch, i)))
        return [self.prefetched.popleft()[2].result() for _ in range(start, stop)]

    def make(self, epoch: Batches, i: int) -> Batch:
        if self.split is None or not isinstance(epoch, Epoch | Stream):
            return epoch[i]
        return epoch.part(i, self.split)

    def close(self) -> None:
        if self.pool:
            self.pool.shutdown(wait=False, cancel_futures=True)
