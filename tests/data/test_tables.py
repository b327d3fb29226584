"""CSV, quoted TSV, separators, headers, and the number of columns."""

import csv
import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import saccade
from saccade.config import Data
from saccade.data.layout import detect_layout
from saccade.data.lines import Defect, Example
from saccade.data.sources import examples, read
from saccade.data.tables import has_header, is_quoted, separator_of
from saccade.errors import DataError

LABELS = [(f"the film number {i}", "good" if i % 3 else "bad") for i in range(60)]


def write(folder: Path, rows, name: str = "train.csv", **options) -> Path:
    """A file of rows as Python's csv writes them."""
    text = io.StringIO()
    csv.writer(text, **options).writerows(rows)
    path = folder / name
    path.write_bytes(gzip.compress(text.getvalue().encode()) if name.endswith(".gz") else b"")
    if not name.endswith(".gz"):
        path.write_text(text.getvalue(), encoding="utf-8", newline="")
    return path


def pairs(path, data=None, kind="classify", **options):
    rows = list(read([path], data or Data(), kind, **options))
    assert all(isinstance(row, Example) for row in rows), rows
    return [(*row.source, row.target) for row in rows]


def layout(path, data=None, kind=None):
    found = detect_layout([path], data or Data(), kind)
    return found.format, found.task, found.source, found.target, found.header


# --- separators and quotes ------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["train.csv", "train.csv.gz"])
def test_csv_is_read_whatever_separates_its_columns(tmp_path, separator, name):
    rows = [(f"yes, number {i}; so\tit is", label) for i, (_, label) in enumerate(LABELS)]
    path = write(tmp_path, rows, name, delimiter=separator)
    assert pairs(path) == rows
    assert layout(path) == ("csv", "classify", (1,), 2, False)


def test_the_format_can_be_said(tmp_path):
    path = write(tmp_path, LABELS, "train.txt", quoting=csv.QUOTE_ALL)
    assert pairs(path, Data(format="csv")) == LABELS


def test_of_two_separators_the_one_that_sentences_do_not_have_is_taken():
    assert separator_of([f"Hello, number {i};{i % 2}" for i in range(20)]) == ";"
    assert separator_of([f"go{i},went{i},V;PST" for i in range(20)]) == ","
    assert separator_of(["only words", "and, one comma"]) is None


