"""A run that learns from examples in memory: it keeps them, and is as any other run."""

import json
import os
import random
from pathlib import Path

import pytest

import saccade
from saccade.config import read_toml
from saccade.data.lines import Example
from saccade.errors import ConfigError, DataError
from saccade.setup.prepare import locate_examples
from saccade.training.session import resume
from tests.helpers import SMALL, same_weights

NUMBERS = random.Random(2)
WORDS = ["".join(NUMBERS.choices("abcd", k=NUMBERS.randint(1, 6))) for _ in range(60)]
PAIRS = [(word, word[::-1]) for word in WORDS]
TINY = {"train.steps": 2, "train.batch_tokens": 100, "seed": 3, **SMALL["lstm"]}


def train(data, out, **more):
    return saccade.train(data, out=out, quiet=True, task="translate", settings=TINY, **more)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory") / "run"
    return train(iter(PAIRS), folder)


def test_a_run_from_memory_is_that_of_the_same_file(run, tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    other = train(path, tmp_path / "run")
    assert same_weights(run.folder, other.folder)
    texts = [a for a, _ in PAIRS[:5]]
    assert [p.text for p in run.predict(texts)] == [p.text for p in other.predict(texts)]
    for one in (run, other):  # both read files and examples
        assert one.evaluate(path) == one.evaluate(PAIRS) == other.evaluate(iter(PAIRS))
        assert list(one.score(PAIRS[:3])) == list(
            one.score([Example((a,), b) for a, b in PAIRS[:3]])
        )


def test_the_configuration_names_what_was_learned_from(run):
    data = read_toml(run.folder / "config.toml")["data"]
    assert (data["format"], data["source"], data["target"]) == ("jsonl", [1], 2)
    [path] = data["train"]
    assert Path(path) == run.folder / "examples" / "train.jsonl"
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert rows == [{"1": a, "2": b} for a, b in PAIRS]
    assert locate_examples(run.task, [0]) == {0: f"{path}:1"}


def test_a_run_from_memory_can_be_resumed(run, tmp_path):
    events = list(resume(run.folder, settings={"train.steps": 3}))
    assert events[-1].step == 3


def test_other_columns_are_refused_by_their_number(run):
    for method in (run.evaluate, lambda rows: list(run.score(rows))):
        with pytest.raises(DataError, match=r"example 2: expected 2 columns \(source, target\)"):
            method([("a", "b"), ("a", "b", "c")])


@pytest.mark.parametrize("broken", [("a", " "), ("a",), None])
def test_a_broken_example_is_told_by_its_number_and_leaves_no_run(broken, tmp_path):
    with pytest.raises(DataError, match=r"^example 61: "):
        train([*PAIRS, broken], tmp_path / "run")
    assert os.listdir(tmp_path / "run") == []
    with pytest.raises(DataError, match=r"^example 1: "):
        train(PAIRS, tmp_path / "run", dev=[("a",)])


def test_mistakes_in_the_settings_are_told(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.sorce"):
        saccade.train(PAIRS, out=tmp_path / "run", settings={"data.sorce": [1]})
    with pytest.raises(ConfigError, match="no task 'translation'"):
        saccade.train(PAIRS, out=tmp_path / "run", task="translation")
    with pytest.raises(ConfigError, match="dev is a file"):
        saccade.train(PAIRS, out=tmp_path / "run", dev="dev.tsv")


def test_rows_with_names_keep_them(tmp_path):
    rows = [{"id": i, "text": f"{a} x", "label": a[0]} for i, a in enumerate(WORDS)]
    settings = {"train.steps": 1, "encoder": {"kind": "convolution", "dim": 16}}
    run = saccade.train(rows, dev=rows[:9], out=tmp_path / "run", quiet=True, settings=settings)
    assert run.config.task.kind == "classify"
    assert (run.config.data.source, run.config.data.target) == (("text",), "label")
    assert run.evaluate(rows).keys() == run.evaluate().keys()
    with pytest.raises(DataError, match=r"example 2: the label 'odd' is not in the training data"):
        run.evaluate([rows[0], {"text": "a", "label": "odd"}])


def test_a_folder_of_examples_that_is_there_is_not_touched(tmp_path):
    mine = tmp_path / "run" / "examples" / "train.jsonl"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(ConfigError, match="has 'examples' in it, which a run would overwrite"):
        train(PAIRS, tmp_path / "run")
    assert mine.read_text() == "mine"


def test_a_regression_on_columns_of_numbers_is_trained_from_memory_and_from_its_own_settings(
    tmp_path,
):
    rows = [{"a": i / 9, "b": (i % 7) / 7, "y": i / 9 + (i % 7) / 7} for i in range(60)]
    settings = {"train.steps": 2, "train.preflight": "off"}
    run = saccade.train(rows, out=tmp_path / "r", task="regress", settings=settings, quiet=True)
    assert run.config.data.vector == ("a", "b")
    again = saccade.train(run.folder / "config.toml", out=tmp_path / "again", quiet=True)
    assert same_weights(run.folder, again.folder)


def test_the_first_row_of_a_series_in_memory_is_the_first_row(tmp_path):
    rows = [(float(i % 9), float(i % 7)) for i in range(100)]
    settings = {"train.steps": 1, "task.horizon": 2, "train.preflight": "off"}
    saccade.train(rows, out=tmp_path / "run", task="forecast", settings=settings, quiet=True)
    assert read_toml(tmp_path / "run" / "config.toml")["data"]["header"] is True
    lines = (tmp_path / "run" / "examples" / "train.csv").read_text().splitlines()
    assert len(lines) == 101  # with the header
