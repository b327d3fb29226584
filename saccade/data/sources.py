"""Files to examples: one reader for every format; a broken row is reported, never guessed.

Lines end at \\n only (a \\r before it is dropped), are strict UTF-8, and are read as they come, so
memory does not grow with the file. `read` gives every example and every defect, `examples` is its
strict view, which raises DataError, and `shape` says what the first rows of a file seem to be.
"""

import codecs
import contextlib
import gzip
import hashlib
import io
import itertools
import json
import math
import operator
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from saccade.config import Column, Data
from saccade.errors import DataError

SAMPLE = 1000  # lines that `shape` looks at
BLOCK = 1 << 20  # bytes read at once
TOLD = 5  # defects in the text of one DataError

ADVICE = {
    "blank-source": "fill it in, or remove the row",
    "blank-target": "fill it in, or remove the row",
    "column": "set data.source and data.target",
    "columns": "mend or remove the line",
    "csv": "write tabs between the columns, without quotes, into a .tsv file",
    "empty-file": "is it the right file?",
    "files": "give one file, or a source and a target file that are aligned by line",
    "gzip": "download or compress it again",
    "json": "write one JSON object a line",
    "key": "set data.source and data.target",
    "misaligned": "make both from one file again; a line may be missing far earlier",
    "missing-file": "check the path",
    "nul": "it may be binary or UTF-16: save it as UTF-8 text",
    "one-column": "put a tab between source and target, or give two files",
    "tags": "write one tag for every word",
    "unreadable": "give a file that you may read",
    "unseen-label": "mend its spelling, or add training examples of it",
    "utf8": "save the file as UTF-8, or mend the line",
    "value": "write a string (or, for tags, a list of them)",
}

FIELDS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
SOURCES = """sentence1+sentence2 premise+hypothesis question1+question2 source src text sentence
    input question prompt document review tokens words"""  # the usual keys, the surest first
TARGETS = "target tgt label output answer summary response class category intent sentiment tags"


@dataclass(frozen=True, slots=True)
class Example:
    source: tuple[str, ...]  # the text columns; for `tag` the words; for plain text the line
    target: (
        str | tuple[str, ...] | None
    )  # a text, a label, one tag a word; None where there is none
    file: str = ""
    line: int = 0

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Defect:
    code: str  # stable and short: "columns", "utf8", "blank-target" ...
    where: str  # "train.tsv:214"
    message: str  # "expected 2 columns, found 3"
    advice: str  # what to do

    def __str__(self) -> str:
        return f"{self.where}: {self.message}; {self.advice}"


