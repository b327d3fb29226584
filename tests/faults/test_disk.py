"""A disk that fails beside the checkpoints: at the lock, at the log, at TensorBoard's files."""

import errno
import os
import shutil
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from saccade.errors import CheckpointError, TrainingError
from saccade.runs import folder as folders
from saccade.training.report import show
from saccade.training.session import resume, start
from tests.faults.processes import Server
from tests.faults.shim import Shim
from tests.helpers import GOLDEN, new_folder, settings


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a checkpoint, whose training can go on."""
    shutil.copytree(GOLDEN / "language-model", tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace("steps = 150", "steps = 152"))
    return tmp_path / "run"


def is_kind(error: BaseException, run: Path) -> bool:
    """Whether one line says what failed, what is left, and what to do."""
    said = str(error)
    words = ("cannot be written", "step-00000150 is intact", f"saccade resume {run}")
    return all(word in said for word in words) and len(said.splitlines()) == 1


@pytest.mark.parametrize("call", ["open", "ftruncate", "write"])
def test_a_lock_that_cannot_be_written_is_a_line(call: str, run: Path) -> None:
    def fault(count: int, name: str) -> None:
        if name == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Shim(fault, folders), pytest.raises(TrainingError) as caught:
        list(resume(run))
    assert is_kind(caught.value, run)
    list(resume(run))


def test_a_lock_in_a_new_run_that_cannot_be_written_is_a_line(tmp_path: Path) -> None:
    config = settings("lstm", tmp_path)
    folder = new_folder(config, tmp_path / "run")
    (folder / ".lock").mkdir()
    with pytest.raises(TrainingError, match=r"Is a directory.*no checkpoint yet.*try again"):
        list(start(config, folder))


def test_a_log_that_cannot_be_opened_is_a_line(run: Path) -> None:
    events = resume(run)
    first = next(events)  # it has the lock, and has seen that all are regular files
    (run / "metrics.jsonl").unlink(missing_ok=True)
    (run / "metrics.jsonl").mkdir()
    with pytest.raises(TrainingError) as caught:
        list(show([first], run, quiet=True))
    assert is_kind(caught.value, run)
    events.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_log_on_a_full_disk_is_a_line_and_exit_2(tmp_path: Path, server: Server) -> None:
    (tmp_path / "lines.txt").write_text("ab cd\n" * 200)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").symlink_to("/dev/full")
    words = ["--task", "language", "--out", tmp_path / "run", "--set", "train.steps=2"]
    done = server.run("train", tmp_path / "lines.txt", *words)
    assert done.code == 2, done.said
    assert "metrics.jsonl: cannot be written: No space left on device" in done.said
    assert "Traceback" not in done.said


class FullBoard:
    """TensorBoard's writer on a full disk: its thread dies of it, the next call raises it."""

    def __init__(self, folder: str):
        self.error, self.wanted = (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            threading.Event(),
        )
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.wanted.set()
        self.thread.join()
        raise self.error

    def work(self) -> None:
        self.wanted.wait()
        raise self.error

    def close(self) -> None:
        self.add_scalar("", 0.0, 0)


class NoBoard:
    def __init__(self, folder: str):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def stand_in(monkeypatch: pytest.MonkeyPatch, writer: Any) -> None:
    module: Any = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)


@pytest.mark.parametrize("writer", [FullBoard, NoBoard])
@pytest.mark.filterwarnings("error")
def test_tensorboard_on_a_full_disk_is_a_line(
    writer: Any, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, writer)
    hook = threading.excepthook
    with pytest.raises(TrainingError) as caught:
        list(show(resume(run), run, quiet=True))
    said = str(caught.value)
    assert "tensorboard: cannot be written: No space left on device" in said
    assert is_kind(caught.value, run) or "step-00000152 is intact" in said
    assert "Traceback" not in capsys.readouterr().err
    assert threading.excepthook is hook


def test_the_errors_of_other_threads_are_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only TensorBoard's own thread hands its error on; that of another would be lost."""
    told: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda found: told.append(str(found.exc_value)))
    stand_in(monkeypatch, FullBoard)

    def fail() -> None:
        raise OSError("of somebody else")

    events = show(resume(run), run, quiet=True)
    next(events)  # from here on the writer has its thread
    other = threading.Thread(target=fail)
    other.start()
    other.join()
    with pytest.raises(TrainingError, match="tensorboard"):
        list(events)
    assert told == ["of somebody else"]


def test_a_process_that_is_refused_leaves_the_log_alone(run: Path) -> None:
    log = run / "metrics.jsonl"
    log.write_bytes(b'{"event": "Step')  # as the other process has it at this moment
    with folders.locked(run), pytest.raises(CheckpointError, match="another process"):
        list(show(resume(run), run, quiet=True))
    assert log.read_bytes() == b'{"event": "Step'
