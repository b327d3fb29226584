"""Every rule of the reader, on small files."""

import gzip
import json
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from saccade.config import Data
from saccade.data import lines as lines_module
from saccade.data.layout import detect_layout
from saccade.data.lines import Defect, Example, lines_of
from saccade.data.sources import examples, read, unseen
from saccade.errors import DataError


def write(folder: Path, content: str | bytes, name: str = "train.tsv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def pairs(paths, data=None, kind="translate", **options):
    rows = list(read(paths, data or Data(), kind, **options))
    assert all(isinstance(row, Example) for row in rows), rows
    return [(row.source, row.target) for row in rows]


def defects(paths, data=None, kind="translate", **options):
    rows = read(paths, data or Data(), kind, **options)
    return [row for row in rows if isinstance(row, Defect)]


def told(path, data=None, kind="translate"):
    """(code, line, message) of the defects of a file."""
    found = defects([path], data, kind)
    assert all(defect.advice for defect in found)
    return [(d.code, d.where.removeprefix(f"{path}").lstrip(":"), d.message) for d in found]


# --- lines ----------------------------------------------------------------------------------------


def test_lines_split_at_newline_only(tmp_path):
    odd = "a\r\u2028\u2029\x0b\x0c\x1c\x1d\x85b"
    path = write(tmp_path, f"{odd}\t{odd}\nc\td\n")
    assert pairs([path]) == [((odd,), odd), (("c",), "d")]


def test_the_return_of_a_dos_file_is_dropped(tmp_path):
    assert pairs([write(tmp_path, "a\tb\r\nc\td\r\n")]) == [(("a",), "b"), (("c",), "d")]


def test_a_byte_order_mark_is_dropped_at_the_start_only(tmp_path):
    path = write(tmp_path, "\ufeffa\tb\n\ufeffc\td\n")
    assert pairs([path]) == [(("a",), "b"), (("\ufeffc",), "d")]


def test_a_last_line_without_newline_counts(tmp_path):
    assert pairs([write(tmp_path, "a\tb\nc\td")])[-1] == (("c",), "d")


def test_an_undecodable_line_is_told_with_its_byte_and_reading_goes_on(tmp_path):
    path = write(tmp_path, b"a\tb\nxy\xff\tz\nc\td\n")
    assert told(path) == [("utf8", "2", "not UTF-8 at byte 3 of the line")]
    rows = list(read([path], Data(), "translate"))
    assert [row.where for row in rows if isinstance(row, Example)] == [f"{path}:1", f"{path}:3"]


def test_a_nul_is_a_defect(tmp_path):
    path = write(tmp_path, b"a\tb\nx\0\tz\n")
    assert told(path) == [("nul", "2", "a NUL at byte 2 of the line")]


def test_a_file_in_utf16_is_told_as_such(tmp_path):
    [defect] = defects([write(tmp_path, "a\tb\nc\td\n".encode("utf-16"))])
    assert defect.code in ("nul", "utf8")
    assert "UTF-8" in defect.advice


@settings(derandomize=True, deadline=None)
@given(
    st.lists(
        st.tuples(
            *[
                st.text(
                    st.characters(exclude_characters="\n\t\r\0", exclude_categories=["Cs"]),
                    min_size=1,
                ).filter(str.strip)
            ]
            * 2
        ),
        min_size=1,
    )
)
def test_any_tsv_reads_back_identically(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "any.tsv"
    # with a mark, because a first cell may itself begin with one
    path.write_bytes("".join(f"{a}\t{b}\n" for a, b in rows).encode("utf-8-sig"))
    data = Data(format="tsv", source=(1,), target=2)
    assert pairs([path], data) == [((a,), b) for a, b in rows]


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train.tsv.gz", "no-suffix"])
def test_gzip_is_read_as_it_is(tmp_path, name):
    path = write(tmp_path, gzip.compress(b"a\tb\n"), name)
    assert pairs([path]) == [(("a",), "b")]


def test_a_damaged_gzip_file_is_named(tmp_path):
    whole = gzip.compress("".join(f"{i}\t{i * i}\n" for i in range(5000)).encode())
    for broken in (whole[:-20], b"\0\0" + whole, whole[:50] + b"\1\2\3" + whole[53:]):
        path = write(tmp_path, broken, "train.tsv.gz")
        assert defects([path])[-1].code == "gzip"
        with pytest.raises(DataError, match=r"train\.tsv\.gz: damaged gzip"):
            list(examples([path], Data(), "translate"))


def test_missing_folders_and_empty_files_are_told(tmp_path):
    assert told(tmp_path / "none.tsv") == [("missing-file", "", "no such file")]
    assert told(tmp_path) == [("unreadable", "", "is a directory")]
    assert told(write(tmp_path, "")) == [("empty-file", "", "no examples")]
    assert [defect.code for defect in defects([])] == ["missing-file"]
    settled = Data(format="tsv", source=(1,), target=2)
    assert told(write(tmp_path, "\n\n"), settled) == [("empty-file", "", "no examples")]
    with pytest.raises(DataError, match=r"none\.tsv: no such file; check the path"):
        list(examples([tmp_path / "none.tsv"], Data(), "translate"))


def test_a_line_without_an_end_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 3 << 20)
    text = b"a\tb\n" + b"x" * (5 << 20)
    for path in (write(tmp_path, text), write(tmp_path, gzip.compress(text), "train.tsv.gz")):
        defect = defects([path])[-1]
        assert (defect.code, defect.message) == ("long-line", "a line of more than 3 MB")
        assert defect.where.endswith(":2")
    if os.path.exists("/dev/zero"):
        assert [defect.code for defect in defects(["/dev/zero"])] == ["long-line"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_is_told(tmp_path):
    path = write(tmp_path, "a\tb\n")
    path.chmod(0)
    assert told(path) == [("unreadable", "", "permission denied")]


# --- columns --------------------------------------------------------------------------------------


def test_a_row_with_other_columns_is_a_defect_and_reading_goes_on(tmp_path):
    path = write(tmp_path, "a\tb\na\tb\tc\na\nd\te\n")
    assert told(path) == [
        ("columns", "2", "expected 2 columns, found 3"),
        ("columns", "3", "expected 2 columns, found 1"),
    ]


def test_an_odd_first_row_does_not_make_the_others_wrong(tmp_path):
    path = write(tmp_path, "a\tb\tc\n" + "a\tb\n" * 5)
    assert told(path) == [("columns", "1", "expected 2 columns, found 3")]


def test_columns_that_are_asked_for_must_be_there(tmp_path):
    path = write(tmp_path, "a\tb\n")
    found = told(path, Data(source=(1,), target=3))
    assert found == [("column", "1", "no column 3: there are 2 columns")]
    assert told(path, Data(source=(0,), target=2))[0][0] == "column"


def test_a_column_that_is_not_there_is_told_with_the_one_that_may_be_meant(tmp_path):
    path = write(tmp_path, "Text\tlabel\na\tb\n")
    found = told(path, Data(source=("text",), target="label"))
    assert found == [("column", "1", "no column 'text' in Text, label (did you mean 'Text'?)")]


def test_a_name_that_two_columns_have_is_refused(tmp_path):
    path = write(tmp_path, "text\ttext\tlabel\na\tb\tc\n")
    found = told(path, Data(source=("text",), target="label"))
    said = "2 columns are called 'text': name one by its number"
    assert found == [("column", "1", said)]
    assert not told(path, Data(source=(2,), target=3, header=True))


def test_an_empty_line_is_a_defect_except_at_the_end(tmp_path):
    path = write(tmp_path, "a\tb\n\nc\td\n\n\n")
    assert told(path) == [("columns", "2", "expected 2 columns, found an empty line")]


def test_blank_sources_and_targets_are_defects(tmp_path):
    path = write(tmp_path, "a\tb\n \tb\na\t\u00a0\n\t\n")
    assert [(code, line) for code, line, _ in told(path)] == [
        ("blank-source", "2"),
        ("blank-target", "3"),
        ("blank-source", "4"),
    ]


def test_several_sources_and_a_target_between_them(tmp_path):
    path = write(tmp_path, "walk\twalked\tPAST\n")
    data = Data(source=(1, 3), target=2)
    assert pairs([path], data) == [(("walk", "PAST"), "walked")]


def test_named_columns_are_a_header(tmp_path):
    path = write(tmp_path, "id\ttext\tkind\n1\tone\tx\n2\ttwo\ty\n")
    data = Data(source=("text",), target="kind")
    assert pairs([path], data, "classify") == [(("one",), "x"), (("two",), "y")]
    [defect] = defects([path], Data(source=("words",), target="kind"))
    assert (defect.code, "id, text, kind" in defect.message) == ("column", True)


def test_a_header_with_the_usual_names_is_no_example(tmp_path):
    path = write(tmp_path, "sentence\tlabel\ngood\t1\nbad\t0\nfine\t1\n")
    assert detect_layout([path], Data()).source == ("sentence",)
    assert pairs([path], kind="classify") == [(("good",), "1"), (("bad",), "0"), (("fine",), "1")]


def test_one_column_is_too_few_for_a_labelled_task(tmp_path):
    [defect] = defects([write(tmp_path, "a\nb\n")])
    assert (defect.message, "tab" in defect.advice) == (
        "expected at least 2 columns, found 1",
        True,
    )


def test_without_labels_a_row_may_hold_the_sources_alone(tmp_path):
    data = Data(format="tsv", source=(2,), target=1)
    alone = write(tmp_path, "one\n\ntwo\n", "alone.txt")
    rows = list(read([alone], data, "classify", labelled=False))
    assert [getattr(row, "code", None) or row.source for row in rows] == [
        ("one",),
        "blank-source",
        ("two",),
    ]
    whole = write(tmp_path, "x\tone\ny\ttwo\n")
    assert pairs([whole], data, "classify", labelled=False) == [(("one",), None), (("two",), None)]


# --- aligned files --------------------------------------------------------------------------------


def test_two_files_are_aligned_by_line(tmp_path):
    en = write(tmp_path, "a\nb\n", "train.en")
    fr = write(tmp_path, gzip.compress(b"c\nd\n"), "train.fr.gz")
    assert pairs([en, fr]) == [(("a",), "c"), (("b",), "d")]
    assert pairs([en, fr], Data(source=(2,), target=1)) == [(("c",), "a"), (("d",), "b")]
    data = Data(format="lines", source=(1,), target=2)
    assert pairs([en], data, labelled=False) == [(("a",), None), (("b",), None)]


def test_misaligned_files_are_told_with_their_counts(tmp_path):
    en = write(tmp_path, "a\nb\n", "train.en")
    fr = write(tmp_path, "c\nd\ne\nf\n", "train.fr")
    rows = list(read([en, fr], Data(), "translate"))
    assert len(rows) == 3
    defect = rows[-1]
    assert (defect.code, defect.where) == ("misaligned", f"{fr}:3")
    assert "train.en has 2 lines" in defect.message
    assert "train.fr has 4 lines" in defect.message


def test_a_blank_line_of_an_aligned_file_is_told_in_its_own_file(tmp_path):
    en = write(tmp_path, "a\n\nb\nc\n", "train.en")
    fr = write(tmp_path, b"a\nb\n\n\xff\n", "train.fr")
    found = [(defect.code, defect.where) for defect in defects([en, fr])]
    expected = [("blank-source", f"{en}:2"), ("blank-target", f"{fr}:3"), ("utf8", f"{fr}:4")]
    assert found == expected


def test_the_number_of_files_must_fit_the_format(tmp_path):
    path = write(tmp_path, "a\tb\n")
    assert [d.code for d in defects([path, path])] == ["files"]
    assert [d.code for d in defects([path, path], Data(format="jsonl"))] == ["files"]
    lines = Data(format="lines", source=(1,), target=2)
    assert [d.code for d in defects([path], lines)] == ["files"]


# --- JSON lines -----------------------------------------------------------------------------------


def test_json_lines_are_read_by_their_usual_keys(tmp_path):
    path = write(tmp_path, '{"id": 7, "text": "a\\nb", "label": 1}\n\n{"text":"c","label":true}\n')
    assert pairs([path], kind="classify") == [(("a\nb",), "1"), (("c",), "true")]


def test_json_keys_can_be_chosen(tmp_path):
    path = write(tmp_path, '{"a": "x", "b": "y", "c": "z"}\n', "train.jsonl")
    assert pairs([path], Data(source=("a", "c"), target="b")) == [(("x", "z"), "y")]


def test_unknown_json_keys_are_listed(tmp_path):
    path = write(tmp_path, '{"size": "x", "colour": "y"}\n', "train.jsonl")
    with pytest.raises(DataError, match="size, colour"):
        detect_layout([path], Data())


def test_broken_json_rows_are_defects(tmp_path):
    rows = ['{"text": "a", "label": "b"}', "{", "[1]", '{"text": "a"}']
    rows += ['{"text": ["a"], "label": "b"}', '{"text": "\\ud800", "label": "b"}', "[" * 100000]
    path = write(tmp_path, "\n".join(rows), "train.jsonl")
    found = [(code, line) for code, line, _ in told(path)]
    codes = ["json", "json", "key", "value", "json", "json"]
    assert found == [(code, str(i)) for i, code in enumerate(codes, 2)]


def test_json_lists_are_words_and_tags(tmp_path):
    path = write(tmp_path, '{"tokens": ["a", "b"], "tags": ["X", "Y"]}\n', "train.jsonl")
    assert pairs([path], kind="tag") == [(("a", "b"), ("X", "Y"))]


def test_a_json_target_that_is_a_list_is_several_texts(tmp_path):
    rows = ['{"src": "a", "tgt": ["b", "c", "d"]}', '{"src": "e", "tgt": "f"}']
    path = write(tmp_path, "\n".join(rows), "train.jsonl")
    first, second = read([path], Data(), "translate")
    assert (first.target, first.others, first.references) == ("b", ("c", "d"), ("b", "c", "d"))
    assert (second.others, second.references) == ((), ("f",))
    [source] = read([write(tmp_path, rows[0], "a.jsonl")], Data(), "translate", labelled=False)
    assert (source.source, source.references) == (("a",), ())


def test_a_list_of_targets_must_be_texts_of_a_task_that_writes_text(tmp_path):
    bad = ["[]", "[[]]", '["b", null]', '["b", " "]', "{}"]
    path = write(tmp_path, "\n".join(f'{{"src": "a", "tgt": {b}}}' for b in bad), "train.jsonl")
    codes = ["value", "value", "value", "blank-target", "value"]
    assert [code for code, _, _ in told(path)] == codes
    assert [d.code for d in defects([path], kind="classify")] == ["value"] * 5


# --- sentences in blocks --------------------------------------------------------------------------

CONLLU = """# sent_id = 1
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tdo\tdo\tAUX\tVB\tMood=Imp|VerbForm=Fin\t2\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t0\troot\t_\tGloss=no
2.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_

# sent_id = 2
1\tHi\thi\tINTJ\tUH\t_\t0\troot\t_\t_
"""


def test_conllu_gives_words_and_tags(tmp_path):
    path = write(tmp_path, CONLLU, "train.conllu")
    assert pairs([path], kind="tag") == [(("do", "n't"), ("AUX", "PART")), (("Hi",), ("INTJ",))]
    assert [row.line for row in read([path], Data(), "tag")] == [3, 8]


@pytest.mark.parametrize(
    ("field", "tags"),
    [
        ("xpos", ("VB", "RB")),
        ("deprel", ("aux", "root")),
        ("lemma", ("do", "not")),
        ("feats.Mood", ("Imp", "_")),
        ("misc.Gloss", ("_", "no")),
        (4, ("AUX", "PART")),
    ],
)
def test_a_conllu_field_can_be_chosen(tmp_path, field, tags):
    path = write(tmp_path, CONLLU, "train.conllu")
    assert pairs([path], Data(target=field), "tag")[0] == (("do", "n't"), tags)


def test_an_unknown_conllu_field_is_told_with_those_there_are(tmp_path):
    [defect] = defects([write(tmp_path, CONLLU, "a.conllu")], Data(target="uposs"), "tag")
    assert (defect.code, "upos, xpos" in defect.message) == ("column", True)


def test_a_broken_conllu_row_loses_its_sentence_only(tmp_path):
    path = write(tmp_path, CONLLU.replace("\tVERB", "").replace("aux\t", ""), "train.conllu")
    rows = list(read([path], Data(), "tag"))
    assert [type(row) for row in rows] == [Defect, Defect, Example]


def test_token_and_tag_columns_with_comments(tmp_path):
    path = write(
        tmp_path, "# intent = Play\nsome\tO\n#\tB-X\n\n\n# intent = Stop\nstop\tO", "a.conll"
    )
    assert pairs([path], kind="tag") == [(("some", "#"), ("O", "B-X")), (("stop",), ("O",))]
    found = pairs([path], Data(format="columns", target="intent"), "classify")
    assert found == [(("some #",), "Play"), (("stop",), "Stop")]


def test_columns_with_spaces_between(tmp_path):
    text = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\n# SYM O O\n\nPeter NNP I-NP I-PER\n"
    path = write(tmp_path, text, "eng.conll")
    assert pairs([path], kind="tag")[0] == (("EU", "#"), ("I-ORG", "O"))
    assert pairs([path], Data(target=2), "tag")[1] == (("Peter",), ("NNP",))


def test_a_word_without_a_tag_is_a_defect(tmp_path):
    path = write(tmp_path, "a\tX\n\nb\n\nc\tX\n\nd\t\n", "train.conll")
    found = [(code, line) for code, line, _ in told(path, kind="tag")]
    assert found == [("columns", "3"), ("blank-target", "7")]


def test_numbers_of_words_and_tags_must_agree(tmp_path):
    path = write(tmp_path, "a b c\tX Y Z\na b\tX\n")
    assert told(path, kind="tag") == [("tags", "2", "2 words, but 1 tag")]


# --- plain text -----------------------------------------------------------------------------------


def test_plain_text_keeps_its_blank_lines(tmp_path):
    path = write(tmp_path, "a\tb\n\nc\n", "book.txt")
    assert pairs([path], kind="language") == [(("a\tb",), None), (("",), None), (("c",), None)]
    words = pairs([path], Data(format="text"), "tag", labelled=False)
    assert words[2] == (("c",), None)


# --- the shape of a file --------------------------------------------------------------------------


def seen(path, data=None):
    found = detect_layout([path], data or Data())
    return found.format, found.task, found.source, found.target


def test_few_short_values_are_labels_wherever_they_stand(tmp_path):
    last = write(tmp_path, "".join(f"text number {i}\t{i % 5}\n" for i in range(1000)))
    found = detect_layout([last], Data())
    reason = "2 columns, column 2 has 5 different short values in 1,000 lines: classify"
    assert (found.task, found.target, found.reason) == ("classify", 2, reason)
    first = write(tmp_path, "".join(f"{i % 5}\ttext number {i}\n" for i in range(1000)))
    assert seen(first) == ("tsv", "classify", (2,), 1)


def test_two_columns_that_vary_are_a_translation(tmp_path):
    path = write(tmp_path, "".join(f"en {i}\tfr {i}\n" for i in range(30)), "data.txt")
    assert seen(path) == ("tsv", "translate", (1,), 2)
    three = write(tmp_path, "".join(f"a {i}\tb {i}\tc {i}\n" for i in range(30)))
    assert seen(three) == ("tsv", "translate", (1, 2), 3)


def test_formats_are_known_by_content_too(tmp_path):
    assert seen(write(tmp_path, CONLLU, "x")) == ("conllu", "tag", ("form",), "upos")
    blocks = "the DET\ncat NOUN\n\na DET\ndog NOUN\n" * 3
    assert seen(write(tmp_path, blocks, "x")) == ("columns", "tag", (1,), 2)
    jsonl = '{"src": "a", "tgt": "b"}\n{"src": "c", "tgt": "d"}\n'
    assert seen(write(tmp_path, jsonl, "x")) == ("jsonl", "translate", ("src",), "tgt")
    assert seen(write(tmp_path, '{"text": "a"}\n', "x")) == ("jsonl", "language", ("text",), None)
    assert seen(write(tmp_path, "A line.\n\nAnother one.\n", "x")) == ("text", "language", (), None)


def test_what_the_user_says_is_kept(tmp_path):
    path = write(tmp_path, "".join(f"{i % 2}\ttext {i}\t{i % 3}\n" for i in range(90)))
    assert seen(path, Data(target=1)) == ("tsv", "classify", (2, 3), 1)
    assert seen(path, Data(source=(2,), target=3)) == ("tsv", "classify", (2,), 3)
    assert seen(path, Data(source=(1,), target=2)) == ("tsv", "translate", (1,), 2)
    assert seen(path, Data(source=(1, 2))) == ("tsv", "classify", (1, 2), 3)
    filled = detect_layout([path], Data(target=1, max_len=9)).fill(Data(target=1, max_len=9))
    assert filled == Data(format="tsv", source=(2, 3), target=1, columns=3, max_len=9)


def test_inflection_tables_have_the_form_in_the_middle(tmp_path):
    path = write(tmp_path, "".join(f"go{i}\twent{i}\tV;PST\n" for i in range(100)))
    assert seen(path) == ("tsv", "translate", (1, 3), 2)


# --- the strict view ------------------------------------------------------------------------------


def test_the_strict_view_tells_five_defects_and_how_to_see_all(tmp_path):
    path = write(tmp_path, "a\tb\n" * 200 + "a\n" * 9)
    rows = examples([path], Data(), "translate")
    assert [next(rows).line for _ in range(200)] == list(range(1, 201))  # good rows come first
    with pytest.raises(DataError) as error:
        next(rows)
    lines = str(error.value).splitlines()
    advice = "expected 2 columns, found 1; mend or remove the line"
    assert lines[:5] == [f"{path}:{201 + i}: {advice}" for i in range(5)]
    assert lines[5:] == [f"... for all of them: saccade check {shlex.quote(str(path))}"]


def test_reading_costs_a_few_times_as_much_as_splitting_lines(tmp_path):
    path = write(tmp_path, "a small sentence\tune petite phrase\n" * 50_000)

    def read_all() -> int:
        return sum(1 for _ in examples([path], Data(), "translate"))

    def split_all() -> int:
        with path.open(encoding="utf-8") as file:
            return sum(1 for line in file if tuple(line.rstrip("\n").split("\t")))

    def seconds(work: Callable[[], int]) -> float:
        start = time.process_time()
        assert work() == 50_000
        return time.process_time() - start

    best = [min(seconds(work) for _ in range(3)) for work in (read_all, split_all)]
    assert best[0] < 40 * best[1]  # about 8 on a quiet machine


# --- labels ---------------------------------------------------------------------------------------


def test_unseen_labels_are_told_once_each():
    dev = [
        Example(("a",), "x", "dev.tsv", 1),
        Example(("a",), "y", "dev.tsv", 2),
        Example(("a",), "y", "dev.tsv", 3),
        Example(("a", "b"), ("x", "z"), "dev.tsv", 4),
        Defect("columns", "dev.tsv:5", "", ""),
        Example(("a",), None, "dev.tsv", 6),
    ]
    found = [(d.code, d.where) for d in unseen({"x"}, dev)]
    assert found == [("unseen-label", "dev.tsv:2"), ("unseen-label", "dev.tsv:4")]


@given(
    st.lists(
        st.sampled_from([b"a", "ü".encode(), b"\xff", b"\0", b"\r", b"\n", b"\r\n"]), max_size=40
    ),
    st.integers(1, 9),
)
@example([b"\xff", b"\n", b"a", b"\r"], 9)  # a last line without its end keeps its \r
def test_lines_do_not_depend_on_how_many_bytes_are_read_at_once(tmp_path_factory, parts, block):
    content = b"".join(parts)
    path = tmp_path_factory.mktemp("lines") / "file"
    path.write_bytes(content)
    rows = content.split(b"\n")
    ends = [row.removesuffix(b"\r") for row in rows[:-1]] + ([rows[-1]] if rows[-1] else [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "BLOCK_BYTES", block)
        found = list(lines_of(str(path)))
    assert len(found) == len(ends)
    for number, (row, end) in enumerate(zip(found, ends, strict=True), 1):
        if b"\0" in end or b"\xff" in end:
            assert isinstance(row, Defect)
            assert row.where == f"{path}:{number}"
        else:
            assert row == end.decode()


def test_a_file_without_any_row_is_refused_without_a_traceback(tmp_path):
    for name, content in (("a.jsonl", "\n\n"), ("a.conll", "\n \n"), ("a.tsv", "\n")):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError):
            list(examples([tmp_path / name], Data(), "classify"))


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_file_of_a_list_is_no_plain_text(indent, tmp_path):
    rows = [{"text": f"film {i}", "label": "good" if i % 3 else "bad"} for i in range(60)]
    path = write(tmp_path, json.dumps(rows, indent=indent), "rows.json")
    with pytest.raises(DataError, match=r"one JSON value .*; write one JSON object a line, as jq"):
        detect_layout([path], Data())
    assert detect_layout([path], Data(), "language").format == "text"
    path = write(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "rows.json")
    assert detect_layout([path], Data()).format == "jsonl"
