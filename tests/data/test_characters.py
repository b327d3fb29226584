"""A label for every character, and masks: what is detected, what is read, and what is refused."""

from pathlib import Path

import pytest

from saccade.config import Data
from saccade.data.layout import detect_layout
from saccade.data.lines import UNSCORED, Defect, Example
from saccade.data.sources import read

ROWS = [("p1", "MKVLA", "HHCCE", "01111"), ("p2", "GAV", "CCE", "110"), ("p3", "MM", "HC", "11")]


def write(folder: Path, text: str, name: str = "protein.tsv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def protein(folder: Path, rows: list[tuple[str, ...]] = ROWS * 5, header: str = "") -> Path:
    return write(folder, header + "".join("\t".join(row) + "\n" for row in rows))


def said(path: Path, data: Data | None = None) -> list[tuple[str, str, str]]:
    found = read([path], data or Data(), "tag")
    return [
        (row.code, row.where.rpartition(":")[2], row.message)
        for row in found
        if isinstance(row, Defect)
    ]


def test_strings_as_long_as_their_labels_are_read_by_character(tmp_path: Path) -> None:
    path = protein(tmp_path)
    found = detect_layout([path], Data(), "tag")
    assert (found.source, found.target, found.mask, found.units) == ((2,), 3, 4, "characters")
    assert found.reason == "3 has a label for each character of 2, 4 says which are scored: tag"
    row = next(read([path], Data(), "tag"))
    assert isinstance(row, Example)
    assert row.source == tuple("MKVLA")
    assert row.target == (UNSCORED, *"HCCE")
    assert row.labels == tuple("HCCE")


def test_columns_are_found_by_name_and_without_a_mask(tmp_path: Path) -> None:
    path = protein(tmp_path, header="id\tsequence\tss3\tresolved\n")
    found = detect_layout([path], Data(), "tag")
    assert (found.source, found.target, found.mask) == (("sequence",), "ss3", "resolved")
    path = protein(tmp_path, [row[:3] for row in ROWS * 5])
    found = detect_layout([path], Data(), "tag")
    assert (found.source, found.target, found.mask) == ((2,), 3, None)
    assert found.units == "characters"


def test_labels_of_zeros_and_ones_are_labels_if_there_are_no_others(tmp_path: Path) -> None:
    path = protein(tmp_path, [(row[1], row[3]) for row in ROWS * 5])
    found = detect_layout([path], Data(), "tag")
    assert (found.source, found.target, found.mask) == ((1,), 2, None)


def test_the_columns_of_the_user_are_kept(tmp_path: Path) -> None:
    data = Data(source=(2,), target=3)
    found = detect_layout([protein(tmp_path)], data, "tag")
    assert (found.source, found.target, found.mask, found.units) == ((2,), 3, 4, "characters")


@pytest.mark.parametrize(
    "text",
    ["the cat sat\tD N V\n" * 5, "yes\tINTJ\nno\tINTJ\nperhaps\tADV\n" * 5],
)
def test_sentences_are_read_by_word(text: str, tmp_path: Path) -> None:
    assert detect_layout([write(tmp_path, text)], Data(), "tag").units == "words"


def test_only_tag_reads_characters(tmp_path: Path) -> None:
    path = write(tmp_path, "".join(f"a{i}b\tb{i}a\n" for i in range(50)))
    assert detect_layout([path], Data()).task == "translate"


def test_units_can_be_said(tmp_path: Path) -> None:
    path = write(tmp_path, "the cat\tBII BII\n")
    row = next(read([path], Data(units="characters"), "tag"))
    assert isinstance(row, Example)
    assert (row.source, row.target) == (tuple("thecat"), tuple("BIIBII"))
    path = write(tmp_path, "ab\tXY\n" * 5)
    row = next(read([path], Data(units="words"), "tag"))
    assert isinstance(row, Example)
    assert (row.source, row.target) == (("ab",), ("XY",))


def test_lengths_that_differ_are_told_with_their_line(tmp_path: Path) -> None:
    odd = [("p4", "MKV", "HH", "11"), ("p5", "MKV", "HHC", "11"), ("p6", "MKV", "HHC", "1x1")]
    assert said(protein(tmp_path, ROWS * 20 + odd)) == [
        ("tags", "61", "3 characters, but 2 tags"),
        ("mask", "62", "3 labels, but a mask of 2 marks"),
        ("mask", "63", "the mask has 'x', which is neither 0 nor 1"),
    ]


def test_what_is_predicted_needs_no_mask(tmp_path: Path) -> None:
    data = Data(source=(2,), target=3, mask=4, units="characters")
    (row,) = read([write(tmp_path, "MKV\n")], data, "tag", labelled=False)
    assert isinstance(row, Example)
    assert (row.source, row.target) == (tuple("MKV"), None)
    with_all = read([protein(tmp_path)], data, "tag", labelled=False)
    assert next(row.source for row in with_all if isinstance(row, Example)) == tuple("MKVLA")


def test_a_missing_mask_is_told_where_it_is_needed(tmp_path: Path) -> None:
    data = Data(source=("sequence",), target="ss3", mask="resolved", units="characters")
    path = protein(tmp_path, [row[1:3] for row in ROWS], header="sequence\tss3\n")
    assert said(path, data) == [("column", "1", "no column 'resolved' in sequence, ss3")]


@pytest.mark.parametrize(
    "line",
    [
        '{"tokens": ["a", "b", "c"], "tags": ["X", null, "Y"]}',
        '{"tokens": ["a", "b", "c"], "tags": ["X", "?", "Y"], "use": [1, 0, 1]}',
        '{"tokens": ["a", "b", "c"], "tags": ["X", "?", "Y"], "use": [true, false, true]}',
        '{"tokens": "a b c", "tags": "X ? Y", "use": "101"}',
        '{"tokens": "abc", "tags": "X?Y", "use": "1 0 1"}',
    ],
)
def test_objects_have_masks_in_any_form(line: str, tmp_path: Path) -> None:
    mask = "use" if "use" in line else None
    units = "characters" if '"abc"' in line else "words"
    data = Data(source=("tokens",), target="tags", mask=mask, units=units)
    (row,) = read([write(tmp_path, line + "\n", "a.jsonl")], data, "tag")
    assert isinstance(row, Example)
    assert (row.source, row.target) == (tuple("abc"), ("X", UNSCORED, "Y"))


def test_a_word_that_is_null_is_no_word(tmp_path: Path) -> None:
    path = write(tmp_path, '{"tokens": ["a", null], "tags": ["X", "Y"]}\n', "a.jsonl")
    assert said(path)[0][0] == "blank-source"


def test_aligned_files_have_their_mask_in_a_third(tmp_path: Path) -> None:
    for name, text in (("a.seq", "MKV\nGA\n"), ("a.ss", "HHC\nCC\n"), ("a.mask", "101\n11\n")):
        write(tmp_path, text, name)
    files = [tmp_path / name for name in ("a.seq", "a.ss", "a.mask")]
    first, _ = read(files, Data(), "tag")
    assert isinstance(first, Example)
    assert (first.source, first.target) == (tuple("MKV"), ("H", UNSCORED, "C"))
    data = Data(source=(1,), target=2, mask=3, units="characters")
    write(tmp_path, "101\n1\n", "a.mask")
    _, odd = read(files, data, "tag")
    assert isinstance(odd, Defect)
    assert str(odd).startswith(f"{tmp_path / 'a.mask'}:2: 2 labels, but a mask of 1 mark;")
