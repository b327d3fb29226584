"""Tokenised corpora: a column of ids or vectors for each field, in memory or memory-mapped.

A corpus is written once, as flat arrays that are memory-mapped, so it may exceed the memory.
"""

import json
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np

from saccade.data.lines import Example
from saccade.errors import CheckpointError, DataError

Array = np.ndarray[Any, np.dtype[Any]]
CHECKED_AT_ONCE = 1 << 16  # row offsets that are checked in one block
MAX_EXAMPLE_BYTES = 1 << 22  # of a dev example as JSON


@dataclass(frozen=True)
class Column:
    """Rows of ids, concatenated: row i is `ids[starts[i]:starts[i + 1]]`.

    `words` has for each id the index of its word in the row, where a field has words.
    """

    ids: Array
    starts: Array
    words: Array | None = None
    pad: int = 0  # the id that pads shorter rows

    @classmethod
    def of(
        cls,
        rows: Sequence[Sequence[int]],
        words: Sequence[Sequence[int]] | None = None,
        pad: int = 0,
    ) -> "Column":
        """A column in memory."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        starts = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()])
        return cls(_flat(rows), starts, None if words is None else _flat(words), pad)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Array:
        return np.diff(self.starts)

    def longest(self, rows: Array) -> int:
        """The length of the longest of these rows."""
        return int((self.starts[rows + 1] - self.starts[rows]).max())

    def most_words(self, rows: Array) -> int:
        """The largest number of words in one of these rows; 0 where the column has no words."""
        if self.words is None:
            return 0
        spans = zip(self.starts[rows], self.starts[rows + 1], strict=True)
        return max((int(self.words[a:b].max(initial=-1)) + 1 for a, b in spans), default=0)

    def __getitem__(self, row: int) -> list[int]:
        return list(self.ids[self.starts[row] : self.starts[row + 1]].tolist())

    def writer(self, folder: Path, name: str, stack: ExitStack) -> "Writer":
        return Writer(folder, name, self.words is not None, stack)

    def take(self, rows: Array) -> "Column":
        """A copy of some rows, in memory."""
        lengths = self.starts[rows + 1] - self.starts[rows]
        starts = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()])
        index = np.arange(starts[-1]) + np.repeat(self.starts[rows] - starts[:-1], lengths)
        words = None if self.words is None else self.words[index]
        return Column(self.ids[index], starts, words, self.pad)


def _flat(rows: Sequence[Sequence[int]]) -> Array:
    return np.fromiter((i for row in rows for i in row), np.int32, sum(map(len, rows)))


class AnyColumn(Protocol):
    """The interface of every column, whatever its rows are made of."""

    def __len__(self) -> int: ...
    @property
    def lengths(self) -> Array: ...
    def take(self, rows: Array, /) -> "AnyColumn": ...
    def writer(self, folder: Path, name: str, stack: ExitStack, /) -> Any: ...


@dataclass(frozen=True)
class Corpus:
    """What a task trains on, encoded: a column for each source, and one for the target.

    Columns hold ids (`Column`), vectors (`media.Features`) or windows (`windows.Windows`).
    """

    sources: tuple["AnyColumn", ...]
    target: "AnyColumn"

    def __len__(self) -> int:
        return len(self.target)

    @property
    def tokens(self) -> Column:
        """The target, where it is a column of ids."""
        assert isinstance(self.target, Column)
        return self.target

    @property
    def columns(self) -> tuple["AnyColumn", ...]:
        return (*self.sources, self.target)

    @property
    def lengths(self) -> Array:
        """The length of each example, of all columns together."""
        return np.asarray(sum(column.lengths for column in self.columns))

    def take(self, rows: Array) -> "Corpus":
        """A copy of some examples, in memory."""
        return Corpus(tuple(column.take(rows) for column in self.sources), self.target.take(rows))


# --- on disk --------------------------------------------------------------------------------------


class Writer:
    """Writes a column to `NAME.ids`, `NAME.starts` and, if it has words, `NAME.words`."""

    def __init__(self, folder: Path, name: str, words: bool, stack: ExitStack):
        def create(suffix: str) -> Any:
            return stack.enter_context((folder / f"{name}.{suffix}").open("wb"))

        self.ids, self.starts = create("ids"), create("starts")
        self.words = create("words") if words else None
        self.end = 0
        np.zeros(1, np.int64).tofile(self.starts)

    def extend(self, column: Column) -> None:
        (self.end + column.starts[1:]).tofile(self.starts)
        column.ids.tofile(self.ids)
        if self.words is not None and column.words is not None:
            column.words.tofile(self.words)
        self.end += len(column.ids)


def write_corpus(folder: Path, split: str, chunks: Iterable[Corpus]) -> None:
    """Write a corpus that comes in chunks."""
    folder.mkdir(parents=True, exist_ok=True)
    writers: list[Any] = []
    with ExitStack() as stack:
        for chunk in chunks:
            if not writers:
                for name, column in zip(
                    _names(split, len(chunk.sources)), chunk.columns, strict=True
                ):
                    writers.append(column.writer(folder, name, stack))
            for writer, column in zip(writers, chunk.columns, strict=True):
                writer.extend(column)


def open_corpus(folder: Path, split: str, opens: Sequence[Callable[[Path, str], Any]]) -> Corpus:
    """The corpus that `write_corpus` wrote; each column is opened by its field's function."""
    names = _names(split, len(opens) - 1)
    columns = [open_one(folder, name) for name, open_one in zip(names, opens, strict=True)]
    return Corpus(tuple(columns[:-1]), columns[-1])


