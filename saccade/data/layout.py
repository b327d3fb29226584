"""Detects a file's layout from its first lines: format, columns, and the task that they suggest."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from saccade import config as c
from saccade.data.cells import source_columns
from saccade.data.columns import (
    are_numbers,
    find_number_target,
    find_spelled,
    find_vector,
    task_of_numbers,
)
from saccade.data.detect import (
    CALLED,
    is_media,
    media_columns,
    target_beside,
    texts_beside,
)
from saccade.data.lines import (
    Defect,
    Example,
    FileError,
    cells_of,
    counted,
    files_of,
    json_object,
    lines_of,
    listed,
    refuse_pipe,
    without_compression,
)
from saccade.data.memory import Memory
from saccade.data.tables import SEPARATORS, has_header, is_quoted, records, separator_of
from saccade.errors import DataError

SAMPLE_LINES = 1000  # on which detection is based
SOURCE_KEYS = """sentence1+sentence2 premise+hypothesis question1+question2 text sentence source
    src input question prompt document review tokens words"""  # usual keys, most reliable first
TARGET_KEYS = """target tgt label output answer summary response reply subject sql code snippet
    tree compression class category intent sentiment tags"""

Format = Literal["tsv", "csv", "lines", "jsonl", "conllu", "columns", "text"]
Columns: TypeAlias = dict[c.Column, list[str]]
USUAL_TASK: dict[c.TargetType, str] = {  # where the user names none
    "none": "language",
    "text": "translate",
    "label": "classify",
    "labels": "tag",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file is read, for which task, and the reason, as shown to the user."""

    format: Format
    task: str
    source: tuple[c.Column, ...]
    target: c.Column | None
    reason: str
    header: bool | None = None
    columns: int | None = None  # in a row, where they are numbered
    media: tuple[tuple[c.Column, str], ...] = ()  # the source columns with media, and their kinds
    vector: tuple[c.Column, ...] = ()  # columns of numbers that are one source
    units: str | None = None  # that are labelled: words or characters
    mask: c.Column | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The keys of the table `data` that it sets."""
        settings = {"format": self.format, "source": self.source, "target": self.target}
        settings |= {"header": self.header, "columns": self.columns}
        optional = {"vector": self.vector, "units": self.units, "mask": self.mask}
        return settings | {key: value for key, value in optional.items() if value}

    def fill(self, data: c.Data) -> c.Data:
        """`data` with the settings of this layout."""
        return data.model_copy(update=self.settings)


def detect_layout(
    paths: Sequence[str | Path] | Memory, data: c.Data, task_kind: str | None = None
) -> Layout:
    """The layout that the first lines suggest; `data` and `task_kind` take precedence."""
    labelled = task_kind is None or c.TASKS[task_kind].target_type != "none"
    names = paths if isinstance(paths, Memory) else [str(path) for path in paths]
    try:
        return layout_of(names, data, task_kind, labelled)
    except FileError as error:
        problem = DataError(str(error.defect))
        problem.defect = error.defect
        raise problem from None


def layout_of(names: list[str] | Memory, data: c.Data, kind: str | None, labelled: bool) -> Layout:
    """The same, also for rows without a target; FileError where nothing can be read."""
    layout = _detect(names, data, kind, labelled)
    if data.vector and c.VECTOR not in layout.source:
        layout = replace(layout, source=(*layout.source, c.VECTOR))
    if data.vector and not layout.media:
        layout = replace(layout, media=((c.VECTOR, "numbers"),))
    if c.TASKS[layout.task].target_type == "labels":
        return replace(layout, units=layout.units or data.units or "words")
    return layout


def _detect(names: list[str] | Memory, data: c.Data, kind: str | None, labelled: bool) -> Layout:
    """The layout, before defaults for vectors and units."""
    if isinstance(names, Memory):
        return _memory_layout(names, data, kind, labelled)
    if not names:
        raise FileError("missing-file", "data", "no file was given")
    names = files_of(names)[0]  # the first shard
    target_type = c.TASKS[kind].target_type if kind else None
    sample = cache(_sample)  # each file is opened once
    form = data.format
    # a run that was trained on rows in memory has jsonl with `columns`: its files may be any
    if form == "auto" or (form == "jsonl" and data.columns):
        form = _format(names, target_type, sample)
    if form != "lines" and len(names) != 1:
        raise FileError("files", names[1], f"the format '{form}' is one file, not {len(names)}")
    if form == "text":
        task = kind if target_type == "none" and kind else USUAL_TASK["none"]
        return Layout(form, task, (), None, f"plain text, not in columns: {task}")
    task = kind or USUAL_TASK["labels"]
    if _is_specified(data, kind, labelled):
        numbered = not any(isinstance(key, str) for key in (*data.source, data.target))
        if form != "csv" or data.header is not None or not numbered:
            reason, width = "as data.source and data.target say", data.columns
            if form in ("tsv", "csv") and numbered and labelled and width is None:
                width = _table_of(form, sample(names[0]))[1]
            return Layout(form, task, data.source, data.target, reason, data.header, width)
    if form == "conllu":
        source, target = data.source or ("form",), data.target or "upos"
        return Layout(form, task, source, target, f"CoNLL-U, {target} for each word: {task}")
    tables = [sample(name) for name in names]
    if form == "columns":
        words = [line for line in tables[0] if line.strip() and (line[0] != "#" or "\t" in line)]
        widths = Counter(len(cells_of(line)) for line in words)
        width = widths.most_common(1)[0][0] if widths else 2
        source, target = data.source or (1,), data.target or width
        reason = f"a line a word, {counted(width, 'column')}, blank lines between sentences: {task}"
        return Layout(form, task, source, target, reason)
    if form == "lines":
        columns: Columns = dict(enumerate(tables, 1))
        return replace(_roles(form, columns, data, kind, names[0], labelled), columns=len(names))
    if form == "jsonl":
        objects = [row for line in tables[0] if (row := json_object(line))]
        if not objects:
            raise FileError("json", names[0], "no JSON object in it")
        return _objects_layout(objects, data, kind, names[0], labelled)
    return _table_layout(form, tables[0], data, kind, names[0], labelled)


def _is_specified(data: c.Data, kind: str | None, labelled: bool) -> bool:
    """Whether the settings, a user's or a run's, leave nothing to detect."""
    if kind is None or not data.source or (labelled and data.target is None):
        return False
    needs_units = c.TASKS[kind].target_type == "labels" and labelled
    return data.units is not None or not needs_units


def _table_layout(
    form: Format, lines: list[str], data: c.Data, kind: str | None, name: str, labelled: bool
) -> Layout:
    """The layout of a table, with or without a header."""
    rows, width, separator = _table_of(form, lines)
    if form == "csv" and not rows:
        raise FileError("quotes", name, "no row: a quote is not closed", 1)
    given = (*source_columns(data), *data.vector, data.target, data.mask)
    header = data.header
    if header is None:
        named = any(isinstance(column, str) for column in given)
        header = named or (bool(rows) and all(usual_keys([cell.strip() for cell in rows[0]])))
        header = header or has_header(rows, likely=form == "csv")
        header = header and not any(map(is_media, rows[0]))  # a path is not a column's name
    keys: list[c.Column] = list(range(1, (width or 0) + 1))
    if header and rows:
        names = [cell.strip() for cell in rows[0]]
        keys = [key if key and names.count(key) == 1 else i for i, key in enumerate(names, 1)]
        by_number: dict[c.Column | None, c.Column] = dict(enumerate(keys, 1))
        source, vector = (
            tuple(by_number.get(column, column) for column in group)
            for group in (data.source, data.vector)
        )
        target = by_number.get(data.target, data.target)
        mask = by_number.get(data.mask, data.mask)
        update = {"source": source, "target": target, "vector": vector, "mask": mask}
        data = data.model_copy(update=update)
        rows = rows[1:]
    columns = {key: [row[i] for row in rows] for i, key in enumerate(keys)}
    layout = _roles(form, columns, data, kind, name, labelled)
    used = (*(layout.vector or layout.source), layout.target)
    numbered = not any(isinstance(column, str) for column in used)
    reasons = [f"{SEPARATORS[separator]} between the columns"] if form == "csv" else []
    if header:
        reasons.append("the first line is a header (if not: data.header=false)")
    elif form == "csv":
        reasons.append("no header (if the first line is one: data.header=true)")
    meant = task_of_numbers(columns) if kind is None and labelled else None
    hint = f" (or is it --task {meant}?)" if meant else ""
    return replace(
        layout,
        reason=", ".join([*reasons, layout.reason]) + hint,
        header=True if header else False if form == "csv" else data.header,
        columns=width if numbered else None,
    )


def _table_of(form: Format, lines: Sequence[str]) -> tuple[list[list[str]], int | None, str]:
    """The rows of a table that have the most frequent width, this width, and the separator."""
    separator = (separator_of(lines) or ",") if form == "csv" else "\t"
    numbered = records(iter(enumerate(lines, 1)), "", separator)
    cells = (row for _, row in numbered) if form == "csv" else (line.split("\t") for line in lines)
    rows = [row for row in cells if row != [""] and not isinstance(row, Defect)]
    if not rows:
        return [], None, separator
    width = Counter(map(len, rows)).most_common(1)[0][0]
    return [row for row in rows if len(row) == width], width, separator


def _objects_layout(
    objects: Sequence[Mapping[str, Any]], data: c.Data, kind: str | None, name: str, labelled: bool
) -> Layout:
    """The layout of objects with keys."""
    keys = dict.fromkeys(key for row in objects for key in row)
    columns: Columns = {key: [str(row.get(key, "")) for row in objects] for key in keys}
    return _tagged(_roles("jsonl", columns, data, kind, name, labelled), objects[0], kind)


def _memory_layout(rows: Memory, data: c.Data, kind: str | None, labelled: bool) -> Layout:
    """The layout of examples from memory: objects, or rows of numbered columns."""
    sample = [row for row in itertools.islice(rows, SAMPLE_LINES) if row]
    if not sample:
        raise FileError("empty-file", "", "no examples")
    task = kind or USUAL_TASK["labels"]
    if _is_specified(data, kind, labelled):
        reason = "as data.source and data.target say"
        return Layout("jsonl", task, data.source, data.target, reason, None, data.columns)
    tables = [_numbered(row) if isinstance(row, Example) else row for row in sample]
    if isinstance(next(iter(tables[0])), str):
        objects = [{str(key): value for key, value in row.items()} for row in tables]
        return _objects_layout(objects, data, kind, "", labelled)
    width = Counter(map(len, tables)).most_common(1)[0][0]
    tables = [row for row in tables if len(row) == width]
    columns: Columns = {key: [str(row.get(key, "")) for row in tables] for key in tables[0]}
    if width == 1 and kind is None:
        usual = USUAL_TASK["none"]
        return Layout("jsonl", usual, (1,), None, f"one text: {usual}", None, 1)
    layout = _roles("tsv", columns, data, kind, "", labelled)
    layout = replace(layout, format="jsonl", columns=width)
    return _tagged(layout, tables[0], kind)


def _numbered(row: Example) -> dict[str | int, Any]:
    """The columns of an example: its sources, then its target."""
    if isinstance(row.target, tuple):
        return {1: list(row.source), 2: list(row.target)}
    cells = (*row.source, *([] if row.target is None else [row.target]))
    return dict(enumerate(cells, 1))


def _tagged(layout: Layout, row: Mapping[Any, Any], kind: str | None) -> Layout:
    """The layout, as one of tagging if in a row both source and target are lists."""
    sides = [row.get(key) for key in (layout.source[0], layout.target)]
    lists = [side for side in sides if isinstance(side, list)]
    aligned = len({len(side) for side in lists}) == 1 or not layout.media  # a label at each step
    if kind is None and len(lists) == 2 and aligned:
        task = USUAL_TASK["labels"]
        reason = f"lists of words and of labels: {task}"
        if layout.media:
            reason = f"numbers in {layout.source[0]!r}, a label for each step: {task}"
        return replace(layout, task=task, reason=reason)
    return layout


def _format(
    names: list[str], target_type: c.TargetType | None, sample: Callable[[str], list[str]]
) -> Format:
    """The format, by the file's suffix, or else by its first lines."""
    if len(names) > 1:
        tables = (".tsv", ".csv", ".jsonl")
        if all(without_compression(name).endswith(tables) for name in names):
            raise FileError("files", names[1], "each file has source and target already")
        return "lines"
    name = without_compression(names[0])
    if not any(line.strip() for line in sample(names[0])):
        raise FileError("empty-file", names[0], "no examples: all its lines are blank")
    if len(sample(names[0])) == 1 and "\r" in sample(names[0])[0].strip("\r"):
        raise FileError("line-ends", names[0], "its lines end in \\r, as on old Macs")
    lines = [line for line in sample(names[0]) if line[:1] != "#" or "\t" in line]
    filled = [line for line in lines if line.strip()]
    if name.endswith((".jsonl", ".ndjson")) or (
        filled and filled[0][0] == "{" and json_object(filled[0])
    ):
        return "jsonl"
    if (
        name.endswith(".json")
        and target_type != "none"
        and filled
        and filled[0].lstrip()[:1] in ("[", "{")
    ):
        raise FileError("json", name, "one JSON value over all of the file")
    if name.endswith(".csv"):
        return "csv"
    if target_type == "none":
        return "text"
    tabs: Format = "csv" if is_quoted(sample(names[0])) else "tsv"
    if name.endswith(".tsv"):
        if "\t" in "".join(filled):
            return tabs
        if separator_of(filled):
            return "csv"
        if target_type is None:
            raise FileError(
                "one-column",
                name,
                "none of the first lines of this .tsv has a tab (plain text: --task language)",
            )
        return "text"
    counts = Counter(line.count("\t") for line in filled)
    if name.endswith(".conllu") or (counts[9] > 0.9 * len(filled) and len(lines) > len(filled)):
        return "conllu"
    cells = [cells_of(line) for line in filled]
    uniform = len({len(row) for row in cells}) == 1 and len(cells[0]) > 1
    blank = "".join("x" if line.strip() else " " for line in lines).strip().count(" ")  # inside
    if name.endswith((".conll", ".bio", ".iob", ".iob2")) or (
        uniform and blank > 0.01 * len(lines) and _are_labels([row[-1] for row in cells])
    ):
        return "columns"
    return tabs if counts[0] < 0.1 * len(filled) else "text"


