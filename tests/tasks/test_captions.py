"""Captions of which each picture has several: all are learned, and all are right."""

from pathlib import Path
from typing import Any

import pytest

from saccade.setup.choose import fill_config, gather
from saccade.setup.prepare import Prepared, prepare
from saccade.tasks.translate import Translate
from tests.helpers import corpus
from tests.media import captions

CAPTIONS = {"bleu_1", "bleu_2", "bleu_3", "bleu_4", "cider"}


def prepared(path: Path, folder: Path, **task: Any) -> tuple[Translate, Prepared]:
    raw, where = gather(path, task="translate")
    raw["task"] |= task
    config, _ = fill_config(raw, where)
    folder.mkdir()
    ready = prepare(config, folder)
    assert isinstance(ready.task, Translate)
    return ready.task, ready


def test_every_caption_is_learned_and_any_is_right(tmp_path: Path) -> None:
    task, ready = prepared(captions(tmp_path, 40), tmp_path / "run", metric="cider")
    pictures = 40 - len(ready.dev_examples)
    assert len(ready.train) == 2 * pictures  # two captions each
    assert len({int(i) for i in ready.train.sources[0].index}) == pictures  # and one row
    for number in (0, 1):
        texts = [str(row.references[number]) for row in ready.dev_examples]
        found = task.measured(ready.dev_examples, texts)
        assert found["sequence_error"] == 0
        assert found["bleu_1"] == pytest.approx(100)


def test_pictures_and_several_references_are_measured_as_captions(tmp_path: Path) -> None:
    task, ready = prepared(captions(tmp_path), tmp_path / "run", metric="bleu")
    texts = ["a red circle"] * len(ready.dev_examples)
    assert task.measured(ready.dev_examples, texts).keys() >= CAPTIONS
    plain, ready = prepared(corpus(tmp_path, "translate"), tmp_path / "text", metric="bleu")
    texts = ["abc"] * len({row.source for row in ready.dev_examples})
    assert not plain.measured(ready.dev_examples, texts).keys() & CAPTIONS
    asked, ready = prepared(corpus(tmp_path, "translate"), tmp_path / "cider", metric="cider")
    assert asked.higher_is_better
    assert asked.measured(ready.dev_examples, texts).keys() >= CAPTIONS
