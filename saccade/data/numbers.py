"""Numbers: a vector, or a series of vectors, from a JSON list, a .npy or a .npz file."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar, Self, cast
from zipfile import ZipFile

import numpy as np
import torch

from saccade import config as c
from saccade.data.corpora import Array
from saccade.data.detect import array_path
from saccade.data.media import Cell, Fitting, MediaField, required
from saccade.errors import CheckpointError, DataError
from saccade.nn.padded import Padded

MAX_NUMBERS = 1 << 24  # of one example


class NumbersField(MediaField):
    """Series of vectors (S, F), normalised by the mean and deviation of the training data."""

    dtype: ClassVar[Any] = np.float32

    def __init__(self, reader: c.Media, mean: Array, deviation: Array, stored: bool = True):
        super().__init__(reader, len(mean), stored)
        self.mean, self.deviation = mean, deviation
        self.per_position = False  # whether the target has a label for each vector

    def make(self, cell: Cell) -> Array:
        return self.normalised(points(series_of(cell), self.reader), cell)

    def normalised(self, series: Array, cell: Cell) -> Array:
        """A series, standardised by the constants of the training data."""
        if series.shape[1] != len(self.mean):
            per = 1 if circle(self.reader) is None else 2  # features for each number of the file
            raise DataError(
                f"{cell.lead}: has vectors of {series.shape[1] // per} numbers, and those of the "
                f"training data have {len(self.mean) // per}"
            )
        return ((centred(series, self.reader) - self.mean) / self.deviation).astype(self.dtype)

    def measure(self, cell: Cell) -> int:
        return len(series_of(cell)) if cell.inline else shape_of(cell)[0]

    def shaped(self, flat: Array) -> Array:
        return flat.reshape(-1, self.size_of_vector)

    def length(self, numbers: Array) -> Array:
        return numbers // self.size_of_vector

    def collate(self, rows: Sequence[Array], keys: Sequence[Any] | None) -> Padded:
        lengths = torch.tensor([len(row) for row in rows])
        values = np.zeros((len(rows), max(map(len, rows)), self.size_of_vector), np.float32)
        for b, row in enumerate(rows):
            values[b, : len(row)] = row
        words = None
        if self.per_position:
            positions = torch.arange(values.shape[1])
            words = positions.where(positions < lengths[:, None], -1)
        return Padded(torch.from_numpy(values), lengths, words)

    def constants(self) -> dict[str, Any]:
        lists = {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}
        return super().constants() | lists

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls.loaded(path, c.Numbers)

    @classmethod
    def loaded(cls, path: Path, kind: type[c.Media]) -> Self:
        record = cls.read_record(path, kind)
        try:
            mean, deviation = (np.array(record[key], np.float64) for key in ("mean", "deviation"))
            valid = mean.shape == deviation.shape == (record["size"],)
            if not valid or not np.isfinite([mean, deviation]).all() or (deviation <= 0).any():
                raise ValueError("its constants are not finite numbers")
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: not a readable field: {error}") from None
        return cls(record["reader"], mean, deviation, record["stored"])


class Moments:
    """The running mean and deviation of vectors (Chan et al. 1979); NaN is ignored."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = np.zeros(0, np.int64), np.zeros(0), np.zeros(0)

    def add(self, series: Array, lead: str) -> None:
        """Add a series; DataError, beginning with `lead`, if its vectors have another size."""
        if len(self.mean) and series.shape[1] != len(self.mean):
            raise DataError(
                f"{lead}: has vectors of {series.shape[1]} numbers, and those before it have "
                f"{len(self.mean)}"
            )
        n = (~np.isnan(series)).sum(0)
        mean = np.nansum(series, 0, dtype=np.float64) / np.maximum(n, 1)
        squares = np.nansum((series - mean) ** 2, 0)
        if not len(self.mean):
            self.count, self.mean, self.squares = n, mean, squares
            return
        total, delta = self.count + n, mean - self.mean
        share = n / np.maximum(total, 1)
        self.squares = self.squares + squares + delta**2 * self.count * share
        self.mean, self.count = self.mean + delta * share, total

    @property
    def deviation(self) -> Array:
        """The standard deviation of each number; 1 where it is constant."""
        deviation = np.sqrt(self.squares / np.maximum(self.count, 1))
        scale = np.maximum(np.abs(self.mean), 1e-30)
        return cast(Array, np.where(deviation > 1e-7 * scale, deviation, 1.0))


