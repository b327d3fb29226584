"""Media: cells that name a file, or hold numbers, as rows of vectors.

A media field decodes a cell to a row lazily. A run caches the rows of its corpus if they fit into
`data.cache_mb`, deduplicated by file; else it keeps only the paths, and rows are decoded again for
every batch, ahead of time by the loader's threads.
"""

import json
import os
import stat
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, NamedTuple

import numpy as np

from saccade import config as c
from saccade.config.toml import validate
from saccade.data.corpora import Array, mapped
from saccade.data.detect import array_path
from saccade.data.fields import Field
from saccade.errors import CheckpointError, ConfigError, DataError
from saccade.nn.padded import Padded
from saccade.text.vocab import Inventory

RECENT_BYTES = 1 << 26  # of a field's LRU cache of rows
MAX_SETTINGS_BYTES = 1 << 20  # of a field's file in a run

Draw = tuple[int, int]  # (seed, epoch): with the index of a row, they seed its augmentation


class Cell(NamedTuple):
    """A cell of a column of media: a path, or numbers; and which paths are permitted."""

    text: str
    folder: str = ""  # that a path is relative to
    root: str | None = None  # that a path must not leave; "": the folder, None: no limit
    where: str = ""  # file and line, for messages

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.text)

    @property
    def inline(self) -> bool:
        """Whether it holds numbers, not a path."""
        return self.text[:1] == "["

    @property
    def key(self) -> str:
        """Its identity, for deduplication: the path, or a hash of the numbers."""
        return blake2b(self.text.encode()).hexdigest() if self.inline else self.path

    @property
    def lead(self) -> str:
        """The beginning of a message about it."""
        name = "the numbers" if self.inline else self.path
        return f"{self.where}: {name}" if self.where else name


def required(cell: Cell) -> str:
    """The path that a cell names; DataError unless it is permitted and is a regular file."""
    lead = f"{cell.where}: " if cell.where else ""
    path, text = os.path.join(cell.folder, array_path(cell.text)[0]), cell.text
    if cell.root is not None:
        limit = _realpath(os.path.abspath(cell.root or cell.folder))
        if os.path.commonpath([limit, os.path.realpath(path)]) != limit:
            raise DataError(
                f"{lead}{text!r} is outside the folder {cell.root or cell.folder or '.'}; move "
                "the file there, or permit another folder with --set data.root=FOLDER"
            )
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        reason = "no such file" if isinstance(error, FileNotFoundError) else reason
        raise DataError(f"{lead}{path}: {reason}; check the path") from None
    if not stat.S_ISREG(mode):
        raise DataError(f"{lead}{path}: not a regular file; give a file")
    return path


@lru_cache(maxsize=64)
def _realpath(folder: str) -> str:
    """The real path of an absolute folder."""
    return os.path.realpath(folder)


