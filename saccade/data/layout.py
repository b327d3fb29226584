"""The layout of a file, from its first lines: its format, its columns, and so the usual task."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from saccade import config as c
from saccade.data.lines import (
    Defect,
    FileError,
    cells_of,
    counted,
    json_object,
    lines_of,
    listed,
)
from saccade.errors import DataError

SAMPLE_LINES = 1000  # that are looked at
SOURCE_KEYS = """sentence1+sentence2 premise+hypothesis question1+question2 source src text sentence
    input question prompt document review tokens words"""  # the usual keys, the surest first
TARGET_KEYS = "target tgt label output answer summary response class category intent sentiment tags"

Format = Literal["tsv", "lines", "jsonl", "conllu", "columns", "text"]
USUAL_TASK: dict[c.TargetType, str] = {  # where the user names none
    "none": "language",
    "text": "translate",
    "label": "classify",
    "labels": "tag",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file is read, for which task, and one sentence that tells the user why."""

    format: Format
    task: str
    source: tuple[c.Column, ...]
    target: c.Column | None
    reason: str

    def fill(self, data: c.Data) -> c.Data:
        """`data` with format, source and target as they are here."""
        made = {"format": self.format, "source": self.source, "target": self.target}
        return data.model_copy(update=made)


def detect_layout(
    paths: Sequence[str | Path], data: c.Data, task_kind: str | None = None
) -> Layout:
    """What the first lines suggest; what `data` and `task_kind` say is kept."""
    labelled = task_kind is None or c.TASKS[task_kind].target_type != "none"
    try:
        return layout_of([str(path) for path in paths], data, task_kind, labelled)
    except FileError as error:
        problem = DataError(str(error.defect))
        problem.defect = error.defect
        raise problem from None


def layout_of(names: list[str], data: c.Data, kind: str | None, labelled: bool) -> Layout:
    """The same for files whose rows may lack their target; FileError where nothing can be read."""
    if not names:
        raise FileError("missing-file", "data", "no file was given")
    target_type = c.TASKS[kind].target_type if kind else None
    sample = cache(_sample)  # a file is opened once
    form = data.format if data.format != "auto" else _format(names, target_type, sample)
    if form != "lines" and len(names) != 1:
        raise FileError("files", names[1], f"the format '{form}' is one file, not {len(names)}")
    if form == "text":
        usual = USUAL_TASK["none"]
        return Layout(form, usual, (), None, f"plain text, not in columns: {usual}")
    task = kind or USUAL_TASK["labels"]
    if data.source and (data.target is not None or not labelled) and kind:
        return Layout(form, task, data.source, data.target, "as data.source and data.target say")
    if form == "conllu":
        source, target = data.source or ("form",), data.target or "upos"
        return Layout(form, task, source, target, f"CoNLL-U, {target} for each word: {task}")
    tables = [sample(name) for name in names]
    if form == "columns":
        full = [line for line in tables[0] if line.strip() and (line[0] != "#" or "\t" in line)]
        widths = Counter(len(cells_of(line)) for line in full)
        width = widths.most_common(1)[0][0] if widths else 2
        source, target = data.source or (1,), data.target or width
        reason = f"a line a word, {counted(width, 'column')}, blank lines between sentences: {task}"
        return Layout(form, task, source, target, reason)
    columns: dict[c.Column, list[str]]
    if form == "lines":
        columns = dict(enumerate(tables, 1))
    elif form == "jsonl":
        objects = [row for line in tables[0] if (row := json_object(line))]
        if not objects:
            raise FileError("json", names[0], "no JSON object in it")
        keys = dict.fromkeys(key for row in objects for key in row)
        columns = {key: [str(row.get(key, "")) for row in objects] for key in keys}
    else:
        rows = [line.split("\t") for line in tables[0] if line]
        width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
        rows = [row for row in rows if len(row) == width]
        columns = {i + 1: [row[i] for row in rows] for i in range(width)}
        given = (*data.source, data.target)
        named = rows and all(_usual_keys(rows[0]))
        if named or any(isinstance(column, str) for column in given):
            columns = {values[0]: values[1:] for values in columns.values()}  # a header
    return _roles(form, columns, data, kind, names[0], labelled)


