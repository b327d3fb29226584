"""Examples from memory, written into the run, so that it is self-contained."""

import csv
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from saccade import config as c
from saccade.config.readers import Strict
from saccade.config.toml import validate
from saccade.data.detect import is_media
from saccade.data.layout import detect_layout
from saccade.data.lines import UNSCORED, Example
from saccade.data.memory import Memory
from saccade.data.sources import examples
from saccade.errors import ConfigError, DataError
from saccade.setup.media import media_tables


class _Table(Strict):
    data: c.Data = c.Data()


def write_examples(
    raw: dict[str, Any], where: str, folder: Path, train: Memory, dev: Memory | None
) -> dict[str, Any]:
    """Write the examples as JSON lines into a folder; the settings that name these files."""
    task, table = raw.get("task", {}), raw.get("data", {})
    kind = task.get("kind") if isinstance(task, dict) else None
    if kind is not None and kind not in c.TASKS:
        raise ConfigError(f"{where}: no task {kind!r}; choose one of {', '.join(c.TASKS)}")
    if kind == "forecast":
        return write_tables(raw, folder, train, dev)
    data = validate(_Table, {"data": table}, where).data
    layout = detect_layout(train, data, kind)
    data = layout.fill(data)
    columns = {key: value for key, value in layout.settings.items() if value is not None}
    files = {}
    media = [data.source.index(column) for column, _ in layout.media]
    numbers = issubclass(c.TASKS[layout.task], c.NumberTask)  # a target may be a path, too
    folders: set[str] = set()  # of the media that the examples name
    folder.mkdir(exist_ok=True)
    for name, rows in (("train", train), ("dev", dev)):
        if rows is None:
            continue
        path = folder / f"{name}.jsonl"
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for row in examples(rows, data, layout.task):
                row, folders = _located(row, media, folders)
                if numbers and is_media(str(row.target)):
                    named = os.path.abspath(str(row.target))
                    row, folders = replace(row, target=named), folders | {os.path.dirname(named)}
                file.write(json.dumps(_record(row, data), ensure_ascii=False) + "\n")
        files[name] = [str(path)]
    if folders:  # media named by a program are permitted, and no others
        columns["root"] = table.get("root") or os.path.commonpath(folders)
    task = task | {"kind": layout.task}
    if media:
        task["columns"] = media_tables(dict(layout.media), task.get("columns", {}))
    return raw | {"task": task, "data": table | columns | files}


def write_tables(
    raw: dict[str, Any], folder: Path, train: Memory, dev: Memory | None
) -> dict[str, Any]:
    """The same for tables of series, as CSV: a row of each is an object with the same keys."""
    files = {}
    folder.mkdir(exist_ok=True)
    for name, rows in (("train", train), ("dev", dev)):
        if rows is None:
            continue
        path = folder / f"{name}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            write, names = csv.writer(file, lineterminator="\n").writerow, None
            for number, row in enumerate(rows, 1):
                if not isinstance(row, dict) or (names is not None and list(row) != names):
                    raise DataError(f"example {number}: a row has the columns of the first one")
                if names is None:
                    names = list(row)
                    write(names)
                write(["" if value is None else value for value in row.values()])
        files[name] = [str(path)]
    return raw | {"data": raw.get("data", {}) | files | {"header": True}}


def _located(row: Example, media: Sequence[int], folders: set[str]) -> tuple[Example, set[str]]:
    """An example with absolute paths of the media in these columns, and all their folders."""
    source = list(row.source)
    for i in media:
        if source[i][:1] != "[":
            source[i] = os.path.abspath(source[i])
            folders = folders | {os.path.dirname(source[i])}
    return replace(row, source=tuple(source)), folders


def _record(row: Example, data: c.Data) -> dict[str, Any]:
    """The columns of an example, by their name or number."""
    if isinstance(row.target, tuple):
        labels = [None if label == UNSCORED else label for label in row.target]
        tagged: dict[str, Any] = {str(data.source[0]): row.source, str(data.target): labels}
        if data.mask is not None:
            tagged[str(data.mask)] = [int(label is not None) for label in labels]
        return tagged
    record: dict[str, Any] = dict(zip(map(str, data.source), row.source, strict=True))
    if data.vector:
        numbers = json.loads(record.pop(c.VECTOR))
        record |= dict(zip(map(str, data.vector), numbers, strict=True))
    if row.target is not None:
        record[str(data.target)] = row.references if row.others else row.target
    return record
