"""Defaults of forecasting from the data: season, horizon, look-back and the train/dev split."""

from collections.abc import Iterable
from dataclasses import replace
from math import nan

import numpy as np

from saccade import config as c
from saccade.data.corpora import Array
from saccade.data.lines import Defect, FileError, counted, defect_at
from saccade.data.series import Table, TableSchema, read_table
from saccade.errors import DataError

CANDIDATE, PEAK = 0.15, 0.3  # thresholds of autocorrelation for a usual season, and for any other
LOOKED_AT = 20  # series that are sampled
MAX_ROWS = 20_000  # of a series that are sampled
DEGREE = 3  # of the polynomial by which a series is detrended
MIN_WINDOWS = 2  # for training


def season_of(table: Table) -> tuple[int, float]:
    """The steps of a season, 1 where there is none; and the autocorrelation at that lag."""
    correlation = autocorrelation(table.values[-MAX_ROWS:, :LOOKED_AT])
    last = len(correlation) - 2

    def peaks(lags: Iterable[int], threshold: float) -> list[int]:
        tops = (m for m in lags if correlation[m] >= correlation[m - 1 : m + 2].max())
        return [m for m in tops if correlation[m] > threshold]

    usual = [m for m in (table.clock.seasons if table.clock else ()) if 2 <= m <= last]
    if candidates := peaks(usual, CANDIDATE):
        best = max(candidates, key=lambda m: float(correlation[m]))
        return best, float(correlation[best])
    negative = np.flatnonzero(correlation[: last + 1] < 0)  # a mere decay is not a season
    if not len(negative):
        return 1, 0.0
    candidates = peaks(range(max(2, int(negative[0])), last + 1), PEAK)
    best = max(candidates, key=lambda m: float(correlation[m]), default=1)
    # the first of about equal peaks: the others are multiples of the season
    best = min((m for m in candidates if correlation[m] > 0.9 * correlation[best]), default=best)
    return best, float(correlation[best]) if best > 1 else 0.0


