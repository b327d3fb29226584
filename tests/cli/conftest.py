"""What the tests of the command line share: a way to call it, and small runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from saccade import cli
from tests.helpers import corpus

QUICK = ["--set", "train.steps=6", "--set", "train.evaluate_every=6"]
TINY = ["--set", "encoder.dim=16", "--set", "decoder.dim=16"]


class Outcome:
    def __init__(self, code: int, out: str, err: str):
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Call the command line in this process, as the installed script does."""

    def run(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["saccade", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capfd.readouterr()
        return Outcome(int(left.value.code or 0), out, err)

    return run


def shell(*words: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Call the command line as a user's shell does."""
    command = [sys.executable, "-m", "saccade", *map(str, words)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trained run, made by the command line."""
    folder = tmp_path_factory.mktemp("cli")
    made = shell("train", corpus(folder, "translate"), "--out", folder / "run", *QUICK, *TINY)
    assert made.returncode == 0, made.stderr
    assert "sequence_error\t" in made.stdout
    assert "translate" in made.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Transformer with the same vocabularies, and no more than 30 positions."""
    import saccade

    folder = tmp_path_factory.mktemp("fast")
    part = {"kind": "transformer", "dim": 16, "num_heads": 2, "ff_dim": 32, "num_layers": 1}
    part |= {"positions": "learned", "max_positions": 30}
    settings = {"train.steps": 6, "data.max_len": 30, "encoder": part, "decoder": part}
    data = corpus(folder, "translate")
    saccade.train(data, out=folder / "run", settings=settings, quiet=True)
    return folder / "run"


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("abc\nba\n\ndcab\n")
    return path


def refused(done: Outcome, message: str) -> None:
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) <= 4
    assert "Traceback" not in done.err
    assert done.out == ""
