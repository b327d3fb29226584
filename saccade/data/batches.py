"""Tokenised corpora on disk, and batches of like lengths from them.

A corpus is written once, as flat arrays that are memory-mapped, so its size is the disk's and not
the memory's. What an epoch's batches are, and their order, is a function of (seed, epoch) alone:
batch i of epoch e is found in constant time, and resuming needs no history.
"""

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from saccade.errors import CheckpointError, DataError
from saccade.nn.padded import Padded

Array = np.ndarray[Any, np.dtype[Any]]
BLOCK = 1 << 16  # numbers looked at together
LONGEST = 1 << 22  # bytes of a dev example


@dataclass(frozen=True)
class Sequences:
    """Rows of ids, one after the other: row i is `ids[starts[i]:starts[i + 1]]`."""

    ids: Array
    starts: Array

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "Sequences":
        """Rows that are in memory."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = np.fromiter((i for row in rows for i in row), np.int32, int(lengths.sum()))
        return cls(flat, np.concatenate([np.zeros(1, np.int64), lengths.cumsum()]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Array:
        return np.diff(self.starts)

    def __getitem__(self, row: int) -> list[int]:
        return list(self.ids[self.starts[row] : self.starts[row + 1]].tolist())

    def padded(self, rows: Array) -> Padded:
        """Some rows as one tensor, padded with 0."""
        starts = self.starts[rows]
        lengths = self.starts[rows + 1] - starts
        columns = np.arange(lengths.max())
        index = np.minimum(starts[:, None] + columns, len(self.ids) - 1)
        values = np.where(columns < lengths[:, None], self.ids[index], 0).astype(np.int64)
        return Padded(torch.from_numpy(values), torch.from_numpy(lengths))


class Writer:
    """Writes rows of ids to `NAME.ids` and `NAME.starts`, however many there are."""

    def __init__(self, folder: Path, name: str):
        self.ids = (folder / f"{name}.ids").open("wb")
        self.starts = (folder / f"{name}.starts").open("wb")
        self.end = 0
        np.zeros(1, np.int64).tofile(self.starts)

    def extend(self, rows: Sequence[Sequence[int]]) -> None:
        chunk = Sequences.of(rows)
        (self.end + chunk.starts[1:]).tofile(self.starts)
        chunk.ids.tofile(self.ids)
        self.end += len(chunk.ids)

    def close(self) -> None:
        self.ids.close()
        self.starts.close()


def open_sequences(folder: Path, name: str) -> Sequences | None:
    """The rows that a Writer left there, mapped; None if there are none of this name."""
    ids, starts = folder / f"{name}.ids", folder / f"{name}.starts"
    if not ids.exists() or not starts.exists():
        return None
    try:
        table, flat = np.asarray(_mapped(starts, np.int64)), _mapped(ids, np.int32)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{ids}: cannot be read: {error}") from None
    sound = len(table) and table[0] == 0 and table[-1] == len(flat)
    blocks = range(0, len(table) - 1, BLOCK)
    if not sound or any((np.diff(table[i : i + BLOCK + 1]) < 0).any() for i in blocks):
        raise CheckpointError(f"{ids}: has {len(flat)} ids where {starts.name} says otherwise")
    return Sequences(flat, table)


def _mapped(path: Path, dtype: type[np.generic]) -> Array:
    """The numbers in a file, which stay there."""
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.zeros(0, dtype)


@dataclass(frozen=True)
class Corpus:
    """What a task trains on, tokenised: `words` says to which word each source position belongs."""

    source: Sequences | None
    target: Sequences
    words: Sequences | None = None

    def __len__(self) -> int:
        return len(self.target)


def write_corpus(folder: Path, split: str, rows: Iterable[Iterable[Sequence[Any]]]) -> None:
    """Write chunks of rows, each as (source, target, words) columns; empty columns are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    writers = {"target": Writer(folder, f"{split}.target")}
    for chunk in rows:
        for name, column in zip(("source", "target", "words"), chunk, strict=True):
            if column:
                if name not in writers:
                    writers[name] = Writer(folder, f"{split}.{name}")
                writers[name].extend(column)
    for writer in writers.values():
        writer.close()


def open_corpus(folder: Path, split: str) -> Corpus:
    """The corpus that `write_corpus` left there."""
    target = open_sequences(folder, f"{split}.target")
    if target is None:
        raise CheckpointError(f"{folder}: the tokenised data of '{split}' is missing; train anew")
    source = open_sequences(folder, f"{split}.source")
    return Corpus(source, target, open_sequences(folder, f"{split}.words"))


@dataclass(frozen=True)
class Batch:
    """Some examples side by side."""

    source: Padded | None
    target: Padded
    words: Tensor | None = None  # (B, S): to which word a position belongs, -1 to none

    def to(self, device: torch.device) -> "Batch":
        return replace(
            self,
            source=None if self.source is None else self.source.to(device),
            target=self.target.to(device),
            words=None if self.words is None else self.words.to(device),
        )


def collate(corpus: Corpus, rows: Array) -> Batch:
    """These rows of a corpus as one batch."""
    source = None if corpus.source is None else corpus.source.padded(rows)
    words = None
    if corpus.words is not None and source is not None:
        padded = corpus.words.padded(rows)
        padding = torch.arange(padded.values.size(1)) >= padded.lengths[:, None]
        words = padded.values.masked_fill(padding, -1)
    return Batch(source, corpus.target.padded(rows), words)