class MediaField(Field):
    """A column of media. Kinds differ in how a row is made, and how rows are collated."""

    dtype: ClassVar[Any] = np.float16  # of rows in a corpus

    def __init__(self, reader: c.Media, size: int, stored: bool = True):
        self.reader = reader
        self.size_of_vector = size
        self.stored = stored  # whether a run keeps the rows, not only the paths
        self.root: str | None = ""  # that paths of a corpus must not leave; "": their own folder
        self.known: dict[str, tuple[Features, int]] = {}  # cells whose rows are in the run
        self._recent: OrderedDict[str, Array] = OrderedDict()
        self._recent_bytes, self._lock = 0, Lock()

    # --- to be implemented by each kind of media ---

    @abstractmethod
    def make(self, cell: Cell) -> Array:
        """The row of a cell; DataError, with the file and a remedy, if it cannot be read."""

    @abstractmethod
    def measure(self, cell: Cell) -> int:
        """The number of positions of the row, from the header of its file alone."""

    @abstractmethod
    def shaped(self, flat: Array) -> Array:
        """A row from its flattened values."""

    @abstractmethod
    def length(self, numbers: Array) -> Array:
        """The number of positions of rows that have so many values."""

    @abstractmethod
    def collate(self, rows: Sequence[Array], keys: Sequence[Any] | None) -> Padded:
        """Rows as one padded tensor; with keys, which are seeds, augmented."""

    @property
    def variants(self) -> int:
        """The number of rows that are stored for a cell, of which augmentation picks one."""
        return 1

    def variant(self, cell: Cell, number: int) -> Array:
        """One of the rows of a cell; the first is used in evaluation."""
        return self.make(cell)

    # --- common to all kinds ---

    @property
    def inventory(self) -> Inventory:
        raise AssertionError("media has vectors, not ids")

    @property
    def vectors(self) -> c.Vectors:
        return c.Vectors(self.reader, self.size_of_vector)

    @property
    def size(self) -> int:
        return self.size_of_vector

    @property
    def pad(self) -> int:
        return 0

    def encode(self, cells: Sequence[Any]) -> "Features":
        """Cells as a column whose rows are decoded lazily."""
        numbers: dict[str, int] = {}
        index = [numbers.setdefault(cell.key, len(numbers)) for cell in cells]
        first = dict(zip(reversed(index), reversed(cells), strict=True))
        unique = [first[i] for i in range(len(numbers))]
        return Features(self, CellRows(self, unique), np.array(index, np.int64))

    def rows(self, cells: Sequence[Cell]) -> list[Array]:
        """The row of each cell."""
        return [self.row(cell) for cell in cells]

    def row(self, cell: Cell, variant: int = 0) -> Array:
        """The row of a cell: from the run, from the LRU cache, or decoded now."""
        if not cell.folder and cell.text in self.known:
            column, number = self.known[cell.text]
            return column.row(number)
        key = f"{variant} {cell.key}"
        with self._lock:
            if key in self._recent:
                self._recent.move_to_end(key)
                return self._recent[key]
        row = self.variant(cell, variant)
        with self._lock:
            if key not in self._recent:
                self._recent[key] = row
                self._recent_bytes += row.nbytes
            while self._recent_bytes > RECENT_BYTES:
                self._recent_bytes -= self._recent.popitem(last=False)[1].nbytes
        return row

    def positions(self, cell: Cell) -> int:
        """The number of positions of the row of a cell; only the header of its file is read."""
        if not cell.folder and cell.text in self.known:
            return int(self.length(np.array([self.row(cell).size]))[0])
        return self.measure(cell)

    def padded(self, rows: Sequence[Array]) -> Padded:
        return self.collate(rows, None)

    def problem(self, cell: Cell) -> str:
        """Why a cell cannot be read; empty if it can."""
        try:
            self.row(cell)
        except DataError as error:
            return str(error)
        return ""

    def remember(self, texts: Sequence[str], column: "Features", rows: Sequence[int]) -> None:
        """Take the rows of these cells from a column of the run, not from their files."""
        self.known = {text: (column, row) for text, row in zip(texts, rows, strict=True)}

    def save(self, path: Path) -> None:
        record = {"reader": self.reader.model_dump(), "stored": self.stored} | self.constants()
        path.write_text(json.dumps(record), encoding="utf-8")

    def constants(self) -> dict[str, Any]:
        """What was fitted to the training data, as JSON."""
        return {"size": self.size_of_vector}

    @classmethod
    def read_record(cls, path: Path, kind: type[c.Media]) -> dict[str, Any]:
        """The record that `save` wrote; CheckpointError if it is invalid."""
        try:
            if path.stat().st_size > MAX_SETTINGS_BYTES:
                raise ValueError("too large")
            record = json.loads(path.read_text(encoding="utf-8"))
            reader = validate(kind, record["reader"], "reader")
            size, stored = record["size"], record["stored"]
            if type(size) is not int or not 0 < size <= 1 << 20 or type(stored) is not bool:
                raise ValueError("no size")
            return {**record, "reader": reader}
        except (OSError, ValueError, KeyError, TypeError, RecursionError, ConfigError) as error:
            raise CheckpointError(f"{path}: not a readable field: {error}") from None

    def open(self, folder: Path, name: str) -> "Features":
        """The column that a `FeatureWriter` wrote to a folder."""
        files = {suffix: folder / f"{name}.{suffix}" for suffix in ("values", "starts", "rows")}
        try:
            index = np.asarray(mapped(files["rows"], np.int64))
            starts = np.asarray(mapped(files["starts"], np.int64))
            values = mapped(files["values"], self.dtype if self.stored else np.uint8)
            lengths = mapped(folder / f"{name}.lengths", np.int64)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{files['values']}: cannot be read: {error}") from None
        count = (len(starts) - 1) // self.variants
        valid = len(starts) and starts[0] == 0 and starts[-1] == len(values)
        valid = valid and (np.diff(starts) >= 0).all() and len(lengths) == count
        valid = valid and (not len(index) or 0 <= index.min() <= index.max() < count)
        if valid and self.stored:
            valid = bool((self.length(np.diff(starts)[:: self.variants]) == lengths).all())
        if not valid:
            raise CheckpointError(f"{files['values']}: is not what {name}.starts says: train anew")
        if self.stored:
            return Features(self, StoredRows(self, values, starts), index)
        return Features(self, MappedCellRows(self, values, starts, lengths), index)


# --- sources of rows: the run, or cells -----------------------------------------------------------


@dataclass(frozen=True)
class StoredRows:
    """Rows that a run keeps, concatenated and memory-mapped."""

    field: MediaField
    values: Array
    starts: Array

    @property
    def lengths(self) -> Array:
        return self.field.length(np.diff(self.starts)[:: self.field.variants])

    def row(self, number: int, variant: int) -> Array:
        i = number * self.field.variants + variant
        return self.field.shaped(np.asarray(self.values[self.starts[i] : self.starts[i + 1]]))


