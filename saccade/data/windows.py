"""Windows of a table: a look-back and its target, sliced lazily from one array.

A gap in a look-back is interpolated inside the look-back, never from the target, which would leak.
A gap in a target stays NaN, and is not scored.
B windows, S steps of look-back, H steps of horizon, N series, C of them in one window (1, or all).
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, overload

import numpy as np
import torch

from saccade import config as c
from saccade.data.corpora import Array, mapped
from saccade.data.fields import Field
from saccade.data.lines import Example, listed
from saccade.data.numbers import Moments
from saccade.data.series import Roles, Table, TableSchema
from saccade.data.times import FORMATS, NUMBER, Clock
from saccade.errors import CheckpointError, DataError
from saccade.nn.padded import Padded
from saccade.text.vocab import Inventory

MAX_SETTINGS_BYTES = 1 << 24  # of a field's file
MAX_SERIES = 100_000


class Span(NamedTuple):
    """The sizes of a window."""

    lookback: int
    horizon: int
    past: int  # covariates of the look-back alone
    known: int  # covariates of look-back and horizon
    joint: bool  # whether a window has all series

    @classmethod
    def of(cls, task: c.Forecast) -> "Span":
        assert task.lookback
        assert task.horizon
        joint = task.channels == "joint"
        return cls(task.lookback, task.horizon, len(task.past), len(task.known), joint)


@dataclass(frozen=True)
class Windows:
    """A column of windows over the standardised rows of a table."""

    values: Array  # (rows, N)
    covariates: Array  # (rows, 1 or N, past + known)
    steps: Array  # (rows,) on the clock
    index: Array  # of each window: row of its first target * N + its series; joint: the row
    span: Span

    def __len__(self) -> int:
        return len(self.index)

    @property
    def lengths(self) -> Array:
        return np.full(len(self), self.span.lookback + self.span.horizon)

    def take(self, rows: Array) -> "Windows":
        return Windows(self.values, self.covariates, self.steps, self.index[rows], self.span)

    def places(self, windows: Array) -> tuple[Array, Array]:
        """The row of each window's first target (B,), and its series (B, C)."""
        N = self.values.shape[1]
        index = np.asarray(self.index[windows])
        if self.span.joint:
            return index, np.broadcast_to(np.arange(N), (len(index), N))
        return index // N, (index % N)[:, None]

    def parts(self, windows: Array) -> tuple[tuple[Padded, Padded, Padded], Padded]:
        """Some windows: look-back (B, S, C + covariates), step and series (B, 1 + C), known
        covariates of the horizon (B, H, known); and their targets (B, H, C)."""
        first, series = self.places(windows)
        past, known = self.read(first, series)
        marks = np.concatenate([self.steps[first][:, None], series], 1)
        sources = _padded(past), _padded(marks), _padded(known)
        return sources, _padded(self.targets(windows))

    def targets(self, windows: Array) -> Array:
        """The targets of some windows, (B, H, C)."""
        first, series = self.places(windows)
        rows = first[:, None] + np.arange(self.span.horizon)
        return np.asarray(self.values[rows[:, :, None], series[:, None]])

    def read(self, first: Array, series: Array) -> tuple[Array, Array]:
        """Look-backs (B, S, C + covariates) without gaps, and known covariates of the horizon."""
        S, H, P, K, _ = self.span
        rows = first[:, None] + np.arange(-S, H)
        outside = rows < 0  # before the first row: a gap
        rows = np.maximum(rows, 0)
        values = self.values[rows[:, :S, None], series[:, None]]  # (B, S, C)
        shared = self.covariates.shape[1] == 1
        which = np.zeros_like(series[:, :1]) if shared else series
        covariates = self.covariates[rows[:, :, None], which[:, None]]  # (B, S + H, M, P + K)
        B, M = covariates.shape[0], covariates.shape[2]
        known = covariates[..., P:].reshape(B, S + H, M * K)
        past = covariates[:, :S, :, :P].reshape(B, S, M * P)
        past = np.concatenate([values, past, known[:, :S]], -1).astype(np.float32)
        past[outside[:, :S]] = np.nan
        return filled(past), np.nan_to_num(known[:, S:].astype(np.float32))

    def history(self, windows: Array, steps: int) -> Array:
        """The values of the last `steps` steps before each target (B, steps, C), without gaps."""
        first, series = self.places(windows)
        rows = first[:, None] + np.arange(-steps, 0)
        valid = rows >= 0
        rows = np.maximum(rows, 0)
        valid &= self.steps[rows] - self.steps[first][:, None] == np.arange(-steps, 0)
        values = self.values[rows[:, :, None], series[:, None]].astype(np.float32)
        values[~valid] = np.nan
        return filled(values)

    def writer(self, folder: Path, name: str, stack: ExitStack) -> "WindowsWriter":
        return WindowsWriter(folder, name)


