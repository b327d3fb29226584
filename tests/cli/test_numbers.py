"""Numbers as targets on the command line: train, predict, evaluate, score, and every mistake."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import saccade
from saccade.config import Data
from saccade.data.layout import detect_layout
from saccade.errors import SaccadeError
from saccade.runs import files
from saccade.training.events import Finished
from saccade.training.session import resume
from saccade.verify import verify
from tests import number_files
from tests.cli.conftest import Outcome, refused, shell

Call = Callable[..., Outcome]
QUICK = {"train.steps": 4, "train.evaluate_every": 4, "train.processes": 1, "encoder.dim": 16}
SMALL_SERIES = {"decoder.dim": 16, "output.components": 3}
FILES: dict[str, Any] = {  # how it is written, the task, and settings
    "sums": (number_files.sums, "regress", {}),
    "heights": (number_files.heights, "regress", {"task.per_position": True}),
    "arrays": (
        number_files.arrays,
        "regress",
        {"output.kind": "mixture", "output.components": 2, "data.dev_share": 0.2},
    ),
    "waves": (number_files.waves, "series", SMALL_SERIES),
    "strokes": (number_files.strokes, "series", SMALL_SERIES | {"train.steps": 30}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small run of each kind, in a folder with its data."""
    made = {}
    for name, (write, task, settings) in FILES.items():
        folder = tmp_path_factory.mktemp(name)
        chosen = QUICK | settings | {"task.kind": task}
        saccade.train(write(folder), out=folder / "run", settings=chosen, quiet=True)
        made[name] = folder / "run"
    return made


# --- what is understood ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("sums", (1,), 2),
        ("heights", ("text",), "y"),
        ("arrays", (1,), 2),
        ("waves", ("series",), "values"),
        ("strokes", ("label",), "strokes"),
    ],
)
def test_the_column_of_numbers_is_the_target(
    name: str, source: tuple[Any, ...], target: Any, tmp_path: Path
) -> None:
    write, task, _ = FILES[name]
    layout = detect_layout([write(tmp_path)], Data(), task)
    assert (layout.source, layout.target, layout.task) == (source, target, task)
    assert dict(layout.media) == ({"series": "numbers"} if name == "waves" else {})


def test_what_is_named_is_kept_and_media_beside_it_are_found(tmp_path: Path) -> None:
    data = {"data.source": ["series"], "data.target": "values", "task.kind": "series"}
    run = saccade.train(
        number_files.waves(tmp_path), out=tmp_path / "run", settings=QUICK | data, quiet=True
    )
    assert run.config.task.columns["series"].kind == "numbers"  # type: ignore[union-attr]


def test_without_numbers_there_is_no_target(tmp_path: Path, call: Call) -> None:
    (tmp_path / "a.tsv").write_text("one\tuno\ntwo\tdue\n" * 9)
    refused(call("train", tmp_path / "a.tsv", "--task", "regress"), "which is the target?")


# --- what a run can do ----------------------------------------------------------------------------


def test_each_letter_of_a_text_may_have_a_number(tmp_path: Path) -> None:
    rows = [{"text": f"MK {'VLA'[i % 3] * (1 + i % 7)}", "y": [*range(3 + i % 7)]}
            for i in range(60)]  # fmt: skip
    path = number_files.write_jsonl(tmp_path / "p.jsonl", rows)
    chosen = {"task.kind": "regress", "task.per_position": True, "task.tokenizer.kind": "char"}
    run = saccade.train(path, out=tmp_path / "run", settings=QUICK | chosen, quiet=True)
    assert len(json.loads(run.predict("MK V").text)) == 3


def test_one_number_is_printed_plainly_and_more_as_a_list(runs: dict[str, Path]) -> None:
    said = shell("predict", runs["sums"], stdin="1 plus 2\n\n3 plus 4\n").stdout.split("\n")
    assert said[1] == ""
    assert float(said[0]) != float(said[2])
    assert np.shape(json.loads(saccade.load(runs["arrays"]).predict("aa").text)) == (3,)
    heights = saccade.load(runs["heights"]).predict(["a b c", "a"])
    assert [len(json.loads(one.text)) for one in heights] == [3, 1]
    alone = saccade.load(runs["heights"]).predict("a")
    assert alone.text == heights[1].text


def test_a_series_is_drawn_by_its_number_and_its_seed(runs: dict[str, Path], call: Call) -> None:
    run, folder = runs["strokes"], runs["strokes"].parent
    (folder / "in.txt").write_text("circle\nline\ncircle\n")
    drawn = call("predict", run, folder / "in.txt", "--sample", "--set", "decode.max_len=6")
    assert drawn.code == 0, drawn.err
    lines = drawn.out.splitlines()
    assert lines[0] != lines[2]
    for line in lines:
        rows = np.array(json.loads(line)).reshape(-1, 3)
        assert len(rows) <= 6
        assert set(rows[:, 2].tolist()) <= {0.0, 1.0}
    loaded = saccade.load(run)
    sample = {"kind": "sample", "max_len": 6}
    assert [one.text for one in loaded.predict(["circle", "line", "circle"], settings=sample)] == (
        lines
    )
    other = loaded.predict(["circle", "line"], settings=sample | {"seed": 9})
    assert [one.text for one in other] != lines[:2]
    several = loaded.predict("circle", nbest=3, settings=sample)
    assert several.text == lines[0]
    assert len({several.text, *(text for text, _ in several.others)}) == 3


