"""Times of a table: their format, the step between two rows, and their continuation.

A time is an integer (a year), or a date with or without a time of day. The clock of a table numbers
its times: step 0 is the first row's, and a missing row is a missing number.
"""

import calendar
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from saccade.errors import DataError

DAY = 86_400  # seconds
FORMATS = (  # of dates, the most reliable first
    *("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M"),
    *("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d %H:%M:%S%z"),
    *("%Y-%m-%d", "%Y%m%d", "%Y-%m", "%Y/%m/%d", "%Y/%m/%d %H:%M", "%Y/%m"),
    *("%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%m/%d/%Y", "%d/%m/%Y"),
    *("%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S"),
    *("%b %Y", "%B %Y", "%d %b %Y", "%d-%b-%Y"),
)
ISO = {*FORMATS[:4], "%Y-%m-%d"}
TIME_NAMES = re.compile(
    r"(date|time|timestamp|datetime|ds|year|month|week|day|period|hour)s?", re.I
)
REGULAR = 2.0  # times of the other's: steps are of like sizes below it, as months are
USUAL_SHARE = 0.8  # of the cells in a column of times must be times
NUMBER = "number"  # the format of integers
Unit = Literal["number", "second", "month", "weekday"]
NAMES = {1: "second", 60: "minute", 3600: "hour", DAY: "day", 7 * DAY: "week"}
# the usual seasons in steps, the likeliest first, by the seconds of a step
SEASONS = {60: (60, 1440), 900: (96,), 1800: (48,), 3600: (24, 168), DAY: (7, 365), 7 * DAY: (52,)}


def form_of(cells: Sequence[str]) -> str | None:
    """The format of the times in these cells; None if they are not times."""
    if not cells:
        return None
    if all(_integer(cell) is not None for cell in cells):
        dates = all(len(cell) == 8 and parsed(cell, "%Y%m%d") is not None for cell in cells)
        return "%Y%m%d" if dates else NUMBER
    fitting = [form for form in FORMATS if parsed(cells[0], form) is not None]
    fitting = [form for form in fitting if all(parsed(cell, form) is not None for cell in cells)]
    if len(fitting) < 2:
        return fitting[0] if fitting else None
    # day or month first, as in 3/4/2020: the one by which times increase, in steps of like sizes
    spreads = {}
    for form in fitting:
        times = [parsed(cell, form) or 0 for cell in cells]
        steps = [b - a for a, b in pairwise(times)]
        if steps and min(steps) > 0:
            spreads[form] = max(steps) / min(steps)
    regular = [form for form, spread in spreads.items() if spread < REGULAR]
    return [*regular, *spreads, *fitting][0]


def usual_form(cells: Sequence[str]) -> str | None:
    """The format of most of the times in these cells, some of which may be malformed."""
    if form := form_of(cells):
        return form
    counts = {
        form: sum(parsed(cell, form) is not None for cell in cells) for form in (NUMBER, *FORMATS)
    }
    best = max(counts, key=lambda form: counts[form])
    return best if counts[best] > USUAL_SHARE * len(cells) else None


def parsed(cell: str, form: str) -> int | None:
    """A time as an integer, or as seconds since 1970; None if it is in another format."""
    if form == NUMBER:
        return _integer(cell)
    try:
        date = datetime.fromisoformat(cell) if form in ISO else datetime.strptime(cell, form)
    except ValueError:
        return None
    if form in ISO and cell != date.strftime(form):
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return round((date - EPOCH).total_seconds())


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _integer(cell: str) -> int | None:
    """An integer, which may have zero decimals."""
    head, point, decimals = cell.strip().partition(".")
    digits = head.removeprefix("-")
    if not digits.isdecimal() or len(digits) > 15 or decimals.strip("0") or (point and not head):
        return None
    return int(head)


