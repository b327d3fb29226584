"""Lines of files: their text, or what is wrong with them.

Lines end at \\n only (a \\r before it is dropped), must be UTF-8, and are streamed, so memory does
not grow with the file.
"""

import codecs
import contextlib
import glob
import gzip
import io
import itertools
import json
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from saccade.errors import DataError

try:
    import zstandard
except ImportError:  # an extra
    zstandard = None  # type: ignore[assignment]
ZstdError: type[Exception] = LookupError if zstandard is None else zstandard.ZstdError

GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
BLOCK_BYTES = 1 << 20  # read at once
MAX_LINE_BYTES = 1 << 27  # so that an endless device is an error
SHOWN_CHARACTERS = 80  # of a line, in a defect

Target: TypeAlias = str | tuple[str, ...]  # a text or a label; a label for each word

UNSCORED = "\0"  # replaces a label that is neither learned nor scored; occurs in no text

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
    "json": "write one JSON object a line, as jq -c '.[]' makes them of a list",
    "key": "set data.source and data.target",
    "line-ends": "end them in \\n, as tr '\\r' '\\n' does",
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
    """A target as a tuple of labels: one, one for each word, or none."""
    return (target,) if isinstance(target, str) else target or ()


@dataclass(frozen=True, slots=True)
class Example:
    """A source and its target, and where in the files they are."""

    source: tuple[str, ...]  # the source columns; where each word has a label, the words
    target: Target | None
    file: str = ""
    line: int = 0
    others: tuple[Target, ...] = ()  # further references

    @property
    def references(self) -> tuple[Target, ...]:
        """The target and its alternatives."""
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
    text: str = ""  # the line, truncated, where there is one

    def __str__(self) -> str:
        return f"{self.where}: {self.message}; {self.advice}"


class LineTooLongError(Exception):
    """A line is longer than MAX_LINE_BYTES."""


class FileError(Exception):
    """A file cannot be read any further; the defect says why."""

    def __init__(self, code: str, name: str, message: str, line: int = 0):
        super().__init__(message)
        self.defect = defect_at(code, name, line, message)


def defect_at(code: str, name: str, line: int, message: str, text: str = "") -> Defect:
    return Defect(code, place(name, line), message, ADVICE[code], text[:SHOWN_CHARACTERS])


def place(name: str, line: int = 0) -> str:
    """A location: a line of a file, a file, or an example from memory."""
    if not name:
        return f"example {line}" if line else "the examples"
    return f"{name}:{line}" if line else name


def lines_of(
    name: str, stream: io.RawIOBase | None = None, number: int = 0
) -> Iterator[str | Defect]:
    """One item for every line of a file (or of `stream`): its text, or what is wrong with it.

    `number` lines of the file are before the first.
    """
    try:
        with contextlib.ExitStack() as stack:
            opened = io.FileIO(name) if stream is None else stream
            file: "io.BufferedReader[Any]" = stack.enter_context(
                io.BufferedReader(opened, BLOCK_BYTES)
            )
            if (decompressed := _decompressed(name, file)) is not None:
                file = stack.enter_context(io.BufferedReader(decompressed, BLOCK_BYTES))
            for block in _line_blocks(file):
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
    except ZstdError:
        message = f"damaged zstd file, readable up to line {number}"
        raise FileError("gzip", name, message) from None
    except FileNotFoundError:
        raise missing(name) from None
    except LineTooLongError:
        message = f"a line of more than {MAX_LINE_BYTES >> 20} MB"
        raise FileError("long-line", name, message, number + 1) from None
    except OSError as error:
        raise FileError("unreadable", name, (error.strerror or str(error)).lower()) from None


def missing(name: str) -> FileError:
    """What is wrong with a file that is not there."""
    if name == "-":
        return FileError("unreadable", name, "standard input is read by predict alone")
    return FileError("missing-file", name, "no such file")


def refuse_pipe(name: str) -> None:
    """FileError if a file can be read only once, as what a shell's | and <(...) make."""
    with contextlib.suppress(OSError):
        kind = os.stat(name).st_mode
        if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            raise FileError("unreadable", name, "a pipe, which cannot be read several times")


def _decompressed(name: str, file: "io.BufferedReader[Any]") -> Any:
    """The stream inside a compressed file; None if, by name and magic bytes, it is not one."""
    head = file.peek(4)[:4]
    if name.endswith(".gz") or head[:2] == GZIP_MAGIC:
        return gzip.GzipFile(fileobj=file)
    if name.endswith(".zst") or head == ZSTD_MAGIC:
        if zstandard is None:
            raise FileError("unreadable", name, "zstd needs a package: pip install 'saccade[zstd]'")
        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    return None


def without_compression(name: str) -> str:
    """A file's name without the suffix of its compression."""
    return name.removesuffix(".gz").removesuffix(".zst")