def test_means_are_the_same_each_time(runs: dict[str, Path]) -> None:
    loaded = saccade.load(runs["strokes"])
    first, again = loaded.predict(["circle", "circle"])
    assert first == again


def test_a_score_is_what_a_prediction_says_of_itself(runs: dict[str, Path]) -> None:
    for name, source in (("sums", "3 plus 4"), ("strokes", "line"), ("waves", "[[0.1],[0.3]]")):
        run = saccade.load(runs[name])
        sample = {"kind": "sample"} if name == "strokes" else {}
        found = run.predict(source, settings=sample)
        if found.text == "[]":
            continue
        keys = [str(run.config.data.source[0]), str(run.config.data.target)]
        row: Any = dict(zip(keys, (source, json.loads(found.text)), strict=True))
        row = tuple(row.values()) if name == "sums" else row
        ((log_p, _),) = run.score([row])
        assert log_p == pytest.approx(found.score, abs=2e-2, rel=1e-3)


def test_nats_do_not_depend_on_the_units(tmp_path: Path, runs: dict[str, Path]) -> None:
    """Numbers a thousand times as large are learned alike, and cost log 1000 more each."""
    path = tmp_path / "large.tsv"
    lines = (runs["sums"].parent / "sums.tsv").read_text().splitlines()
    large = [f"{source}\t{1000 * int(y)}\n" for source, y in (line.split("\t") for line in lines)]
    path.write_text("".join(large))
    settings = QUICK | {"task.kind": "regress"}
    found = saccade.train(path, out=tmp_path / "run", settings=settings, quiet=True).evaluate()
    before = saccade.load(runs["sums"]).evaluate()
    assert found["loss"] == pytest.approx(before["loss"], abs=1e-3)
    assert found["nats"] == pytest.approx(before["nats"] + np.log(1000), abs=1e-3)
    assert found["rmse"] == pytest.approx(1000 * before["rmse"], rel=1e-3)
    assert found["r2"] == pytest.approx(before["r2"], abs=1e-3)


def test_scores_sum_to_the_nats_of_an_evaluation(runs: dict[str, Path], call: Call) -> None:
    for name, file in (("sums", "sums.tsv"), ("heights", "heights.jsonl"), ("waves", None)):
        path = runs[name].parent / (file or "waves.jsonl")
        rows = [json.loads(x) for x in call("score", runs[name], path, "--json").out.splitlines()]
        total, count = sum(row["log_p"] for row in rows), sum(row["rows"] for row in rows)
        nats = json.loads(call("evaluate", runs[name], path, "--json").out)["nats"]
        assert -total / count == pytest.approx(nats, abs=1e-4)


