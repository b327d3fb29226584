"""Checks of time-series tables: defects of their files, gaps, spikes, too few rows."""

from collections.abc import Iterator

import numpy as np

from saccade import config as c
from saccade.check.findings import Finding, Group, error
from saccade.data.lines import FileError, counted, place
from saccade.data.seasons import defects_of, refuse_overlap, settled
from saccade.data.series import Table, TableSchema, scan_table

SPIKE = 12.0  # times the median difference of consecutive values, on both sides of one


def series_findings(task: c.Forecast, data: c.Data) -> Iterator[Finding]:
    """Errors, which training refuses; then warnings, grouped by code."""
    table, defects = scan_table(data.train[0], task, data)
    yield from map(error, defects)
    dev = None
    if table is not None:
        filled, _ = settled(task, table, data)
        yield from map(error, defects_of(table, filled, data))
        if data.dev:
            known = TableSchema(table.roles, table.names, table.clock)
            dev, defects = scan_table(data.dev[0], task, data, known)
            yield from map(error, defects)
    if table is not None and dev is not None and table.clock is not None:
        try:
            refuse_overlap(table, dev)
        except FileError as problem:
            yield error(problem.defect)
    gaps, spikes = Group(), Group()
    for split in (table, dev):
        if split is not None:
            _gaps(gaps, split)
            _spikes(spikes, split)
    for code, group in (("gaps", gaps), ("spike", spikes)):
        if group.count:
            yield group.finding(code)


def _gaps(group: Group, table: Table) -> None:
    """Runs of missing values, each at its first row."""
    for name, series in zip(table.names, table.values.T, strict=True):
        missing = np.isnan(series)
        starts = np.flatnonzero(missing & ~np.append(False, missing[:-1]))
        ends = np.flatnonzero(missing & ~np.append(missing[1:], False))
        for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
            what = f"{counted(last - first + 1, 'gap')} in {name!r} at {table.time(first)}"
            group.add(_where(table, first), what)


def _spikes(group: Group, table: Table) -> None:
    """Values that are far above, or far below, both neighbours."""
    for name, series in zip(table.names, table.values.T, strict=True):
        rows = np.flatnonzero(~np.isnan(series))
        differences = np.diff(series[rows])
        median = np.median(np.abs(differences)) if len(differences) > 2 else 0.0
        if median <= 0:
            continue
        far = np.minimum(np.abs(differences[:-1]), np.abs(differences[1:])) > SPIKE * median
        far &= np.sign(differences[:-1]) != np.sign(differences[1:])
        for row in rows[1:-1][far].tolist():
            group.add(_where(table, row), f"{series[row]:g} in {name!r} is far from its neighbours")


def _where(table: Table, row: int) -> str:
    line = int(table.lines[row])
    return place(table.file, line) if line else table.file