def _roles(
    form: Format,
    columns: Columns,
    data: c.Data,
    kind: str | None,
    name: str,
    labelled: bool,
) -> Layout:
    """The layout by the roles of columns: which are sources, which is the target."""
    target_type = c.TASKS[kind].target_type if kind else None
    of_numbers = labelled and target_type == "numbers"
    if of_numbers and data.target is None:
        others = {key: cells for key, cells in columns.items() if key not in data.source}
        if (number := find_number_target(others)) is None:
            message = f"which is the target? No column of {listed(others)} is numbers"
            raise FileError("key", name, message)
        data = data.model_copy(update={"target": number})
    for roles_of in (_character_roles, _vector_roles) if labelled else ():
        if (layout := roles_of(form, columns, data, kind)) is not None:
            return layout
    media = media_columns(columns)
    if data.vector:
        if missing := [column for column in data.vector if column not in columns]:
            message = f"no column {missing[0]!r} in {listed(columns)}"
            raise FileError("column", name, message, 1)
        columns = {key: columns[key] for key in columns if key not in data.vector}
        words = {key: cells for key, cells in columns.items() if not are_numbers(cells)}
        if len(words) == 1 and not data.source and data.target is None:
            columns = words  # only the target; other numbers are ignored
        columns, media = columns | {c.VECTOR: []}, media_columns(columns) | {c.VECTOR: "numbers"}
    if of_numbers and data.target is not None:
        media.pop(data.target, None)
    text_sources = data.source and not media.keys() & set(data.source)
    if media and not text_sources and target_type != "none":
        return _media_roles(form, columns, data, kind, name, labelled, media)
    used = list(columns)
    if form in ("tsv", "csv") and len(columns) > 2:
        used = [column for column in columns if not _is_counter(columns[column])] or used
    free = [column for column in used if column not in data.source]
    label_columns = [column for column in free if _are_labels(columns[column])]
    source, target = data.source, data.target
    named, label = usual_keys(columns)
    if not kind and target is None and columns and list(named) == list(columns):
        usual = USUAL_TASK["none"]
        return Layout(form, usual, named, None, f"one text, {named[0]!r}: {usual}")
    if not labelled:
        target = None
    elif target is None and named and label:
        target = label
    elif target is None and form == "jsonl":
        raise FileError("key", name, f"which is the target? The keys are {listed(columns)}")
    elif target is None and not source and target_type != "label" and _is_inflection(columns):
        first, target, last = columns
        source = (first, last)
    elif target is None and len(columns) < 2:
        raise FileError("one-column", name, "expected at least 2 columns, found 1", 1)
    elif target is None:
        may_be_label = target_type in (None, "label") and len(label_columns) < len(columns)
        target = label_columns[-1] if label_columns and may_be_label else (free or [2])[-1]
    if form == "jsonl" or label == target is not None or target_type == "none":
        source = source or named
    source = source or tuple(column for column in used if column != target)
    if target_type == "none" and len(source) > 1 and not data.source:
        raise FileError("column", name, f"which is the text? There are {listed(columns)}")
    if target_type == "none":
        return Layout(form, str(kind), source, None, f"one text, {source[0]!r}: {kind}")
    values = columns.get(target, []) if target is not None else []
    short = _are_labels(values)
    task = kind or USUAL_TASK["label" if short else "text"]
    unit = {"lines": "file", "jsonl": "key"}.get(form, "column")
    value = "different short value" if short else "different value"
    what = f"{counted(len(columns), unit)}, {unit} {target} has {counted(len(set(values)), value)}"
    many = len(columns) > 2 and not data.source  # who has more than two may not mean all of them
    read = f", source {listed(source)}" if many else ""
    reason = f"{what} in {counted(len(values), 'line')}{read}: {task}"
    return Layout(form, task, source, target, reason)