Format = Literal["tsv", "lines", "jsonl", "conllu", "columns", "text"]
Kind = Literal["model", "classify", "tag", "translate"]
Rows: TypeAlias = Iterator[Example | Defect]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a file seems to be, and one sentence that tells the user why."""

    format: Format
    task: Kind
    source: tuple[Column, ...]
    target: Column | None
    reason: str

    def fill(self, data: Data) -> Data:
        """`data` with every choice that was left open made as this shape says."""
        made = {"format": self.format, "source": self.source, "target": self.target}
        return data.model_copy(update=made)


class _FileError(Exception):
    """Nothing more can be read; the defect says why."""

    def __init__(self, code: str, name: str, message: str, line: int = 0):
        super().__init__(message)
        self.defect = _defect(code, name, line, message)


def _defect(code: str, name: str, line: int, message: str) -> Defect:
    return Defect(code, f"{name}:{line}" if line else name, message, ADVICE[code])


# --- the public verbs -----------------------------------------------------------------------------


def read(paths: Sequence[str | Path], data: Data, task_kind: str, *, labelled: bool = True) -> Rows:
    """Every example and every defect, in order. Without labels a row may hold the sources alone."""
    names = [str(path) for path in paths]
    labelled = labelled and task_kind != "model"
    try:
        data = _look(names, data, task_kind, labelled).fill(data)
        rows = READERS[data.format](names, data, task_kind, labelled)
        first = next(rows, None)
        if first is None:
            raise _FileError("empty-file", names[0], "no examples")
        yield first
        yield from rows
    except _FileError as error:
        yield error.defect


def examples(paths: Sequence[str | Path], data: Data, task_kind: str) -> Iterator[Example]:
    """Every example, in order; DataError at the first defect, with a few of those that follow."""
    rows = read(paths, data, task_kind)
    for row in rows:
        if isinstance(row, Defect):
            ahead = itertools.islice(rows, SAMPLE)
            more = (later for later in ahead if isinstance(later, Defect))
            told = [row, *itertools.islice(more, TOLD - 1)]
            raise DataError("\n".join([*map(str, told), "... run `saccade check` for all"]))
        yield row


def shape(paths: Sequence[str | Path], data: Data, task_kind: str | None = None) -> Shape:
    """What the first rows suggest: format, task and columns; what `data` says is kept."""
    try:
        return _look([str(path) for path in paths], data, task_kind, task_kind != "model")
    except _FileError as error:
        raise DataError(str(error.defect)) from None


def unseen(train_labels: Container[str], dev: Iterable[Example | Defect]) -> Iterator[Defect]:
    """The labels of `dev` that training never saw, each where it comes first."""
    told: set[str] = set()
    for row in dev:
        if isinstance(row, Defect) or row.target is None:
            continue
        for label in (row.target,) if isinstance(row.target, str) else row.target:
            if label not in train_labels and label not in told:
                told.add(label)
                message = f"the label {label!r} is not in the training data"
                yield _defect("unseen-label", row.file, row.line, message)


def is_dev(source: tuple[str, ...], share: float, seed: int) -> bool:
    """Whether a source belongs to the dev set: by a stable hash, so never to both sets."""
    key = "\0".join((str(seed), *source)).encode()
    digest = hashlib.blake2b(key, digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


# --- what a file seems to be ----------------------------------------------------------------------


def _look(names: list[str], data: Data, kind: str | None, labelled: bool) -> Shape:
    if not names:
        raise _FileError("missing-file", "data", "no file was given")
    form = data.format if data.format != "auto" else _format(names, kind)
    if form != "lines" and len(names) != 1:
        raise _FileError("files", names[1], f"the format '{form}' is one file, not {len(names)}")
    if form == "text":
        return Shape(form, "model", (), None, "plain text, not in columns: model")
    task = cast(Kind, kind or "tag")
    if data.source and (data.target is not None or not labelled) and kind:
        return Shape(form, task, data.source, data.target, "as data.source and data.target say")
    if form == "conllu":
        source, target = data.source or ("form",), data.target or "upos"
        return Shape(form, task, source, target, f"CoNLL-U, a line a word: tag each with {target}")
    tables = [_sample(name) for name in names]
    if form == "columns":
        cells = [_cells(line) for line in tables[0] if line[:1] != "#" or "\t" in line]
        width = Counter(len(row) for row in cells if row).most_common(1)[0][0] if cells else 2
        source, target = data.source or (1,), data.target or width
        reason = f"a line a word, {_count(width, 'column')}, blank lines between sentences: tag"
        return Shape(form, task, source, target, reason)
    columns: dict[Column, list[str]]
    if form == "lines":
        columns = dict(enumerate(tables, 1))
    elif form == "jsonl":
        objects = [row for line in tables[0] if (row := _object(line))]
        keys = dict.fromkeys(key for row in objects for key in row)
        columns = {key: [str(row.get(key, "")) for row in objects] for key in keys}
    else:
        rows = [line.split("\t") for line in tables[0] if line]
        width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
        rows = [row for row in rows if len(row) == width]
        columns = {i + 1: [row[i] for row in rows] for i in range(width)}
        given = (*data.source, data.target)
        named = rows and all(_named(rows[0]))
        if named or any(isinstance(column, str) for column in given):
            columns = {values[0]: values[1:] for values in columns.values()}  # a header
    return _roles(form, columns, data, kind, names[0], labelled)


def _format(names: list[str], kind: str | None) -> Format:
    """By the file's name, or else by its first lines."""
    if len(names) > 1:
        if all(name.endswith((".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz")) for name in names):
            raise _FileError("files", names[1], "each file has source and target already")
        return "lines"
    name = names[0].removesuffix(".gz")
    lines = [line for line in _sample(names[0]) if line[:1] != "#" or "\t" in line]
    full = [line for line in lines if line.strip()]
    if name.endswith((".jsonl", ".ndjson")) or (full and full[0][0] == "{" and _object(full[0])):
        return "jsonl"
    if kind == "model":
        return "text"
    if name.endswith(".csv"):
        raise _FileError("csv", names[0], "commas between the columns")
    if name.endswith(".tsv"):
        return "tsv" if "\t" in "".join(full) else "text"
    tabs = Counter(line.count("\t") for line in full)
    if name.endswith(".conllu") or (tabs[9] > 0.9 * len(full) and len(lines) > len(full)):
        return "conllu"
    cells = [_cells(line) for line in full]
    even = len({len(row) for row in cells}) == 1 and len(cells[0]) > 1
    inner = "".join("x" if line.strip() else " " for line in lines).strip().count(" ")
    if name.endswith((".conll", ".bio", ".iob", ".iob2")) or (
        even and inner > 0.01 * len(lines) and _few([row[-1] for row in cells])
    ):
        return "columns"
    return "tsv" if tabs[0] < 0.1 * len(full) else "text"


