"""Lines of files: their text, or what is wrong with them.

Lines end at \\n only (a \\r before it is dropped), are strict UTF-8, and are read as they come, so
memory does not grow with the file.
"""

import codecs
import contextlib
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from saccade.errors import DataError

BLOCK_BYTES = 1 << 20  # read at once
MAX_LINE_BYTES = 1 << 27  # else a device without an end would be one line
SHOWN_CHARACTERS = 80  # of a line, that a defect keeps

Target: TypeAlias = str | tuple[str, ...]  # a text or a label; a label for each word

UNSCORED = "\0"  # in place of a label that is neither learned nor scored: in no text

ADVICE = {
    "blank-source": "fill it in, or remove the row",
    "blank-target": "fill it in, or remove the row",
    "column": "set data.source and data.target",
    "columns": "mend or remove the line",
    "constant-series": "leave it out: name the others in task.series",
    "empty-file": "is it the right file?",
    "files": "give one file, or a source and a target file that are aligned by line",
    "gzip": "download or compress it again",
    "irregular": "write a row for each step, or leave out the time column (task.time)",
    "json": "write one JSON object a line",
    "key": "set data.source and data.target",
    "long-line": "is it a text file? Break the line, as with fold -s -w 10000",
    "mask": "write a 1 or a 0 for every label, as in 0111",
    "misaligned": "make both from one file again; a line may be missing far earlier",
    "missing-file": "check the path",
    "number": "write a number with a decimal point, remove the row, or set data.vector",
    "nul": "it may be binary or UTF-16: save it as UTF-8 text",
    "one-column": "put a tab between source and target, or give two files",
    "other-columns": "give a file with the columns of the training file",
    "quotes": "close it; write a quote inside a cell twice, or set data.format=tsv if it is text",
    "repeated-time": "remove one of them, or name the column that tells series apart (task.id)",
    "series": "remove its rows, or train anew",
    "series-column": "set task.time, task.id, task.series, task.past and task.known",
    "series-leak": "give rows that come later",
    "series-number": "write a number, or leave the cell empty where it is missing",
    "short-series": "give a longer series, or set a smaller task.horizon and task.lookback",
    "tags": "write one tag for every word",
    "time": "write all times in one way",
    "unreadable": "give a file that you may read",
    "unseen-label": "mend its spelling, or add training examples of it",
    "unsorted": "sort the rows by time",
    "utf8": "save the file as UTF-8, or mend the line",
    "value": "write a string (or, for tags, a list of them)",
}


def labels_of(target: Target | None) -> tuple[str, ...]:
    """A target as labels: one, one for each word, or none."""
    return (target,) if isinstance(target, str) else target or ()


@dataclass(frozen=True, slots=True)
class Example:
    """What is read, what is to be learned from it, and where in the files it stands."""

    source: tuple[str, ...]  # the text columns; where each word has a label the words
    target: Target | None
    file: str = ""
    line: int = 0
    others: tuple[Target, ...] = ()  # further targets, as right as the first

    @property
    def references(self) -> tuple[Target, ...]:
        """Every target that is right."""
        return () if self.target is None else (self.target, *self.others)

    @property
    def labels(self) -> tuple[str, ...]:
        """The target as labels: one, or one for each word that is scored."""
        return tuple(label for label in labels_of(self.target) if label != UNSCORED)

    @property
    def where(self) -> str:
        return place(self.file, self.line)


@dataclass(frozen=True, slots=True)
class Defect:
    code: str  # stable and short: "columns", "utf8", "blank-target" ...
    where: str  # "train.tsv:214"
    message: str  # "expected 2 columns, found 3"
    advice: str  # what to do
    text: str = ""  # the line, or its beginning, where there is one

    def __str__(self) -> str:
        return f"{self.where}: {self.message}; {self.advice}"


class LineTooLongError(Exception):
    """A line has no end within MAX_LINE_BYTES."""


class FileError(Exception):
    """Nothing more can be read; the defect says why."""

    def __init__(self, code: str, name: str, message: str, line: int = 0):
        super().__init__(message)
        self.defect = defect_at(code, name, line, message)


def defect_at(code: str, name: str, line: int, message: str, text: str = "") -> Defect:
    return Defect(code, place(name, line), message, ADVICE[code], text[:SHOWN_CHARACTERS])