def _media_roles(
    form: Format,
    columns: Columns,
    data: c.Data,
    kind: str | None,
    name: str,
    labelled: bool,
    media: dict[c.Column, str],
) -> Layout:
    """The layout where columns hold media: these, and perhaps a question, are the sources."""
    target = data.target if labelled else None
    if labelled and target is None:
        target = target_beside([key for key in columns if key not in data.source], media)
    if labelled and target is None:
        raise FileError("key", name, f"which is the target? The columns are {listed(columns)}")
    source = data.source
    if not source:
        texts = texts_beside(list(columns), media, target)
        source = tuple(key for key in columns if key != target and (key in media or key in texts))
    media_sources = tuple((key, media[key]) for key in source if key in media)
    values = columns.get(target, []) if target is not None else []
    short = _are_labels(values) and not any(value[:1] == "[" for value in values)
    task = kind or USUAL_TASK["label" if short else "text"]
    sources = [f"{CALLED[kind]} in {key!r}" for key, kind in media_sources]
    sources += [f"text in {key!r}" for key in source if key not in media]
    value = "different label" if short else "different text"
    what = f"{target!r} has {counted(len(set(values)), value)} in {counted(len(values), 'line')}"
    reason = f"{' and '.join(sources)}, {what}: {task}"
    return Layout(form, task, source, target, reason, media=media_sources, vector=data.vector)