@dataclass(frozen=True)
class CellRows:
    """Rows that are decoded lazily from cells in memory."""

    field: MediaField
    cells: Sequence[Cell]

    @property
    def lengths(self) -> Array:
        return np.array([self.field.positions(cell) for cell in self.cells], np.int64)

    def row(self, number: int, variant: int) -> Array:
        return self.field.row(self.cells[number], variant)


@dataclass(frozen=True)
class MappedCellRows:
    """Rows that are decoded lazily from the cells of a corpus, which are memory-mapped."""

    field: MediaField
    text: Array  # the cells as JSON, UTF-8 bytes
    starts: Array
    lengths: Array

    def row(self, number: int, variant: int) -> Array:
        i = number * self.field.variants
        try:
            folder, text = json.loads(self.text[self.starts[i] : self.starts[i + 1]].tobytes())
            cell = Cell(str(text), str(folder), self.field.root)
        except ValueError:
            raise DataError("the run's list of paths is damaged; train anew") from None
        return self.field.row(cell, variant)


@dataclass(frozen=True)
class Features:
    """A column of media: row i is `rows.row(index[i])`."""

    field: MediaField
    rows: StoredRows | CellRows | MappedCellRows
    index: Array

    def __len__(self) -> int:
        return len(self.index)

    @property
    def lengths(self) -> Array:
        return self.rows.lengths[self.index]

    def row(self, number: int, variant: int = 0) -> Array:
        return self.rows.row(int(self.index[number]), variant)

    def take(self, rows: Array) -> "Features":
        return Features(self.field, self.rows, self.index[rows])

    def padded(self, rows: Array, draw: Draw | None = None) -> Padded:
        """Some rows as one tensor; with a `draw`, augmented."""
        if draw is None:
            return self.field.collate([self.row(int(i)) for i in rows], None)
        keys = [np.random.SeedSequence((*draw, int(i))) for i in rows]
        count, values = self.field.variants, []
        for i, key in zip(rows, keys, strict=True):
            variant = int(key.generate_state(1)[0]) % count if count > 1 else 0
            values.append(self.row(int(i), variant))
        return self.field.collate(values, keys)

    def writer(self, folder: Path, name: str, stack: ExitStack) -> "FeatureWriter":
        return FeatureWriter(folder, name, stack)


class FeatureWriter:
    """Writes a column: each distinct cell once, as its rows or as its text."""

    def __init__(self, folder: Path, name: str, stack: ExitStack):
        def create(suffix: str) -> Any:
            return stack.enter_context((folder / f"{name}.{suffix}").open("wb"))

        self.values, self.starts, self.index = create("values"), create("starts"), create("rows")
        self.lengths = create("lengths")
        self.numbers: dict[str, int] = {}  # cell key -> its index in the files
        self.end = 0
        np.zeros(1, np.int64).tofile(self.starts)

    def extend(self, column: Features) -> None:
        rows, field = column.rows, column.field
        assert isinstance(rows, CellRows)
        index = []
        for number in column.index.tolist():
            cell = rows.cells[number]
            if cell.key not in self.numbers:
                self.numbers[cell.key] = len(self.numbers)
                self._write(field, cell)
            index.append(self.numbers[cell.key])
        np.array(index, np.int64).tofile(self.index)

    def _write(self, field: MediaField, cell: Cell) -> None:
        if field.stored:
            rows = [field.row(cell, i) for i in range(field.variants)]
            flat = [np.ascontiguousarray(row, field.dtype).reshape(-1) for row in rows]
            length = int(field.length(np.array([len(flat[0])]))[0])
        else:
            place = [os.path.abspath(cell.folder), cell.text]
            text = np.frombuffer(json.dumps(place).encode(), np.uint8)
            flat = [text, *[text[:0]] * (field.variants - 1)]
            length = field.positions(cell)
        for part in flat:
            part.tofile(self.values)
            self.end += len(part)
            np.array([self.end], np.int64).tofile(self.starts)
        np.array([length], np.int64).tofile(self.lengths)


class Fitting(ABC):
    """Fits a media field to every cell of the training data, as it is read."""

    def __init__(self, cache_bytes: int):
        self.cache_bytes = cache_bytes
        self.seen: set[str] = set()
        self.bytes = 0  # that the rows of all distinct cells take

    def look(self, cell: Cell) -> None:
        """Check a cell, and count the bytes of its row."""
        if cell.key not in self.seen:
            self.seen.add(cell.key)
            self.bytes += self.add(cell)

    @abstractmethod
    def add(self, cell: Cell) -> int:
        """Fit to a new cell; returns the bytes of its row."""

    @property
    def stored(self) -> bool:
        return self.bytes <= self.cache_bytes

    @abstractmethod
    def field(self) -> MediaField:
        """The fitted field."""


def generator(key: Any) -> np.random.Generator:
    """A random generator for one row in one epoch."""
    return np.random.Generator(np.random.PCG64(key))
