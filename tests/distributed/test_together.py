"""`torchrun -m saccade train`: processes that were started together train one run."""

import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from saccade import config as c
from saccade.distributed.world import VARIABLES, World
from saccade.errors import ConfigError
from saccade.runs.folder import read_config
from saccade.training.launched import require_device
from tests.distributed.kinds import Together, config_of, free_port, together
from tests.helpers import run_through, weights

PLAIN = {"schedule": "constant", "warmup": 0, "average": 0.9, "clip": 0.0}


def written(name: str, folder: Path, **more: Any) -> Path:
    """The configuration of a kind, as a file."""
    path = folder / f"{name}.toml"
    path.write_text(c.write_toml(config_of(name, folder, **(PLAIN | more))), encoding="utf-8")
    return path


def train(size: int, config: Path, out: Path, *settings: str, seconds: float = 300.0) -> list[Any]:
    words = [word for setting in settings for word in ("--set", setting)]
    command = ("saccade", "train", str(config), "--out", str(out), *words)
    return together(size, *command, seconds=seconds)


def apart(one: Path, other: Path) -> float:
    """How far the weights of two runs are from each other."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def said(found: list[Any]) -> list[str]:
    return [err for _, _, err in found]


def test_two_processes_train_one_run_and_the_first_alone_speaks(tmp_path: Path) -> None:
    config = written("transformer", tmp_path)
    run_through(c.parse(c.read_toml(config), "test"), tmp_path / "one")
    found = train(2, config, tmp_path / "two")
    assert [code for code, _, _ in found] == [0, 0], said(found)
    assert "2 processes: data 2 x shard 1 x tensor 1" in found[0][2]
    assert found[1][1:] == ("", "")
    assert apart(tmp_path / "one", tmp_path / "two") < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer", "language", "tagger", "masked", "regress"])
def test_every_task_is_evaluated_in_parts_as_in_one(name: str, tmp_path: Path) -> None:
    config = written(name, tmp_path, rate=0.001)
    events = run_through(c.parse(c.read_toml(config), "test"), tmp_path / "one")
    found = train(3, config, tmp_path / "three")
    assert [code for code, _, _ in found] == [0, 0, 0], said(found)
    scores = dict(line.split("\t") for line in found[0][1].splitlines())
    for key, value in events[-1].scores.items():
        assert float(scores[key]) == pytest.approx(value, rel=1e-4, abs=2e-4), key


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "settings"),
    [
        (2, ["parallel.shard=2", "parallel.checkpoint_activations=true"]),
        (2, ["parallel.tensor=2", "parallel.sequence=true"]),
        (4, ["parallel.shard=2", "parallel.tensor=2"]),
        (4, ["parallel.data=2", "parallel.shard=2"]),
    ],
)
def test_a_run_in_any_layout_is_that_of_one_process(
    size: int, settings: list[str], tmp_path: Path
) -> None:
    config = written("transformer", tmp_path)
    run_through(c.parse(c.read_toml(config), "test"), tmp_path / "one")
    found = train(size, config, tmp_path / "many", *settings, seconds=300.0)
    assert {code for code, _, _ in found} == {0}, said(found)
    assert apart(tmp_path / "one", tmp_path / "many") < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_run_goes_on_with_more_or_fewer_processes(optimizer: str, tmp_path: Path) -> None:
    """Saved by four, resumed by two and by one, and back by four."""
    more = {"optimizer": optimizer, "rate": 1e-3}
    config = written("transformer", tmp_path, **more)
    (tmp_path / "whole").mkdir()
    whole = written("transformer", tmp_path / "whole", steps=12, **more)
    run_through(c.parse(c.read_toml(whole), "test"), tmp_path / "one")
    run = tmp_path / "many"
    layouts = [
        (4, ["parallel.shard=2", "parallel.tensor=2"]),
        (2, ["parallel.shard=2", "parallel.tensor=1", "train.steps=8"]),
        (1, ["parallel.shard=1", "train.steps=10"]),
        (4, ["parallel.data=2", "parallel.shard=2", "train.steps=12"]),
    ]
    for number, (size, settings) in enumerate(layouts):
        words = [word for setting in settings for word in ("--set", setting)]
        command = ["resume", str(run)] if number else ["train", str(config), "--out", str(run)]
        found = together(size, "saccade", *command, *words, seconds=300.0)
        assert {code for code, _, _ in found} == {0}, said(found)
    assert read_config(run).parallel.data == 2
    tolerance = 1e-5 if optimizer == "sgd" else 0.02  # Adam divides noise by its own size
    assert apart(tmp_path / "one", run) < tolerance


# --- failures -------------------------------------------------------------------------------------


def started(size: int, config: Path, run: Path, *settings: str) -> Together:
    """A long run, at some step."""
    words = [word for s in ("train.steps=100000", *settings) for word in ("--set", s)]
    processes = Together(size, "saccade", "train", str(config), "--out", str(run), *words)
    end = time.monotonic() + 300
    while not list((run / "checkpoints").glob("step-*")):
        if time.monotonic() > end or processes.processes[0].poll() is not None:
            processes.processes[0].kill()
            raise AssertionError(f"the run does not start: {said(processes.wait(60))}")
        time.sleep(0.1)
    return processes


@pytest.mark.faults
@pytest.mark.parametrize("settings", [[], ["parallel.shard=2"]])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_killed_ends_all_and_the_run_goes_on_to_the_same_weights(
    rank: int, settings: list[str], tmp_path: Path
) -> None:
    steps = 80
    rare = {"save_every": 10, "evaluate_every": 40}
    config = written("transformer", tmp_path, steps=steps, **rare)
    found = train(2, config, tmp_path / "whole", *settings)
    assert [code for code, _, _ in found] == [0, 0], said(found)

    processes = started(2, config, tmp_path / "run", f"train.steps={steps}", *settings)
    processes.processes[rank].send_signal(signal.SIGKILL)
    began = time.monotonic()
    found = processes.wait()
    assert time.monotonic() - began < 60
    other = found[1 - rank]
    assert other[0] == 2
    assert f"saccade: rank {rank} (" in other[2]
    assert "has ended" in other[2]
    assert f"saccade resume {tmp_path / 'run'}" in other[2]
    assert "Traceback" not in other[2]
    assert "frame #" not in other[2]
    assert newest(tmp_path / "run") < steps
    found = together(2, "saccade", "resume", str(tmp_path / "run"))
    assert [code for code, _, _ in found] == [0, 0], said(found)
    assert apart(tmp_path / "whole", tmp_path / "run") == 0.0


def newest(run: Path) -> int:
    """The step of the newest checkpoint."""
    return max(int(path.name.partition("-")[2]) for path in (run / "checkpoints").glob("step-*"))


@pytest.mark.faults
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_hangs_is_found_and_named(rank: int, tmp_path: Path) -> None:
    """The first one, too, in which the store of the rendezvous is."""
    processes = started(
        3, written("transformer", tmp_path), tmp_path / "run", "parallel.timeout=30.0"
    )
    hanging = processes.processes[rank]
    hanging.send_signal(signal.SIGSTOP)
    others = [process for process in processes.processes if process is not hanging]
    began = time.monotonic()
    try:
        codes = [process.wait(90) for process in others]
    finally:
        hanging.send_signal(signal.SIGKILL)
        found = processes.wait()
    assert time.monotonic() - began < 90
    assert codes == [2, 2]
    text = "".join(err for i, (_, _, err) in enumerate(found) if i != rank)
    assert text.count("saccade: ") == 1, text
    assert f"saccade: rank {rank} (" in text
    assert "for 30 s" in text
    assert f"saccade resume {tmp_path / 'run'}" in text
    assert "Traceback" not in text


@pytest.mark.faults
@pytest.mark.parametrize("ranks", [[0, 1], [1]])
@pytest.mark.parametrize("settings", [[], ["parallel.shard=2"]])
def test_a_signal_saves_once_and_all_exit_with_75(
    ranks: list[int], settings: list[str], tmp_path: Path
) -> None:
    """Also where only one of them has it, as when one machine is taken away."""
    processes = started(2, written("transformer", tmp_path), tmp_path / "run", *settings)
    for rank in ranks:
        processes.processes[rank].send_signal(signal.SIGTERM)
    found = processes.wait(120)
    assert [code for code, _, _ in found] == [75, 75], said(found)
    assert found[0][2].count("all is saved") == 1
    assert "all is saved" not in found[1][2]
    assert "Traceback" not in found[0][2] + found[1][2]


# --- mistakes -------------------------------------------------------------------------------------


def test_processes_with_different_configurations_are_refused_by_one_line(tmp_path: Path) -> None:
    config, other = written("transformer", tmp_path), tmp_path / "other.toml"
    other.write_text(config.read_text().replace("rate = 0.05", "rate = 0.06"))
    processes = Together(2, "tests.distributed.differ", str(config), str(other), str(tmp_path))
    found = processes.wait()
    assert [code for code, _, _ in found] == [2, 2], said(found)
    assert found[0][2].startswith("saccade: rank 1 has a different configuration than rank 0")
    assert len(found[0][2].splitlines()) == 1
    assert found[1][2] == ""


@pytest.mark.slow
def test_processes_with_different_data_are_refused_by_one_line(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        config = written("transformer", tmp_path / name)
        text = config.read_text().replace(f"{tmp_path / name}/", "")
        (tmp_path / name / "run.toml").write_text(text)
    data = tmp_path / "other" / "translate.txt"
    data.write_text(data.read_text().replace("a", "b"))
    folders = [str(tmp_path / name) for name in ("one", "other")]
    found = Together(2, "tests.distributed.differ", *folders, str(tmp_path)).wait()
    assert [code for code, _, _ in found] == [2, 2], said(found)
    assert found[0][2].startswith("saccade: rank 1 has a different data than rank 0")
    assert len(found[0][2].splitlines()) == 1
    assert found[1][2] == ""


def test_a_process_without_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SimpleNamespace(local_rank=2, host="here")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"here has 2 CUDA devices, .* start at most 2 processes"):
        require_device(world)  # type: ignore[arg-type]
    world.local_rank = 1
    require_device(world)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "settings", "words"),
    [
        (2, ["parallel.shard=3"], "needs a multiple of 3 processes, and there are 2"),
        (2, ["parallel.data=1"], "needs 1 processes, and there are 2"),
        (1, ["parallel.tensor=2"], "needs a multiple of 2 processes, and there is 1"),
        (3, ["parallel.tensor=3"], "tensor (3) does not divide encoder.num_heads (4)"),
        (2, ["train.seeds=2"], "train.seeds: several seeds are trained one after the other"),
        (2, ["train.bach_tokens=3"], "did you mean 'train.batch_tokens'"),
        (2, ["data.train='nowhere.tsv'"], "nowhere.tsv"),
    ],
)
def test_a_mistake_is_one_line_of_the_first_process(
    size: int, settings: list[str], words: str, tmp_path: Path
) -> None:
    found = train(size, written("transformer", tmp_path), tmp_path / "run", *settings)
    assert {code for code, _, _ in found} == {2}, said(found)
    lines = found[0][2].splitlines()  # how the data was understood may stand above
    mistakes = [line for line in lines if line.startswith("saccade: ")]
    assert len(mistakes) == 1
    assert words in mistakes[0] == lines[-1]
    assert all(err == "" for err in said(found)[1:])


@pytest.mark.slow
def test_a_missing_rendezvous_is_one_line(tmp_path: Path) -> None:
    config = str(written("transformer", tmp_path))
    environment = {"WORLD_SIZE": "2", "SACCADE_RENDEZVOUS_SECONDS": "3"}
    command = ("saccade", "train", config, "--out", str(tmp_path / "run"))
    found = Together(1, *command, **environment).wait(180)
    assert found[0][0] == 2
    assert "rank 0 of 2: no rendezvous at 127.0.0.1" in found[0][2]
    assert len(found[0][2].splitlines()) == 1
    found = Together(1, *command, MASTER_ADDR="", **environment).wait(180)
    assert found[0][0] == 2
    assert "MASTER_ADDR not set" in found[0][2]


def test_no_thread_is_left_when_a_job_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES, ("0", "1", "127.0.0.1", str(free_port())), strict=True):
        monkeypatch.setenv(name, value)
    before = set(threading.enumerate())
    world = World()
    assert set(threading.enumerate()) > before
    world.close()
    assert set(threading.enumerate()) == before
