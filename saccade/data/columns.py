"""Columns that belong together: the numbers of one vector, or characters and their labels."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from saccade import config as c
from saccade.data.cells import is_number
from saccade.data.detect import TARGETS, are_series
from saccade.data.tables import MISSING
from saccade.data.times import NUMBER, TIME_NAMES, form_of

NUMBER_TARGETS = "target tgt y value values series strokes numbers score label output"
MANY_NUMBERS = 4  # columns of whole numbers: so many are not text

Columns = Mapping[c.Column, Sequence[str]]


class Vector(NamedTuple):
    """Columns of numbers that are one source, and their target."""

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
    """The vector of a table whose sources are all numbers; None for any other table.

    Digits may also be text, as in dates and sums. They are taken for numbers if one has a fraction,
    if the target is a label and there are many columns, or if the target is numbers. A target of
    text must be the last column or have a usual name. `used` are the columns that are not row
    counters, `labels` those that look like labels.
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
    """Whether nearly all non-missing cells are numbers, and most cells are non-missing."""
    present = [cell for cell in cells if cell.strip().casefold() not in MISSING]
    return len(present) > 0.5 * len(cells) and sum(map(is_number, present)) >= 0.95 * len(present)


def find_number_target(columns: Columns) -> c.Column | None:
    """The target among the columns of numbers: by its name, or the last one."""
    candidates = [key for key, cells in columns.items() if are_numbers(cells) or are_series(cells)]
    named = {str(key).casefold(): key for key in candidates}
    usual = next((named[key] for key in NUMBER_TARGETS.split() if key in named), None)
    return next(reversed(candidates), None) if usual is None else usual


class Spelled(NamedTuple):
    """A column with a label for each character, the column of labels, and their mask."""

    source: c.Column
    target: c.Column
    mask: c.Column | None


def find_spelled(columns: Columns, data: c.Data) -> Spelled | None:
    """Two columns of equal length, without blanks, in nine of ten rows; None if there are none.

    A column of 0 and 1 of the same length is a mask; it is the labels only if no other column
    can be.
    """
    lengths = {key: [_spelled_length(cell) for cell in cells] for key, cells in columns.items()}
    marks = {key: sum(set(cell) <= {"0", "1"} for cell in cells) for key, cells in columns.items()}
    binary = [key for key, cells in columns.items() if marks[key] >= 0.9 * len(cells)]
    masks = [key for key in binary if key not in (*data.source, data.target)]

    def aligned(a: c.Column, b: c.Column) -> bool:
        pairs = list(zip(lengths.get(a, ()), lengths.get(b, ()), strict=False))
        equal = sum(m == n > 0 for m, n in pairs) >= 0.9 * len(pairs)
        return a != b and equal and any(m > 1 for m, _ in pairs)

    for source in data.source[:1] or [key for key in columns if key not in binary]:
        targets = [*columns] if data.target is None else [data.target]
        candidates = [key for key in targets if aligned(source, key)]
        letters = [key for key in candidates if key not in masks]
        if candidates:
            target = (letters or candidates)[-1]
            others = [key for key in masks if key != target and aligned(target, key)]
            return Spelled(source, target, data.mask or next(iter(others), None))
    return None


def _spelled_length(cell: str) -> int:
    """The length of a cell; 0 if it has blanks or is a list."""
    text = cell.strip()
    return 0 if " " in text or text[:1] == "[" else len(text)
