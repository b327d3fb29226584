"""Cells that are more than plain text: words with a label each, a mask, the numbers of a vector."""

import json
import re
from collections.abc import Sequence
from itertools import chain

from saccade import config as c
from saccade.data.detect import is_numbers
from saccade.data.lines import UNSCORED, counted

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


class CellError(Exception):
    """What is wrong with a cell; `code` is a defect's."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


def words_of(text: str, units: str | None = None) -> tuple[str, ...]:
    """The units that are labelled: words, or characters; a series is one unit."""
    if text[:2] == "[[" and is_numbers(text):
        return (text,)
    words = [word for word in text.split(" ") if word]
    return tuple("".join(words)) if units == "characters" else tuple(words)


def scored_labels(labels: Sequence[str], mask: str | None, ignore: str) -> tuple[str, ...]:
    """The labels, with UNSCORED for those that are ignored or masked by a 0."""
    marks = ("1",) * len(labels) if mask is None else words_of(mask, "characters")
    if invalid := sorted(set(marks) - {"0", "1"}):
        raise CellError("mask", f"the mask has {invalid[0]!r}, which is neither 0 nor 1")
    if len(marks) != len(labels):
        message = f"{counted(len(labels), 'label')}, but a mask of {counted(len(marks), 'mark')}"
        raise CellError("mask", message)
    pairs = zip(labels, marks, strict=True)
    return tuple(UNSCORED if mark == "0" or label == ignore else label for label, mark in pairs)


def vector_place(data: c.Data) -> int | None:
    """The index of the source that is a vector of several columns; None if none is."""
    has_vector = bool(data.vector) and c.VECTOR in data.source
    return data.source.index(c.VECTOR) if has_vector else None


def source_columns(data: c.Data) -> tuple[c.Column, ...]:
    """The columns of a file that are read as sources; a vector is expanded to its columns."""
    groups = (data.vector if data.vector and key == c.VECTOR else (key,) for key in data.source)
    return tuple(chain.from_iterable(groups))


def with_vector(cells: tuple[str, ...], data: c.Data) -> tuple[str, ...]:
    """The sources made of a row's cells: those of a vector are joined to one JSON list."""
    first = vector_place(data)
    if first is None:
        return cells
    last = first + len(data.vector)
    for column, cell in zip(data.vector, cells[first:last], strict=True):
        if not is_number(cell):
            problem = f"is {cell.strip()!r}, which is not a number" if cell.strip() else "is empty"
            raise CellError("number", f"column {column!r} {problem}")
    vector = json.dumps([float(cell) for cell in cells[first:last]])
    return (*cells[:first], vector, *cells[last:])


def vector_input(item: str | Sequence[str], data: c.Data) -> tuple[tuple[str, ...], int]:
    """The sources of an input that holds a vector, and how many are expected.

    Cells are separated by tabs; if the vector is the only source, also by commas or semicolons.
    The vector may also be a JSON list already, as in an example.
    """
    alone = isinstance(item, str) and len(data.source) == 1 and "\t" not in item
    separator = ("," if ";" not in item else ";") if alone and item[:1] != "[" else "\t"
    cells = tuple(item.split(separator)) if isinstance(item, str) else tuple(item)
    place = vector_place(data)
    if place is None or (place < len(cells) and cells[place][:1] == "["):
        return cells, len(data.source)
    if len(cells) != len(source_columns(data)) or not any(cells):
        return cells, len(source_columns(data))
    return with_vector(cells, data), len(data.source)


def is_number(cell: str) -> bool:
    """Whether a cell is one number, finite and with a decimal point if it has a fraction."""
    match = _NUMBER.fullmatch(cell.strip())
    return match is not None and abs(float(match[0])) < float("inf")