def _format(
    names: list[str], target_type: c.TargetType | None, sample: Callable[[str], list[str]]
) -> Format:
    """The format, by the file's name, or else by its first lines."""
    if len(names) > 1:
        if all(name.endswith((".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz")) for name in names):
            raise FileError("files", names[1], "each file has source and target already")
        return "lines"
    name = names[0].removesuffix(".gz")
    lines = [line for line in sample(names[0]) if line[:1] != "#" or "\t" in line]
    full = [line for line in lines if line.strip()]
    if name.endswith((".jsonl", ".ndjson")) or (
        full and full[0][0] == "{" and json_object(full[0])
    ):
        return "jsonl"
    if target_type == "none":
        return "text"
    if name.endswith(".csv"):
        raise FileError("csv", names[0], "commas between the columns")
    if name.endswith(".tsv"):
        return "tsv" if "\t" in "".join(full) else "text"
    tabs = Counter(line.count("\t") for line in full)
    if name.endswith(".conllu") or (tabs[9] > 0.9 * len(full) and len(lines) > len(full)):
        return "conllu"
    cells = [cells_of(line) for line in full]
    even = len({len(row) for row in cells}) == 1 and len(cells[0]) > 1
    inner = "".join("x" if line.strip() else " " for line in lines).strip().count(" ")
    if name.endswith((".conll", ".bio", ".iob", ".iob2")) or (
        even and inner > 0.01 * len(lines) and _are_labels([row[-1] for row in cells])
    ):
        return "columns"
    return "tsv" if tabs[0] < 0.1 * len(full) else "text"


def _roles(
    form: Format,
    columns: dict[c.Column, list[str]],
    data: c.Data,
    kind: str | None,
    name: str,
    labelled: bool,
) -> Layout:
    """Which columns are the source, which is the target, and so which task it is."""
    free = [column for column in columns if column not in data.source]
    of_labels = [column for column in free if _are_labels(columns[column])]
    source, target = data.source, data.target
    target_type = c.TASKS[kind].target_type if kind else None
    named, label = _usual_keys(columns)
    if not kind and target is None and list(named) == list(columns):
        usual = USUAL_TASK["none"]
        return Layout(form, usual, named, None, f"one text, {named[0]!r}: {usual}")
    if not labelled:
        target = None
    elif target is None and named and label:
        target = label
    elif target is None and form == "jsonl":
        raise FileError("key", name, f"which is the target? The keys are {listed(columns)}")
    elif target is None and not source and target_type != "label" and _is_inflection(columns):
        source, target = (1, 3), 2
    elif target is None and len(columns) < 2:
        raise FileError("one-column", name, "expected at least 2 columns, found 1", 1)
    elif target is None:
        may_be_label = target_type in (None, "label") and len(of_labels) < len(columns)
        target = of_labels[-1] if of_labels and may_be_label else (free or [2])[-1]
    if form == "jsonl" or label == target is not None:
        source = source or named
    source = source or tuple(column for column in columns if column != target)
    values = columns.get(target, []) if target is not None else []
    short = _are_labels(values)
    task = kind or USUAL_TASK["label" if short else "text"]
    unit = {"lines": "file", "jsonl": "key"}.get(form, "column")
    value = "different short value" if short else "different value"
    what = f"{counted(len(columns), unit)}, {unit} {target} has {counted(len(set(values)), value)}"
    reason = f"{what} in {counted(len(values), 'line')}: {task}"
    return Layout(form, task, source, target, reason)


def _are_labels(values: list[str]) -> bool:
    """Whether these values look like labels: short, and few different ones."""
    lines, kinds = len(values), set(values)
    limit = lines // 10 if lines >= 100 else max(2, math.isqrt(lines))
    short = all(len(value) <= 40 and value.count(" ") < 4 for value in kinds)
    return len(kinds) <= limit and len(kinds) < lines and short


def _usual_keys(columns: Container[c.Column]) -> tuple[tuple[c.Column, ...], c.Column | None]:
    """The source and the target among columns that have the usual names."""
    known = [tuple(name.split("+")) for name in SOURCE_KEYS.split()]
    source = next((keys for keys in known if all(key in columns for key in keys)), ())
    return source, next((key for key in TARGET_KEYS.split() if key in columns), None)


def _is_inflection(columns: dict[c.Column, list[str]]) -> bool:
    """Whether it is lemma, form, V;PST;3;SG: the files of UniMorph and SIGMORPHON."""
    marks = columns.get(3, []) if len(columns) == 3 else []
    return sum(";" in mark and mark == mark.upper() for mark in marks) > 0.9 * len(marks) > 0


def _sample(name: str) -> list[str]:
    """The first lines of a file."""
    rows = list(itertools.islice(lines_of(name), SAMPLE_LINES))
    lines = [row for row in rows if isinstance(row, str)]
    if not rows:
        raise FileError("empty-file", name, "no examples")
    if not lines and isinstance(rows[0], Defect):
        raise FileError(rows[0].code, name, rows[0].message, 1)
    return lines