@dataclass(frozen=True, slots=True)
class Clock:
    """The times of a table as steps: step n is `origin + n * size`, in units."""

    form: str
    unit: Unit
    origin: int  # in units; a month is 12 * year + month
    size: int
    day: int = 1  # of the month, from 1
    second: int = 0  # of the day

    def step(self, time: int) -> int | None:
        """The step of a time; None if it is between two steps."""
        at = units_of(time, self.unit)
        if self.unit in ("month", "weekday") and self._seconds(at) != time:
            return None  # another day of the month, or another hour
        steps, rest = divmod(at - self.origin, self.size)
        return None if rest else steps

    def text(self, step: int) -> str:
        """The time of a step, in the file's format."""
        at = self.origin + step * self.size
        if self.unit == "number":
            return str(at)
        try:
            date = EPOCH + timedelta(seconds=self._seconds(at))
        except (OverflowError, ValueError):
            raise DataError("a time beyond the year 9999 cannot be written") from None
        written = date.strftime(self.form)
        return written[:-2] + ":" + written[-2:] if self.form.endswith("%z") else written

    def _seconds(self, at: int) -> int:
        """Units as seconds since 1970."""
        if self.unit == "month":
            year, month = divmod(at - 1, 12)
            last = calendar.monthrange(year, month + 1)[1]
            date = datetime(year, month + 1, min(self.day, last), tzinfo=UTC)
            return round((date - EPOCH).total_seconds()) + self.second
        if self.unit == "weekday":
            days = np.busday_offset(MONDAY, at)
            return int(days.astype("datetime64[D]").astype(np.int64)) * DAY + self.second
        return at

    @property
    def name(self) -> str:
        """The size of a step in words: "hour", "3 months"."""
        if self.unit == "number":
            return "1" if self.size == 1 else str(self.size)
        size, name = self.size, str(self.unit)
        if self.unit == "second":
            unit = max(seconds for seconds in NAMES if self.size % seconds == 0)
            size, name = self.size // unit, NAMES[unit]
        elif self.unit == "month" and self.size % 12 == 0:
            size, name = self.size // 12, "year"
        return name if size == 1 else f"{size} {name}s"

    @property
    def seasons(self) -> tuple[int, ...]:
        """The usual seasons in steps, the likeliest first."""
        if self.unit == "second":
            return SEASONS.get(self.size, ())
        if self.unit == "month":
            return (12 // self.size,) if self.size < 12 and 12 % self.size == 0 else ()
        return (5,) if self.unit == "weekday" else ()

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


MONDAY = np.datetime64("1970-01-05")


def units_of(time: int, unit: Unit) -> int:
    """A time in units, rounded down."""
    if unit == "month":
        date = EPOCH + timedelta(seconds=time)
        return 12 * date.year + date.month
    if unit == "weekday":
        return int(np.busday_count(MONDAY, np.datetime64(time // DAY, "D")))
    return time


def clock_of(times: Sequence[int], form: str) -> Clock | int:
    """The clock of sorted times; if they are irregular, the index of the first between two steps.

    The step is the most frequent difference; all others must be multiples of it.
    """
    differences = Counter(b - a for a, b in pairwise(times))
    usual = differences.most_common(1)[0][0] if differences else 1
    if form == NUMBER:
        return _checked(Clock(form, "number", times[0], usual), times)
    dates = [EPOCH + timedelta(seconds=time) for time in times]
    seconds = times[0] % DAY
    if usual >= 28 * DAY:  # months differ in length
        months = [units_of(time, "month") for time in times]
        day = max(date.day for date in dates)
        step = Counter(b - a for a, b in pairwise(months)).most_common(1)[0][0]
        by_month = _checked(Clock(form, "month", months[0], max(step, 1), day, seconds), times)
        by_days = _checked(Clock(form, "second", times[0], usual), times)
        return by_days if isinstance(by_month, int) and isinstance(by_days, Clock) else by_month
    weekdays = all(date.weekday() < 5 for date in dates)
    if usual == DAY and weekdays and differences[3 * DAY] * 8 > len(times):
        origin = units_of(times[0], "weekday")
        return _checked(Clock(form, "weekday", origin, 1, second=seconds), times)
    return _checked(Clock(form, "second", times[0], usual), times)


def _checked(clock: Clock, times: Sequence[int]) -> Clock | int:
    for i, time in enumerate(times):
        if clock.step(time) is None:
            return i
    return clock
