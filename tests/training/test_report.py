"""Readers of events: lines for people, JSON for programs, TensorBoard where it is installed."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from saccade.training.events import (
    Evaluated,
    Event,
    Finished,
    Noticed,
    Prepared,
    Skipped,
    StepDone,
)
from saccade.training.report import sentence, show, status

STEP = StepDone(1200, 1.5, 0.25, 1e-3, 9000.0, 1.0, 0.25, 60.0)
EVENTS = [
    Prepared(1000, 50, 2, 12345, "cpu", 0),
    STEP,
    Skipped(1201, 1),
    Evaluated(1202, {"accuracy": 91.5}, True, 61.0),
    Finished(1300, "the limit is reached", {"accuracy": 92.0}, 70.0),
]


def test_a_step_says_loss_speed_and_time_left() -> None:
    assert status(STEP) == "step 1,200  epoch 1.5  loss 0.250  9,000 tokens/s  3:00 left"


def test_other_events_are_sentences() -> None:
    said = [sentence(event) for event in EVENTS]
    assert "2 too long and left out" in str(said[0])
    assert said[1] is None
    assert "was skipped" in str(said[2])
    assert "accuracy 91.5  (best)" in str(said[3])
    assert "1,300 steps and 1:10: the limit is reached" in str(said[4])


def test_events_pass_through_and_are_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(show(EVENTS, tmp_path)) == EVENTS
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["event"] for line in lines] == [type(e).__name__ for e in EVENTS]
    printed = capsys.readouterr()
    assert printed.out == ""  # stdout is for data
    assert "accuracy 91.5" in printed.err


@pytest.mark.parametrize("terminal", [False, True])
def test_what_looks_like_markup_is_written_as_it_is(
    terminal: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    name = "f1: [pos] [/x] :smile:"
    events: list[Event] = [Evaluated(1, {name: 91.5}, True, 61.0), Noticed("runs/base[v2]")]
    list(show(events, tmp_path))
    printed = capsys.readouterr().err
    assert name in printed
    assert "runs/base[v2]" in printed


def test_tensorboard_is_fed_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, folder: str):
            self.folder = folder

        def add_scalar(self, name: str, value: float, step: int) -> None:
            sent.append((name, value, step))

        def close(self) -> None:
            sent.append(("closed", 0.0, 0))

    module: Any = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    list(show(EVENTS, tmp_path, quiet=True))
    assert ("train/loss", 0.25, 1200) in sent
    assert ("dev/accuracy", 91.5, 1202) in sent
    assert sent[-1][0] == "closed"
