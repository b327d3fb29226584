"""A few numbers for every row of a file, and what they say: repeats, contradictions, lengths.

A text is remembered by its 64-bit hash, so that a million rows are thirty megabytes. Two texts of
a million have the same hash once in thirty million files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saccade.data.lines import Example

Array = np.ndarray[Any, np.dtype[Any]]

MIN_ROWS = 30  # before anything is said about lengths
MAX_SHIFT_LINES = 3  # by which aligned files are compared
STRETCH_ROWS = 200_000  # searched for a shift at once


@dataclass(frozen=True, slots=True)
class Tally:
    """A few numbers for each example, each an array."""

    lines: Array
    source: Array  # hashes
    target: Array
    source_len: Array  # characters
    target_len: Array

    def __len__(self) -> int:
        return len(self.lines)


class GrowingArray:
    """An array that grows at its end, without a second copy of what it holds."""

    def __init__(self, dtype: type[np.generic]):
        self._buffer = np.zeros(1024, dtype)
        self._size = 0

    def extend(self, more: Array) -> None:
        end = self._size + len(more)
        if end > len(self._buffer):
            self._buffer.resize(end + end // 4, refcheck=False)
        self._buffer[self._size : end] = more
        self._size = end

    @property
    def values(self) -> Array:
        return self._buffer[: self._size]


class TallyBuilder:
    """Builds a tally, some rows at a time."""

    def __init__(self) -> None:
        self._columns = [
            GrowingArray(t) for t in (np.int32, np.int64, np.int64, np.int32, np.int32)
        ]

    def add(self, rows: Sequence[Example]) -> None:
        n = len(rows)
        found: tuple[Array, ...] = (
            np.fromiter((row.line for row in rows), np.int32, n),
            np.fromiter((hash(row.source) for row in rows), np.int64, n),
            np.fromiter((hash(row.target) for row in rows), np.int64, n),
            np.fromiter((sum(map(len, row.source)) for row in rows), np.int32, n),
            np.fromiter((sum(map(len, row.target or ())) for row in rows), np.int32, n),
        )
        for column, values in zip(self._columns, found, strict=True):
            column.extend(values)

    @property
    def tally(self) -> Tally:
        return Tally(*(column.values for column in self._columns))


# --- repeats --------------------------------------------------------------------------------------


def repeats(tally: Tally, shortest: int) -> tuple[Array, Array]:
    """The rows whose source and target have come before, and for each the first row that has them.

    Sources of fewer than `shortest` characters may repeat.
    """
    with np.errstate(over="ignore"):
        keys = tally.source * np.int64(0x5851F42D4C957F2D) + tally.target
    return _later(keys, np.flatnonzero(tally.source_len >= shortest))


def conflicts(tally: Tally) -> tuple[Array, Array, float]:
    """The rows whose target is not that of the first row with their source; that row; the ceiling.

    The ceiling is the share of rows that is right if every source gets its most frequent target.
    """
    later, first = _later(tally.source, np.arange(len(tally)))
    differs = tally.target[later] != tally.target[first]
    return later[differs], first[differs], _ceiling(tally)


def _later(keys: Array, rows: Array) -> tuple[Array, Array]:
    """Of these rows those whose key has come before, in order, and the first row of each key."""
    order = rows[np.argsort(keys[rows], kind="stable")]
    if not len(order):
        return order, order
    new = np.concatenate([[True], keys[order[1:]] != keys[order[:-1]]])
    starts = np.flatnonzero(new)
    first = order[starts[new.cumsum() - 1]]
    later, first = order[~new], first[~new]
    again = np.argsort(later)
    return later[again], first[again]


def _ceiling(tally: Tally) -> float:
    if not len(tally):
        return 1.0
    order = np.lexsort((tally.target, tally.source))
    source, target = tally.source[order], tally.target[order]
    fresh = np.concatenate([[True], source[1:] != source[:-1]])
    run = fresh | np.concatenate([[True], target[1:] != target[:-1]])
    starts = np.flatnonzero(run)
    counts = np.diff(np.concatenate([starts, [len(order)]]))
    best = np.maximum.reduceat(counts, np.flatnonzero(fresh[starts]))
    return float(best.sum() / len(order))


def leaks(train: Tally, dev: Tally, shortest: int) -> tuple[Array, Array]:
    """The rows of dev whose source is in train, and the first row there that has it."""
    if not len(train) or not len(dev):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(train.source, kind="stable")
    at = np.minimum(np.searchsorted(train.source[order], dev.source), len(order) - 1)
    there = order[at]
    same = (train.source[there] == dev.source) & (dev.source_len >= shortest)
    return np.flatnonzero(same), there[same]


# --- lengths --------------------------------------------------------------------------------------


def longest_usual(lengths: Array) -> float:
    """The length above which a line is an outlier among these: far beyond the upper quartile."""
    if len(lengths) < MIN_ROWS:
        return np.inf
    low, high = np.percentile(np.log(np.maximum(lengths, 1)), [25, 75])
    reach = min(5 * max(high - low, 0.3), np.log(50.0))
    limit = max(float(np.exp(high + reach)), 50.0)
    # Where many lines are that long, long lines are usual there.
    return limit if (lengths > limit).sum() <= max(3, 0.005 * len(lengths)) else np.inf


def ratios(tally: Tally) -> Array:
    """How many times as long as its source each target is, as a logarithm."""
    smooth = 10.0  # one letter more or less means nothing in a short line
    found: Array = np.log((tally.target_len + smooth) / (tally.source_len + smooth))
    return found


def usual_ratios(found: Array) -> tuple[float, float]:
    """The lowest and the highest ratio (logarithms) that are no outliers."""
    if len(found) < MIN_ROWS:
        return -np.inf, np.inf
    low, middle, high = np.percentile(found, [25, 50, 75])
    reach = max(6 * (high - low), np.log(3.0))
    odd = np.abs(found - middle) > reach
    if odd.sum() > max(3, 0.005 * len(found)):
        return -np.inf, np.inf
    return float(middle - reach), float(middle + reach)


def shifted(tally: Tally) -> tuple[int, int, int] | None:
    """The rows (first, last) between which targets belong to other lines, and how far off they are.

    A partner has about the length of its line. The stretch is sought in which lines as far apart
    as the shift fit so much better that chance does not explain it.
    """
    for start in range(0, len(tally), STRETCH_ROWS):
        stop = min(start + STRETCH_ROWS, len(tally))
        if found := _shifted(tally.source_len[start:stop], tally.target_len[start:stop]):
            first, last, shift = found
            return start + first, start + last, shift
    return None


def _shifted(source_len: Array, target_len: Array) -> tuple[int, int, int] | None:
    best: tuple[float, tuple[int, int, int]] | None = None
    n = len(source_len)
    if n < MIN_ROWS:
        return None
    source, target = np.log(source_len + 10.0), np.log(target_len + 10.0)
    usual = np.median(target - source)
    here = np.abs(target - source - usual)
    scale = max(float(np.median(here)), 0.02)
    for shift in [k for k in range(-MAX_SHIFT_LINES, MAX_SHIFT_LINES + 1) if k]:
        first, stop = max(0, -shift), min(n, n - shift)
        there = np.abs(target[first:stop] - source[first + shift : stop + shift] - usual)
        gain = np.clip((here[first:stop] - there) / scale, -3, 3)
        sums = np.concatenate([np.zeros(1), gain.cumsum()])
        above = sums - np.minimum.accumulate(sums)
        end = int(np.argmax(above))
        won = float(above[end])
        start = int(np.argmin(sums[: end + 1]))
        if end - start >= 20 and won > max(30.0, 0.5 * (end - start)):
            found = (first + start, first + end - 1, shift)
            best = max(best, (won, found)) if best else (won, found)
    return best and best[1]