@pytest.mark.parametrize("name", FILES)
def test_a_run_of_numbers_is_enough_by_itself(
    name: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    before = saccade.load(runs[name]).evaluate()
    shutil.copytree(runs[name], tmp_path / "run")  # and none of its data
    assert saccade.load(tmp_path / "run").evaluate() == before
    events = list(resume(tmp_path / "run", settings={"train.steps": 32}))
    assert isinstance(events[-1], Finished)
    assert events[-1].step == 32


@pytest.mark.parametrize("name", FILES)
def test_every_law_holds_on_a_run_of_numbers(name: str, runs: dict[str, Path]) -> None:
    laws = list(verify(runs[name]))
    assert [law for law in laws if law.passed is False] == []
    assert sum(law.passed is True for law in laws) >= (5 if name in ("waves", "strokes") else 4)


def test_examples_from_memory_may_hold_lists_and_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", [1.0, 2.0])
    rows = [(f"word {i}", [float(i), i % 7 / 2]) for i in range(40)]
    named = [(f"other {i}", str(tmp_path / "y.npy")) for i in range(9)]
    settings = QUICK | {"task.kind": "regress"}
    run = saccade.train([*rows, *named], out=tmp_path / "run", settings=settings, quiet=True)
    assert len(json.loads(run.predict("word 3").text)) == 2
    assert run.evaluate([("word 1", [1.0, None])])["mae"] > 0


def test_a_network_of_numbers_trains_in_half_precision(tmp_path: Path) -> None:
    for name in ("sums", "strokes"):
        write, task, settings = FILES[name]
        folder = tmp_path / name
        folder.mkdir()
        chosen = QUICK | settings | {"task.kind": task, "train.precision": "bf16"}
        run = saccade.train(write(folder), out=folder / "run", settings=chosen, quiet=True)
        assert np.isfinite(run.evaluate()["loss"])


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "settings", "said"),
    [
        (["a\tb"], {}, "bad.tsv:31: the target 'b' is not a number"),
        (["a\t[1, 2]"], {}, "bad.tsv:31: the numbers: has vectors of 2 numbers"),
        (["a\t[[1], [2]]"], {}, "a series of 2 rows, where one is expected"),
        (["a\t[1e999]"], {}, "holds infinity"),
        (["a\t[[1], [2, 3]]"], {}, "not a list of numbers, or lists of unequal length"),
        (["a\tgone.npy"], {}, "gone.npy: no such file"),
        (["a\t../../x.npy"], {}, "is outside the folder"),
        ([], {"task.per_position": "true"}, "but numbers for 1"),
        ([], {"decoder.kind": "recurrent"}, "has no decoder"),
        ([], {"train.label_smoothing": 0.1}, "has no labels"),
        ([], {"task.target.stride": 2}, "target.stride is for sources"),
        ([], {"output.kind": "gausian"}, "gaussian"),
        ([], {"output.floor": 0.0}, "floor"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    rows: list[str], settings: dict[str, Any], said: str, tmp_path: Path, call: Call
) -> None:
    path = tmp_path / "bad.tsv"
    good = [f"word w{i}\t{i}.5" for i in range(30)]
    path.write_text("\n".join([*good, *rows]) + "\n")
    options = [f"--set={key}={value}" for key, value in (QUICK | settings).items()]
    done = call("train", path, "--task", "regress", "--out", tmp_path / "run", *options)
    refused(done, said)
    assert not (tmp_path / "run").exists()


def test_a_number_that_was_always_0_or_1_stays_so(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "bits.tsv"
    path.write_text("".join(f"word w{i}\t{i % 2}\n" for i in range(60)))
    run = saccade.train(
        path, out=tmp_path / "run", settings=QUICK | {"task.kind": "regress"}, quiet=True
    )
    assert 0 < float(run.predict("word w3").text) < 1  # a probability
    (tmp_path / "odd.tsv").write_text("word w1\t1\nword w2\t0.5\n")
    refused(call("evaluate", tmp_path / "run", tmp_path / "odd.tsv"), "only ever 0 or 1")
    plain = QUICK | {"task.kind": "regress", "task.binary": False}
    run = saccade.train(path, out=tmp_path / "plain", settings=plain, quiet=True)
    assert run.evaluate(tmp_path / "odd.tsv")["mae"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--width", "3"], "of decode it obeys kind, max_len, seed, temperature"),
        (["--nbest", "2"], "gives one answer"),
        (["--sample", "--set", "decode.top_k=3"], "does not search"),
        (["--prefix", "a"], "prefixes are not supported for the task"),
        (["--stream"], "does not support streaming"),
    ],
)
def test_what_a_series_cannot_do_is_refused(
    words: list[str], said: str, runs: dict[str, Path], call: Call
) -> None:
    refused(call("predict", runs["strokes"], runs["strokes"].parent / "in.txt", *words), said)


def test_a_series_has_no_table_to_tie(tmp_path: Path) -> None:
    settings = QUICK | {"task.kind": "series", "decoder.tied": True}
    with pytest.raises(SaccadeError, match="set tied = false"):
        saccade.train(number_files.strokes(tmp_path), out=tmp_path / "run", settings=settings)


def test_damaged_constants_are_an_error(runs: dict[str, Path], tmp_path: Path, call: Call) -> None:
    shutil.copytree(runs["strokes"], tmp_path / "run")
    path = tmp_path / "run" / "target.json"
    sound = json.loads(path.read_text())
    for key, value in (("binary", [7]), ("longest", 0), ("mean", [0.0]), ("deviation", None)):
        path.write_text(json.dumps(sound | {key: value}))
        refused(call("predict", tmp_path / "run", path), "not a readable field")
    path.write_text(json.dumps(sound | {"reader": {"kind": "numbers", "normalise": False}}))
    refused(call("predict", tmp_path / "run", path), "its reader differs")
    assert files.FORMAT == 2


def test_check_knows_targets_that_are_numbers(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "y.tsv"
    rows = [f"word w{i}\t[{i % 9}, 5]" for i in range(200)]
    rows[20], rows[30], rows[40] = "word x\t[1]", "word y\tseven", "word z\t[900000, 5]"
    path.write_text("\n".join(rows) + "\n")
    done = call("check", path, "--task", "regress", "--json")
    found = {(row["code"], row["where"]) for row in map(json.loads, done.out.splitlines())}
    assert done.code == 1
    assert ("number", f"{path}:21") in found
    assert ("number", f"{path}:31") in found
    codes = {code for code, _ in found}
    assert {"far-number", "constant-number"} <= codes
    assert "ceiling" not in codes
    strokes = number_files.strokes(tmp_path)
    assert call("check", strokes, "--task", "series", "--dev", strokes).out.count("leak") == 0
