"""saccade inspect: a drawing for each kind of source, and every mistake."""

from collections.abc import Callable
from pathlib import Path

import pytest

import saccade
from tests import media
from tests.cli.conftest import Outcome, refused

Call = Callable[..., Outcome]
QUICK = {"train.steps": 4, "train.evaluate_every": 4, "train.processes": 1, "encoder.dim": 16}
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captions")
    settings = QUICK | {"task.columns.image.channels": 8, "decoder.dim": 16}
    saccade.train(media.captions(folder), out=folder / "run", settings=settings, quiet=True)
    return folder


def test_the_path_of_a_caption_is_drawn(captions: Path, tmp_path: Path, call: Call) -> None:
    picture, out = captions / "pictures" / "0.png", tmp_path / "path.png"
    said = "a red circle"
    done = call("inspect", captions / "run", picture, "--out", out, "--target", said)
    assert (done.code, done.out) == (0, f"{said}\n")
    assert f"drawn to {out}" in done.err
    assert out.read_bytes()[:4] == PNG


def test_the_alignment_of_a_text_is_drawn(run: Path, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "alignment.png"
    done = call("inspect", run, "abc", "--out", out, "--target", "cba", "--layer", 0)
    assert (done.code, done.out) == (0, "cba\n")
    assert out.read_bytes()[:4] == PNG


def test_what_cannot_be_drawn_is_said(
    captions: Path, run: Path, tmp_path: Path, call: Call
) -> None:
    out, picture = tmp_path / "x.png", captions / "pictures" / "0.png"
    refused(call("inspect", captions / "run", "nowhere.png", "--out", out), "no such file")
    layer = call("inspect", run, "abc", "--out", out, "--target", "cba", "--layer", 3)
    refused(layer, "layer 3: there are 1, from 0 to 0")
    strange = call(
        "inspect", captions / "run", picture, "--out", tmp_path / "x.what", "--target", "a red"
    )
    refused(strange, "x.what: cannot be written: name a .html")
    settings = QUICK | {"task.columns.image.channels": 8, "encoder.num_heads": 2}
    settings |= {"data.dev_share": 0.2}
    asked = media.questions(tmp_path)
    saccade.train(asked, out=tmp_path / "run", settings=settings, quiet=True)
    refused(
        call(
            "inspect", tmp_path / "run", f"{picture}\twhat is it?", "--view", "tree", "--out", out
        ),
        "the task 'classify' does not search",
    )
