"""Tables of time series: a CSV file in wide format, a column for each series, or in long format, a
row for each value.

`scan_table` gives a table and every defect of its file; `read_table` is the strict version, which
raises DataError. Missing rows between two times become gaps, as empty cells are.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan

import numpy as np

from saccade import config as c
from saccade.data.corpora import Array
from saccade.data.layout import SAMPLE_LINES
from saccade.data.lines import Defect, FileError, counted, defect_at, lines_of, listed
from saccade.data.sources import REPORTED_DEFECTS
from saccade.data.tables import SEPARATORS, has_header, records, separator_of
from saccade.data.times import NUMBER, TIME_NAMES, Clock, clock_of, form_of, parsed, usual_form
from saccade.errors import DataError

ALONE = "\x1f"  # a separator that does not occur, for a file with one column
MISSING = {"", "na", "n/a", "nan", "none", "null", "-", "?", "nat"}
MAX_FILLED = 20  # limit of rows after gaps are filled, in multiples of the rows there are
ID_NAMES = re.compile(r"(unique_?)?(id|series|item|name|key|sensor|store|ticker|symbol)", re.I)
VALUE_NAMES = re.compile(r"value|values|y|target", re.I)
TEXT_SHARE = 0.5  # the largest share of text cells in a column of numbers


@dataclass(frozen=True)
class Roles:
    """The roles of a file's columns."""

    time: str = ""  # "": rows are one step apart
    id: str = ""  # "": wide format
    series: tuple[str, ...] = ()  # in long format, the one column of values
    past: tuple[str, ...] = ()
    known: tuple[str, ...] = ()

    @property
    def covariates(self) -> tuple[str, ...]:
        return self.past + self.known


@dataclass(frozen=True)
class Table:
    """Series as columns, a row for each time step; NaN is a gap."""

    file: str
    roles: Roles
    clock: Clock | None
    start: int  # the step of row 0: its number on the clock, or 0
    names: tuple[str, ...]  # of the series
    values: Array  # (rows, series)
    covariates: Array  # (rows, 1, past + known); in long format (rows, ids, past + known)
    lines: Array  # (rows,) line numbers in the file; 0 where a row is missing
    unused: tuple[str, ...] = ()  # columns

    def __len__(self) -> int:
        return len(self.values)

    def time(self, row: int) -> str:
        """The time of a row, which may be beyond the end."""
        return self.clock.text(self.start + row) if self.clock else str(self.start + row + 1)


def read_table(
    name: str, task: c.Forecast, data: c.Data, known: "TableSchema | None" = None
) -> Table:
    """The table in a file; DataError with its first defects. `known` is the schema of a run."""
    table, defects = scan_table(name, task, data, known)
    if defects:
        shown = [str(defect) for defect in defects[:REPORTED_DEFECTS]]
        if (hidden := len(defects) - len(shown)) > 0:
            shown.append(f"... and {hidden:,} more; for all of them: saccade check {name}")
        raise DataError("\n".join(shown))
    assert table is not None
    return table


@dataclass(frozen=True)
class TableSchema:
    """The roles, series and clock of a run's tables, which other files must match."""

    roles: Roles
    names: tuple[str, ...]
    clock: Clock | None


def scan_table(
    name: str, task: c.Forecast, data: c.Data, known: TableSchema | None = None
) -> tuple[Table | None, list[Defect]]:
    """The table in a file, None if it cannot be read, and all defects."""
    reading = None
    try:
        header, rows = _rows(name, data.header)
        head = list(itertools.islice(rows, SAMPLE_LINES))
        cells = [row for _, row in head if not isinstance(row, Defect) and len(row) == len(header)]
        if not cells:
            raise FileError("empty-file", name, "no rows of numbers")
        roles = known.roles if known else find_roles(name, header, cells, task)
        _require(name, header, roles)
        form = known.clock.form if known and known.clock else ""
        if roles.time and not form:
            form = usual_form([row[header.index(roles.time)] for row in cells]) or ""
        reading = Reading(name, header, roles, known, form)
        reading.add(itertools.chain(head, rows))
        return reading.table(), reading.defects
    except FileError as error:
        return None, [*(reading.defects if reading else ()), error.defect]