def autocorrelation(values: Array) -> Array:
    """The mean autocorrelation of detrended series (T, N), at lags up to T / 3."""
    T = len(values)
    lags = max(3, T // 3)
    total, count = np.zeros(lags), 0
    time = np.linspace(-1, 1, T)
    for series in values.T:
        present = ~np.isnan(series)
        if present.sum() < 8 or np.ptp(series[present]) == 0:
            continue
        trend = np.polynomial.Polynomial.fit(time[present], series[present], DEGREE)(time)
        x = np.where(present, series - trend, 0.0)
        energy = np.fft.irfft(np.abs(np.fft.rfft(x, 2 * T)) ** 2)[:lags]
        if energy[0] > 0:
            total, count = total + energy / energy[0], count + 1
    return total / max(count, 1)


def settled(task: c.Forecast, table: Table, data: c.Data) -> tuple[c.Forecast, list[str]]:
    """The settings with defaults filled in, and these defaults in words."""
    chosen = []
    rows = len(table) if data.dev else len(table) - dev_rows(len(table), task.horizon or 1, data)
    season = task.season
    if season is None:
        season, strength = season_of(table)
        what = f"season {season} (autocorrelation {strength:.2f})" if season > 1 else "no season"
        chosen.append(what)
    horizon = task.horizon
    if horizon is None:
        horizon = max(1, min(season if season > 1 else 10, rows // 10))
        chosen.append(f"horizon {horizon}")
    lookback = task.lookback
    if lookback is None:
        lookback = max(1, min(max(4 * season, 4 * horizon), rows // 4))
        chosen.append(f"look-back {lookback}")
    roles = table.roles
    names = {"time": roles.time, "id": roles.id, "series": roles.series}
    units = task.units or ("file" if len(table.names) == 1 else "standard")
    update = {"season": season, "horizon": horizon, "lookback": lookback, "units": units}
    return task.model_copy(update=names | update), chosen


def dev_rows(rows: int, horizon: int, data: c.Data) -> int:
    """How many of the last rows are split off for evaluation."""
    return max(horizon, min(round(data.dev_share * rows), data.dev_max))


def defects_of(table: Table, task: c.Forecast, data: c.Data) -> list[Defect]:
    """Why a table cannot be trained on: constant series, and too few rows."""
    defects = []
    for name, series in zip(table.names, table.values.T, strict=True):
        present = series[~np.isnan(series)]
        if not len(present) or (present == present[0]).all():
            what = "never changes" if len(present) else "has no number"
            message = f"the series {name!r} {what}"
            defects.append(defect_at("constant-series", table.file, 1, message))
    assert task.lookback
    assert task.horizon
    held_out = 0 if data.dev else dev_rows(len(table), task.horizon, data)
    needed = task.lookback + task.horizon + MIN_WINDOWS - 1
    if len(table) - held_out < needed:
        split = f", of which the last {held_out:,} are to measure on" if held_out else ""
        message = (
            f"{counted(len(table), 'row')}{split}; a look-back of {task.lookback:,} and a horizon "
            f"of {task.horizon:,} need {needed + held_out:,}"
        )
        defects.append(defect_at("short-series", table.file, len(table) + 1, message))
    return defects


# --- train/dev split ------------------------------------------------------------------------------


def train_and_dev(task: c.Forecast, data: c.Data) -> tuple[Table, Table, int]:
    """The training rows; the dev rows, preceded by rows to look back to; the index of the first.

    Without a dev file the last rows of the training file are split off. A dev file continues the
    training file, unless its times say otherwise.
    """
    table = read_table(data.train[0], task, data)
    assert task.lookback
    assert task.horizon
    if not data.dev:
        cut = len(table) - dev_rows(len(table), task.horizon, data)
        first = max(0, cut - history(task))
        return part(table, 0, cut), part(table, first, len(table)), cut - first
    known = TableSchema(table.roles, table.names, table.clock)
    dev = read_table(data.dev[0], task, data, known)
    if table.clock is None:
        dev = replace(dev, start=table.start + len(table))
    try:
        refuse_overlap(table, dev)
    except FileError as error:
        raise DataError(str(error.defect)) from None
    joined, first = after(table, dev, history(task))
    if len(joined) - first < task.horizon:
        message = f"{counted(len(dev), 'row')} are too few for a horizon of {task.horizon:,}"
        raise DataError(str(defect_at("short-series", dev.file, len(dev) + 1, message)))
    return table, joined, first


def history(task: c.Forecast) -> int:
    """How many rows before a target are read, by a model or by the seasonal-naive baseline."""
    return max(task.lookback or 1, task.season or 1)


def refuse_overlap(table: Table, dev: Table) -> None:
    """FileError if dev rows overlap the training rows, which would make scores meaningless."""
    if table.start - len(dev) < dev.start < table.start + len(table):
        last = table.time(len(table) - 1)
        message = f"begins at {dev.time(0)}, and the training rows end at {last}"
        raise FileError("series-leak", dev.file, message, 2)


def after(before: Table, table: Table, lookback: int) -> tuple[Table, int]:
    """A table with up to `lookback` rows of `before` prepended, and the index of its own first row.

    They are prepended if the table begins where `before` ends, or fewer than `lookback` rows later.
    """
    missing = table.start - (before.start + len(before))
    if not 0 <= missing < lookback:
        return table, 0
    count = min(lookback - missing, len(before))

    def joined(old: Array, new: Array) -> Array:
        between = np.full((missing, *old.shape[1:]), nan)
        return np.concatenate([old[len(before) - count :], between, new])

    start = table.start - missing - count
    extended = replace(
        table,
        start=start,
        values=joined(before.values, table.values),
        covariates=joined(before.covariates, table.covariates),
        lines=np.concatenate([np.zeros(missing + count, np.int64), table.lines]),
    )
    return extended, missing + count


def part(table: Table, first: int, last: int) -> Table:
    """The rows from `first` to `last`, the end excluded."""
    return replace(
        table,
        start=table.start + first,
        values=table.values[first:last],
        covariates=table.covariates[first:last],
        lines=table.lines[first:last],
    )
