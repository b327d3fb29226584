"""Toys of every kind of media are learned: shapes to words, tones to digits, slopes to names."""

from pathlib import Path
from typing import Any

import pytest

import saccade
from saccade.data.corpora import Examples
from tests import media

SMALL_PICTURE: dict[str, Any] = {
    "height": 16, "width": 16, "cell": 8, "channels": 16, "crop": 0.0, "zoom": 0.0, "colour": 0.0,
}  # fmt: skip
PLAIN = {"train.processes": 1, "train.average": 0.0, "train.warmup": 10, "train.rate": 5e-3}
QUIET = {"encoder.dropout": 0.0, "encoder.dim": 32}


def learned(data: Path, steps: int, settings: dict[str, Any]) -> dict[str, float]:
    """The metrics on examples that were held out."""
    limits = {"train.steps": steps, "train.evaluate_every": steps, "data.dev_share": 0.15}
    run = saccade.train(
        data, out=data.parent / "run", settings=PLAIN | limits | settings, quiet=True
    )
    return run.evaluate()


def test_tones_become_digits(tmp_path: Path) -> None:
    reader = {"kind": "sound", "rate": 8000, "bands": 20, "band_masks": 0, "time_masks": 0}
    settings = QUIET | {"head.dropout": 0.0, "task.columns.1": reader}
    assert learned(media.digits(tmp_path, 120), 30, settings)["accuracy"] >= 90


def test_slopes_become_names(tmp_path: Path) -> None:
    settings = QUIET | {"head.dropout": 0.0}
    assert learned(media.series(tmp_path, 120), 40, settings)["accuracy"] >= 90


def test_notes_are_written_down_better_when_the_search_hears_ctc(tmp_path: Path) -> None:
    settings = QUIET | {"task.kind": "translate", "task.target.kind": "char", "decoder.dim": 32}
    settings |= {"decoder.dropout": 0.0, "train.ctc": 0.5, "task.metric": "word_error"}
    heard = learned(media.melodies(tmp_path, 300), 160, settings)
    assert heard["word_error"] <= 40
    run = saccade.load(tmp_path / "run")
    rows = list(Examples(tmp_path / "run" / "data" / "dev.jsonl"))
    found = run.predict([row.source for row in rows], settings={"ctc": 0.0})
    wrong = sum(one.text != row.target for one, row in zip(found, rows, strict=True))
    assert 100 * wrong / len(rows) >= heard["word_error"] + 10  # the decoder is slower to learn


@pytest.mark.slow
@pytest.mark.parametrize("stem", ["residual", "patches"])
def test_shapes_become_words(stem: str, tmp_path: Path) -> None:
    body = {"kind": "none"} if stem == "residual" else {"kind": "transformer", "num_layers": 2}
    picture = {"kind": "picture"} | SMALL_PICTURE | {"stem": stem, "cell": 4}
    settings = {"encoder": body | {"dim": 32, "dropout": 0.0}, "decoder.dropout": 0.0}
    settings |= {"task.columns.image": picture, "decoder.dim": 32}
    settings |= {"task.target.kind": "word", "task.target.size": 100}
    found = learned(media.captions(tmp_path, 400), 400, settings)
    assert found["sequence_error"] <= 25


@pytest.mark.slow
@pytest.mark.parametrize("fusion", ["early", "late"])
def test_questions_about_shapes_are_answered(fusion: str, tmp_path: Path) -> None:
    picture = {"kind": "picture"} | SMALL_PICTURE | {"cell": 4}
    body = {"kind": "transformer", "dim": 32, "num_layers": 2, "num_heads": 4, "dropout": 0.0}
    settings = {"encoder": body, "task.fusion": fusion, "task.columns.image": picture}
    settings |= {"train.rate": 2e-3, "head.dropout": 0.0}
    found = learned(media.questions(tmp_path, 500), 300, settings)
    assert found["accuracy"] >= 75  # the question alone leaves a third


@pytest.mark.slow
def test_a_pyramid_writes_down_what_it_hears(tmp_path: Path) -> None:
    path = tmp_path / "speech.tsv"
    rows = [f"{name}\tthe {media.DIGITS[d]}" for name, d in media.tones(tmp_path, 200)]
    path.write_text("\n".join(rows) + "\n")
    body = {"kind": "pyramid", "dim": 32, "num_layers": 2, "dropout": 0.0}
    reader = {"kind": "sound", "rate": 8000, "bands": 20, "stride": 2}
    settings = {"task.kind": "translate", "encoder": body, "task.columns.1": reader}
    settings |= {"decoder.dim": 32, "decoder.dropout": 0.0}
    assert learned(path, 300, settings)["sequence_error"] <= 15
