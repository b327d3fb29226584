"""Toys whose targets are numbers are learned: sums, sines, and drawings of a label."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import saccade
from saccade.inspect.strokes import lines_of
from tests import number_files

PLAIN = {"train.processes": 1, "train.average": 0.0, "train.warmup": 10, "train.rate": 5e-3}
QUIET = {"encoder.dropout": 0.0, "encoder.dim": 32, "data.dev_share": 0.15}


def learned(data: Path, task: str, steps: int, settings: dict[str, Any]) -> saccade.Run:
    limits = {"train.steps": steps, "train.evaluate_every": steps, "task.kind": task}
    chosen = PLAIN | QUIET | limits | settings
    return saccade.train(data, out=data.parent / "run", settings=chosen, quiet=True)


@pytest.mark.parametrize("output", ["gaussian", "mixture"])
def test_two_numbers_become_their_sum(output: str, tmp_path: Path) -> None:
    settings = {"head.dropout": 0.0, "output.kind": output, "head.pool": "mean"}
    run = learned(number_files.sums(tmp_path, 400), "regress", 120, settings)
    found = run.evaluate()
    assert found["r2"] > 0.98
    assert found["nats"] < 2.0  # the deviation of all sums alone is 8: 3.5 nats
    assert abs(float(run.predict("3 plus 4").text) - 7) < 2


def test_each_letter_has_its_height(tmp_path: Path) -> None:
    settings = {"head.dropout": 0.0, "task.per_position": True}
    run = learned(number_files.heights(tmp_path, 200), "regress", 120, settings)
    assert run.evaluate()["r2"] > 0.97
    assert np.allclose(json.loads(run.predict("d a b").text), [3, 1.5, 1], atol=0.5)


@pytest.mark.parametrize("decoder", ["recurrent", "transformer"])
def test_a_sine_goes_on(decoder: str, tmp_path: Path) -> None:
    part: dict[str, Any] = {"kind": decoder, "dim": 32, "dropout": 0.0, "tied": False}
    part |= {"num_heads": 2, "ff_dim": 64, "num_layers": 2} if decoder == "transformer" else {}
    settings = {"decoder": part, "output.kind": "gaussian", "train.rate": 3e-3}
    run = learned(number_files.waves(tmp_path, 400), "series", 400, settings)
    assert run.evaluate()["rmse"] < 0.25  # of the next step; the deviation of all is 0.7
    lines = [np.sin(begin + 0.5 * np.arange(16)) for begin in range(6)]
    found = run.predict([json.dumps([[x] for x in line[:10]]) for line in lines])
    said = [json.loads(one.text) for one in found]
    assert 5 <= np.median([len(one) for one in said]) <= 7  # it knows its end
    apart = [abs(a - b) for one, line in zip(said, lines, strict=True)
             for a, b in zip(one, line[10:], strict=False)]  # fmt: skip
    assert np.mean(apart) < 0.35


def test_circles_are_closed_and_lines_are_straight(tmp_path: Path) -> None:
    settings = {"decoder.dim": 32, "decoder.dropout": 0.0, "output.components": 4}
    run = learned(number_files.strokes(tmp_path, 300), "series", 400, settings)
    sample = {"kind": "sample", "temperature": 0.3}
    drawn = run.predict(["circle"] * 8 + ["line"] * 8, settings=sample)
    open_by, lengths = [], []
    for one in drawn:
        (line,) = lines_of(json.loads(one.text))  # the pen is lifted once, at the end
        lengths.append(len(line))
        open_by.append(np.linalg.norm(line[-1]) / len(line))
    assert np.median(open_by[:8]) < 0.35
    assert np.median(open_by[8:]) > 0.8
    assert 4 <= min(lengths) <= max(lengths) <= 10


def test_a_mixture_knows_that_there_are_two_answers(tmp_path: Path) -> None:
    """Where one of two numbers comes, a Gaussian says their mean, which never comes."""
    path = tmp_path / "two.tsv"
    numbers = np.random.default_rng(1)
    rows = [f"w{i}\t{numbers.choice([-5, 5]) + 0.1 * numbers.normal():.3f}" for i in range(300)]
    path.write_text("\n".join(rows) + "\n")
    nats = {}
    for output in ("gaussian", "mixture"):
        folder = tmp_path / output
        folder.mkdir()
        (folder / "two.tsv").write_text(path.read_text())
        settings = {"output.kind": output, "head.dropout": 0.0}
        nats[output] = learned(folder / "two.tsv", "regress", 200, settings).evaluate()["nats"]
    assert nats["mixture"] < nats["gaussian"] - 1.5