def test_a_record_may_span_lines_and_is_told_where_it_begins(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text('text,label\r\n"one\r\n\r\n""two""",a\r\nthree,b\r\n', newline="")
    assert pairs(path) == [('one\n\n"two"', "a"), ("three", "b")]
    assert [row.line for row in examples([path], Data(), "classify")] == [2, 5]


def test_malformed_quotes_are_defects_and_reading_goes_on(tmp_path):
    path = tmp_path / "train.csv"
    rows = ["a,x", '"b" c,x', "d,y", '"e,y', "f,x", '"g",y', "h,x", '"i,y']
    path.write_text("\n".join(rows) + "\n")
    data = Data(format="csv", source=(1,), target=2, header=False)
    found = list(read([path], data, "classify"))
    defects = [(one.code, one.where, one.message) for one in found if isinstance(one, Defect)]
    assert defects == [
        ("quotes", f"{path}:2", "text follows a closing quote"),
        ("quotes", f"{path}:4", "text follows a closing quote"),
        ("quotes", f"{path}:8", "a quote is not closed"),
    ]
    good = [(row.source[0], row.line) for row in found if isinstance(row, Example)]
    assert good == [("a", 1), ("d", 3), ("f", 5), ("g", 6), ("h", 7)]


def test_a_table_of_broken_quotes_alone_is_refused(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("".join(f'"he said "hi" there {i}",pos\n' for i in range(30)))
    with pytest.raises(DataError, match=r"train.csv:1: no row: a quote is not closed"):
        detect_layout([str(path)], Data())


def test_a_line_that_is_not_text_is_told_amid_a_record_too(tmp_path):
    path = tmp_path / "train.csv"
    path.write_bytes(b'a,x\n"b\n\xff\nc",y\nd,x\n')
    data = Data(format="csv", source=(1,), target=2, header=False)
    found = [getattr(one, "code", one.where) for one in read([path], data, "classify")]
    assert found == [f"{path}:1", "quotes", "utf8", f"{path}:4", f"{path}:5"]


def test_a_cell_may_be_long(tmp_path):
    path = write(tmp_path, [("a, " * 100_000, "x"), ("b", "y"), ("c", "x")])
    assert [len(row[0]) for row in pairs(path)] == [300_000, 1, 1]


@given(
    st.lists(
        st.tuples(
            *[
                st.text(
                    st.one_of(
                        st.sampled_from('",;\t\n a'),
                        st.characters(exclude_characters="\r\0", exclude_categories=["Cs"]),
                    ),
                    min_size=1,
                ).filter(lambda text: text.strip())
            ]
            * 2
        ),
        min_size=1,
    ),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_any_csv_reads_back_identically(tmp_path_factory, rows, quoting):
    rows = [("plain", "row")] * (9 * len(rows)) + rows
    path = write(tmp_path_factory.getbasetemp(), rows, "any.csv", quoting=quoting)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    data = Data(format="csv", source=(1,), target=2, header=False)
    assert pairs(path, data, "translate") == rows


# --- quoted TSV -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        ['"one"\t"x"', '"two"\t"y"', '"three"\t"x"'],  # everything in quotes
        ["one\tx", '"he said ""two"""\ty', "three\tx"],  # what needs them
        ["one\tx", '"two, or"\ty', '"three, too"\tx'],  # what has commas, and all of it
    ],
)
def test_the_quotes_of_a_spreadsheet_are_not_learned(tmp_path, rows):
    path = tmp_path / "train.tsv"
    path.write_text("\n".join(rows * 10) + "\n")
    assert detect_layout([path], Data()).format == "csv"
    assert not any(row[0].startswith('"') for row in pairs(path))
    said = Data(format="tsv")
    assert any(row[0].startswith('"') for row in pairs(path, said))


@pytest.mark.parametrize(
    "rows",
    [
        ['"Yes," he said.\t"Oui", dit-il.', '"No."\t"Non."'],  # text follows a quote
        ['5" pipe\ttuyau', '"No."\t"Non."', "a\tb"],  # a quote inside
        ['"No."\tNon.', "one, two\tun, deux", "a\tb"],  # no rule that a program would have
        ["a\tb", "c\td"],
    ],
)
def test_the_quotes_of_a_text_stay(tmp_path, rows):
    assert not is_quoted(rows)
    path = tmp_path / "train.tsv"
    path.write_text("\n".join(rows) + "\n")
    assert pairs(path, kind="translate") == [tuple(row.split("\t")) for row in rows]


@pytest.mark.parametrize("separator", [",", ";"])
def test_a_tsv_file_without_tabs_is_read_as_csv(tmp_path, separator):
    path = write(tmp_path, LABELS, "train.tsv", delimiter=separator)
    assert layout(path) == ("csv", "classify", (1,), 2, False)
    poem = tmp_path / "poem.tsv"
    poem.write_text("Tyger, tyger\nburning bright\nIn the forests, of, the night\n")
    with pytest.raises(DataError, match="none of the first lines of this"):
        layout(poem)


# --- headers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [("Text", "Label"), ("comment", "stars"), ("Kommentar", "Urteil"), ("review_body", "is_good")],
)
@pytest.mark.parametrize("name", ["train.csv", "train.tsv"])
def test_a_first_row_unlike_the_rest_is_a_header(tmp_path, header, name):
    rows = [header, *LABELS]
    path = write(tmp_path, rows, name, delimiter="\t" if name == "train.tsv" else ",")
    form = name[-3:]
    assert layout(path) == (form, "classify", header[:1], header[1], True)
    assert pairs(path) == LABELS
    reason = detect_layout([path], Data()).reason
    assert "the first line is a header (if not: data.header=false)" in reason
    assert "60 lines: classify" in reason
    assert pairs(path, Data(header=False)) == rows
    assert pairs(path, Data(source=(header[0],), target=header[1])) == LABELS


