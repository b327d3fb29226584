"""Numbers as a target: a vector, one for each position, or a series; NaN where one is missing.

Numbers are standardised by the training data, except binary ones, which are only ever 0 or 1 there.
A series has an end flag as its last column, and an extra last row in which the flag is 1.
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

DIGITS = 6  # significant ones in the output: about those of single precision


class TargetNumbers(NumbersField):
    """One vector of numbers for an example: (1, F)."""

    per_row: ClassVar[bool] = False  # whether a flat list is one number for each row, or one row
    ends: ClassVar[bool] = False  # whether the last column is an end flag

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
        self.numbers = len(mean)  # of a row, without the end flag
        self.size_of_vector = self.numbers + self.ends
        self.binary = tuple(binary)
        self.longest = longest  # series of the training data, in rows

    @property
    def reals(self) -> c.Reals:
        """What a network has to know of the target."""
        last = (self.numbers,) if self.ends else ()
        return c.Reals(self.size_of_vector, (*self.binary, *last))

    @property
    def log_scale(self) -> Array:
        """The log-Jacobian of standardisation, which -log p in original units has in addition."""
        return np.append(np.log(self.deviation), [0.0] * self.ends)

    def make(self, cell: Cell) -> Array:
        rows = rows_of(cell, self.per_row)
        series = points(rows, self.reader)
        if series.shape[1] != self.numbers:
            expected = self.numbers * rows.shape[1] // series.shape[1]
            raise DataError(
                f"{cell.lead}: {_rows(rows.shape[1])}, and the training data has {expected}"
            )
        for i in self.binary:
            other = series[~np.isin(series[:, i], (0.0, 1.0)) & ~np.isnan(series[:, i]), i]
            if len(other):
                raise DataError(
                    f"{cell.lead}: {other[0]:g} as number {i + 1}, which is only ever 0 or 1 in "
                    "the training data; fix it, or train with --set task.binary=false"
                )
        scaled = (series - self.mean) / self.deviation
        if self.ends:
            scaled = np.pad(scaled, ((0, 1), (0, 1)))
            scaled[-1, :-1], scaled[-1, -1] = np.nan, 1.0
        return np.asarray(scaled.astype(self.dtype))

    def measure(self, cell: Cell) -> int:
        return len(rows_of(cell, self.per_row)) + self.ends

    def restored(self, values: Array) -> Array:
        """Numbers in their original units, without the end flag."""
        vectors = values[..., : self.numbers] * self.deviation + self.mean
        return np.asarray(angles(vectors, self.reader))

    def beside(self, guess: Array, right: Array) -> Array:
        """A guess in original units, angles shifted by full turns to be nearest to `right`.

        So differences are errors: 359 degrees beside 2 are -1.
        """
        turn = circle(self.reader)
        if turn is None:
            return guess
        return right + (guess - right + turn / 2) % turn - turn / 2

    def written(self, values: Array) -> str:
        """Rows of numbers as JSON: a number, a list for one row, lists for a series."""
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
        constants = {"size": self.numbers, "binary": self.binary, "longest": self.longest}
        return super().constants() | constants

    @classmethod
    def load(cls, path: Path) -> Self:
        record, plain = cls.read_record(path, c.Numbers), NumbersField.load(path)
        binary: Any = record.get("binary")
        longest: Any = record.get("longest")
        valid = isinstance(binary, list) and isinstance(longest, int) and longest > 0
        if not valid or any(i not in range(len(plain.mean)) for i in binary):
            raise CheckpointError(f"{path}: not a readable field: its constants are not numbers")
        moments = plain.mean, plain.deviation
        return cls(record["reader"], *moments, binary, longest, record["stored"])


class PositionNumbers(TargetNumbers):
    """A row of numbers for each position of the source: (S, F)."""

    per_row = True


class SeriesNumbers(TargetNumbers):
    """A series of rows of any length, with its end: (n + 1, F + 1)."""

    per_row = ends = True


class TargetFitting(Fitting):
    """Fits a field of numbers to every target of the training data."""

    def __init__(self, settings: c.NumberTask, kind: type[TargetNumbers], cache_bytes: int):
        super().__init__(cache_bytes)
        self.settings, self.kind = settings, kind
        self.moments, self.longest = Moments(), 1
        self.binary: Array = np.ones(0, bool)  # for each number whether it was only ever 0 or 1

    def look(self, cell: Cell) -> None:
        """Every example counts, also those with equal targets."""
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
        moments, reader = self.moments, self.settings.target
        if not moments.count.any():
            raise DataError("no target holds a number; is it the right column?")
        possible = self.settings.binary and circle(reader) is None
        binary = np.flatnonzero(self.binary) if possible else np.zeros(0, int)
        mean, deviation = moments.mean.copy(), moments.deviation.copy()
        plain = binary if reader.normalise else np.arange(len(mean))
        mean[plain], deviation[plain] = 0.0, 1.0
        return self.kind(reader, mean, deviation, binary.tolist(), self.longest, self.stored)


def target_cell(text: str, folder: str, root: str | None, where: str) -> Cell:
    """A target's cell: a number, a list of numbers or of lists, or the path of an array."""
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
        array = np.array(json.loads(cell.text), np.float64) if cell.inline else array_of(cell)
        array = array.astype(np.float64)
    except (ValueError, TypeError, RecursionError):
        raise DataError(f"{cell.lead}: not a list of numbers, or lists of unequal length") from None
    if array.ndim not in (1, 2) or not array.size:
        raise DataError(f"{cell.lead}: has the shape {array.shape}; a list of numbers is read")
    rows = array if array.ndim == 2 else array[:, None] if per_row else array[None]
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