def _roles(
    form: Format,
    columns: dict[Column, list[str]],
    data: Data,
    kind: str | None,
    name: str,
    labelled: bool,
) -> Shape:
    """Which columns are the source, which is the target, and so which task it is."""
    free = [column for column in columns if column not in data.source]
    few = [column for column in free if _few(columns[column])]
    source, target = data.source, data.target
    named, label = _named(columns)
    if not kind and target is None and list(named) == list(columns):
        return Shape(form, "model", named, None, f"one text, {named[0]!r}: model")
    if not labelled:
        target = None
    elif target is None and named and label:
        target = label
    elif target is None and form == "jsonl":
        raise _FileError("key", name, f"which is the target? The keys are {_list(columns)}")
    elif target is None and not source and kind != "classify" and _inflection(columns):
        source, target = (1, 3), 2
    elif target is None and len(columns) < 2:
        raise _FileError("one-column", name, "expected at least 2 columns, found 1", 1)
    elif target is None:
        texts = len(few) < len(columns)
        target = few[-1] if few and texts and kind in (None, "classify") else (free or [2])[-1]
    if form == "jsonl" or label == target is not None:
        source = source or named
    source = source or tuple(column for column in columns if column != target)
    values = columns.get(target, []) if target is not None else []
    task = cast(Kind, kind or ("classify" if _few(values) else "translate"))
    unit = {"lines": "file", "jsonl": "key"}.get(form, "column")
    value = "different short value" if _few(values) else "different value"
    what = f"{_count(len(columns), unit)}, {unit} {target} has {_count(len(set(values)), value)}"
    reason = f"{what} in {_count(len(values), 'line')}: {task}"
    return Shape(form, task, source, target, reason)


def _few(values: list[str]) -> bool:
    """Whether these look like labels: short, and each seen again and again."""
    lines, kinds = len(values), set(values)
    limit = lines // 10 if lines >= 100 else max(2, math.isqrt(lines))
    short = all(len(value) <= 40 and value.count(" ") < 4 for value in kinds)
    return len(kinds) <= limit and len(kinds) < lines and short


def _named(columns: Container[Column]) -> tuple[tuple[Column, ...], Column | None]:
    """The source and the target among keys with the usual names."""
    known = [tuple(name.split("+")) for name in SOURCES.split()]
    source = next((keys for keys in known if all(key in columns for key in keys)), ())
    return source, next((key for key in TARGETS.split() if key in columns), None)


def _inflection(columns: dict[Column, list[str]]) -> bool:
    """Lemma, form, V;PST;3;SG: the files of UniMorph and SIGMORPHON."""
    marks = columns.get(3, []) if len(columns) == 3 else []
    return sum(";" in mark and mark == mark.upper() for mark in marks) > 0.9 * len(marks) > 0


