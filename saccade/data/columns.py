"""What several columns of a table are together: numbers of one vector, or characters and labels."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from saccade import config as c
from saccade.data.cells import is_number
from saccade.data.detect import TARGETS, are_series
from saccade.data.tables import MISSING
from saccade.data.times import NUMBER, TIME_NAMES, form_of

NUMBER_TARGETS = "target tgt y value values series strokes numbers score label output"
MANY_NUMBERS = 4  # columns of whole numbers, from which they are no text

Columns = Mapping[c.Column, Sequence[str]]


class Vector(NamedTuple):
    """Columns of numbers that are one source, and what is learned from them."""

    columns: tuple[c.Column, ...]
    target: c.Column
    is_label: bool


def find_vector(
    columns: Columns,
    used: Sequence[c.Column],
    labels: Sequence[c.Column],
    target: c.Column | None,
    target_type: c.TargetType | None,
) -> Vector | None:
    """The vector of a table whose sources are all numbers; None of any other table.

    Digits may be text, as in dates and sums: some number has a fraction, or the target is a label
    and there are many columns, or it is numbers, too. A target of text comes last, or has a usual
    name. `used` are the columns that do not just number the rows, `labels` those that look like
    labels.
    """
    numbers = [column for column in used if are_numbers(columns[column])]
    rest = [column for column in used if column not in numbers]
    usual = [column for column in used if str(column).casefold() in TARGETS.split()]
    chosen = target if target is not None else next(iter(rest or usual or labels[-1:]), None)
    vector = tuple(column for column in numbers if column != chosen)
    if target_type == "numbers" and chosen is not None:
        return None if set(rest) - {chosen} or not vector else Vector(vector, chosen, False)
    if chosen is None or set(rest) - {chosen} or len(vector) < 2:
        return None
    is_label = target_type == "label" or (target_type is None and chosen in labels)
    fractions = any("." in cell for column in vector for cell in columns[column])
    if not (fractions or (is_label and len(vector) >= MANY_NUMBERS)):
        return None
    named = chosen in (target, used[-1], *usual)
    if not is_label and (chosen in numbers or not named):
        return None
    return Vector(vector, chosen, is_label)


def task_of_numbers(columns: Columns) -> str | None:
    """The task that a table of nothing but numbers may be meant for; None of any other table."""
    rest = [column for column in columns if not are_numbers(columns[column])]
    if len(columns) < 2 or len(rest) > 1:
        return None
    dates = [column for column in columns if form_of(columns[column]) not in (None, NUMBER)]
    named = [column for column in columns if TIME_NAMES.fullmatch(str(column))]
    if dates == rest and (rest or named):
        return "forecast"
    return None if rest else "regress"


def are_numbers(cells: Sequence[str]) -> bool:
    """Whether these are numbers, but for a few, and for gaps."""
    full = [cell for cell in cells if cell.strip().casefold() not in MISSING]
    return len(full) > 0.5 * len(cells) and sum(map(is_number, full)) >= 0.95 * len(full)


def find_number_target(columns: Columns) -> c.Column | None:
    """The column of numbers that are to be learned: by its name, or the last one."""
    found = [key for key, cells in columns.items() if are_numbers(cells) or are_series(cells)]
    named = {str(key).casefold(): key for key in found}
    usual = next((named[key] for key in NUMBER_TARGETS.split() if key in named), None)
    return next(reversed(found), None) if usual is None else usual


class Spelled(NamedTuple):
    """A column whose characters have a label each, those labels, and which of them are scored."""

    source: c.Column
    target: c.Column
    mask: c.Column | None


def find_spelled(columns: Columns, data: c.Data) -> Spelled | None:
    """Two columns without blanks that are equally long in nine of ten rows; None if none are.

    A column of 0 and 1 that is as long is a mask; it is the labels only if no other column can be.
    """
    lengths = {key: [_unbroken(cell) for cell in cells] for key, cells in columns.items()}
    marks = {key: sum(set(cell) <= {"0", "1"} for cell in cells) for key, cells in columns.items()}
    binary = [key for key, cells in columns.items() if marks[key] >= 0.9 * len(cells)]
    masks = [key for key in binary if key not in (*data.source, data.target)]

    def alike(a: c.Column, b: c.Column) -> bool:
        pairs = list(zip(lengths.get(a, ()), lengths.get(b, ()), strict=False))
        even = sum(one == other > 0 for one, other in pairs) >= 0.9 * len(pairs)
        return a != b and even and any(one > 1 for one, _ in pairs)

    for source in data.source[:1] or [key for key in columns if key not in binary]:
        targets = [*columns] if data.target is None else [data.target]
        even = [key for key in targets if alike(source, key)]
        letters = [key for key in even if key not in masks]
        if even:
            target = (letters or even)[-1]
            others = [key for key in masks if key != target and alike(target, key)]
            return Spelled(source, target, data.mask or next(iter(others), None))
    return None


def _unbroken(cell: str) -> int:
    """The length of a text without blanks and brackets; 0 of any other."""
    text = cell.strip()
    return 0 if " " in text or text[:1] == "[" else len(text)