def _rows(
    name: str, header: bool | None
) -> tuple[list[str], Iterator[tuple[int, list[str] | Defect]]]:
    """The names of the columns, and the cells of each row with its line number."""
    lines = enumerate(lines_of(name), 1)
    head = list(itertools.islice(lines, SAMPLE_LINES))
    texts = [line for _, line in head if isinstance(line, str) and line.strip()]
    if not texts:
        raise FileError("empty-file", name, "no rows of numbers")
    frequent = max(SEPARATORS, key=texts[0].count)
    separator = separator_of(texts) or (frequent if frequent in texts[0] else ALONE)
    rows = records(itertools.chain(head, lines), name, separator)
    stripped = (
        (n, [cell.strip() for cell in row] if isinstance(row, list) else row)
        for n, row in rows
        if row != [""] or separator == ALONE  # in a single column an empty line is a gap
    )
    if separator == ";":
        stripped = (
            (n, [_decimal_point(x) for x in r] if isinstance(r, list) else r) for n, r in stripped
        )
    number, first = next(stripped)
    if isinstance(first, Defect):
        raise FileError(first.code, name, first.message, number)
    if header is None:
        sample = [line.split(separator) for line in texts[:100]]
        sample = [row for row in sample if len(row) == len(first)]
        header = not any(_number(cell) is not None for cell in first) or has_header(sample, True)
    names = first if header else [str(i) for i in range(1, len(first) + 1)]
    names = [key or f"column {i}" for i, key in enumerate(names, 1)]
    if repeated := [key for key, count in Counter(names).items() if count > 1]:
        message = f"the column {repeated[0]!r} is there twice"
        raise FileError("series-column", name, message, number)
    return names, stripped if header else itertools.chain([(number, first)], stripped)


def _decimal_point(cell: str) -> str:
    """A cell with a decimal comma, usual in semicolon-separated files, as one with a point."""
    return cell.replace(",", ".") if re.fullmatch(r"-?\d*,\d+(e-?\d+)?", cell, re.I) else cell


def _number(cell: str) -> float | None:
    """The number in a cell, NaN where it is missing; None if it is not a number."""
    try:
        number = float(cell)
    except ValueError:
        return nan if cell.casefold() in MISSING else None
    return number if isfinite(number) or cell.casefold() in MISSING else None


# --- the roles of columns -------------------------------------------------------------------------


def find_roles(
    name: str, header: Sequence[str], rows: Sequence[Sequence[str]], task: c.Forecast
) -> Roles:
    """The roles of the columns, by the settings, or else by their first cells."""
    columns = {key: [row[i] for row in rows] for i, key in enumerate(header)}
    assigned = {*task.series, *task.past, *task.known, task.time, task.id}
    time = task.time or next(
        (key for i, key in enumerate(header) if key not in assigned and _is_time(key, i, columns)),
        "",
    )
    numeric = [key for key in header if key != time and _is_numeric(columns[key])]
    identity = task.id
    if not identity and time and len(set(columns[time])) < len(columns[time]):
        texts = [key for key in header if key not in {*numeric, *assigned, time}]
        named = [key for key in header if ID_NAMES.fullmatch(key) and key not in assigned]
        identity = next(iter([*named, *texts]), "")
    free = [key for key in numeric if key not in {identity, *task.past, *task.known}]
    series = task.series or tuple(free)
    if identity and len(series) > 1:
        named = [key for key in series if VALUE_NAMES.fullmatch(key)]
        if len(named) != 1:
            message = f"a row a value, and several columns of numbers: {listed(series)}"
            raise FileError("series-column", name, message, 1)
        series = (named[0],)
    if not series:
        raise FileError("series-column", name, f"no column of numbers among {listed(header)}", 1)
    return Roles(time, identity, series, task.past, task.known)


def _is_time(key: str, number: int, columns: dict[str, list[str]]) -> bool:
    cells = columns[key]
    if TIME_NAMES.fullmatch(key):
        return usual_form(cells) is not None
    form = form_of(cells)
    if form != NUMBER:
        return form is not None
    steps = {b - a for a, b in itertools.pairwise([int(float(cell)) for cell in cells])}
    counts_rows = len(steps) == 1 and steps.pop() > 0
    return number == 0 and len(columns) > 1 and counts_rows


def _is_numeric(cells: Sequence[str]) -> bool:
    """Whether most of the non-missing cells are numbers."""
    present = [cell for cell in cells if cell.casefold() not in MISSING]
    if not present:
        return len(cells) > 0  # empty in the sample
    return sum(_number(cell) is None for cell in present) <= TEXT_SHARE * len(present)


def _require(name: str, header: Sequence[str], roles: Roles) -> None:
    """FileError unless the columns exist, each in one role."""
    named = [key for key in (roles.time, roles.id, *roles.series, *roles.covariates) if key]
    for key in named:
        if key not in header:
            message = f"no column {key!r} among {listed(header)}"
            raise FileError("series-column", name, message, 1)
        if named.count(key) > 1:
            raise FileError("series-column", name, f"the column {key!r} has two roles", 1)


# --- rows -----------------------------------------------------------------------------------------


