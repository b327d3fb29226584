"""A run that learns from a table reads tables like it, and no others."""

import csv
import random

import pytest

import saccade
from saccade.errors import DataError
from tests.helpers import SMALL

NUMBERS = random.Random(2)
WORDS = ["".join(NUMBERS.choices("abcd", k=NUMBERS.randint(1, 6))) for _ in range(60)]
TINY = {"train.steps": 1, "train.batch_tokens": 100}


def write(path, rows, **options):
    with path.open("w", newline="") as file:
        csv.writer(file, **options).writerows(rows)
    return path


def test_a_run_from_csv_reads_csv(tmp_path):
    rows = [(f"{word}, x\ny", word[0]) for word in WORDS]
    data = write(tmp_path / "train.csv", [("text", "label"), *rows], delimiter=";")
    settings = TINY | SMALL["classifier"]
    run = saccade.train(data, out=tmp_path / "run", quiet=True, settings=settings)
    assert (run.config.data.format, run.config.data.header) == ("csv", True)
    alone = write(tmp_path / "alone.csv", [(text,) for text, _ in rows])
    assert run.has_data_format(data)
    assert run.has_data_format(alone)
    assert [*run.sources(data)] == [*run.sources(alone)] == [(text,) for text, _ in rows]
    other = write(tmp_path / "other.csv", [("label", "id", "text"), *((b, 7, a) for a, b in rows)])
    assert run.evaluate(data) == run.evaluate(other) == run.evaluate(rows)
    with pytest.raises(DataError, match=r"wrong\.csv:1: no column 'text' in words, label"):
        run.evaluate(write(tmp_path / "wrong.csv", [("words", "label"), *rows]))


def test_measuring_is_as_strict_about_columns_as_learning(tmp_path):
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    train.write_text("".join(f"{word}\t{word[::-1]}\n" for word in WORDS))
    dev.write_text("".join(f"{word}\t{word}\t{word[::-1]}\n" for word in WORDS))
    settings = TINY | SMALL["lstm"]
    sentence = r"dev\.tsv:1: expected 2 columns \(source, target\), found 3; give a file with the"
    with pytest.raises(DataError, match=sentence):
        saccade.train(train, dev=dev, out=tmp_path / "a", quiet=True, settings=settings)
    run = saccade.train(train, out=tmp_path / "b", quiet=True, settings=settings)
    for measure in (run.evaluate, lambda path: list(run.score(path))):
        with pytest.raises(DataError, match=sentence):
            measure(dev)
