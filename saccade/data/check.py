"""What is wrong with the data of a configuration: every defect, with its file and line.

Training data is read once, dev data a few times; what is kept is the labels, and a hash for every
source of dev, so that memory does not grow with the training data.
A new check of dev rows is a function `(Seen, rows) -> defects` in DEV_CHECKS.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from saccade.config import Data
from saccade.data.lines import Defect, Example
from saccade.data.shapes import shape
from saccade.data.sources import read, unseen
from saccade.errors import DataError


@dataclass(slots=True)
class Seen:
    """What the rows of dev are compared with, gathered in one pass over the training data."""

    task_kind: str
    labels: set[str] = field(default_factory=set)
    shared: dict[int, str] = field(default_factory=dict)  # hash of a dev source -> where in train


def check(config_data: Data, task_kind: str) -> Iterator[Defect]:
    """Every defect of the training files, then of the dev files."""
    train, dev, data = config_data.train, config_data.dev, config_data
    with contextlib.suppress(DataError):  # `read` says the same as a defect
        data = shape(train, data, task_kind).fill(data)  # train decides how dev is read
    wanted = {hash(row.source) for row in _examples(dev, data, task_kind)}
    seen = Seen(task_kind)
    for row in read(train, data, task_kind):
        if isinstance(row, Defect):
            yield row
        else:
            _remember(seen, row, wanted)
    if dev:
        for find in DEV_CHECKS:
            yield from find(seen, read(dev, data, task_kind))


def broken(seen: Seen, dev: Iterable[Example | Defect]) -> Iterator[Defect]:
    """The rows that could not be read."""
    return (row for row in dev if isinstance(row, Defect))


def unseen_labels(seen: Seen, dev: Iterable[Example | Defect]) -> Iterator[Defect]:
    """Labels that training has no example of."""
    return unseen(seen.labels, dev) if seen.task_kind in ("classify", "tag") else iter(())


def leaks(seen: Seen, dev: Iterable[Example | Defect]) -> Iterator[Defect]:
    """Dev sources that are also in the training data, which makes dev scores too good."""
    for row in dev:
        if isinstance(row, Example) and (where := seen.shared.get(hash(row.source))):
            message = f"the same source is in the training data, at {where}"
            yield Defect("leak", row.where, message, "remove it from one of the two files")


DevCheck = Callable[[Seen, Iterable[Example | Defect]], Iterator[Defect]]
DEV_CHECKS: tuple[DevCheck, ...] = (broken, unseen_labels, leaks)


def _examples(paths: tuple[str, ...], data: Data, task_kind: str) -> Iterator[Example]:
    if paths and task_kind != "model":  # lines of plain text repeat without harm
        yield from (row for row in read(paths, data, task_kind) if isinstance(row, Example))


def _remember(seen: Seen, row: Example, wanted: set[int]) -> None:
    if seen.task_kind in ("classify", "tag") and row.target is not None:
        seen.labels.update((row.target,) if isinstance(row.target, str) else row.target)
    if wanted and (key := hash(row.source)) in wanted:
        seen.shared.setdefault(key, row.where)