class NumbersFitting(Fitting):
    def __init__(self, reader: c.Numbers, cache_bytes: int):
        super().__init__(cache_bytes)
        self.reader, self.moments = reader, Moments()

    def add(self, cell: Cell) -> int:
        series = points(series_of(cell), self.reader)
        self.moments.add(centred(series, self.reader), cell.lead)
        return 4 * series.size

    def field(self) -> NumbersField:
        moments = self.moments
        if not self.reader.normalise:
            return NumbersField(
                self.reader, np.zeros_like(moments.mean), np.ones_like(moments.mean), self.stored
            )
        return NumbersField(self.reader, moments.mean, moments.deviation, self.stored)


def centred(series: Array, reader: c.Media) -> Array:
    """A series minus its own mean, if the reader has `centre`."""
    if not getattr(reader, "centre", False):
        return series
    return cast(Array, series - series.mean(0, dtype=np.float64))


def circle(reader: c.Media) -> float | None:
    """A full turn in the unit of a reader's angles; None where numbers are not angles."""
    return {"degrees": 360.0, "radians": 2 * np.pi}.get(getattr(reader, "angles", "off"))


def points(series: Array, reader: c.Media) -> Array:
    """The sines of a reader's angles, then their cosines, (S, 2F); other numbers unchanged."""
    turn = circle(reader)
    if turn is None:
        return series
    radians = series * (2 * np.pi / turn)
    return np.concatenate([np.sin(radians), np.cos(radians)], -1)


def angles(vectors: Array, reader: c.Media) -> Array:
    """The angles (..., F) of points (..., 2F), from minus to plus half a turn."""
    turn = circle(reader)
    if turn is None:
        return vectors
    sines, cosines = np.split(vectors, 2, -1)
    return np.asarray(np.arctan2(sines, cosines) * (turn / (2 * np.pi)))


# --- reading --------------------------------------------------------------------------------------


def series_of(cell: Cell) -> Array:
    """The numbers of a cell as a series of vectors (S, F); one vector is a series of one."""
    array = _parse_list(cell) if cell.inline else array_of(cell)
    if array.dtype.kind not in "fiub":
        raise DataError(f"{cell.lead}: holds no numbers; write a list of numbers, or of such lists")
    if array.ndim not in (1, 2) or not array.size:
        raise DataError(f"{cell.lead}: expected a 1-d or 2-d array, found shape {array.shape}")
    series = np.atleast_2d(array).astype(np.float64)
    if not np.isfinite(series).all():
        raise DataError(f"{cell.lead}: holds NaN or infinity; remove the example, or fill the gap")
    return series


def _parse_list(cell: Cell) -> Array:
    try:
        return np.array(json.loads(cell.text))
    except (ValueError, RecursionError):
        raise DataError(f"{cell.lead}: not a list of numbers, or lists of unequal length") from None


def array_of(cell: Cell) -> Array:
    """The array in a .npy file, or of this name in a .npz file; pickles are refused."""
    shape_of(cell)
    with _data_errors(cell), _open_array(cell) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def shape_of(cell: Cell) -> tuple[int, int]:
    """The shape (S, F) of a file's array, from its header; DataError if it is too large."""
    with _data_errors(cell), _open_array(cell) as file:
        shape, dtype = _header(file)
    if dtype.hasobject or len(shape) not in (1, 2) or not min(shape, default=0):
        raise DataError(f"{cell.lead}: expected an array of numbers (S, F), found {dtype} {shape}")
    if int(np.prod([int(n) for n in shape], dtype=object)) > MAX_NUMBERS:
        raise DataError(f"{cell.lead}: has the shape {shape}, too large for one example; cut it")
    return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])


@contextmanager
def _open_array(cell: Cell) -> Iterator[IO[bytes]]:
    """The .npy file of an array, or the member of a .npz archive."""
    path = required(cell)
    if not path.lower().endswith(".npz"):
        with open(path, "rb") as file:
            yield file
        return
    with ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        with archive.open(_member(cell, names) + ".npy") as part:
            yield part


@contextmanager
def _data_errors(cell: Cell) -> Iterator[None]:
    """Turns every error inside into a DataError that names the cell."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # numpy parses the header as Python, zipfile the archive
        raise DataError(f"{cell.lead}: cannot be read: {error}; write it again") from None


def _header(file: Any) -> tuple[tuple[int, ...], Any]:
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"format {version} of .npy is not known")
    shape, _, dtype = readers[version](file)
    return shape, dtype


def _member(cell: Cell, names: Sequence[str]) -> str:
    """The name of an array in a .npz file: what follows the #, or the only one."""
    wanted = array_path(cell.text)[1]
    if not wanted and len(names) == 1:
        return names[0]
    if wanted not in names:
        examples = ", ".join(names[:3])
        raise KeyError(f"which array? Write {Path(cell.text).name}#NAME; it has {examples} ...")
    return wanted