class WindowsWriter:
    """Writes a column: each of its arrays to a file."""

    def __init__(self, folder: Path, name: str):
        self.folder, self.name = folder, name

    def extend(self, column: Windows) -> None:
        for part in ("values", "covariates", "steps", "index"):
            getattr(column, part).tofile(self.folder / f"{self.name}.{part}")


def _padded(values: Array) -> Padded:
    lengths = torch.full((len(values),), values.shape[1])
    return Padded(torch.from_numpy(np.ascontiguousarray(values)), lengths)


def filled(x: Array) -> Array:
    """Look-backs (B, S, F) with their gaps filled, in place, by linear interpolation."""
    gaps = np.isnan(x)
    positions = np.arange(x.shape[1])
    for b, f in np.argwhere(gaps.any(1)):
        present = ~gaps[b, :, f]
        x[b, :, f] = (
            np.interp(positions, positions[present], x[b, present, f]) if present.any() else 0.0
        )
    return x


def indices(values: Array, span: Span, first: int) -> Array:
    """The `Windows.index` of every window whose target lies within the rows from `first` on.

    Windows without a value in the look-back, or in the target, are left out.
    """
    rows = np.arange(max(first, 1), len(values) - span.horizon + 1)
    if not len(rows):
        return np.zeros(0, np.int64)
    counts = np.zeros((len(values) + 1, values.shape[1]), np.int64)
    np.cumsum(~np.isnan(values), 0, out=counts[1:])
    before = counts[rows] > counts[np.maximum(rows - span.lookback, 0)]
    after = counts[rows + span.horizon] > counts[rows]
    if span.joint:
        return np.asarray(rows[before.any(1) & after.any(1)])
    places = rows[:, None] * values.shape[1] + np.arange(values.shape[1])
    return np.asarray(places[before & after])


# --- the field ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scales:
    """The statistics of the training rows, by which series and covariates are standardised."""

    mean: Array  # (N,)
    deviation: Array
    naive: Array  # the mean absolute error of the seasonal-naive forecast
    beside_mean: Array  # (past + known,) of covariates
    beside_deviation: Array


