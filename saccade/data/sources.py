"""Files to examples: one reader for every format; a malformed row is reported, never guessed.

`read` streams every example and every defect; `examples` is the strict version, which raises
DataError.
"""

import difflib
import itertools
import json
import operator
import shlex
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

from saccade import config as c
from saccade.data.cells import CellError, scored_labels, source_columns, with_vector, words_of
from saccade.data.detect import is_series, numeric
from saccade.data.layout import SAMPLE_LINES, layout_of, usual_keys
from saccade.data.lines import (
    UNSCORED,
    Defect,
    Example,
    FileError,
    cells_of,
    counted,
    defect_at,
    files_of,
    json_object,
    labels_of,
    lines_of,
    listed,
)
from saccade.data.memory import Memory
from saccade.data.tables import records, separator_of
from saccade.errors import DataError

REPORTED_DEFECTS = 5  # in the message of one DataError
LOOKAHEAD_ROWS = 1000  # that are searched for further defects to report

CONLLU_FIELDS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
EMPTY: tuple[str, list[str]] = ("", [""])  # an empty line, or an empty row of a CSV file
Rows: TypeAlias = Iterator[Example | Defect]
Reader: TypeAlias = Callable[[list[str], c.Data, c.TargetType, bool], Rows]


# --- public functions -----------------------------------------------------------------------------


def read(
    paths: Sequence[str | Path] | Memory, data: c.Data, task_kind: str, *, labelled: bool = True
) -> Rows:
    """Every example and every defect, in order. Unlabelled rows may hold only the sources."""
    target_type = c.TASKS[task_kind].target_type
    labelled = labelled and target_type != "none"
    try:
        if isinstance(paths, Memory):
            data = layout_of(paths, data, task_kind, labelled).fill(data)
            rows, name = _memory(paths, data, target_type, labelled), ""
        else:
            parts = files_of([str(path) for path in paths]) or [[]]
            data = layout_of(parts[0], data, task_kind, labelled).fill(data)
            reader, name = READERS[data.format], parts[0][0]
            rows = itertools.chain.from_iterable(
                reader(part, data, target_type, labelled) for part in parts
            )
        first = next(rows, None)
        if first is None:
            raise FileError("empty-file", name, "no examples")
        yield first
        yield from rows
    except FileError as error:
        yield error.defect


def examples(
    paths: Sequence[str | Path] | Memory, data: c.Data, task_kind: str
) -> Iterator[Example]:
    """Every example, in order; DataError at the first defect, with a few of the next ones."""
    rows = read(paths, data, task_kind)
    for row in rows:
        if isinstance(row, Defect):
            ahead = itertools.islice(rows, LOOKAHEAD_ROWS)
            defects = [row, *(later for later in ahead if isinstance(later, Defect))]
            messages = [str(defect) for defect in defects[:REPORTED_DEFECTS]]
            if isinstance(paths, Memory) or (len(messages) == len(defects) and not any(rows)):
                raise DataError("\n".join(messages))
            raise DataError("\n".join([*messages, f"... for all of them: {_check_command(paths)}"]))
        yield row


def _check_command(paths: Sequence[str | Path]) -> str:
    return shlex.join(["saccade", "check", *map(str, paths)])


def unseen(train_labels: Container[str], dev: Iterable[Example | Defect]) -> Iterator[Defect]:
    """A defect for each label of `dev` that is not in the training data, at its first row."""
    reported: set[str] = set()
    for row in dev:
        if isinstance(row, Defect):
            continue
        for label in row.labels:
            if label not in train_labels and label not in reported:
                reported.add(label)
                message = f"the label {label!r} is not in the training data"
                text = " ".join(row.source)
                yield defect_at("unseen-label", row.file, row.line, message, text)


# --- a reader for each format ---------------------------------------------------------------------


def _text(names: list[str], data: c.Data, target_type: c.TargetType, labelled: bool) -> Rows:
    """Every line, including blank ones."""
    if labelled:
        raise FileError("one-column", names[0], "expected at least 2 columns, found 1", 1)
    for number, text in enumerate(lines_of(names[0]), 1):
        if isinstance(text, Defect):
            yield text
        else:
            source = words_of(text, data.units) if target_type == "labels" else (text,)
            yield Example(source, None, names[0], number)


