"""A few numbers for every row of a file, and checks on them: duplicates, conflicts, lengths.

A text is represented by its 64-bit hash, so a million rows take thirty megabytes. The probability
of a collision among a million texts is one in thirty million.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saccade.data.lines import Example

Array = np.ndarray[Any, np.dtype[Any]]

MIN_ROWS = 30  # before lengths are judged
MAX_SHIFT_LINES = 3  # largest offset at which aligned files are compared
STRETCH_ROWS = 200_000  # that are searched for a shift in one chunk


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
    """An append-only array that is resized in place, without a second copy."""

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
    """Builds a tally from blocks of rows."""

    def __init__(self) -> None:
        self._columns = [
            GrowingArray(t) for t in (np.int32, np.int64, np.int64, np.int32, np.int32)
        ]

    def add(self, rows: Sequence[Example]) -> None:
        n = len(rows)
        columns: tuple[Array, ...] = (
            np.fromiter((row.line for row in rows), np.int32, n),
            np.fromiter((hash(row.source) for row in rows), np.int64, n),
            np.fromiter((hash(row.target) for row in rows), np.int64, n),
            np.fromiter((sum(map(len, row.source)) for row in rows), np.int32, n),
            np.fromiter((sum(map(len, row.target or ())) for row in rows), np.int32, n),
        )
        for column, values in zip(self._columns, columns, strict=True):
            column.extend(values)

    @property
    def tally(self) -> Tally:
        return Tally(*(column.values for column in self._columns))


# --- duplicates -----------------------------------------------------------------------------------


def repeats(tally: Tally, shortest: int) -> tuple[Array, Array]:
    """The rows that duplicate an earlier row, and for each the first row that it duplicates.

    Sources of fewer than `shortest` characters are ignored.
    """
    with np.errstate(over="ignore"):
        keys = tally.source * np.int64(0x5851F42D4C957F2D) + tally.target
    return _later(keys, np.flatnonzero(tally.source_len >= shortest))


def conflicts(tally: Tally) -> tuple[Array, Array, float]:
    """The rows whose target differs from that of the first row with their source; that row; the
    ceiling.

    The ceiling is the best possible accuracy: every source gets its most frequent target.
    """
    later, first = _later(tally.source, np.arange(len(tally)))
    differs = tally.target[later] != tally.target[first]
    return later[differs], first[differs], _ceiling(tally)


def _later(keys: Array, rows: Array) -> tuple[Array, Array]:
    """Of these rows those with the key of an earlier one, in order, and the first with that key."""
    order = rows[np.argsort(keys[rows], kind="stable")]
    if not len(order):
        return order, order
    new = np.concatenate([[True], keys[order[1:]] != keys[order[:-1]]])
    starts = np.flatnonzero(new)
    first = order[starts[new.cumsum() - 1]]
    later, first = order[~new], first[~new]
    by_row = np.argsort(later)
    return later[by_row], first[by_row]


def _ceiling(tally: Tally) -> float:
    if not len(tally):
        return 1.0
    order = np.lexsort((tally.target, tally.source))
    source, target = tally.source[order], tally.target[order]
    new_source = np.concatenate([[True], source[1:] != source[:-1]])
    new_pair = new_source | np.concatenate([[True], target[1:] != target[:-1]])
    starts = np.flatnonzero(new_pair)
    counts = np.diff(np.concatenate([starts, [len(order)]]))
    best = np.maximum.reduceat(counts, np.flatnonzero(new_source[starts]))
    return float(best.sum() / len(order))


def leaks(train: Tally, dev: Tally, shortest: int) -> tuple[Array, Array]:
    """The rows of dev whose source is in train, and the first row of train that has it."""
    if not len(train) or not len(dev):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(train.source, kind="stable")
    at = np.minimum(np.searchsorted(train.source[order], dev.source), len(order) - 1)
    match = order[at]
    same = (train.source[match] == dev.source) & (dev.source_len >= shortest)
    return np.flatnonzero(same), match[same]


# --- lengths --------------------------------------------------------------------------------------


def longest_usual(lengths: Array) -> float:
    """The length above which a line is an outlier: far beyond the upper quartile."""
    if len(lengths) < MIN_ROWS:
        return np.inf
    low, high = np.percentile(np.log(np.maximum(lengths, 1)), [25, 75])
    reach = min(5 * max(high - low, 0.3), np.log(50.0))
    limit = max(float(np.exp(high + reach)), 50.0)
    # if many lines are that long, they are not outliers
    return limit if (lengths > limit).sum() <= max(3, 0.005 * len(lengths)) else np.inf


def ratios(tally: Tally) -> Array:
    """The log ratio of the lengths of target and source, for each row."""
    smooth = 10.0  # so that a letter more or less hardly matters in a short line
    log_ratios: Array = np.log((tally.target_len + smooth) / (tally.source_len + smooth))
    return log_ratios


def usual_ratios(log_ratios: Array) -> tuple[float, float]:
    """The lowest and the highest log ratio that are not outliers."""
    if len(log_ratios) < MIN_ROWS:
        return -np.inf, np.inf
    low, middle, high = np.percentile(log_ratios, [25, 50, 75])
    reach = max(6 * (high - low), np.log(3.0))
    outliers = np.abs(log_ratios - middle) > reach
    if outliers.sum() > max(3, 0.005 * len(log_ratios)):
        return -np.inf, np.inf
    return float(middle - reach), float(middle + reach)


def shifted(tally: Tally) -> tuple[int, int, int] | None:
    """The first and the last row of a range in which source and target are misaligned, and the
    offset in rows; None if there is none.

    Aligned lines have similar lengths. The range is the one where lines at the offset fit so much
    better than lines side by side that chance does not explain it.
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
    median = np.median(target - source)
    aligned = np.abs(target - source - median)
    scale = max(float(np.median(aligned)), 0.02)
    for shift in [k for k in range(-MAX_SHIFT_LINES, MAX_SHIFT_LINES + 1) if k]:
        first, stop = max(0, -shift), min(n, n - shift)
        offset = np.abs(target[first:stop] - source[first + shift : stop + shift] - median)
        gain = np.clip((aligned[first:stop] - offset) / scale, -3, 3)
        sums = np.concatenate([np.zeros(1), gain.cumsum()])
        above = sums - np.minimum.accumulate(sums)
        end = int(np.argmax(above))
        total_gain = float(above[end])
        start = int(np.argmin(sums[: end + 1]))
        if end - start >= 20 and total_gain > max(30.0, 0.5 * (end - start)):
            candidate = (first + start, first + end - 1, shift)
            best = max(best, (total_gain, candidate)) if best else (total_gain, candidate)
    return best and best[1]
