"""Columns of numbers that are one vector, and digits that stay text."""

import random
from pathlib import Path

import pytest

from saccade.config import VECTOR, Data
from saccade.data.layout import detect_layout
from saccade.data.lines import Defect, Example
from saccade.data.sources import read
from saccade.errors import DataError

NAMES = "length,width,height,species"
KINDS = ("ash", "birch", "cedar")


def trees(rows: int = 60) -> list[list[str]]:
    numbers = random.Random(1)
    found = []
    for _ in range(rows):
        kind = numbers.randrange(3)
        cells = [f"{kind + numbers.random():.2f}", f"{numbers.random():.1f}", str(kind * 3)]
        found.append([*cells, KINDS[kind]])
    return found


def write(folder: Path, lines: list[str], name: str) -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def table(folder: Path, name: str = "trees.csv", header: bool = True) -> Path:
    between = "," if name.endswith("csv") else "\t"
    first = [NAMES.replace(",", between)] if header else []
    return write(folder, [*first, *(between.join(row) for row in trees())], name)


@pytest.mark.parametrize(("name", "header"), [("a.csv", True), ("a.csv", False), ("a.tsv", False)])
def test_a_table_of_numbers_is_one_vector(tmp_path: Path, name: str, header: bool) -> None:
    path = table(tmp_path, name, header)
    found = detect_layout([path], Data())
    assert (found.task, found.source) == ("classify", (VECTOR,))
    assert found.vector == (("length", "width", "height") if header else (1, 2, 3))
    assert found.target == ("species" if header else 4)
    assert found.media == ((VECTOR, "numbers"),)
    assert "3 columns of numbers are one vector (if not: set data.source)" in found.reason
    rows = list(read([path], found.fill(Data()), "classify"))
    first = trees()[0]
    assert isinstance(rows[0], Example)
    assert rows[0].source == (str([float(cell) for cell in first[:3]]),)
    assert rows[0].target == first[3]


def test_a_column_that_numbers_the_rows_is_left_out(tmp_path: Path) -> None:
    lines = [f"{i},{','.join(row)}" for i, row in enumerate(trees(), 1)]
    found = detect_layout([write(tmp_path, ["id," + NAMES, *lines], "a.csv")], Data())
    assert found.vector == ("length", "width", "height")


def test_a_target_of_whole_numbers_is_known_by_its_name(tmp_path: Path) -> None:
    lines = [f"{KINDS.index(kind)},{a},{b},{c}" for a, b, c, kind in trees()]
    found = detect_layout([write(tmp_path, ["class,a,b,c", *lines], "a.csv")], Data())
    assert (found.target, found.vector) == ("class", ("a", "b", "c"))


def test_many_columns_of_whole_numbers_are_a_vector_if_the_target_is_a_label(
    tmp_path: Path,
) -> None:
    numbers = random.Random(3)
    rows = [[str(numbers.randrange(99)) for _ in range(4)] for _ in range(60)]
    lines = ["\t".join([*row, KINDS[int(row[0]) // 33]]) for row in rows]
    assert detect_layout([write(tmp_path, lines, "a.tsv")], Data()).vector == (1, 2, 3, 4)
    three = ["\t".join(line.split("\t")[1:]) for line in lines]
    assert detect_layout([write(tmp_path, three, "b.tsv")], Data()).vector == ()


def test_numbers_to_text_are_a_translation_from_a_vector(tmp_path: Path) -> None:
    lines = [f"{a},{b},{c},a {kind} of {a} metres" for a, b, c, kind in trees()]
    found = detect_layout([write(tmp_path, ["a,b,c,caption", *lines], "a.csv")], Data())
    assert (found.task, found.target, found.vector) == ("translate", "caption", ("a", "b", "c"))


TEXTS = {
    "numbers in words": [f"{i}\tnumber {i}" for i in range(60)],
    "dates": [f"{1900 + i}\t{i % 12 + 1}\t{i % 28 + 1}\tday {i} of them" for i in range(60)],
    "sums": [f"{i}\t{i * 7 % 60}\t{i + i * 7 % 60}" for i in range(60)],
    "versions": [f"1.{i}\tversion one point {i}" for i in range(60)],
    "words beside numbers": [f"word{i}\t{i / 7:.2f}\t{i / 9:.2f}" for i in range(60)],
    "a review and its stars": [f"review {i}\t{i % 5}.5\t{'ab'[i % 2]}" for i in range(60)],
    "numbers from numbers": [f"{i / 7:.2f}\t{i / 9:.2f}\t{i / 3:.3f}" for i in range(60)],
    "thousands": [f"{i},5\t{i},7\t{KINDS[i % 3]}" for i in range(60)],
}


@pytest.mark.parametrize("name", TEXTS)
def test_digits_of_texts_stay_text(name: str, tmp_path: Path) -> None:
    found = detect_layout([write(tmp_path, TEXTS[name], "a.tsv")], Data())
    assert found.vector == ()
    assert VECTOR not in found.source


def test_who_names_the_source_has_text(tmp_path: Path) -> None:
    data = Data(source=("length", "width"))
    found = detect_layout([table(tmp_path)], data)
    assert (found.source, found.vector) == (("length", "width"), ())


def test_a_vector_can_be_chosen(tmp_path: Path) -> None:
    path = table(tmp_path)
    found = detect_layout([path], Data(vector=("length", 3)))
    assert (found.source, found.vector) == ((VECTOR,), ("length", "height"))
    assert (found.target, found.task) == ("species", "classify")
    beside = Data(vector=("width",), source=("species",), target="height")
    found = detect_layout([path], beside, "translate")
    assert found.source == ("species", VECTOR)
    row = next(read([path], found.fill(beside), "translate"))
    assert isinstance(row, Example)
    assert row.source == (trees()[0][3], f"[{float(trees()[0][1])}]")


def test_a_vector_of_no_column_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column 'depth' in length, width"):
        detect_layout([table(tmp_path)], Data(vector=("depth", "length")))


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("", "column 'width' is empty"),
        ("n/a", "column 'width' is 'n/a', which is not a number"),
        ("nan", "column 'width' is 'nan', which is not a number"),
        ("1e999", "column 'width' is '1e999', which is not a number"),
        ("1_0", "column 'width' is '1_0', which is not a number"),
    ],
)
def test_a_cell_without_a_number_is_told_with_its_line(
    cell: str, message: str, tmp_path: Path
) -> None:
    rows = trees()
    rows[4][1] = cell
    path = write(tmp_path, [NAMES, *map(",".join, rows)], "a.csv")
    found = [row for row in read([path], Data(), "classify") if isinstance(row, Defect)]
    assert [(one.code, one.where, one.message) for one in found] == [
        ("number", f"{path}:6", message)
    ]
    assert "decimal point" in found[0].advice


def test_objects_of_numbers_are_read_alike(tmp_path: Path) -> None:
    lines = [f'{{"a": {a}, "b": {b}, "c": {c}, "label": "{kind}"}}' for a, b, c, kind in trees()]
    path = write(tmp_path, [*lines, '{"a": 1.5, "b": null, "c": 2, "label": "ash"}'], "a.jsonl")
    found = detect_layout([path], Data())
    assert (found.task, found.vector, found.target) == ("classify", ("a", "b", "c"), "label")
    *rows, last = read([path], found.fill(Data()), "classify")
    assert all(isinstance(row, Example) for row in rows)
    assert isinstance(last, Defect)
    assert last.message == "column 'b' is empty"