def _sample(name: str) -> list[str]:
    rows = list(itertools.islice(_lines(name), SAMPLE))
    lines = [row for row in rows if isinstance(row, str)]
    if not rows:
        raise _FileError("empty-file", name, "no examples")
    if not lines and isinstance(rows[0], Defect):
        raise _FileError(rows[0].code, name, rows[0].message, 1)
    return lines


# --- lines ----------------------------------------------------------------------------------------


def _lines(name: str) -> Iterator[str | Defect]:
    """One item for every line of a file: its text, or what is wrong with it."""
    number = 0
    try:
        with contextlib.ExitStack() as stack:
            raw = stack.enter_context(io.BufferedReader(io.FileIO(name), BLOCK))
            file: Iterable[bytes] = raw
            if name.endswith(".gz") or raw.peek(2)[:2] == b"\x1f\x8b":
                inside = stack.enter_context(gzip.GzipFile(fileobj=raw))
                file = stack.enter_context(io.BufferedReader(inside, BLOCK))  # three times as fast
            for number, line in enumerate(file, 1):  # a binary file splits at \n only
                if line.endswith(b"\n"):
                    line = line[:-2] if line.endswith(b"\r\n") else line[:-1]
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if b"\0" in line:
                    message = f"a NUL at byte {line.index(0) + 1} of the line"
                    yield _defect("nul", name, number, message)
                    continue
                try:
                    yield line.decode()
                except UnicodeDecodeError as error:
                    message = f"not UTF-8 at byte {error.start + 1} of the line"
                    yield _defect("utf8", name, number, message)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        message = f"damaged gzip file, readable up to line {number}"
        raise _FileError("gzip", name, message) from None
    except FileNotFoundError:
        raise _FileError("missing-file", name, "no such file") from None
    except OSError as error:
        raise _FileError("unreadable", name, (error.strerror or str(error)).lower()) from None


# --- one reader a format --------------------------------------------------------------------------


def _text(names: list[str], data: Data, kind: str, labelled: bool) -> Rows:
    """Every line, the blank ones too."""
    if labelled:
        raise _FileError("one-column", names[0], "expected at least 2 columns, found 1", 1)
    for number, text in enumerate(_lines(names[0]), 1):
        if isinstance(text, Defect):
            yield text
        else:
            yield Example(_words(text) if kind == "tag" else (text,), None, names[0], number)


def _tsv(names: list[str], data: Data, kind: str, labelled: bool) -> Rows:
    """Columns with tabs between; the first line is a header where columns are named."""
    name, wanted = names[0], _wanted(data, labelled)
    lines = enumerate(_lines(name), 1)
    head = list(itertools.islice(lines, 100))
    widths = Counter(t.count("\t") + 1 for _, t in head if isinstance(t, str) and t)
    usual = widths.most_common(1)[0][0] if widths else 0  # one odd first row is not the rule
    header = str(head[0][1]).split("\t") if head else []
    bare = not labelled and usual == len(wanted)  # the sources alone
    if any(isinstance(column, str) for column in wanted) and not (
        bare and not set(wanted) <= set(header)
    ):
        head, bare = head[1:], False
        wanted = tuple(_position(column, header, name) for column in wanted)
    picks = list(range(usual)) if bare else [_index(column, name) for column in wanted]
    width = max(usual, *(pick + 1 for pick in picks), 1)
    last = picks.pop() if labelled else None
    only = picks[0] if len(picks) == 1 else None
    blanks: list[int] = []  # empty lines are a fault only if something follows
    for number, text in itertools.chain(head, lines):
        if blanks and text:
            yield from (_columns(name, blank, width, "an empty line") for blank in blanks)
            blanks.clear()
        if isinstance(text, Defect):
            yield text
            continue
        cells = text.split("\t")
        if len(cells) == width:
            source = (cells[only],) if only is not None else tuple(cells[pick] for pick in picks)
            yield _example(source, None if last is None else cells[last], kind, name, number)
        elif text:
            yield _columns(name, number, width, str(len(cells)))
        else:
            blanks.append(number)