def _line_blocks(file: "io.BufferedReader[Any]") -> Iterator[bytes]:
    """Blocks of whole lines; only the last may lack its \\n."""
    rest: list[bytes] = []  # the beginning of a line
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
    """The lines of a block, decoded at once for speed; None if one of them is malformed."""
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
    """The text around a malformed byte."""
    return line[max(at - SHOWN_CHARACTERS // 2, 0) :][:SHOWN_CHARACTERS].decode(
        errors="backslashreplace"
    )


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a line is; None if it is anything else."""
    try:
        row = json.loads(text)
        if "\\u" in text:
            json.dumps(row, ensure_ascii=False).encode()  # fails on a lone surrogate
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def cells_of(text: str) -> list[str]:
    """The columns of a line, separated by tabs, or, where there are none, by blanks."""
    return text.split("\t") if "\t" in text else [cell for cell in text.split(" ") if cell]


def listed(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "none"


def counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def input_lines(path: Path | None) -> Iterator[str]:
    """The lines of a file or of standard input, one at a time, read as training files are."""
    for row in input_rows(path):
        if isinstance(row, Defect):
            raise DataError(str(row))
        yield row


def input_rows(
    path: Path | None, stream: io.RawIOBase | None = None, number: int = 0
) -> Iterator[str | Defect]:
    """The same, with a defect for a malformed line.

    A `stream` may be a part of the file, which begins after `number` lines.
    """
    standard = path is None or str(path) == "-"
    stream = io.FileIO(sys.stdin.fileno(), closefd=False) if standard else stream
    try:
        yield from lines_of("standard input" if standard else str(path), stream, number)
    except FileError as error:
        raise DataError(str(error.defect)) from None


# --- several files, and a part of one -------------------------------------------------------------


def files_of(names: list[str]) -> list[list[str]]:
    """Glob patterns like corpus/*.tsv.gz expanded: a list of aligned files for each shard.

    Two names, as of a source and a target, must match the same number of files.
    """
    matches = [_matching(name) for name in names]
    if [] in matches:
        raise FileError("missing-file", names[matches.index([])], "no file has such a name")
    if len({len(files) for files in matches}) > 1:
        counts = ", ".join(
            f"{len(files)} for {name}" for name, files in zip(names, matches, strict=True)
        )
        raise FileError("files", names[0], f"patterns that stand for unequal numbers: {counts}")
    return [list(part) for part in zip(*matches, strict=True)]


def data_files(names: Iterable[str]) -> list[str]:
    """Names with glob patterns expanded; a pattern without a match is kept as it is."""
    return [file for name in names for file in _matching(name) or [name]]


def _matching(name: str) -> list[str]:
    if not glob.has_magic(name) or Path(name).exists():
        return [name]
    return sorted(path for path in glob.glob(name, recursive=True) if Path(path).is_file())


@dataclass(frozen=True, slots=True)
class Part:
    """One of `count` consecutive shards of a file."""

    number: int  # from 0
    count: int

    @classmethod
    def parse(cls, text: str) -> "Part":
        """A part from "1/4", "2/4", ...; DataError for anything else."""
        first, _, second = text.partition("/")
        if not (first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second)):
            raise DataError(f"{text}: a part is written as in 1/4, 2/4, 3/4 and 4/4")
        return cls(int(first) - 1, int(second))


def part_of_lines(path: Path, part: Part) -> tuple[int, Iterator[str | Defect]]:
    """How many lines are before a part of a file, and its lines; others are not decoded."""
    with path.open("rb") as file:
        compressed = _decompressed(str(path), file) is not None
    if compressed:  # not seekable
        total = sum(1 for _ in input_rows(path))
        first, last = (total * n // part.count for n in (part.number, part.number + 1))
        return first, itertools.islice(input_rows(path), first, last)
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        start, end = (
            _line_start(file, size * n // part.count, size) for n in (part.number, part.number + 1)
        )
        before = _newlines(file, start)
        file.seek(max(0, start - 1))
        before += start > 0 and file.read(1) != b"\n"  # the last line may lack its \n
    return before, input_rows(path, _Limited(str(path), start, end), before)


def _line_start(file: BinaryIO, at: int, size: int) -> int:
    """The offset of the first line that begins at `at` or later."""
    if at in (0, size):
        return at
    file.seek(at - 1)
    while block := file.read(BLOCK_BYTES):
        if (end := block.find(b"\n")) >= 0:
            return file.tell() - len(block) + end + 1
    return size


def _newlines(file: BinaryIO, end: int) -> int:
    """The number of newlines before the offset `end`."""
    file.seek(0)
    count = 0
    while end > 0 and (block := file.read(min(BLOCK_BYTES, end))):
        count += block.count(b"\n")
        end -= len(block)
    return count


class _Limited(io.RawIOBase):
    """The bytes of a file from `start` to `end`."""

    def __init__(self, name: str, start: int, end: int):
        self.file, self.left = io.FileIO(name), end - start
        self.file.seek(start)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read = self.file.readinto(memoryview(buffer)[: self.left])
        self.left -= read or 0
        return read or 0

    def close(self) -> None:
        self.file.close()
        super().close()