def _table(names: list[str], data: c.Data, target_type: c.TargetType, labelled: bool) -> Rows:
    """Tab-separated columns, or CSV; where columns are named, the first row is a header."""
    name, wanted = names[0], _wanted(data, labelled)
    lines = _csv_rows(name) if data.format == "csv" else enumerate(lines_of(name), 1)
    head: list[tuple[int, str | list[str] | Defect]] = list(itertools.islice(lines, SAMPLE_LINES))
    widths = Counter(len(cells) for _, row in head if (cells := _cells(row)))
    usual = widths.most_common(1)[0][0] if widths else 0  # the first row may be malformed
    header = [cell.strip() for cell in _cells(head[0][1])] if head else []
    bare = not labelled and usual == len(wanted)  # only the sources
    named = any(isinstance(column, str) for column in wanted)
    if (named if data.header is None else data.header) and not (
        bare and not (named and set(wanted) <= set(header))
    ):
        if head and isinstance(head[0][1], Defect):
            yield head[0][1]
        head, bare = head[1:], False
        wanted = tuple(_position(column, header, name) for column in wanted)
    indices = list(range(usual)) if bare else [_index(column, name) for column in wanted]
    if data.columns and not bare and usual not in (0, data.columns):
        message = f"expected {columns_expected(data)}, found {usual}"
        line = next((number for number, row in head if len(_cells(row)) == usual), 1)
        raise FileError("other-columns", name, message, line)
    width = max(usual, *(i + 1 for i in indices), 1)
    if usual and width > usual and not any(len(_cells(row)) == width for _, row in head):
        some = f"there {'is' if usual == 1 else 'are'} {counted(usual, 'column')}"
        raise FileError("column", name, f"no column {width}: {some}", head[0][0])
    mask_index = indices.pop() if labelled and data.mask is not None else None
    target_index = indices.pop() if labelled else None
    single = indices[0] if len(indices) == 1 else None
    blanks: list[int] = []  # empty lines are defects, except at the end
    for number, row in itertools.chain(head, lines):
        if blanks and row not in EMPTY:
            yield from (_columns(name, blank, width, "an empty line") for blank in blanks)
            blanks.clear()
        if isinstance(row, Defect):
            yield row
            continue
        cells = row.split("\t") if isinstance(row, str) else row
        if len(cells) == width:
            source = (cells[single],) if single is not None else tuple(cells[i] for i in indices)
            target = None if target_index is None else cells[target_index]
            mask = None if mask_index is None else cells[mask_index]
            yield _example(source, target, data, target_type, name, number, mask=mask)
        elif row not in EMPTY:
            yield _columns(name, number, width, str(len(cells)), "\t".join(cells))
        else:
            blanks.append(number)


def _csv_rows(name: str) -> Iterator[tuple[int, list[str] | Defect]]:
    """The rows of a CSV file; its separator is detected from the first lines."""
    lines = enumerate(lines_of(name), 1)
    head = list(itertools.islice(lines, SAMPLE_LINES))
    separator = separator_of([line for _, line in head if isinstance(line, str)]) or ","
    return records(itertools.chain(head, lines), name, separator)


def _cells(row: str | list[str] | Defect) -> list[str]:
    """The cells of a row; none if it is empty or malformed."""
    if isinstance(row, Defect) or row in EMPTY:
        return []
    return row.split("\t") if isinstance(row, str) else row


def columns_expected(data: c.Data, labelled: bool = True) -> str:
    """How many columns a row has, and what they are: "3 columns (source, target, source)"."""
    wanted = _wanted(data, labelled)
    if labelled and data.columns and not any(isinstance(column, str) for column in wanted):
        roles = {column: _source_name(i, data) for i, column in enumerate(source_columns(data))}
        roles |= {data.target or 0: "target", data.mask or 0: "mask"}
        names = [roles.get(number, "unused") for number in range(1, data.columns + 1)]
    else:
        names = [
            column if isinstance(column, str) else _source_name(i, data)
            for i, column in enumerate(wanted or (1,))
        ]
        if labelled and isinstance(data.mask, int):
            names[-1] = "mask"
        if labelled and isinstance(data.target, int):
            names[-1 if data.mask is None else -2] = "target"
    return f"{counted(len(names), 'column')} ({listed(names)})"


def _source_name(i: int, data: c.Data) -> str:
    return f"source {i + 1}" if len(source_columns(data)) > 1 else "source"


