"""Tables of numbers and labels of characters on the command line, and the mistakes in them."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import saccade
from saccade.verify import verify
from tests.cli.conftest import Outcome, refused, shell
from tests.helpers import corpus

Call = Callable[..., Outcome]
QUICK = ["--set=train.steps=4", "--set=train.evaluate_every=4", "--set=train.processes=1"]
QUICK += ["--set=encoder.dim=16"]
HEADER = "length,width,species"


def trees(folder: Path, rows: int = 80) -> Path:
    """Two kinds that differ in length."""
    numbers, lines = random.Random(1), [HEADER]
    for i in range(rows):
        length = i % 2 * 2 + numbers.random()
        lines.append(f"{length:.3f},{numbers.random():.2f},{('ash', 'birch')[i % 2]}")
    path = folder / "trees.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    steps = {"train.steps": 60, "train.evaluate_every": 60, "train.processes": 1}
    usual = {"train.rate": 1e-2, "train.warmup": 5, "train.average": 0.0, "encoder.dim": 16}
    run = saccade.train(trees(folder), out=folder / "run", settings=steps | usual, quiet=True)
    assert run.evaluate()["accuracy"] == 100
    return folder / "run"


def test_a_table_is_understood_in_one_line(tmp_path: Path, call: Call) -> None:
    done = call("train", trees(tmp_path), "--out", tmp_path / "run", *QUICK)
    assert done.code == 0, done.err
    first = done.err.splitlines()[0]
    assert "2 columns of numbers are one vector (if not: set data.source)" in first
    assert "'species' has 2 different labels in 80 lines: classify" in first


def test_predict_takes_a_row_of_any_kind_and_a_file(table: Path, call: Call) -> None:
    rows = ["0.5\t0.5", "2.5\t0.5", "0.5,0.5", "2.5;0.5", "[2.5, 0.5]"]
    kinds = ["ash", "birch", "ash", "birch", "birch"]
    done = shell("predict", table, stdin="\n".join(rows) + "\n")
    assert done.stdout.split() == kinds, done.stderr
    whole = call("predict", table, table.parent / "trees.csv")
    assert whole.out.split()[:4] == ["ash", "birch"] * 2
    some = table.parent / "some.csv"
    some.write_text("width,length\n0.5,2.5\n")
    assert call("predict", table, some).out == "birch\n"
    run = saccade.load(table)
    assert [one.text for one in run.predict([(0.5, 0.5), ("2.5", "0.5")])] == kinds[:2]


def test_a_row_without_numbers_is_named_and_the_others_are_answered(table: Path) -> None:
    done = shell("predict", table, stdin="0.5\t0.5\nx\t0.5\n2.5\t\n2.5\t0.5\n")
    assert done.stdout.split("\n") == ["ash", "", "", "birch", ""]
    assert "input:2: column 'length' is 'x', which is not a number; left empty" in done.stderr
    assert "input:3: column 'width' is empty; left empty" in done.stderr
    few = shell("predict", table, stdin="0.5\n")
    assert few.returncode == 2
    assert "expected 2 columns (length, width), found 1" in few.stderr


def test_a_run_on_a_table_obeys_the_laws(table: Path) -> None:
    assert all(law.passed is not False for law in verify(table))


def test_tables_from_memory_are_vectors(tmp_path: Path) -> None:
    lines = trees(tmp_path).read_text().splitlines()[1:]
    rows = [(float(a), float(b), kind) for a, b, kind in (line.split(",") for line in lines)]
    settings = {"train.steps": 3, "train.processes": 1, "encoder.dim": 16}
    run = saccade.train(rows, out=tmp_path / "one", settings=settings, quiet=True)
    assert run.config.data.vector == (1, 2)
    named = [{"a": a, "b": b, "label": kind} for a, b, kind in rows]
    other = saccade.train(named, out=tmp_path / "other", settings=settings, quiet=True)
    assert other.config.data.vector == ("a", "b")
    assert run.evaluate(rows[:9]) == other.evaluate(named[:9])
    assert saccade.load(tmp_path / "one").predict([(0.5, 0.5)])[0].text in ("ash", "birch")


def test_check_names_columns_without_content_and_gaps(tmp_path: Path, call: Call) -> None:
    path = trees(tmp_path)
    lines = path.read_text().splitlines()
    lines = [lines[0].replace(",", ",site,", 1)] + [row.replace(",", ",7,", 1) for row in lines[1:]]
    for i in (3, 5, 9):
        cells = lines[i].split(",")
        lines[i] = ",".join([*cells[:2], "", cells[3]])
    path.write_text("\n".join(lines) + "\n")
    done = call("check", path, "--json")
    found = {one["code"]: one for one in map(json.loads, done.out.splitlines())}
    assert done.code == 1
    assert found["constant-column"]["message"] == "column 'site' is 7 in every row"
    assert found["gappy-column"]["message"] == "column 'width' has no number in 3 of 80 rows"
    assert found["number"]["message"] == "column 'width' is empty"
    done = call("train", path, "--out", tmp_path / "run")
    refused(done, f"{path}:4: column 'width' is empty; write a number")


# --- a label for every character ------------------------------------------------------------------


def test_strings_are_tagged_by_character(tmp_path: Path, call: Call) -> None:
    path = corpus(tmp_path, "letters")
    done = call("train", path, "--task", "tag", "--out", tmp_path / "run", *QUICK)
    assert done.code == 0, done.err
    said = "2 has a label for each character of 1, 3 says which are scored: tag"
    assert said in done.err.splitlines()[0]
    found = shell("predict", tmp_path / "run", stdin="abcd\n\nda\n").stdout.split("\n")
    assert [len(line) for line in found] == [4, 0, 2, 0]
    assert set("".join(found)) <= set("ABCD")
    run = saccade.load(tmp_path / "run")
    assert run.config.data.units == "characters"
    assert run.predict([("a", "b")])[0].text == run.predict("ab").text
    assert all(law.passed is not False for law in verify(run.folder))


def test_labels_that_are_not_scored_survive_in_memory(tmp_path: Path) -> None:
    rows = [{"text": "ab" * (1 + i % 3), "tags": "XY" * (1 + i % 3)} for i in range(40)]
    rows = [row | {"use": "10" * (len(row["text"]) // 2)} for row in rows]
    chosen = {"data.source": ["text"], "data.target": "tags", "data.mask": "use"}
    chosen |= {"task.kind": "tag", "train.steps": 3, "train.processes": 1, "encoder.dim": 16}
    run = saccade.train(rows, out=tmp_path / "run", settings=chosen, quiet=True)
    assert run.task.labels.labels == ("X",)  # type: ignore[attr-defined]
    assert run.evaluate(rows)["accuracy"] == 100  # of the only label that is scored
    assert [count for _, count in run.score(rows[:3])] == [1, 2, 3]


MISTAKES = {
    "mask of another task": (["--task", "translate", "--set=data.mask=2"], "for the task 'tag'"),
    "ignore of another task": (
        ["--task", "translate", "--set=data.ignore=X"],
        "data.ignore is",
    ),
    "vector of tags": (
        ["--task", "tag", "--set=data.vector=[1]"],
        "for classify, translate",
    ),
    "a cut of characters": (
        ["--task", "tag", "--set=task.tokenizer.kind=char"],
        "set tokenizer.kind = 'word'",
    ),
    "an unknown unit": (["--task", "tag", "--set=data.units=letters"], "data.units"),
    "every label ignored": (["--task", "tag", "--set=data.ignore=X"], "no label is scored"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_settings_without_a_meaning_are_refused(name: str, tmp_path: Path, call: Call) -> None:
    words, message = MISTAKES[name]
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"ab{'c' * (i % 5)}\tXX{'X' * (i % 5)}\n" for i in range(40)))
    refused(call("train", path, "--out", tmp_path / "run", *words), message)


def test_an_evaluation_without_a_scored_label_is_refused(tmp_path: Path, call: Call) -> None:
    path = corpus(tmp_path, "letters")
    done = call("train", path, "--task", "tag", "--out", tmp_path / "run", *QUICK)
    assert done.code == 0, done.err
    (tmp_path / "none.txt").write_text("abc\tABC\t000\n")
    done = call("evaluate", tmp_path / "run", tmp_path / "none.txt")
    refused(done, "nothing to score")
    scored = call("score", tmp_path / "run", tmp_path / "none.txt")
    assert scored.out.split() == ["0.0000", "0", "1.0000"]