def _vector_roles(form: Format, columns: Columns, data: c.Data, kind: str | None) -> Layout | None:
    """The layout of a table whose columns of numbers are one vector; None for any other table."""
    target_type = c.TASKS[kind].target_type if kind else None
    if data.source or data.vector or form == "lines" or target_type in ("none", "labels"):
        return None
    used = [column for column in columns if not _is_counter(columns[column])]
    labels = [column for column in used if _are_labels(columns[column])]
    vector = find_vector(columns, used, labels, data.target, target_type)
    if vector is None:
        return None
    task = kind or USUAL_TASK["label" if vector.is_label else "text"]
    values = columns[vector.target]
    value = "different label" if vector.is_label else "different text"
    distinct = counted(len(set(values)), "number" if target_type == "numbers" else value)
    what = f"{counted(len(vector.columns), 'column')} of numbers are one vector"
    reason = (
        f"{what} (if not: set data.source), {vector.target!r} has {distinct} in "
        f"{counted(len(values), 'line')}: {task}"
    )
    media = ((c.VECTOR, "numbers"),)
    source = (c.VECTOR,)
    return Layout(form, task, source, vector.target, reason, media=media, vector=vector.columns)


def _character_roles(
    form: Format, columns: Columns, data: c.Data, kind: str | None
) -> Layout | None:
    """The layout where each character of a column has a label; None for any other."""
    if kind is None or c.TASKS[kind].target_type != "labels" or data.units == "words":
        return None
    spelled = find_spelled(columns, data)
    if spelled is None:
        return None
    what = f"{spelled.target!r} has a label for each character of {spelled.source!r}"
    if spelled.mask is not None:
        what += f", {spelled.mask!r} says which are scored"
    source, units = (spelled.source,), "characters"
    reason = f"{what}: {kind}"
    return Layout(form, kind, source, spelled.target, reason, units=units, mask=spelled.mask)