def _aligned(names: list[str], data: c.Data, target_type: c.TargetType, labelled: bool) -> Rows:
    """Files that are aligned by line."""
    wanted = _wanted(data, labelled)
    bare = not labelled and len(names) == len(wanted)
    picks = list(range(len(names))) if bare else [_index(column, "data") for column in wanted]
    files = max(picks) + 1 if bare or not data.columns else max(data.columns, max(picks) + 1)
    if len(names) < files or (data.columns and len(names) > files and not bare):
        message = f"expected {counted(files, 'file')} aligned by line, found {len(names)}"
        raise FileError("files", names[0], message)
    used = [names[pick] for pick in picks]
    sides = [lines_of(name) for name in used]
    for number, row in enumerate(itertools.zip_longest(*sides), 1):
        if None in row:
            yield _misaligned(used, number, row, sides)
            return
        if Defect in map(type, row):
            yield from (cell for cell in row if isinstance(cell, Defect))
            continue
        texts = cast(Sequence[str], row)
        mask = None
        if labelled and data.mask is not None:
            *texts, mask = texts
        source, target = (texts[:-1], texts[-1]) if labelled else (texts, None)
        example = _example(tuple(source), target, data, target_type, used[0], number, mask=mask)
        others = {"blank-target": used[len(texts) - 1], "mask": used[-1]}
        if isinstance(example, Defect) and example.code in others:
            example = defect_at(
                example.code, others[example.code], number, example.message, example.text
            )
        yield example


def _misaligned(
    names: list[str], number: int, row: Sequence[object], sides: list[Iterator[str | Defect]]
) -> Defect:
    counts = [number - (cell is None) for cell in row]
    counts = [count + sum(1 for _ in side) for count, side in zip(counts, sides, strict=True)]
    sizes = [f"{n} has {counted(c, 'line')}" for n, c in zip(names, counts, strict=True)]
    message = f"{', '.join(sizes)}: no partner from line {number} on"
    longest = counts.index(max(counts))
    text = row[longest] if isinstance(row[longest], str) else ""
    return defect_at("misaligned", names[longest], number, message, str(text))


def _jsonl(names: list[str], data: c.Data, target_type: c.TargetType, labelled: bool) -> Rows:
    """One JSON object a line; blank lines are skipped. A target that is a list is several texts."""
    name, wanted = names[0], [str(key) for key in _wanted(data, labelled)]
    for number, text in enumerate(lines_of(name), 1):
        if isinstance(text, Defect):
            yield text
            continue
        if not text.strip():
            continue
        row = json_object(text)
        if row is None:
            yield defect_at("json", name, number, "not a JSON object", text)
            continue
        yield _object_example(row, wanted, data, target_type, labelled, name, number, text)


def _object_example(
    row: dict[str, Any],
    wanted: Sequence[str],
    data: c.Data,
    target_type: c.TargetType,
    labelled: bool,
    name: str,
    number: int,
    text: str,
) -> Example | Defect:
    """The example of an object, or a defect, which shows `text`."""
    values: list[object] = [row.get(key) for key in wanted]
    if labelled and target_type == "text" and isinstance(values[-1], list):
        values[-1:] = values[-1] or [None]
    cells: list[Any] = [_json_text(value, target_type) for value in values]
    for i, key in enumerate(wanted if data.vector else ()):
        if key in row and row[key] is None:
            cells[i] = ""  # a missing number
    if target_type == "labels":
        cells = [_json_words(*pair, data) for pair in zip(values, cells, strict=True)]
    if None in cells:
        key = wanted[min(cells.index(None), len(wanted) - 1)]
        if key in row:
            return defect_at("value", name, number, f"the value of {key!r} is not a text", text)
        message = f"no key {key!r}; the keys are {listed(row)}"
        return defect_at("key", name, number, message, text)
    if target_type == "labels":
        mask = None
        if labelled and data.mask is not None:
            mask = "".join({"True": "1", "False": "0"}.get(mark, mark) for mark in cells.pop())
        return _tagged(cells[0], cells[1] if labelled else None, data, name, number, mask)
    if not labelled:
        return _example(tuple(cells), None, data, target_type, name, number)
    first = len(wanted) - 1
    source, target, others = tuple(cells[:first]), cells[first], tuple(cells[first + 1 :])
    return _example(source, target, data, target_type, name, number, others)


def _json_text(value: object, target_type: c.TargetType) -> str | None:
    """A JSON value as text; None if it is neither text nor numbers."""
    if isinstance(value, bool | int | float) or numeric(value):
        value = json.dumps(value)
    if target_type == "numbers" and isinstance(value, list):
        is_text = all(isinstance(word, str) for word in value)
        value = " ".join(value) if is_text else json.dumps(value)  # null is a missing number
    return value if isinstance(value, str) and "\0" not in value else None


def _json_words(value: object, text: str | None, data: c.Data) -> tuple[str, ...] | None:
    """The units that are labelled, or the labels: the items of a list; null is UNSCORED."""
    if not isinstance(value, list) or (text is not None and is_series(text)):
        return None if text is None else words_of(text, data.units)
    words = [str(word) for word in value if word is not None]
    if any(" " in word or "\0" in word or not word for word in words):
        return None
    return tuple(UNSCORED if word is None else str(word) for word in value)