class SeriesField(Field):
    """The series of a table, standardised by their training rows; an example is a window."""

    def __init__(self, known: TableSchema, scales: Scales, span: Span):
        self.known, self.scales, self.span = known, scales, span

    @classmethod
    def fit(cls, table: Table, span: Span, season: int) -> Self:
        """The field for a table of training rows."""
        series = [_moments(table.values[:, i]) for i in range(len(table.names))]
        columns = table.covariates
        covariates = [_moments(columns[..., i].reshape(-1)) for i in range(columns.shape[-1])]
        lag = season if season < len(table) else 1
        with np.errstate(invalid="ignore"):
            errors = np.abs(table.values[lag:] - table.values[:-lag])
        counts = np.maximum((~np.isnan(errors)).sum(0), 1)
        naive = np.nansum(errors, 0) / counts
        naive = np.where(naive > 0, naive, [deviation for _, deviation in series])
        (mean, deviation), (beside_mean, beside_deviation) = (
            np.array(pairs, np.float64).reshape(-1, 2).T for pairs in (series, covariates)
        )
        scales = Scales(mean, deviation, naive, beside_mean, beside_deviation)
        return cls(TableSchema(table.roles, table.names, table.clock), scales, span)

    @property
    def inventory(self) -> Inventory:
        return Inventory(len(self.known.names))

    @property
    def pad(self) -> int:
        return 0

    def windows(self, table: Table, first: int) -> Windows:
        """All windows of a table with the first target at row `first` or later."""
        scales = self.scales
        values = ((table.values - scales.mean) / scales.deviation).astype(np.float32)
        covariates = (table.covariates - scales.beside_mean) / scales.beside_deviation
        steps = table.start + np.arange(len(table))
        return Windows(
            values,
            covariates.astype(np.float32),
            steps,
            indices(values, self.span, first),
            self.span,
        )

    def in_file_units(self, values: Array, series: Array) -> Array:
        """Values (..., H, C) of series (..., C) in the units of the file."""
        scales = self.scales
        return np.asarray(
            values * scales.deviation[series][..., None, :] + scales.mean[series][..., None, :]
        )

    # --- one window as JSON -----------------------------------------------------------------------

    def example(self, windows: Windows, number: int) -> Example:
        """A window as JSON, in the units of the file; null is a gap."""
        (row,), (series,) = windows.places(np.array([number]))
        S, H, P, _, joint = self.span
        scales = self.scales
        rows = np.arange(row - S, row + H)
        values = np.full((S + H, len(series)), np.nan)
        valid = rows >= 0
        values[valid] = windows.values[rows[valid]][:, series] * scales.deviation[series]
        values += scales.mean[series]
        which = 0 if windows.covariates.shape[1] == 1 else series if joint else series[0]
        covariates = np.full((S + H, *windows.covariates[0, which].shape), np.nan)
        covariates[valid] = windows.covariates[rows[valid], which]
        covariates = covariates * scales.beside_deviation + scales.beside_mean
        record: dict[str, Any] = {"step": int(windows.steps[row]), "past": _to_lists(values[:S])}
        if not joint:
            record["series"] = self.known.names[series[0]]
        if covariates.size:
            record["covariates"] = _to_lists(covariates[:S])
            record["known"] = _to_lists(covariates[S:, ..., P:])
        return Example((json.dumps(record),), json.dumps(_to_lists(values[S:])))

    def encode(self, cells: Sequence[Any]) -> Windows:
        """Windows from JSON: a cell is a source as `example` writes it, and its target or None."""
        S, H, P, K, joint = self.span
        N, scales = len(self.known.names), self.scales
        sets = N if self.known.roles.id else 1
        values = np.full((len(cells), S + H, N), np.nan)
        covariates = np.full((len(cells), S + H, sets, P + K), np.nan)
        steps = np.zeros((len(cells), S + H), np.int64)
        index = np.arange(len(cells)) * (S + H) + S
        if not joint:
            index *= N
        for i, (source, target) in enumerate(cells):
            record = _object(source)
            series = np.arange(N) if joint else np.array([self._series(record)])
            which: Any = 0 if sets == 1 else series if joint else int(series[0])
            index[i] += 0 if joint else series[0]
            past = _array(record, "past", (-1, len(series)))[-S:]
            values[i, S - len(past) : S, series] = past.T
            if target is not None:
                values[i, S:, series] = _array(json.loads(target), "target", (H, len(series))).T
            if P + K:
                shape = covariates[i, :, which].shape
                array = _array(record, "covariates", (-1, *shape[1:]))[-S:]
                covariates[i, S - len(array) : S, which] = array
                if K:
                    future = _array(record, "known", (H, *shape[1:-1], K))
                    covariates[i, S:, which, P:] = future
            step = record.get("step", 0)
            if type(step) is not int or abs(step) > 1 << 53:
                raise DataError("'step' is a whole number")
            steps[i] = np.arange(step - S, step + H)
        values = (values - scales.mean) / scales.deviation
        covariates = (covariates - scales.beside_mean) / scales.beside_deviation
        return Windows(
            values.reshape(-1, N).astype(np.float32),
            covariates.reshape(len(cells) * (S + H), sets, P + K).astype(np.float32),
            steps.reshape(-1),
            index,
            self.span,
        )

    def _series(self, record: dict[str, Any]) -> int:
        names = self.known.names
        name = record.get("series", names[0] if len(names) == 1 else None)
        if name not in names:
            raise DataError(f"which series? There are {listed(names[:10])}; found {name!r:.80}")
        return names.index(name)

    # --- on disk ----------------------------------------------------------------------------------

    def open(self, folder: Path, name: str) -> Windows:
        files = {part: folder / f"{name}.{part}" for part in ("values", "covariates", "steps")}
        N, K = len(self.known.names), self.span.past + self.span.known
        sets = N if self.known.roles.id else 1
        try:
            values = mapped(files["values"], np.float32).reshape(-1, N)
            covariates = mapped(files["covariates"], np.float32).reshape(len(values), sets, K)
            steps = np.asarray(mapped(files["steps"], np.int64))
            index = np.asarray(mapped(folder / f"{name}.index", np.int64))
            valid = len(steps) == len(values)
            last = index.max(initial=0) // (1 if self.span.joint else N) + self.span.horizon
            if not valid or index.min(initial=0) < 0 or (len(index) and last > len(values)):
                raise ValueError("has other sizes than its windows")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{files['values']}: cannot be read: {error}") from None
        return Windows(values, covariates, steps, index, self.span)

    def save(self, path: Path) -> None:
        known, scales = self.known, self.scales
        record = {
            "names": known.names,
            "roles": {key: getattr(known.roles, key) for key in ROLES},
            "clock": known.clock.record() if known.clock else None,
            "span": list(self.span),
            **{key: getattr(scales, key).tolist() for key in SCALES},
        }
        path.write_text(json.dumps(record), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        try:
            if path.stat().st_size > MAX_SETTINGS_BYTES:
                raise ValueError("too large")
            record = json.loads(path.read_text(encoding="utf-8"))
            span = Span(*record["span"])
            if not all(type(n) is int and 0 <= n <= 1 << 20 for n in span[:4]):
                raise ValueError("no sizes of a window")
            names, roles = tuple(map(str, record["names"])), _roles(record["roles"])
            clock = None if record["clock"] is None else _clock(record["clock"])
            scales = Scales(*(np.array(record[key], np.float64) for key in SCALES))
            sizes = [len(names)] * 3 + [span.past + span.known] * 2
            for key, size in zip(SCALES, sizes, strict=True):
                array = getattr(scales, key)
                if array.shape != (size,) or not np.isfinite(array).all():
                    raise ValueError(f"no numbers in {key!r}")
            positive = (scales.deviation, scales.naive, scales.beside_deviation)
            if not 0 < len(names) <= MAX_SERIES or any((one <= 0).any() for one in positive):
                raise ValueError("no series")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{path}: not a readable field: {error!s:.200}") from None
        return cls(TableSchema(roles, names, clock), scales, span)


SCALES = tuple(Scales.__dataclass_fields__)
ROLES = tuple(Roles.__dataclass_fields__)


def _moments(values: Array) -> tuple[float, float]:
    """The mean and the deviation, NaN ignored; 0 and 1 if there are no values."""
    present = values[~np.isnan(values)]
    if not len(present):
        return 0.0, 1.0
    moments = Moments()
    moments.add(present[:, None], "")
    return float(moments.mean[0]), float(moments.deviation[0])


def _roles(record: Any) -> Roles:
    time, identity = str(record["time"]), str(record["id"])
    series, past, known = (tuple(map(str, record[key])) for key in ("series", "past", "known"))
    return Roles(time, identity, series, past, known)


def _clock(record: Any) -> Clock:
    clock = Clock(**record)
    integers = all(type(getattr(clock, key)) is int for key in ("origin", "size", "day", "second"))
    if clock.form not in (*FORMATS, NUMBER) or not integers or not 0 < clock.size < 1 << 53:
        raise ValueError("no clock")
    if clock.unit not in ("number", "second", "month", "weekday") or abs(clock.origin) > 1 << 53:
        raise ValueError("no clock")
    return clock


def _to_lists(values: Array) -> Any:
    """An array as nested lists, with None for NaN."""
    objects = values.astype(object)
    objects[np.isnan(values)] = None
    return objects.tolist()


def _object(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        record = None
    if isinstance(record, list):
        record = {"past": record}
    if not isinstance(record, dict):
        raise DataError("expected a list of numbers, or an object with a list 'past'")
    return record


def _array(record: Any, key: str, shape: tuple[int, ...]) -> Array:
    """The numbers under a key as an array of this shape; null becomes NaN."""
    values = record.get(key) if isinstance(record, dict) else record
    try:
        array = np.array(values, np.float64)
        return array.reshape(shape)
    except (TypeError, ValueError):
        size = " x ".join("n" if n < 0 else str(n) for n in shape)
        raise DataError(f"expected {size} numbers in {key!r}") from None


class WindowExamples(Sequence[Example]):
    """The windows of a column as examples, made lazily."""

    def __init__(self, field: SeriesField, windows: Windows):
        self.field, self.windows = field, windows

    def __len__(self) -> int:
        return len(self.windows)

    @overload
    def __getitem__(self, i: int) -> Example: ...
    @overload
    def __getitem__(self, i: slice) -> "WindowExamples": ...
    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return WindowExamples(self.field, self.windows.take(np.arange(len(self))[i]))
        return self.field.example(self.windows, range(len(self))[i])
