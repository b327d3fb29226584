"""saccade inspect: a drawing for each kind of source, and every mistake."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import saccade
from tests import media
from tests.cli.conftest import Outcome, refused
from tests.helpers import corpus

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


def test_a_page_is_called_by_its_run_and_its_input(run: Path, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "page.html"
    assert call("inspect", run, "abc", "--view", "tree", "--out", out).code == 0
    assert f"<title><bdi>{run.name}: abc</bdi></title>" in out.read_text()


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


def test_without_a_file_a_view_is_text(run: Path, call: Call) -> None:
    done = call("inspect", run, "abc", "--target", "cba")
    assert done.code == 0
    assert done.out.startswith("cba\n")
    assert "decoder.attention\trecurrent\tentropy" in done.out
    done = call("inspect", run, "abc", "--view", "tree", "--set", "decode.width=2")
    assert done.out.count("ended") >= 1
    done = call("inspect", run, "abc", "--view", "saliency", "--method", "integrated")
    assert "completeness error" in done.out
    done = call("inspect", run, "abc", "--view", "flow", "--json")
    assert json.loads(done.out)["kind"] == "flow"
    done = call("inspect", run, "--view", "embeddings", "--word", "a")
    assert len(done.out.splitlines()) >= 3


def test_a_page_has_every_view_of_an_input(run: Path, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "page.html"
    done = call("inspect", run, "abc", "--out", out)
    assert done.code == 0
    text = out.read_text(encoding="utf-8")
    for heading in ("Attention", "Tree", "Tokens", "Saliency", "Flow"):
        assert f"<h2>{heading}</h2>" in text
    one = tmp_path / "tokens.json"
    call("inspect", run, "abc", "--view", "tokens", "--out", one)
    assert json.loads(one.read_text())["kind"] == "tokens"


def test_the_curves_of_runs_are_shown(run: Path, tmp_path: Path, call: Call) -> None:
    done = call("inspect", run, run, "--curves")
    assert done.out.startswith("run: 6 steps")
    assert "dev loss" in done.out
    call("inspect", run, "--curves", "--out", tmp_path / "curves.svg")
    assert "<svg" in (tmp_path / "curves.svg").read_text()
    refused(call("inspect", tmp_path, "--curves"), "cannot be read: there is none")


def test_a_run_is_looked_at_as_a_whole(run: Path, tmp_path: Path, call: Call) -> None:
    assert len(call("inspect", run, "--worst", 3).out.splitlines()) == 3
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("g\tab\tba\tbb\n")
    assert call("inspect", run, "--probes", pairs).out.startswith("group\tpairs\taccuracy")
    data = corpus(tmp_path, "translate")
    assert call("inspect", run, "--strange", data).out.startswith("empty\t")


def test_mistakes_in_looking_are_said(run: Path, tmp_path: Path, call: Call) -> None:
    refused(call("inspect", run), "missing input")
    refused(call("inspect", run, "abc", "--view", "mood"), "no view 'mood': of this run there are")
    refused(call("inspect", run, "--view", "tree"), "--view tree: missing input")
    refused(call("inspect", run, "a", "b"), "'b' is one word too many")
    refused(call("inspect", run, "abc", "--view", "tree", "--word", "a"), "--word: has no effect")
    refused(call("inspect", run, "--curves", "--worst", 3), "--curves and --worst: choose one")
    refused(call("inspect", run, " ", "--view", "tokens"), "the input is empty")
    refused(call("inspect", tmp_path / "none", "abc"), "none")
    refused(call("inspect", run, "--strange", tmp_path / "none.txt"), "no such file")
    refused(call("inspect", run, "--strange", tmp_path), "is a directory; name a file")
    out = tmp_path / "no" / "page.html"
    refused(call("inspect", run, "abc", "--out", out), "cannot be written: No such file")


def test_two_runs_are_compared(run: Path, tmp_path: Path, call: Call) -> None:
    data = corpus(tmp_path, "translate")
    done = call("compare", run, run, data, "--samples", 100)
    assert done.code == 0
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert rows[1][0] == "metric"
    assert {row[-1] for row in rows[2:]} == {"no difference"}
    found = json.loads(call("compare", run, run, data, "--samples", 100, "--json").out)
    assert found["metrics"][0]["randomisation_p"] == 1.0
    page = tmp_path / "compare.html"
    call("compare", run, run, data, "--samples", 100, "--out", page)
    assert "<h2>Compare</h2>" in page.read_text()
    refused(call("compare", run, run, data, "--samples", 1), "samples = 1")
    done = call("compare", run, run, data, "--lines", -1)
    assert (done.code, "--lines" in done.err, "Traceback" in done.err) == (2, True, False)


def test_labels_are_shown_one_by_one(tmp_path: Path, run: Path, call: Call) -> None:
    data = corpus(tmp_path, "classify")
    settings = {"train.steps": 4, "train.processes": 1, "encoder.dim": 16}
    saccade.train(data, task="classify", out=tmp_path / "labels", settings=settings, quiet=True)
    done = call("evaluate", tmp_path / "labels", data, "--by-label", "--confusion")
    assert done.code == 0
    assert "label\tprecision\trecall\tf1\tsupport" in done.out
    found = json.loads(call("evaluate", tmp_path / "labels", data, "--confusion", "--json").out)
    assert sum(map(sum, found["counts"])) == 200
    refused(call("evaluate", run, "--by-label"), "gives no labels")
