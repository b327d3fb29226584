"""What a table suggests where the settings are silent: its season, horizon, look-back and cut."""

from dataclasses import replace
from math import nan

import numpy as np

from saccade import config as c
from saccade.data.corpora import Array
from saccade.data.lines import Defect, FileError, counted, defect_at
from saccade.data.series import Table, TableSchema, read_table
from saccade.errors import DataError

CANDIDATE, PEAK = 0.15, 0.3  # an autocorrelation from which a usual season, or any other, is one
LOOKED_AT = 20  # series
MAX_ROWS = 20_000  # of a series
DEGREE = 3  # of the polynomial that is a trend
MIN_WINDOWS = 2  # to learn from


def season_of(table: Table) -> tuple[int, float]:
    """How many steps a season has, and the autocorrelation at that lag; 1 where there is none."""
    found = autocorrelation(table.values[-MAX_ROWS:, :LOOKED_AT])
    last = len(found) - 2
    usual = [m for m in (table.clock.seasons if table.clock else ()) if 2 <= m <= last]
    peaks = [m for m in usual if found[m] > CANDIDATE and found[m] >= found[m - 1 : m + 2].max()]
    if peaks:
        best = max(peaks, key=lambda m: float(found[m]))
        return best, float(found[best])
    dips = np.flatnonzero(found[: last + 1] < 0)  # what only fades is no season
    if not len(dips):
        return 1, 0.0
    lags = np.arange(max(2, int(dips[0])), last + 1)
    tops = [m for m in lags.tolist() if found[m] >= found[m - 1 : m + 2].max() and found[m] > PEAK]
    best = max(tops, key=lambda m: float(found[m]), default=1)
    near = [m for m in tops if found[m] > 0.9 * found[best]]  # a multiple of a season is none
    best = min(near, default=best)
    return best, float(found[best]) if best > 1 else 0.0


def autocorrelation(values: Array) -> Array:
    """The mean autocorrelation of series (T, N) without their trends, at lags up to T / 3."""
    T = len(values)
    lags = max(3, T // 3)
    total, count = np.zeros(lags), 0
    time = np.linspace(-1, 1, T)
    for series in values.T:
        there = ~np.isnan(series)
        if there.sum() < 8 or np.ptp(series[there]) == 0:
            continue
        trend = np.polynomial.Polynomial.fit(time[there], series[there], DEGREE)(time)
        x = np.where(there, series - trend, 0.0)
        energy = np.fft.irfft(np.abs(np.fft.rfft(x, 2 * T)) ** 2)[:lags]
        if energy[0] > 0:
            total, count = total + energy / energy[0], count + 1
    return total / max(count, 1)


def settled(task: c.Forecast, table: Table, data: c.Data) -> tuple[c.Forecast, list[str]]:
    """The settings with what they leave open, and what was chosen, in words."""
    said = []
    rows = len(table) if data.dev else len(table) - dev_rows(len(table), task.horizon or 1, data)
    season = task.season
    if season is None:
        season, strength = season_of(table)
        found = f"season {season} (autocorrelation {strength:.2f})" if season > 1 else "no season"
        said.append(found)
    horizon = task.horizon
    if horizon is None:
        horizon = max(1, min(season if season > 1 else 10, rows // 10))
        said.append(f"horizon {horizon}")
    lookback = task.lookback
    if lookback is None:
        lookback = max(1, min(max(4 * season, 4 * horizon), rows // 4))
        said.append(f"look-back {lookback}")
    roles = table.roles
    names = {"time": roles.time, "id": roles.id, "series": roles.series}
    units = task.units or ("file" if len(table.names) == 1 else "standard")
    chosen = {"season": season, "horizon": horizon, "lookback": lookback, "units": units}
    return task.model_copy(update=names | chosen), said


def dev_rows(rows: int, horizon: int, data: c.Data) -> int:
    """How many of the last rows are cut off to measure on."""
    return max(horizon, min(round(data.dev_share * rows), data.dev_max))


def defects_of(table: Table, task: c.Forecast, data: c.Data) -> list[Defect]:
    """Why there is nothing to learn from a table: series that never change, and too few rows."""
    found = []
    for name, series in zip(table.names, table.values.T, strict=True):
        there = series[~np.isnan(series)]
        if not len(there) or (there == there[0]).all():
            what = "never changes" if len(there) else "has no number"
            message = f"the series {name!r} {what}"
            found.append(defect_at("constant-series", table.file, 1, message))
    assert task.lookback
    assert task.horizon
    own = 0 if data.dev else dev_rows(len(table), task.horizon, data)
    wanted = task.lookback + task.horizon + MIN_WINDOWS - 1
    if len(table) - own < wanted:
        cut = f", of which the last {own:,} are to measure on" if own else ""
        message = (
            f"{counted(len(table), 'row')}{cut}; a look-back of {task.lookback:,} and a horizon of "
            f"{task.horizon:,} need {wanted + own:,}"
        )
        found.append(defect_at("short-series", table.file, len(table) + 1, message))
    return found


# --- training rows apart from dev rows ------------------------------------------------------------


def train_and_dev(task: c.Forecast, data: c.Data) -> tuple[Table, Table, int]:
    """The training rows; the dev rows with rows to look back to before them; where they begin.

    Without a dev file the last rows of the training file are cut off. A dev file goes on where the
    training file ends, unless its times say otherwise.
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
    """How many rows before a target are looked at, by a model or what it is measured beside."""
    return max(task.lookback or 1, task.season or 1)


def refuse_overlap(table: Table, dev: Table) -> None:
    """FileError if dev rows are among the training rows: a score on them means nothing."""
    if table.start - len(dev) < dev.start < table.start + len(table):
        last = table.time(len(table) - 1)
        message = f"begins at {dev.time(0)}, and the training rows end at {last}"
        raise FileError("series-leak", dev.file, message, 2)


def after(before: Table, table: Table, lookback: int) -> tuple[Table, int]:
    """A table with up to `lookback` rows before it, and the number of its own first row.

    Rows of another table are used if this one goes on where that one ends, or soon after.
    """
    missing = table.start - (before.start + len(before))
    if not 0 <= missing < lookback:
        return table, 0
    count = min(lookback - missing, len(before))

    def joined(old: Array, new: Array) -> Array:
        between = np.full((missing, *old.shape[1:]), nan)
        return np.concatenate([old[len(before) - count :], between, new])

    start = table.start - missing - count
    whole = replace(
        table,
        start=start,
        values=joined(before.values, table.values),
        covariates=joined(before.covariates, table.covariates),
        lines=np.concatenate([np.zeros(missing + count, np.int64), table.lines]),
    )
    return whole, missing + count


def part(table: Table, first: int, last: int) -> Table:
    """Some rows."""
    return replace(
        table,
        start=table.start + first,
        values=table.values[first:last],
        covariates=table.covariates[first:last],
        lines=table.lines[first:last],
    )