def place(name: str, line: int = 0) -> str:
    """Where something stands: in a line of a file, in a file, or in an example from memory."""
    if not name:
        return f"example {line}" if line else "the examples"
    return f"{name}:{line}" if line else name


def lines_of(name: str, stream: io.RawIOBase | None = None) -> Iterator[str | Defect]:
    """One item for every line of a file (or of `stream`): its text, or what is wrong with it."""
    number = 0
    try:
        with contextlib.ExitStack() as stack:
            opened = io.FileIO(name) if stream is None else stream
            file: "io.BufferedReader[Any]" = stack.enter_context(
                io.BufferedReader(opened, BLOCK_BYTES)
            )
            if name.endswith(".gz") or file.peek(2)[:2] == b"\x1f\x8b":
                inside = stack.enter_context(gzip.GzipFile(fileobj=file))
                file = stack.enter_context(io.BufferedReader(inside, BLOCK_BYTES))
            for block in _whole_lines(file):
                block = block if number else block.removeprefix(codecs.BOM_UTF8)
                if (lines := _decoded(block)) is not None:
                    yield from lines
                    number += len(lines)
                    continue
                for line in block.replace(b"\r\n", b"\n").removesuffix(b"\n").split(b"\n"):
                    number += 1
                    yield _checked(line, name, number)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        message = f"damaged gzip file, readable up to line {number}"
        raise FileError("gzip", name, message) from None
    except FileNotFoundError:
        raise FileError("missing-file", name, "no such file") from None
    except LineTooLongError:
        message = f"a line of more than {MAX_LINE_BYTES >> 20} MB"
        raise FileError("long-line", name, message, number + 1) from None
    except OSError as error:
        raise FileError("unreadable", name, (error.strerror or str(error)).lower()) from None


def _whole_lines(file: "io.BufferedReader[Any]") -> Iterator[bytes]:
    """Blocks of lines, as they arrive; only the last may lack its \\n."""
    rest: list[bytes] = []
    size = 0
    while data := file.read1(BLOCK_BYTES):
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join([*rest, data[:end]])
            rest, size = [], 0
        rest.append(data[end:])
        size += len(rest[-1])
        if size > MAX_LINE_BYTES:
            raise LineTooLongError
    if last := b"".join(rest):
        yield last


def _decoded(block: bytes) -> list[str] | None:
    """The lines of a block, decoded at once for speed; None if one of them is broken."""
    if b"\0" in block:
        return None
    try:
        text = block.decode()
    except UnicodeDecodeError:
        return None
    lines = text.replace("\r\n", "\n").split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _checked(line: bytes, name: str, number: int) -> str | Defect:
    if b"\0" in line:
        message = f"a NUL at byte {line.index(0) + 1} of the line"
        return defect_at("nul", name, number, message, _around(line, line.index(0)))
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        message = f"not UTF-8 at byte {error.start + 1} of the line"
        return defect_at("utf8", name, number, message, _around(line, error.start))


def _around(line: bytes, at: int) -> str:
    """The text around a byte that is not text."""
    return line[max(at - SHOWN_CHARACTERS // 2, 0) :][:SHOWN_CHARACTERS].decode(
        errors="backslashreplace"
    )


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a line is; None if it is anything else."""
    try:
        row = json.loads(text)
        if "\\u" in text:
            json.dumps(row, ensure_ascii=False).encode()  # fails on half of a surrogate pair
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def cells_of(text: str) -> list[str]:
    """The columns of a line: between tabs, or, where there are none, between blanks."""
    return text.split("\t") if "\t" in text else [cell for cell in text.split(" ") if cell]


def listed(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "none"


def counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def input_lines(path: Path | None) -> Iterator[str]:
    """The lines of a file or of standard input, one at a time, read as training files are."""
    standard = path is None or str(path) == "-"
    stream = io.FileIO(sys.stdin.fileno(), closefd=False) if standard else None
    try:
        for row in lines_of("standard input" if standard else str(path), stream):
            if isinstance(row, Defect):
                raise DataError(str(row))
            yield row
    except FileError as error:
        raise DataError(str(error.defect)) from None