def _memory(rows: Memory, data: c.Data, target_type: c.TargetType, labelled: bool) -> Rows:
    """Examples from memory; defects name them by number."""
    wanted = _wanted(data, labelled) or (1,)
    keys = [str(column) for column in wanted]
    for number, row in enumerate(rows, 1):
        if row is None:
            message = "not an example: that is a tuple of columns, a dict, or an Example"
            yield defect_at("value", "", number, message)
            continue
        if isinstance(row, Example):
            row = _columns_of(row, target_type, labelled)
            columns = dict(zip(keys, row.values(), strict=True)) if len(row) == len(keys) else None
        else:
            columns = _by_key(row, wanted, data, labelled)
        if columns is None:
            message = f"expected {columns_expected(data, labelled)}, found {len(row)}"
            yield defect_at("columns", "", number, message)
        else:
            text = "\t".join(map(str, columns.values()))
            yield _object_example(columns, keys, data, target_type, labelled, "", number, text)


def _columns_of(row: Example, target_type: c.TargetType, labelled: bool) -> dict[str | int, Any]:
    """The columns of an example: its sources, then its target."""
    source = [list(row.source)] if target_type == "labels" else list(row.source)
    target: Any = row.target
    if target_type == "labels" or row.others:
        labels = row.references if row.others else labels_of(row.target)
        target = [None if label == UNSCORED else label for label in labels]
    return dict(enumerate([*source, target] if labelled else source, 1))


def _by_key(
    row: dict[str | int, Any], wanted: Sequence[c.Column], data: c.Data, labelled: bool
) -> dict[str, Any] | None:
    """The wanted columns of a row, by name or number; None if it has others."""
    named = any(isinstance(column, str) for column in wanted)
    if isinstance(next(iter(row), 1), str):
        if named:
            return {str(key): value for key, value in row.items()}
        source, target = usual_keys(row)
        keys = [*source, target] if labelled and target is not None else list(source)
    elif named or data.format == "columns" or (not labelled and len(row) == len(wanted)):
        keys = list(row)  # in this order
    elif len(row) == (data.columns or max(map(int, wanted))):
        keys = list(wanted)
    else:
        return None
    if len(keys) != len(wanted):
        return None
    return {str(column): row[key] for column, key in zip(wanted, keys, strict=True)}


def _sentences(names: list[str], data: c.Data, target_type: c.TargetType, labelled: bool) -> Rows:
    """CoNLL-U and simpler formats: one word per line, blank lines between sentences, # comments."""
    name, conllu = names[0], data.format == "conllu"
    # the label of a sentence is in a comment: "# intent = PlayMusic"
    label_key = str(data.target) if target_type == "label" and labelled else ""
    word = _field(data.source[0], name, conllu)
    tag = word if label_key or not labelled else _field(data.target or 0, name, conllu)
    mark = None if data.mask is None or not labelled else _field(data.mask, name, conllu)
    width = len(CONLLU_FIELDS) if conllu else 0
    words: list[str] = []
    tags: list[str] = []
    marks: list[str] = []
    comments: dict[str, str] = {}
    start, broken = 0, False
    for number, text in itertools.chain(enumerate(lines_of(name), 1), [(0, "")]):
        if isinstance(text, Defect):
            yield text
            broken = True
            continue
        if not text.strip():  # the sentence ends
            if words and not broken and target_type == "labels":
                mask = None if mark is None else "".join(marks)
                labels = tuple(tags) if labelled else None
                yield _tagged(tuple(words), labels, data, name, start, mask)
            elif words and not broken:
                label = comments.get(label_key, "") if label_key else " ".join(tags)
                target = label if labelled else None
                yield _example((" ".join(words),), target, data, target_type, name, start)
            words, tags, marks, comments, broken = [], [], [], {}, False
            continue
        cells = cells_of(text)
        if text[0] == "#" and (conllu or ("\t" not in text and len(cells) != width)):
            key, _, value = text[1:].partition("=")
            comments[key.strip()] = value.strip()
            continue
        if cells[0] == "-DOCSTART-" or (conllu and len(cells) == width and not cells[0].isdigit()):
            continue  # CoNLL-U: "1-2" is a multiword token, "1.1" an empty node
        width = width or len(cells)
        try:
            if len(cells) != width:
                raise IndexError
            words.append(word(cells))
            tags.append(tag(cells))
            if mark is not None:
                marks.append(mark(cells))
        except IndexError:
            yield _columns(name, number, width, str(len(cells)), text)
            broken = True
        start = start if len(words) > 1 else number