def _aligned(names: list[str], data: Data, kind: str, labelled: bool) -> Rows:
    """Files whose lines belong together by number."""
    wanted = _wanted(data, labelled)
    bare = not labelled and len(names) == len(wanted)
    picks = list(range(len(names))) if bare else [_index(column, "data") for column in wanted]
    if max(picks) >= len(names):
        message = f"expected {_count(max(picks) + 1, 'file')} aligned by line, found {len(names)}"
        raise _FileError("files", names[0], message)
    used = [names[pick] for pick in picks]
    sides = [_lines(name) for name in used]
    for number, row in enumerate(itertools.zip_longest(*sides), 1):
        if None in row:
            yield _misaligned(used, number, row, sides)
            return
        texts = tuple(cell for cell in row if isinstance(cell, str))
        if len(texts) < len(row):
            yield from (cell for cell in row if isinstance(cell, Defect))
            continue
        source, target = (texts[:-1], texts[-1]) if labelled else (texts, None)
        made = _example(source, target, kind, used[0], number)
        if isinstance(made, Defect) and made.code == "blank-target":
            made = _defect(made.code, used[-1], number, made.message)
        yield made


def _misaligned(
    names: list[str], number: int, row: Sequence[object], sides: list[Iterator[str | Defect]]
) -> Defect:
    counts = [number - (cell is None) for cell in row]
    counts = [count + sum(1 for _ in side) for count, side in zip(counts, sides, strict=True)]
    told = [f"{n} has {_count(c, 'line')}" for n, c in zip(names, counts, strict=True)]
    message = f"{', '.join(told)}: no partner from line {number} on"
    return _defect("misaligned", names[counts.index(max(counts))], number, message)


def _jsonl(names: list[str], data: Data, kind: str, labelled: bool) -> Rows:
    """One JSON object a line; blank lines are skipped."""
    name, wanted = names[0], [str(key) for key in _wanted(data, labelled)]
    for number, text in enumerate(_lines(name), 1):
        if isinstance(text, Defect):
            yield text
            continue
        if not text.strip():
            continue
        row = _object(text)
        if row is None:
            yield _defect("json", name, number, "not a JSON object")
            continue
        cells = [_plain(row.get(key), kind) for key in wanted]
        if None in cells:
            key = wanted[cells.index(None)]
            if key in row:
                yield _defect("value", name, number, f"the value of {key!r} is not a text")
            else:
                yield _defect("key", name, number, f"no key {key!r}; the keys are {_list(row)}")
            continue
        texts = tuple(cell or "" for cell in cells)
        source, target = (texts[:-1], texts[-1]) if labelled else (texts, None)
        yield _example(source, target, kind, name, number)


