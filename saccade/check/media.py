"""Checks of media: missing, unreadable, duplicate, of unusual size, blank, silent, clipped.

Every file is read once; a hash and a few numbers are kept of it.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from saccade import config as c
from saccade.check.findings import Finding, Group, error
from saccade.check.tally import MIN_ROWS, longest_usual
from saccade.data.cells import vector_place
from saccade.data.detect import array_path
from saccade.data.kinds import cell_of
from saccade.data.lines import Defect, Example
from saccade.data.media import Cell, required
from saccade.data.numbers import series_of
from saccade.data.pictures import decoded, opened
from saccade.data.sounds import is_frames, samples_of
from saccade.errors import DataError

SILENT = 1e-3  # peak amplitude below which a sound is silent
CLIPPED = 0.999  # amplitude from which a sample counts as clipped
CLIPPED_SHARE = 0.002  # of clipped samples: more are audible
ODD_SIZE = 8.0  # factor from the median of pictures' sides, or of their aspect ratios
MIN_SIDE = 8  # pixels


@dataclass
class Seen:
    """What has been read of the media of one source, in train and dev."""

    known: set[str] = field(default_factory=set)  # keys of cells
    content: dict[bytes, tuple[str, str, str]] = field(default_factory=dict)  # split, where, path
    sizes: list[tuple[str, tuple[float, ...]]] = field(default_factory=list)  # where, and numbers
    groups: dict[str, Group] = field(default_factory=lambda: defaultdict(Group))


def media_sources(task: c.Task, data: c.Data) -> list[c.Source]:
    """The sources of a task that are media."""
    sources = task.sources(data.source)
    return [source for source in sources if isinstance(source.reader, c.Media)]


def media_findings(
    task: c.Task, data: c.Data, train: Iterator[Example | Defect], dev: Iterator[Example | Defect]
) -> Iterator[Finding]:
    """An error for each cell that cannot be read; then warnings, grouped by code."""
    sources = media_sources(task, data)
    if not sources:
        return
    seen = [Seen() for _ in sources]
    for split, rows in (("train", train), ("dev", dev)):
        for row in rows:
            if isinstance(row, Defect):
                continue
            for source, known in zip(sources, seen, strict=True):
                texts = [row.source[i] for i in source.columns]
                cell = cell_of(texts, row.file, "", data.root)
                if cell.key in known.known:
                    continue
                known.known.add(cell.key)
                try:
                    _check_cell(known, source.reader, cell, split, row)
                except DataError as problem:
                    what, _, advice = str(problem).partition("; ")
                    yield error(Defect("media", row.where, what, advice or "mend the file"))
    for source, known in zip(sources, seen, strict=True):
        _odd_sizes(known, source.reader)
        for code, group in known.groups.items():
            yield group.finding(code)


def vector_findings(data: c.Data, rows: Iterator[Example | Defect]) -> Iterator[Finding]:
    """Columns of a vector that are constant, or have gaps."""
    count, first = 0, ""
    lowest = np.full(len(data.vector), np.inf)
    highest = -lowest
    gaps: dict[str, Group] = defaultdict(Group)
    for row in rows:
        count += 1
        if isinstance(row, Example):
            first = first or row.where
            numbers = json.loads(row.source[vector_place(data) or 0])
            lowest, highest = np.minimum(lowest, numbers), np.maximum(highest, numbers)
        elif row.code == "number":
            gaps[row.message.partition(" is ")[0]].add(row.where, row.message)
    groups: dict[str, Group] = defaultdict(Group)
    for column, low, high in zip(data.vector, lowest.tolist(), highest.tolist(), strict=True):
        if low == high:
            groups["constant-column"].add(first, f"column {column!r} is {low:g} in every row")
    for column, group in gaps.items():
        if group.count > 1:
            message = f"{column} has no number in {group.count:,} of {count:,} rows"
            groups["gappy-column"].add(group.places[0].where, message)
    for code, group in groups.items():
        yield group.finding(code)


def _check_cell(seen: Seen, reader: c.Reader, cell: Cell, split: str, row: Example) -> None:
    """Read one cell, and note its problems."""
    where, name = row.where, "" if cell.inline else cell.text
    if not cell.inline:
        _compare_content(seen, cell, split, where)
    match reader:
        case c.Picture():
            with opened(cell) as image:
                size = float(image.width), float(image.height)
            pixels = decoded(cell, reader)
            seen.sizes.append((where, size))
            if min(size) < MIN_SIDE:
                message = f"{size[0]:.0f} x {size[1]:.0f} pixels show nothing"
                seen.groups["odd-size"].add(where, message, name)
            elif (pixels == pixels[0, 0]).all():
                seen.groups["blank-media"].add(where, "a picture of one colour", name)
        case c.Sound() if not is_frames(cell):
            samples = samples_of(cell, reader.rate)
            seen.sizes.append((where, (len(samples) / reader.rate,)))
            loudest = float(np.abs(samples).max())
            if loudest < SILENT:
                seen.groups["silent"].add(where, f"no sample is above {loudest:.5f}", name)
            elif (share := float((np.abs(samples) > CLIPPED).mean())) > CLIPPED_SHARE:
                seen.groups["clipped"].add(where, f"{share:.1%} of it is at the limit", name)
        case _:
            series = series_of(cell)
            seen.sizes.append((where, (float(len(series)),)))
            if len(series) > 1 and (series == series[0]).all():
                seen.groups["blank-media"].add(where, "a series that never changes", name)


def _compare_content(seen: Seen, cell: Cell, split: str, where: str) -> None:
    """Note a file with the same content as an earlier one."""
    with open(required(cell), "rb") as file:
        key = hashlib.file_digest(file, "sha256").digest() + array_path(cell.text)[1].encode()
    before = seen.content.setdefault(key, (split, where, cell.text))
    if before[1] == where:
        return
    code = "same-file" if before[0] == split else "leak"
    message = f"the same content as {before[2]} at {before[1]}"
    seen.groups[code].add(where, message, cell.text)


def _odd_sizes(seen: Seen, reader: c.Reader) -> None:
    """Note outliers in size."""
    if len(seen.sizes) < MIN_ROWS:
        return
    table: Any = np.array([numbers for _, numbers in seen.sizes])
    if isinstance(reader, c.Picture):
        shape = table[:, 0] / table[:, 1]
        side = np.sqrt(table.prod(1))
        outliers = (shape / np.median(shape) > ODD_SIZE) | (np.median(shape) / shape > ODD_SIZE)
        outliers |= (side / np.median(side) > ODD_SIZE) | (np.median(side) / side > ODD_SIZE)
        messages = [f"{w:.0f} x {h:.0f} pixels, far from the usual size" for w, h in table]
    else:
        unit = "seconds" if isinstance(reader, c.Sound) else "vectors"
        hundredths = np.round(100 * table[:, 0])
        outliers = hundredths > longest_usual(hundredths)
        messages = [f"{length:g} {unit}, far more than usual" for length in table[:, 0].round(2)]
    for number in np.flatnonzero(outliers).tolist():
        seen.groups["odd-size"].add(seen.sizes[number][0], messages[number])