@dataclass
class Reading:
    """Accumulates the rows of a file, and their defects."""

    name: str
    header: Sequence[str]
    roles: Roles
    known: TableSchema | None
    form: str  # the format of times
    numbers: list[list[float]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)  # the series of each row, in long format
    defects: list[Defect] = field(default_factory=list)

    def complain(self, code: str, line: int, message: str, row: Sequence[str] = ()) -> None:
        self.defects.append(defect_at(code, self.name, line, message, ",".join(row)))

    def add(self, rows: Iterable[tuple[int, list[str] | Defect]]) -> None:
        """Read rows, each with its line number."""
        roles, header = self.roles, self.header
        wanted = [(key, header.index(key)) for key in (*roles.series, *roles.covariates)]
        at = header.index(roles.time) if roles.time else -1
        owner = header.index(roles.id) if roles.id else -1
        for line, row in rows:
            if isinstance(row, Defect):
                self.defects.append(row)
                continue
            if len(row) != len(header):
                message = f"expected {counted(len(header), 'column')}, found {len(row)}"
                self.complain("columns", line, message, row)
                continue
            time = parsed(row[at], self.form) if roles.time and self.form else 0
            if time is None or (roles.time and not self.form):
                message = f"{row[at][:40]!r} does not match the time format of {roles.time!r}"
                self.complain("time", line, message, row)
                continue
            values = [_number(row[pick]) for _, pick in wanted]
            for (key, pick), value in zip(wanted, values, strict=True):
                if value is None:
                    message = f"{row[pick][:40]!r} in {key!r} is not a number"
                    self.complain("series-number", line, message, row)
            self.numbers.append([nan if value is None else value for value in values])
            self.lines.append(line)
            self.times.append(time)
            self.owners.append(row[owner] if roles.id else "")

    def table(self) -> Table | None:
        """The rows placed by time, with gaps between; None if there are defects."""
        roles, known = self.roles, self.known
        names = tuple(dict.fromkeys(self.owners)) if roles.id else roles.series
        if known and roles.id:
            self._require_known(known.names)
            names = known.names
        if self.defects or not self.numbers:
            return None
        clock, start, places = (
            self._placed_by_time() if roles.time else (None, 0, self._placed_by_order())
        )
        if self.defects:
            return None
        count, array = int(places.max()) + 1, np.array(self.numbers)
        values = np.full((count, len(names)), nan)
        covariates = np.full((count, len(names) if roles.id else 1, len(roles.covariates)), nan)
        if roles.id:
            index = {owner: i for i, owner in enumerate(names)}
            columns = np.array([index[owner] for owner in self.owners])
            values[places, columns], covariates[places, columns] = array[:, 0], array[:, 1:]
        else:
            values[places], covariates[places, 0] = array[:, : len(names)], array[:, len(names) :]
        lines = np.zeros(count, np.int64)
        lines[places[::-1]] = self.lines[::-1]  # the first of several rows with one time
        used = {roles.time, roles.id, *roles.series, *roles.covariates}
        unused = tuple(key for key in self.header if key not in used)
        return Table(self.name, roles, clock, start, names, values, covariates, lines, unused)

    def _require_known(self, names: Sequence[str]) -> None:
        """Note the first series that was not in the training data."""
        known = set(names)
        for line, owner in zip(self.lines, self.owners, strict=True):
            if owner not in known:
                message = f"the series {owner[:40]!r} was not in the training data"
                self.complain("series", line, message)
                return

    def _placed_by_order(self) -> Array:
        """The step of each row, by its position in its series."""
        seen: Counter[str] = Counter()
        places = np.zeros(len(self.owners), np.int64)
        for i, owner in enumerate(self.owners):
            places[i] = seen[owner]
            seen[owner] += 1
        return places

    def _placed_by_time(self) -> tuple[Clock | None, int, Array]:
        """The clock of the times, the first step, and the offset in steps of each row."""
        none, times = np.zeros(0, np.int64), self.times
        self._require_order()
        if self.defects:
            return None, 0, none
        unique = sorted(set(times))
        own = self.known.clock if self.known else None
        clock = own or clock_of(unique, self.form)
        if isinstance(clock, int):
            line = self.lines[times.index(unique[clock])]
            self.complain("irregular", line, "the time does not fit the step of those before it")
            return None, 0, none
        steps = []
        for line, time in zip(self.lines, times, strict=True):
            step = clock.step(time)
            if step is None:
                message = f"the time is not a multiple of a {clock.name} after the training data's"
                self.complain("irregular", line, message)
                return None, 0, none
            steps.append(step)
        places = np.array(steps) - min(steps)
        if places.max() >= MAX_FILLED * len(unique) + 100:
            line = self.lines[int(np.argmax(np.diff(np.sort(places)))) + 1]
            self.complain("irregular", line, f"most times of a {clock.name} are missing")
        return clock, min(steps), places

    def _require_order(self) -> None:
        """Note times that do not increase from row to row of a series."""
        last: dict[str, tuple[int, int]] = {}
        for time, line, owner in zip(self.times, self.lines, self.owners, strict=True):
            before = last.get(owner)
            if before is not None and time == before[0]:
                self.complain("repeated-time", line, f"the same time as in line {before[1]}")
            elif before is not None and time < before[0]:
                self.complain("unsorted", line, f"an earlier time than in line {before[1]}")
            last[owner] = time, line