@dataclass(frozen=True)
class Epoch:
    """The batches of one epoch, by number."""

    corpus: Corpus
    plan: list[Array]

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, i: int) -> Batch:
        return collate(self.corpus, self.plan[i])

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))


def epoch_of(corpus: Corpus, batch_tokens: int, seed: int, epoch: int) -> Epoch:
    """All examples once, in batches of like lengths, in an order that (seed, epoch) decides."""
    rng = np.random.default_rng([seed, epoch])
    plan = by_length(corpus, batch_tokens, rng.permutation(len(corpus)))
    return Epoch(corpus, [plan[i] for i in rng.permutation(len(plan))])


def in_order(corpus: Corpus, batch_tokens: int, rows: int | None = None) -> Epoch:
    """The first examples (or all), batched by length, always the same way: for evaluation."""
    return Epoch(corpus, by_length(corpus, batch_tokens, np.arange(len(corpus))[:rows]))


def by_length(corpus: Corpus, batch_tokens: int, order: Array) -> list[Array]:
    """Batches of like lengths within a budget of padded tokens; `order` breaks the ties."""
    target = corpus.target.lengths[order]
    source = np.zeros_like(target) if corpus.source is None else corpus.source.lengths[order]
    rank = np.lexsort((target, source))  # stable: equal lengths stay in the given order
    order, source, target = order[rank], source[rank], target[rank]
    batches, start = [], 0
    while start < len(order):
        size = max(1, batch_tokens // max(1, int(source[start] + target[start])))
        while size > 1:
            block = slice(start, start + size)
            cost = int(source[block].max() + target[block].max()) * len(source[block])
            if cost <= batch_tokens:
                break
            size = max(1, min(size - 1, size * batch_tokens // cost))
        batches.append(order[start : start + size])
        start += size
    return batches


@dataclass(frozen=True)
class Stream:
    """One long text of ids, read as `streams` parallel rows, `context` columns at a time.

    With `carried` chunk i + 1 goes on where chunk i stopped, so that a recurrent state can be
    carried; else the chunks are windows whose order and offset the epoch decides.
    """

    ids: Array
    streams: int
    context: int
    carried: bool
    seed: int = 0
    epoch: int = 0

    def __len__(self) -> int:
        if self.carried:
            return max(1, -(-self._row // self.context))
        return -(-len(self._windows) // self.streams)

    def __getitem__(self, i: int) -> Batch:
        """Inputs and targets as one padded target: column t + 1 is what follows column t."""
        rows = [self.ids[a : b + 1] for a, b in zip(*self.spans(i), strict=True)]
        values = np.zeros((len(rows), max(len(row) for row in rows)), np.int64)
        for b, row in enumerate(rows):
            values[b, : len(row)] = row
        return Batch(None, Padded(torch.from_numpy(values), torch.tensor([len(r) for r in rows])))

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

    @property
    def _row(self) -> int:
        return -(
            -(len(self.ids) - 1) // self.streams
        )  # every id but the first is somebody's target

    @cached_property
    def _windows(self) -> Array:
        rng = np.random.default_rng([self.seed, self.epoch])
        shift = int(rng.integers(self.context)) if len(self.ids) > 2 * self.context else 0
        starts = np.arange(shift, max(len(self.ids) - 1, 1), self.context)
        return rng.permutation(starts)


def save_examples(path: Path, examples: Iterable[Any]) -> None:
    """Raw dev examples beside their arrays, so that a run can be evaluated without data files."""
    with path.open("wb") as file:
        for example in examples:
            pair = [example.source, example.target]
            line = json.dumps(pair, ensure_ascii=False).encode() + b"\n"
            if len(line) > LONGEST:
                raise DataError(
                    f"{example.where}: a dev example of more than {LONGEST >> 20} MB: break it "
                    "into several"
                )
            file.write(line)


class Examples(Sequence[tuple[tuple[str, ...], Any]]):
    """The (source, target) pairs that `save_examples` left: sound, and still on the disk."""

    def __init__(self, path: Path):
        self.path, self.starts = path, array("q", [0])
        try:
            with path.open("rb") as file:
                while line := file.readline(LONGEST + 1):
                    self._pair(line)
                    self.starts.append(self.starts[-1] + len(line))
            self.content = np.asarray(_mapped(path, np.uint8))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, i: int) -> tuple[tuple[str, ...], Any]: ...
    @overload
    def __getitem__(self, i: slice) -> list[tuple[tuple[str, ...], Any]]: ...
    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[row] for row in range(len(self))[i]]
        row = range(len(self))[i]
        return self._pair(self.content[self.starts[row] : self.starts[row + 1]].tobytes())

    def _pair(self, line: bytes) -> tuple[tuple[str, ...], Any]:
        if len(line) > LONGEST:
            raise CheckpointError(f"{self.path}: has an example of more than {LONGEST >> 20} MB")
        try:
            source, target = json.loads(line)
            source, target = tuple(source), tuple(target) if isinstance(target, list) else target
        except (ValueError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{self.path}: cannot be read: {error}") from None
        texts = (*source, *(target if isinstance(target, tuple) else (target or "",)))
        if not source or not all(isinstance(text, str) for text in texts):
            raise CheckpointError(f"{self.path}: cannot be read: an example is no text")
        return source, target