def _names(split: str, sources: int) -> list[str]:
    """The files' names: train.source, train.source2, ..., train.target."""
    numbers = ["", *range(2, sources + 1)][:sources]
    return [*(f"{split}.source{number}" for number in numbers), f"{split}.target"]


def open_column(folder: Path, name: str, pad: int) -> Column:
    """A column of ids that `write_corpus` wrote."""
    ids, starts, words = (folder / f"{name}.{suffix}" for suffix in ("ids", "starts", "words"))
    if not words.exists():  # its name in format 1
        words = folder / f"{name.partition('.')[0]}.words.ids"
    if not ids.exists() or not starts.exists():
        raise CheckpointError(f"{ids}: the tokenised data is missing; train anew")
    try:
        offsets, flat = np.asarray(mapped(starts, np.int64)), mapped(ids, np.int32)
        word_index = mapped(words, np.int32) if words.exists() and ".source" in name else None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{ids}: cannot be read: {error}") from None
    valid = len(offsets) and offsets[0] == 0 and offsets[-1] == len(flat)
    valid = valid and (word_index is None or len(word_index) == len(flat))
    blocks = range(0, len(offsets) - 1, CHECKED_AT_ONCE)
    if not valid or any((np.diff(offsets[i : i + CHECKED_AT_ONCE + 1]) < 0).any() for i in blocks):
        raise CheckpointError(f"{ids}: has {len(flat)} ids where {starts.name} says otherwise")
    return Column(flat, offsets, word_index, pad)


def mapped(path: Path, dtype: type[np.generic]) -> Array:
    """A file of numbers, memory-mapped."""
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.zeros(0, dtype)


# --- raw dev examples -----------------------------------------------------------------------------


def save_examples(path: Path, examples: Iterable[Example]) -> None:
    """Save dev examples as text beside their arrays: a run is evaluated without the data files."""
    with path.open("wb") as file:
        for example in examples:
            record = [example.source, example.target, *example.others]
            line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
            if len(line) > MAX_EXAMPLE_BYTES:
                raise DataError(
                    f"{example.where}: a dev example of more than {MAX_EXAMPLE_BYTES >> 20} MB: "
                    "break it into several"
                )
            file.write(line)


class Examples(Sequence[Example]):
    """The examples that `save_examples` wrote, checked, and memory-mapped."""

    def __init__(self, path: Path):
        self.path, self.starts = path, array("q", [0])
        try:
            with path.open("rb") as file:
                while line := file.readline(MAX_EXAMPLE_BYTES + 1):
                    self._example(line)
                    self.starts.append(self.starts[-1] + len(line))
            self.content = np.asarray(mapped(path, np.uint8))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, i: int) -> Example: ...
    @overload
    def __getitem__(self, i: slice) -> list[Example]: ...
    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[row] for row in range(len(self))[i]]
        row = range(len(self))[i]
        return self._example(self.content[self.starts[row] : self.starts[row + 1]].tobytes())

    def _example(self, line: bytes) -> Example:
        if len(line) > MAX_EXAMPLE_BYTES:
            size = MAX_EXAMPLE_BYTES >> 20
            raise CheckpointError(f"{self.path}: has an example of more than {size} MB")
        try:
            source, *targets = json.loads(line)
            source = tuple(source)
            targets = [tuple(t) if isinstance(t, list) else t for t in targets]
        except (ValueError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{self.path}: cannot be read: {error}") from None
        texts = [*source]
        for target in targets:
            texts += target if isinstance(target, tuple) else [target or ""]
        if not source or not targets or not all(isinstance(text, str) for text in texts):
            raise CheckpointError(f"{self.path}: an example holds something other than strings")
        return Example(source, targets[0], others=tuple(targets[1:]))