def _object(text: str) -> dict[str, Any] | None:
    try:
        row = json.loads(text)
        if "\\u" in text:
            json.dumps(row, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _plain(value: object, kind: str) -> str | None:
    if isinstance(value, bool | int | float):
        value = json.dumps(value)
    if kind == "tag" and isinstance(value, list):
        words = [str(word) for word in value]
        value = " ".join(words) if not any(" " in word or not word for word in words) else None
    return value if isinstance(value, str) and "\0" not in value else None


def _blocks(names: list[str], data: Data, kind: str, labelled: bool) -> Rows:
    """CoNLL-U and its simpler kin: a line a word, a blank line after each sentence, # comments."""
    name, conllu = names[0], data.format == "conllu"
    noted = str(data.target) if kind == "classify" and labelled else ""  # "# intent = PlayMusic"
    word = _field(data.source[0], name, conllu)
    tag = word if noted or not labelled else _field(data.target or 0, name, conllu)
    width = len(FIELDS) if conllu else 0
    words: list[str] = []
    tags: list[str] = []
    notes: dict[str, str] = {}
    start, broken = 0, False
    for number, text in itertools.chain(enumerate(_lines(name), 1), [(0, "")]):
        if isinstance(text, Defect):
            yield text
            broken = True
            continue
        if not text.strip():  # the sentence is whole
            if words and not broken and kind == "tag":
                yield _tagged(tuple(words), tuple(tags) if labelled else None, name, start)
            elif words and not broken:
                target = (notes.get(noted, "") if noted else " ".join(tags)) if labelled else None
                yield _example((" ".join(words),), target, kind, name, start)
            words, tags, notes, broken = [], [], {}, False
            continue
        cells = _cells(text)
        if text[0] == "#" and (conllu or ("\t" not in text and len(cells) != width)):
            key, _, value = text[1:].partition("=")
            notes[key.strip()] = value.strip()
            continue
        if cells[0] == "-DOCSTART-" or (conllu and len(cells) == width and not cells[0].isdigit()):
            continue  # CoNLL-U: "1-2" is a contraction, "1.1" a word that was left out
        width = width or len(cells)
        try:
            if len(cells) != width:
                raise IndexError
            words.append(word(cells))
            tags.append(tag(cells))
        except IndexError:
            yield _columns(name, number, width, str(len(cells)))
            broken = True
        start = start if len(words) > 1 else number


def _cells(text: str) -> list[str]:
    return text.split("\t") if "\t" in text else [cell for cell in text.split(" ") if cell]


def _field(column: Column, name: str, conllu: bool) -> Callable[[list[str]], str]:
    """What a number, or a CoNLL-U name such as `upos` or `feats.Case`, picks from a row."""
    if isinstance(column, int) or not conllu:
        return operator.itemgetter(_index(column, name))
    field, _, key = column.partition(".")
    if field not in FIELDS:
        known = _list(FIELDS[1:])
        raise _FileError("column", name, f"no field {column!r}; there are {known}, feats.Case")
    index, prefix = FIELDS.index(field), key + "="

    def pick(cells: list[str]) -> str:
        pairs = cells[index].split("|")
        return next((pair[len(prefix) :] for pair in pairs if pair.startswith(prefix)), "_")

    return pick if key else operator.itemgetter(index)


READERS = {"text": _text, "tsv": _tsv, "lines": _aligned, "jsonl": _jsonl}
READERS |= {"conllu": _blocks, "columns": _blocks}


def _example(
    source: tuple[str, ...], target: str | None, kind: str, name: str, line: int
) -> Example | Defect:
    for text in source:
        if not text.strip():
            return _defect("blank-source", name, line, "the source is blank")
    if target is not None and not target.strip():
        return _defect("blank-target", name, line, "the target is blank")
    if kind != "tag":
        return Example(source, target, name, line)
    return _tagged(_words(source[0]), None if target is None else _words(target), name, line)


def _tagged(
    words: tuple[str, ...], tags: tuple[str, ...] | None, name: str, line: int
) -> Example | Defect:
    if not all(word.strip() for word in words):
        return _defect("blank-source", name, line, "a word is blank")
    if tags is not None and not all(tag.strip() for tag in tags):
        return _defect("blank-target", name, line, "a tag is blank")
    if tags is not None and len(words) != len(tags):
        message = f"{_count(len(words), 'word')}, but {_count(len(tags), 'tag')}"
        return _defect("tags", name, line, message)
    return Example(words, tags, name, line)


def _columns(name: str, line: int, width: int, found: str) -> Defect:
    return _defect("columns", name, line, f"expected {_count(width, 'column')}, found {found}")


def _wanted(data: Data, labelled: bool) -> tuple[Column, ...]:
    return (*data.source, data.target) if labelled and data.target is not None else data.source


def _position(column: Column, header: list[str], name: str) -> int:
    if isinstance(column, int):
        return column
    if column not in header:
        raise _FileError("column", name, f"no column {column!r} in {_list(header)}", 1)
    return header.index(column) + 1


def _index(column: Column, name: str) -> int:
    if not isinstance(column, int) or column < 1:
        raise _FileError("column", name, f"no column {column!r}: they are numbers, from 1")
    return column - 1


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(" ") if word)


def _list(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "none"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