def _field(column: c.Column, name: str, conllu: bool) -> Callable[[list[str]], str]:
    """A getter for a column: by number, or by a CoNLL-U name such as `upos` or `feats.Case`."""
    if isinstance(column, int) or not conllu:
        return operator.itemgetter(_index(column, name))
    field, _, key = column.partition(".")
    if field not in CONLLU_FIELDS:
        known = listed(CONLLU_FIELDS[1:])
        raise FileError("column", name, f"no field {column!r}; there are {known}, feats.Case")
    index, prefix = CONLLU_FIELDS.index(field), key + "="

    def pick(cells: list[str]) -> str:
        pairs = cells[index].split("|")
        return next((pair[len(prefix) :] for pair in pairs if pair.startswith(prefix)), "_")

    return pick if key else operator.itemgetter(index)


READERS: dict[str, Reader] = {"text": _text, "tsv": _table, "csv": _table, "lines": _aligned}
READERS |= {"jsonl": _jsonl, "conllu": _sentences, "columns": _sentences}


def _example(
    source: tuple[str, ...],
    target: str | None,
    data: c.Data,
    target_type: c.TargetType,
    name: str,
    line: int,
    others: tuple[str, ...] = (),
    mask: str | None = None,
) -> Example | Defect:
    """The example of a row, or a defect if one of its texts is blank."""
    if data.vector:
        try:
            source = with_vector(source, data)
        except CellError as error:
            return defect_at(error.code, name, line, str(error), "\t".join(source))
    for text in source:
        if not text.strip():
            row = "\t".join([*source, target or ""])
            return defect_at("blank-source", name, line, "the source is blank", row)
    blank = target is not None and not target.strip()
    if blank or (others and not all(map(str.strip, others))):
        return defect_at("blank-target", name, line, "the target is blank", "\t".join(source))
    if target_type != "labels":
        return Example(source, target, name, line, others)
    words, tags = words_of(source[0], data.units), None
    if target is not None:
        tags = words_of(target, data.units)
    return _tagged(words, tags, data, name, line, mask)


def _tagged(
    words: tuple[str, ...],
    tags: tuple[str, ...] | None,
    data: c.Data,
    name: str,
    line: int,
    mask: str | None = None,
) -> Example | Defect:
    """The example of a sentence, or a defect unless every word has a tag."""
    if not words or not all(word.strip() and word != UNSCORED for word in words):
        return defect_at("blank-source", name, line, "a word is blank", " ".join(words))
    if tags is None:
        return Example(words, None, name, line)
    if not tags or not all(tag.strip() for tag in tags):
        return defect_at("blank-target", name, line, "a tag is blank", " ".join(words))
    text = f"{' '.join(words)}\t{' '.join(tags)}"
    # the length of a series is known only to its reader
    if len(words) != len(tags) and not is_series(words[0]):
        unit = "character" if data.units == "characters" else "word"
        message = f"{counted(len(words), unit)}, but {counted(len(tags), 'tag')}"
        return defect_at("tags", name, line, message, text)
    try:
        return Example(words, scored_labels(tags, mask, data.ignore), name, line)
    except CellError as error:
        return defect_at(error.code, name, line, str(error), text)


def _columns(name: str, line: int, width: int, found: str, text: str = "") -> Defect:
    """The defect of a row with another number of columns."""
    message = f"expected {counted(width, 'column')}, found {found}"
    return defect_at("columns", name, line, message, text)


def _wanted(data: c.Data, labelled: bool) -> tuple[c.Column, ...]:
    """The columns to read: the sources, then the target and its mask, where there are any."""
    sources = source_columns(data)
    if not labelled or data.target is None:
        return sources
    return (*sources, data.target, *([] if data.mask is None else [data.mask]))


def _position(column: c.Column, header: list[str], name: str) -> int:
    if isinstance(column, int):
        return column
    if column not in header:
        folded = {key.casefold(): key for key in header}
        near = difflib.get_close_matches(column.casefold(), folded, n=1, cutoff=0.5)
        meant = f" (did you mean {folded[near[0]]!r}?)" if near else ""
        raise FileError("column", name, f"no column {column!r} in {listed(header)}{meant}", 1)
    if (many := header.count(column)) > 1:
        message = f"{many} columns are called {column!r}: name one by its number"
        raise FileError("column", name, message, 1)
    return header.index(column) + 1


def _index(column: c.Column, name: str) -> int:
    if not isinstance(column, int) or column < 1:
        raise FileError("column", name, f"no column {column!r}: they are numbers, from 1")
    return column - 1