def _are_labels(values: list[str]) -> bool:
    """Whether these values look like labels: short, and few of them distinct."""
    lines, kinds = len(values), set(values)
    limit = lines // 10 if lines >= 100 else max(2, math.isqrt(lines))
    short = all(len(value) <= 40 and value.count(" ") < 4 for value in kinds)
    return len(kinds) <= limit and len(kinds) < lines and short


def usual_keys(columns: Iterable[c.Column]) -> tuple[tuple[c.Column, ...], c.Column | None]:
    """The source and the target columns by their usual names, case-insensitively."""
    by_name = {str(column).casefold(): column for column in columns}
    known = [tuple(name.split("+")) for name in SOURCE_KEYS.split()]
    source = next((keys for keys in known if all(key in by_name for key in keys)), ())
    target = next((by_name[key] for key in TARGET_KEYS.split() if key in by_name), None)
    return tuple(by_name[key] for key in source), target


def _is_counter(values: list[str]) -> bool:
    """Whether these values are consecutive row numbers."""
    if len(values) < 2 or not all(value.isdecimal() for value in values):
        return False
    numbers = [int(value[:18]) for value in values]
    return all(b == a + 1 for a, b in itertools.pairwise(numbers))


def _is_inflection(columns: Columns) -> bool:
    """Whether the columns are lemma, form, V;PST;3;SG, as in UniMorph and SIGMORPHON."""
    tags = list(columns.values())[2] if len(columns) == 3 else []
    return sum(";" in tag and tag == tag.upper() for tag in tags) > 0.9 * len(tags) > 0


def _sample(name: str) -> list[str]:
    """The first lines of a file, which is read again by whoever wants all of it."""
    refuse_pipe(name)
    rows = list(itertools.islice(lines_of(name), SAMPLE_LINES))
    lines = [row for row in rows if isinstance(row, str)]
    if not rows:
        raise FileError("empty-file", name, "no examples")
    if not lines and isinstance(rows[0], Defect):
        raise FileError(rows[0].code, name, rows[0].message, 1)
    return lines