def test_numbers_stand_under_the_names_of_a_csv_file(tmp_path):
    rows = [("id", "comment", "stars"), *((i, f"this one {i}", i % 5) for i in range(100))]
    path = write(tmp_path, rows)
    assert layout(path) == ("csv", "classify", ("comment",), "stars", True)
    assert layout(path, Data(source=(2,), target=3))[2:4] == (("comment",), "stars")
    assert pairs(path, Data(source=(2,), target=3))[0] == ("this one 0", "0")


def test_the_index_that_pandas_writes_is_no_source(tmp_path):
    rows = [("", "text", "label"), *((i, *row) for i, row in enumerate(LABELS))]
    path = write(tmp_path, rows)
    assert layout(path) == ("csv", "classify", ("text",), "label", True)
    assert pairs(path) == LABELS


@pytest.mark.parametrize(
    "rows",
    [
        LABELS,
        [("awful", "bad"), *LABELS],  # its label comes again
        [("fine", "rare"), ("dull", "bad"), *LABELS],  # another row is like it
        [("hello", "bonjour"), *((f"sentence number {i}", f"la phrase {i}") for i in range(50))],
        [("word", "W ER D"), *((f"word{i}", "W ER D") for i in range(50))],
        [("a", "1"), ("b", "2")],
    ],
)
def test_an_example_is_not_taken_for_a_header(rows):
    assert not has_header(rows, likely=False)


FILMS = [("good" if i % 3 else "bad", f"film, the {i}th") for i in range(60)]
SOUNDS = [(f"word{i}", f"W {i} D") for i in range(60)]


@pytest.mark.parametrize(
    ("names", "rows", "name"),
    [
        (("Sentiment", "Review text"), FILMS, "train.csv"),
        (("Verdict", "What they wrote"), FILMS, "train.csv"),
        (("English word", "IPA transcription"), SOUNDS, "train.csv"),
        (("word", "phones"), SOUNDS, "train.tsv"),
        (("Label", "What they wrote"), FILMS, "train.tsv"),
    ],
)
def test_a_header_of_several_words_is_a_header(names, rows, name, tmp_path):
    path = write(tmp_path, [names, *rows], name, delimiter="," if name.endswith("csv") else "\t")
    assert {*layout(path)[2], layout(path)[3]} == set(names)
    assert len(pairs(path)) == 60


@pytest.mark.parametrize(
    "rows",
    [
        [("rare", "a film"), *FILMS, ("scarce", "another")],  # it is not the only one alone
        [("bad", "a film"), *FILMS],
        FILMS,
    ],
)
def test_a_label_is_no_header_of_its_column(rows):
    assert not has_header(rows, likely=True)


def test_of_many_columns_the_sources_are_told(tmp_path):
    rows = [(i, text, "may", label) for i, (text, label) in enumerate(LABELS)]
    rows = [("", "text", "date", "label"), *rows]
    assert ", source text: classify" in detect_layout([write(tmp_path, rows)], Data()).reason
    assert "source" not in detect_layout([write(tmp_path, LABELS)], Data()).reason


def test_a_table_of_numbers_is_told_the_other_tasks_there_are(tmp_path):
    hours = [(f"2020-01-{1 + i // 24:02} {i % 24:02}:00", i % 7, i * 0.5) for i in range(400)]
    years = [(1700 + i, i % 7) for i in range(200)]
    houses = [(i % 5, i * 1.5, i % 90) for i in range(200)]
    names = ("date", "load", "heat"), ("year", "spots"), ("rooms", "area", "price")
    tables = [[head, *rows] for head, rows in zip(names, (hours, years, houses), strict=True)]
    said = [detect_layout([write(tmp_path, rows)], Data()).reason for rows in tables]
    assert [one.partition("(or is it ")[2] for one in said] == [
        "--task forecast?)",
        "--task forecast?)",
        "--task regress?)",
    ]
    path = write(tmp_path, tables[0])
    assert "--task" not in detect_layout([path], Data(), "classify").reason


def test_a_csv_file_without_a_header_says_so(tmp_path):
    path = write(tmp_path, LABELS)
    reason = detect_layout([path], Data()).reason
    assert reason == (
        "commas between the columns, no header (if the first line is one: data.header=true), "
        "2 columns, column 2 has 2 different short values in 60 lines: classify"
    )
    assert pairs(path, Data(header=True, source=(1,), target=2)) == LABELS[1:]


