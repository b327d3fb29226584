"""Runs of every released format are read, and say what they said."""

import json
import re
import shutil
from pathlib import Path

import pytest

import saccade
from saccade.errors import CheckpointError
from saccade.runs.files import FORMAT
from saccade.training.events import Finished, Prepared
from saccade.training.session import resume

HERE = Path(__file__).parent
RUNS = sorted(path.parent for path in HERE.glob("*/*/expected.json"))


def test_every_format_has_its_golden_runs() -> None:
    assert {run.parent.name for run in RUNS} == {str(n) for n in range(1, FORMAT + 1)}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.parent.name}-{run.name}")
def test_an_old_run_says_what_it_said(run: Path) -> None:
    expected = json.loads((run / "expected.json").read_text())
    found = saccade.load(run).predict([one["in"] for one in expected])
    assert [one.text for one in found] == [one["out"] for one in expected]
    assert [one.score for one in found] == pytest.approx([e["score"] for e in expected], abs=1e-3)


@pytest.mark.parametrize("run", [run for run in RUNS if (run / "checkpoints").exists()])
def test_an_old_run_is_resumed(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    events = list(resume(tmp_path / "run", settings={"train.steps": 155}))
    assert [e.start for e in events if isinstance(e, Prepared)] == [150]
    assert isinstance(events[-1], Finished)
    assert events[-1].step == 155


def test_a_run_of_a_newer_format_is_refused_with_the_version_that_reads_it(tmp_path: Path) -> None:
    shutil.copytree(RUNS[0], tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    newer = re.sub(r"format = \d+", f"format = {FORMAT + 1}", path.read_text())
    path.write_text(re.sub(r'saccade = ".*"', 'saccade = "7.5.0"', newer) + "brand_new = true\n")
    with pytest.raises(CheckpointError, match=r"install saccade 7\.5\.0 or newer"):
        saccade.load(tmp_path / "run")
    with pytest.raises(CheckpointError, match=f"reads up to format {FORMAT}"):
        next(resume(tmp_path / "run"))
