"""Checks of targets that are numbers: unreadable, of another size, outliers."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from saccade import config as c
from saccade.check.findings import Finding, Group, error
from saccade.check.tally import MIN_ROWS
from saccade.data.kinds import cell_of
from saccade.data.lines import Defect, Example
from saccade.data.numbers import Moments
from saccade.data.targets import rows_of, target_cell
from saccade.errors import DataError

FAR = 30.0  # interquartile ranges beyond the quartiles: such an outlier dominates the loss


def number_findings(
    task: c.NumberTask,
    data: c.Data,
    train: Iterator[Example | Defect],
    dev: Iterator[Example | Defect],
) -> Iterator[Finding]:
    """An error for each target that cannot be read; then warnings, grouped by code."""
    moments, groups = Moments(), defaultdict(Group)  # type: Moments, dict[str, Group]
    per_row = isinstance(task, c.Series) or (isinstance(task, c.Regress) and task.per_position)
    extremes: list[tuple[str, np.ndarray]] = []  # where, and the smallest and largest numbers
    first = ""
    for split, rows in (("train", train), ("dev", dev)):
        for row in rows:
            if isinstance(row, Defect):
                continue
            first = first or row.where
            place = cell_of([""], row.file, row.where, data.root)
            try:
                cell = target_cell(str(row.target), place.folder, place.root, row.where)
                series = rows_of(cell, per_row)
                if split == "train":
                    moments.add(series, cell.lead)
                elif series.shape[1] != len(moments.mean) > 0:
                    size = len(moments.mean)
                    raise DataError(f"rows of {series.shape[1]} numbers, in train of {size}")
            except DataError as problem:
                what, _, advice = str(problem).removeprefix(f"{row.where}: ").partition("; ")
                yield error(Defect("number", row.where, what, advice or "mend the numbers"))
                continue
            ends = np.stack([np.fmin.reduce(series, 0), np.fmax.reduce(series, 0)])
            extremes.append((row.where, ends))
    if len(extremes) < MIN_ROWS:
        return
    spread = np.sqrt(moments.squares / np.maximum(moments.count, 1))
    for i in np.flatnonzero((spread == 0.0) | (moments.count == 0)):
        groups["constant-number"].add(first, f"number {i + 1} is the same in all examples")
    same = [(where, ends) for where, ends in extremes if ends.shape[1] == len(spread)]
    low, high = np.nanquantile(np.concatenate([ends for _, ends in same]), (0.25, 0.75), 0)
    reach = FAR * np.where(high > low, high - low, np.inf)
    for where, ends in same:
        far = ends[(ends < low - reach) | (ends > high + reach)]
        if len(far):
            groups["far-number"].add(where, f"{far[0]:g} is far from all others")
    for code, group in groups.items():
        yield group.finding(code)
