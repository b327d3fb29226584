"""Examples from memory: what is accepted, and how what is wrong with it is told."""

from typing import Any

import pytest

from saccade.check.doctor import check
from saccade.config import Classify, Data, Translate
from saccade.data.layout import detect_layout
from saccade.data.lines import Defect, Example
from saccade.data.memory import Memory, given
from saccade.data.sources import examples, read
from saccade.errors import DataError

PAIRS = [(f"word {i}", f"mot {i}") for i in range(20)]
LABELS = [(f"the film number {i}", "good" if i % 3 else "bad") for i in range(60)]


class Frame:
    """What a table of pandas can do."""

    def __init__(self, columns: list[str], rows: list[tuple[Any, ...]]):
        self.columns, self.rows = columns, rows

    def __iter__(self):
        return iter(self.columns)

    def itertuples(self, index: bool, name: str | None):
        assert not index
        assert name is None
        return iter(self.rows)


def pairs(rows: Any, data: Data | None = None, kind: str | None = None) -> list[tuple[Any, ...]]:
    memory = given(rows)
    assert isinstance(memory, Memory)
    layout = detect_layout(memory, data or Data(), kind)
    found = examples(memory, layout.fill(data or Data()), layout.task)
    return [(*row.source, row.target) for row in found]


def dicts(rows: list[tuple[str, str]], source: str, target: str) -> list[dict[str, str]]:
    return [{"id": i, source: a, target: b} for i, (a, b) in enumerate(rows)]


@pytest.mark.parametrize(
    "rows",
    [
        LABELS,
        [list(row) for row in LABELS],
        dicts(LABELS, "text", "label"),
        [Example((a,), b) for a, b in LABELS],
        Frame(["text", "label"], LABELS),
    ],
)
def test_every_kind_of_row_is_read(rows):
    layout = detect_layout(given(rows), Data())
    assert layout.task == "classify"
    assert pairs(rows) == LABELS


def test_an_iterator_is_read_as_often_as_a_list():
    memory = given(iter(PAIRS))
    assert pairs(memory) == pairs(memory) == PAIRS


def test_paths_are_not_examples(tmp_path):
    assert given("a.tsv") == ["a.tsv"]
    assert given([tmp_path, "b"]) == [str(tmp_path), "b"]


@pytest.mark.parametrize("wrong", [{"train": PAIRS}, 7, None])
def test_what_is_neither_is_refused(wrong):
    with pytest.raises(DataError, match="examples"):
        given(wrong)


def test_words_and_tags_are_lists():
    rows = [(("a", "b"), ("X", "Y")), (["c"], ["X"])]
    assert pairs(rows) == [("a", "b", ("X", "Y")), ("c", ("X",))]
    assert pairs([{"tokens": ["a"], "tags": ["X"]}]) == [("a", ("X",))]
    assert pairs([Example(("a", "b"), ("X", "Y"))]) == [("a", "b", ("X", "Y"))]


def test_a_list_of_targets_is_several_references():
    [row] = examples(given([("a", ["b", "c"])]), Data(source=(1,), target=2), "translate")
    assert row.references == ("b", "c")
    again = examples(given([row]), Data(source=(1,), target=2), "translate")
    assert next(again).references == ("b", "c")


def test_inflection_tables_have_the_form_in_the_middle_in_memory_too():
    rows = [(f"go{i}", f"went{i}", "V;PST") for i in range(40)]
    assert pairs(rows)[0] == ("go0", "V;PST", "went0")


def test_numbers_are_text_and_what_is_missing_is_told_by_its_number():
    nan = float("nan")
    rows = [("a", 1), ("b", nan), (" ", 0), ("c",), "d", None, ("e", "\ud800"), ("f", True)]
    data = Data(source=(1,), target=2, columns=2)
    found = list(read(Memory(rows), data, "classify"))
    assert [row.target for row in found if isinstance(row, Example)] == ["1", "true"]
    assert [(row.code, row.where) for row in found if isinstance(row, Defect)] == [
        ("value", "example 2"),
        ("blank-source", "example 3"),
        ("columns", "example 4"),
        ("value", "example 5"),
        ("value", "example 6"),
        ("value", "example 7"),
    ]
    with pytest.raises(DataError, match=r"example 2: .*\n.*example 3: the source is blank") as told:
        list(examples(Memory(rows), data, "classify"))
    assert "saccade check" not in str(told.value)


def test_columns_of_files_and_of_memory_are_the_same():
    numbered = Data(format="tsv", source=(1, 3), target=2, columns=3)
    triples = [("go", "went", "V;PST")]
    [row] = examples(given(triples), numbered, "translate")
    assert (row.source, row.target) == (("go", "V;PST"), "went")
    named = Data(format="csv", source=("text",), target="label", header=True)
    [row] = examples(given([("a", "x")]), named, "classify")  # in the order source, target
    assert (row.source, row.target) == (("a",), "x")
    plain = Data(format="tsv", source=(1,), target=2, columns=2)
    [row] = examples(given([{"label": "x", "text": "a"}]), plain, "classify")
    assert (row.source, row.target) == (("a",), "x")
    with pytest.raises(DataError, match=r"example 1: expected 2 columns \(source, target\), found"):
        list(examples(given(triples), plain, "translate"))
    with pytest.raises(DataError, match=r"example 1: expected 2 columns \(text, label\), found 3"):
        list(examples(given(triples), named, "classify"))


def test_no_examples_are_refused():
    with pytest.raises(DataError, match="no examples"):
        list(examples(given([]), Data(), "translate"))


def test_the_doctor_takes_examples_from_memory():
    rows = [*LABELS, LABELS[0], ("another", " ")]
    found = list(check(Data(), Classify(), rows, [LABELS[5], ("new", "odd")]))
    places = {one.code: one.places[0].where for one in found}
    assert places["blank-target"] == "example 62"
    assert places["duplicate"] == "example 61"
    assert places["leak"] == "example 1"
    assert places["unseen-label"] == "example 2"
    assert places["tokenizer"] == "the examples"
    assert list(check(Data(), Translate(), iter(PAIRS)))