def test_names_that_are_no_names_are_numbers(tmp_path):
    path = write(tmp_path, [("text", "text", "label"), *((a, a, b) for a, b in LABELS)])
    data = Data(header=True)
    assert layout(path, data) == ("csv", "classify", (1, 2), "label", True)
    assert len(pairs(path, data)) == len(LABELS)


def test_the_inputs_of_a_csv_file_may_stand_alone(tmp_path):
    trained = write(tmp_path, [("text", "label"), *LABELS])
    data = detect_layout([trained], Data()).fill(Data())
    alone = write(tmp_path, [("one, two",), ("three",)], "alone.csv")
    assert pairs(alone, data, labelled=False) == [("one, two", None), ("three", None)]
    named = write(tmp_path, [("text",), ("three",)], "named.csv")
    assert pairs(named, data, labelled=False) == [("three", None)]
    assert pairs(trained, data, labelled=False)[0] == (LABELS[0][0], None)


def test_a_language_model_reads_one_column_of_a_csv_file(tmp_path):
    one = write(tmp_path, [("text",), *((row[0],) for row in LABELS)])
    assert layout(one)[:3] == ("csv", "language", ("text",))
    two = write(tmp_path, [("text", "label"), *LABELS])
    assert layout(two, kind="language")[2:4] == (("text",), None)
    with pytest.raises(DataError, match="which is the text"):
        detect_layout([write(tmp_path, LABELS)], Data(), "language")


# --- the number of columns ------------------------------------------------------------------------


def test_a_file_with_other_columns_than_the_training_file_is_refused(tmp_path):
    two, three = tmp_path / "two.tsv", tmp_path / "three.tsv"
    two.write_text("".join(f"a{i}\tb{i}\n" for i in range(20)))
    three.write_text("".join(f"a{i}\tc{i}\tb{i}\n" for i in range(20)))
    data = detect_layout([two], Data(), "translate").fill(Data())
    assert len(list(examples([two], data, "translate"))) == 20
    sentence = r"three.tsv:1: expected 2 columns \(source, target\), found 3; give a file with"
    with pytest.raises(DataError, match=sentence):
        list(examples([three], data, "translate"))
    said = Data(source=(1,), target=2)
    data = detect_layout([two], said, "translate").fill(said)
    with pytest.raises(DataError, match=sentence):
        list(examples([three], data, "translate"))


def test_unused_columns_are_named_too(tmp_path):
    three = tmp_path / "three.tsv"
    three.write_text("".join(f"a{i}\tc{i}\tb{i}\n" for i in range(20)))
    data = detect_layout([three], Data(source=(1,), target=3)).fill(Data())
    assert data.columns == 3
    two = tmp_path / "two.tsv"
    two.write_text("a\tb\n")
    with pytest.raises(DataError, match=r"expected 3 columns \(source, unused, target\), found 2"):
        list(examples([two], data, "translate"))


def test_more_aligned_files_than_in_training_are_refused(tmp_path):
    files = [tmp_path / name for name in ("a", "b", "c")]
    for file in files:
        file.write_text("one\ntwo\n")
    data = detect_layout(files[:2], Data(), "translate").fill(Data())
    assert len(list(examples(files[:2], data, "translate"))) == 2
    with pytest.raises(DataError, match="expected 2 files aligned by line, found 3"):
        list(examples(files, data, "translate"))


def test_the_header_of_a_tsv_file_is_no_input(tmp_path):
    header = ("word", "phones")
    path = write(tmp_path, [header, *SOUNDS], "train.tsv", delimiter="\t")
    settings = {"train.steps": 1, "train.processes": 1, "encoder.dim": 8, "decoder.dim": 8}
    run = saccade.train(str(path), out=tmp_path / "run", settings=settings, quiet=True)
    for text in ("word\nword1\n\nword2\n", "phones\tword\nx\tword1\n\nx\tword2\n"):
        later = tmp_path / "later.tsv"
        later.write_text(text)
        assert run.has_data_format(later)
        assert list(run.sources(later)) == [("word1",), ("",), ("word2",)]
    later.write_text("word1\n")
    assert list(run.sources(later)) == [("word1",)]
