"""Numbers as a target: a vector, one for each position, or a series; what is missing is NaN.

They are in units of the training part's deviation, but for those that are only ever 0 or 1 there.
A series that ends by itself has a last column, and a last row in which it alone is 1.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from saccade import config as c
from saccade.data.corpora import Array
from saccade.data.detect import is_array
from saccade.data.media import Cell, Fitting
from saccade.data.numbers import Moments, NumbersField, angles, array_of, circle, points
from saccade.errors import CheckpointError, DataError

DIGITS = 6  # of a number that is written: single precision has hardly more


class TargetNumbers(NumbersField):
    """One vector of numbers for an example: (1, F)."""

    per_row: ClassVar[bool] = False  # whether a list of numbers is one for each row, or one row
    ends: ClassVar[bool] = False  # whether a last column says where the rows end

    def __init__(
        self,
        reader: c.Media,
        mean: Array,
        deviation: Array,
        binary: Sequence[int],
        longest: int,
        stored: bool = True,
    ):
        super().__init__(reader, mean, deviation, stored)
        self.numbers = len(mean)  # of a row, without the mark of its end
        self.size_of_vector = self.numbers + self.ends
        self.binary = tuple(binary)
        self.longest = longest  # of the training part, in rows

    @property
    def reals(self) -> c.Reals:
        """What a network has to know of it."""
        last = (self.numbers,) if self.ends else ()
        return c.Reals(self.size_of_vector, (*self.binary, *last))

    @property
    def log_scale(self) -> Array:
        """By how much -log p of each number grows when it is in units of its own."""
        return np.append(np.log(self.deviation), [0.0] * self.ends)

    def make(self, cell: Cell) -> Array:
        given = rows_of(cell, self.per_row)
        series = points(given, self.reader)
        if series.shape[1] != self.numbers:
            wanted = self.numbers * given.shape[1] // series.shape[1]
            raise DataError(
                f"{cell.lead}: {_rows(given.shape[1])}, and the training data has {wanted}"
            )
        for i in self.binary:
            odd = series[~np.isin(series[:, i], (0.0, 1.0)) & ~np.isnan(series[:, i]), i]
            if len(odd):
                raise DataError(
                    f"{cell.lead}: {odd[0]:g} as number {i + 1}, which is only ever 0 or 1 in the "
                    "training data; fix it, or train with --set task.binary=false"
                )
        scaled = (series - self.mean) / self.deviation
        if self.ends:
            scaled = np.pad(scaled, ((0, 1), (0, 1)))
            scaled[-1, :-1], scaled[-1, -1] = np.nan, 1.0
        return np.asarray(scaled.astype(self.dtype))

    def measure(self, cell: Cell) -> int:
        return len(rows_of(cell, self.per_row)) + self.ends

    def restored(self, values: Array) -> Array:
        """Numbers in units of their own, without the mark of an end."""
        vectors = values[..., : self.numbers] * self.deviation + self.mean
        return np.asarray(angles(vectors, self.reader))

    def beside(self, guess: Array, right: Array) -> Array:
        """A guess, in units of its own, such that its distance from what is right is plain.

        An angle is that of all equal ones which is nearest: 359 degrees are -1 beside 2.
        """
        whole = circle(self.reader)
        if whole is None:
            return guess
        return right + (guess - right + whole / 2) % whole - whole / 2

    def written(self, values: Array) -> str:
        """Rows of numbers as text: one number as it is, one row as a list, a series as lists."""
        rows: list[list[float]] = [
            [float(f"{number:.{DIGITS}g}") for number in row] for row in values.tolist()
        ]
        for i in self.binary:
            for row in rows:
                row[i] = int(row[i]) if row[i] in (0.0, 1.0) else row[i]
        plain: Any = [row[0] for row in rows] if values.shape[-1] == 1 else rows
        if self.per_row:
            return json.dumps(plain)
        return json.dumps(plain[0])

    def constants(self) -> dict[str, Any]:
        own = {"size": self.numbers, "binary": self.binary, "longest": self.longest}
        return super().constants() | own

    @classmethod
    def load(cls, path: Path) -> Self:
        record, plain = cls.read_record(path, c.Numbers), NumbersField.load(path)
        binary: Any = record.get("binary")
        longest: Any = record.get("longest")
        sound = isinstance(binary, list) and isinstance(longest, int) and longest > 0
        if not sound or any(i not in range(len(plain.mean)) for i in binary):
            raise CheckpointError(f"{path}: not a readable field: its constants are not numbers")
        moments = plain.mean, plain.deviation
        return cls(record["reader"], *moments, binary, longest, record["stored"])


class PositionNumbers(TargetNumbers):
    """A row of numbers for each position of a source: (S, F)."""

    per_row = True


class SeriesNumbers(TargetNumbers):
    """A series of rows that ends by itself: (n + 1, F + 1)."""

    per_row = ends = True


class TargetFitting(Fitting):
    """What a field of numbers is fitted to: every target of the training part."""

    def __init__(self, settings: c.NumberTask, kind: type[TargetNumbers], cache_bytes: int):
        super().__init__(cache_bytes)
        self.settings, self.kind = settings, kind
        self.moments, self.longest = Moments(), 1
        self.binary: Array = np.ones(0, bool)  # of each number whether it was only ever 0 or 1

    def look(self, cell: Cell) -> None:
        """Every example counts, also where many have the same target."""
        size = self.add(cell)
        self.bytes += 0 if cell.key in self.seen else size
        self.seen.add(cell.key)

    def add(self, cell: Cell) -> int:
        series = points(rows_of(cell, self.kind.per_row), self.settings.target)
        bits: Array = np.all(np.isin(series, (0.0, 1.0)) | np.isnan(series), 0)
        self.moments.add(series, cell.lead)
        self.binary = self.binary & bits if len(self.binary) else bits
        self.longest = max(self.longest, len(series))
        return 4 * (len(series) + 1) * (len(bits) + 1)

    def field(self) -> TargetNumbers:
        found, reader = self.moments, self.settings.target
        if not found.count.any():
            raise DataError("no target holds a number; is it the right column?")
        possible = self.settings.binary and circle(reader) is None
        binary = np.flatnonzero(self.binary) if possible else np.zeros(0, int)
        mean, deviation = found.mean.copy(), found.deviation.copy()
        plain = binary if reader.normalise else np.arange(len(mean))
        mean[plain], deviation[plain] = 0.0, 1.0
        return self.kind(reader, mean, deviation, binary.tolist(), self.longest, self.stored)


def target_cell(text: str, folder: str, root: str | None, where: str) -> Cell:
    """A target as a cell: a number, a list of numbers or of lists, or the path of an array."""
    if text[:1] != "[" and not is_array(text):
        try:
            text = f"[{json.dumps(float(text))}]"
        except ValueError:
            lead = f"{where}: " if where else ""
            raise DataError(
                f"{lead}the target {text[:40]!r} is not a number; write a number, a list of them, "
                "a list of such lists, or the path of a .npy file"
            ) from None
    return Cell(text, folder, root, where)


def rows_of(cell: Cell, per_row: bool) -> Array:
    """The numbers of a cell as rows (S, F), NaN where one is missing."""
    try:
        found = np.array(json.loads(cell.text), np.float64) if cell.inline else array_of(cell)
        found = found.astype(np.float64)
    except (ValueError, TypeError, RecursionError):
        raise DataError(f"{cell.lead}: not a list of numbers, or lists of unequal length") from None
    if found.ndim not in (1, 2) or not found.size:
        raise DataError(f"{cell.lead}: has the shape {found.shape}; a list of numbers is read")
    rows = found if found.ndim == 2 else found[:, None] if per_row else found[None]
    if not per_row and len(rows) > 1:
        raise DataError(
            f"{cell.lead}: a series of {len(rows)} rows, where one is expected; use the task "
            "'series', or task.per_position"
        )
    if np.isinf(rows).any():
        raise DataError(f"{cell.lead}: holds infinity; write null where a number is missing")
    return rows


def _rows(size: int) -> str:
    return f"rows of {size} number{'' if size == 1 else 's'}"
