"""Stopping and going on: means, put-off evaluations, raised limits, workers, preflights."""

import json
import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import saccade
from saccade.data.batches import Loader
from saccade.errors import CheckpointError, ConfigError, TrainingError
from saccade.models.networks import Generator
from saccade.runs import checkpoints, files
from saccade.runs.folder import read_config, write_settings
from saccade.tasks.translate import Translate
from saccade.training import loop, preflight, session
from saccade.training.events import Changed, Evaluated, Finished, Noticed, Prepared
from saccade.training.gradients import Gradients
from saccade.training.report import show
from saccade.training.session import new_folder, resume, start
from saccade.training.stop import Interrupted, Stop
from tests.helpers import SMALL, corpus, run_through, same_weights, settings, until, weights


@pytest.mark.parametrize(("which", "halts"), [("last", [4, 7]), ("best", [1, 10])])
def test_checkpoints_that_a_signal_causes_leave_no_trace_in_a_mean(
    which: str, halts: list[int], tmp_path: Path
) -> None:
    more = {"average_checkpoints": 3, "average_of": which, "average": 0.0, "keep": 1}
    config = settings("lstm", tmp_path, **more)
    run_through(config, tmp_path / "straight")
    run_through(config, tmp_path / "halted", stop_after=halts[0])
    for halt in [*halts[1:], None]:
        list(until(halt, lambda stop: resume(tmp_path / "halted", stop)))
    assert same_weights(tmp_path / "straight", tmp_path / "halted")


@pytest.mark.parametrize("which", ["last", "best"])
@pytest.mark.parametrize("missing", [False, True], ids=["damaged", "missing"])
def test_a_mean_leaves_out_what_is_not_sound_and_says_so(
    which: str, missing: bool, tmp_path: Path
) -> None:
    more = {"average_checkpoints": 3, "average_of": which, "average": 0.0, "save_every": 4}
    run_through(settings("lstm", tmp_path, **more), tmp_path / "run", stop_after=9)
    folder = tmp_path / "run" / "checkpoints"
    first = folder / "step-00000004"
    if missing:
        shutil.rmtree(first)
    else:
        (first / "model.safetensors").write_bytes(b"?" * 100)
    said = [e.text for e in resume(tmp_path / "run") if isinstance(e, Noticed)]
    assert len(said) == 1
    assert str(first) in said[0]
    assert said[0].endswith("left out of the average")
    others = [folder / f"step-{step:08d}" for step in (8, 12)]
    expected, problems = checkpoints.mean(others)
    assert not problems
    assert all(torch.equal(w, expected[name]) for name, w in weights(tmp_path / "run").items())
    with pytest.raises(CheckpointError, match="step-00000004"):
        checkpoints.mean([first])


@pytest.mark.parametrize("name", ["language model", "lstm"])
def test_a_step_is_left_between_its_batches(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of many batches may take longer than the time to stop in."""
    config = settings(name, tmp_path, accumulate=3, preflight="off")
    run_through(config, tmp_path / "straight")
    folder, stop = new_folder(config, tmp_path / "run"), Stop()
    real, after = Generator.forward, 0

    def forward(self: Any, *words: Any) -> Any:
        nonlocal after
        after += stop.requested
        stop.requested |= torch.is_grad_enabled() and steps == 5
        return real(self, *words)

    monkeypatch.setattr(Generator, "forward", forward)
    steps = 0
    with mock.patch.object(loop, "REPORT_SECONDS", 0.0):
        for event in start(config, folder, stop):
            steps = max(steps, getattr(event, "step", 0))
    assert isinstance(event, Finished)
    assert (event.reason, event.step) == ("stopped", 5)
    assert not after
    assert checkpoints.latest(folder / "checkpoints")[0] == folder / "checkpoints/step-00000005"
    monkeypatch.undo()
    list(resume(folder))
    assert same_weights(tmp_path / "straight", folder)


def test_nobody_waits_for_the_order_of_an_epoch_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings("lstm", tmp_path, save_every=100)
    run_through(config, tmp_path / "straight")
    folder, real, waited = new_folder(config, tmp_path / "run"), Translate.epoch, False

    def epoch(self: Any, corpus: Any, number: int) -> Any:
        nonlocal waited
        if number == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(6)
            waited = True
        return real(self, corpus, number)

    monkeypatch.setattr(Translate, "epoch", epoch)
    with Stop() as stop:
        *_, last = start(config, folder, stop)
    assert isinstance(last, Finished)
    assert last.reason == "stopped"
    assert not waited
    monkeypatch.undo()
    assert [event.start for event in resume(folder) if isinstance(event, Prepared)] == [last.step]
    assert same_weights(tmp_path / "straight", folder)


def test_work_inside_work_that_may_be_left_changes_nothing_of_it() -> None:
    left = []
    with Stop() as stop:
        try:
            with stop.interruptible():
                with stop.interruptible():
                    pass
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.1)
                left.append("too late")
        except Interrupted:
            left.append("at once")
    assert left == ["at once"]


def test_a_run_that_ends_by_patience_remembers_it(tmp_path: Path) -> None:
    more = {"steps": 1000, "patience": 3, "rate": 1e-9, "evaluate_every": 2, "save_every": 5}
    config = settings("lstm", tmp_path, **more)
    straight = run_through(config, tmp_path / "straight")
    worse = [e.step for e in straight if isinstance(e, Evaluated) and not e.best]
    assert len(worse) >= 3
    for number, halt in enumerate([worse[0] - 1, worse[0], worse[-1] - 1]):
        folder = tmp_path / str(number)
        events = run_through(config, folder, stop_after=halt)
        assert (events[-1].step, events[-1].reason) == (halt, "stopped")
        end = list(resume(folder))[-1]
        assert (end.step, end.reason) == (straight[-1].step, straight[-1].reason)
        assert same_weights(tmp_path / "straight", folder)


def test_a_run_that_is_being_checked_can_already_be_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashing may take longer than the time to stop in; what is printed then needs the folder."""
    run_through(settings("lstm", tmp_path), tmp_path / "run", stop_after=3)
    real, stop, known = files.digest, Stop(), []

    def digest(path: Path) -> str:
        known.append(stop.folder)
        return real(path)

    monkeypatch.setattr(files, "digest", digest)
    list(resume(tmp_path / "run", stop))
    assert set(known) == {tmp_path / "run"}


class StopInEvaluation(Stop):
    """Asked for while the nth evaluation is under way."""

    def __init__(self, nth: int):
        super().__init__()
        self.nth, self.times = nth, 0

    def interruptible(self) -> Any:
        self.times += 1
        self.requested |= self.times == self.nth
        return super().interruptible()


@pytest.mark.parametrize("nth", [3, 5, 6])
def test_an_evaluation_that_was_cut_off_is_done_first(nth: int, tmp_path: Path) -> None:
    """1 is preparing, 2 the preflight, 3 to 5 the evaluations, 6 the last one of all."""
    config = settings("tagger", tmp_path, schedule="plateau")
    straight = run_through(config, tmp_path / "straight")
    folder = new_folder(config, tmp_path / "run")
    events = list(start(config, folder, StopInEvaluation(nth)))
    assert events[-1].reason == "stopped"
    found = [e for e in [*events, *resume(folder)] if isinstance(e, Evaluated)]
    assert same_weights(tmp_path / "straight", folder)
    expected = [e for e in straight if isinstance(e, Evaluated)]
    assert [(e.step, e.scores, e.best) for e in found] == [
        (e.step, e.scores, e.best) for e in expected
    ]


def test_a_run_that_was_stopped_while_preparing_is_prepared_again(tmp_path: Path) -> None:
    config = settings("lstm", tmp_path)
    run_through(config, tmp_path / "straight")
    folder = new_folder(config, tmp_path / "run")
    stop = Stop()
    stop.requested = True
    assert [e.reason for e in start(config, folder, stop) if isinstance(e, Finished)] == ["stopped"]
    with pytest.raises(CheckpointError, match=f"saccade resume {folder}"):
        saccade.load(folder)
    list(resume(folder))
    assert same_weights(tmp_path / "straight", folder)


def test_a_run_of_which_only_the_settings_are_known_is_completed(tmp_path: Path) -> None:
    raw = SMALL["lstm"] | {"data": {"train": [str(corpus(tmp_path, "translate"))]}}
    raw |= {"task": {"kind": "translate"}, "train": {"steps": 3}}
    folder = tmp_path / "run"
    folder.mkdir()
    write_settings(folder, raw, prepared=False)
    list(resume(folder))
    assert read_config(folder).train.steps == 3
    assert saccade.load(folder).predict(["ab"])


# --- changes --------------------------------------------------------------------------------------


def test_a_raised_limit_is_said_and_written_down(tmp_path: Path) -> None:
    constant = {"schedule": "constant", "warmup": 1}
    run_through(settings("lstm", tmp_path, **constant), tmp_path / "run")
    longer = settings("lstm", tmp_path, steps=20, **constant)
    run_through(longer, tmp_path / "straight")
    folder = tmp_path / "run"
    found = list(show(resume(folder, settings={"train.steps": 20}), folder, quiet=True))
    assert [e for e in found if isinstance(e, Changed)] == [Changed("train.steps", 12, 20)]
    assert found[-1].step == 20
    assert read_config(folder).train.steps == 20
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {"event": "Changed", "key": "train.steps", "old": 12, "new": 20} in records
    ends = [checkpoints.paths(tmp_path / name / "checkpoints")[-1] for name in ("run", "straight")]
    one, other = (files.read_tensors(end / "training.safetensors") for end in ends)
    assert all(torch.equal(one[key], other[key]) for key in one)  # as if it had been 20 all along


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"train.rate": 0.1}, "train.rate: cannot be changed on resume: only limits can be raised"),
        ({"seed": 3}, "only limits can be raised"),
        ({"train.steps": 3}, "is below the 12"),
        ({"train.epochs": 3}, "no such limit; it has train.steps = 12, train.patience = 50: raise"),
        ({"train.steps": "many"}, "train.steps"),
    ],
)
def test_other_changes_are_refused(settings_: dict[str, Any], words: str, tmp_path: Path) -> None:
    run_through(settings("lstm", tmp_path), tmp_path / "run", stop_after=3)
    before = (tmp_path / "run" / "config.toml").read_text()
    with pytest.raises(ConfigError, match=words):
        list(resume(tmp_path / "run", settings=settings_))
    assert (tmp_path / "run" / "config.toml").read_text() == before


def test_an_edited_configuration_is_noticed(tmp_path: Path) -> None:
    run_through(settings("lstm", tmp_path), tmp_path / "run", stop_after=3)
    path = tmp_path / "run" / "config.toml"
    whole = path.read_text()
    path.write_text(whole.replace("steps = 12", "steps = 6"))
    found = list(resume(tmp_path / "run"))
    assert [e.key for e in found if isinstance(e, Changed)] == ["train.steps"]
    path.write_text(whole.replace("seed = 1", "seed = 2"))
    with pytest.raises(CheckpointError, match="seed was 1 when the run was stopped, and is 2 now"):
        list(resume(tmp_path / "run"))


# --- workers and preflights -----------------------------------------------------------------------


@pytest.mark.parametrize(("name", "accumulate"), [("transformer", 3), ("language model", 1)])
def test_workers_change_nothing(name: str, accumulate: int, tmp_path: Path) -> None:
    for workers in (0, 2):
        config = settings(name, tmp_path, workers=workers, accumulate=accumulate)
        run_through(config, tmp_path / str(workers))
    assert same_weights(tmp_path / "0", tmp_path / "2")


def test_workers_give_the_batches_of_every_epoch_in_order(tmp_path: Path) -> None:
    from saccade.setup.prepare import prepare

    config = settings("transformer", tmp_path)
    ready = prepare(config, tmp_path)
    plain, ahead = (Loader(partial(ready.task.epoch, ready.train), workers) for workers in (0, 2))
    for epoch in (0, 1, 5, 0):  # and back again
        start = 2 if epoch == 5 else 0
        while start < len(plain.epoch(epoch)):
            some = [loader.take(epoch, start, 3) for loader in (plain, ahead)]
            assert len(some[0]) == len(some[1])
            for one, other in zip(*some, strict=True):
                assert torch.equal(one.target.values, other.target.values)
            start += 3
    ahead.close()


@pytest.mark.parametrize("name", ["transformer", "language model", "tagger"])
def test_a_preflight_leaves_no_trace(name: str, tmp_path: Path) -> None:
    for wanted in ("off", "on"):
        config = settings(name, tmp_path, preflight=wanted)
        events = run_through(config, tmp_path / wanted)
        said = [e.text for e in events if isinstance(e, Noticed)]
        assert len(said) == (wanted == "on")
    assert said[0].startswith("preflight: the largest batch took")
    assert same_weights(tmp_path / "off", tmp_path / "on")
    assert not (tmp_path / "on" / "preflight").exists()


def test_a_preflight_tells_that_the_disk_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collections import namedtuple

    usage = namedtuple("usage", "free")(100_000)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(
        TrainingError, match=r"needs .* MB for 10 checkpoints, and the disk has 0.1"
    ):
        run_through(settings("lstm", tmp_path, preflight="on"), tmp_path / "run")


def noticed(config: Any, folder: Path) -> str:
    """The first thing that a run says, and then it is left."""
    for event in start(config, new_folder(config, folder)):
        if isinstance(event, Noticed):
            return event.text
    return ""


@pytest.mark.parametrize(
    ("what", "where", "name"),
    [
        ("the largest batch", Gradients, "sum"),
        ("a checkpoint", files, "write_manifest"),
        ("an evaluation", Translate, "evaluate"),
    ],
)
def test_a_preflight_ends_in_time_whatever_is_slow(
    what: str, where: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came_to_its_end = False

    def endless(*words: Any, **named: Any) -> Any:
        nonlocal came_to_its_end
        until = time.monotonic() + 20
        while time.monotonic() < until:
            pass
        came_to_its_end = True

    config = settings("lstm", tmp_path, preflight="on")
    folder = tmp_path / "run"
    real, said = session.preflight, ""

    def only_now(*words: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(preflight, "PREFLIGHT_SECONDS", 1.0)
            patch.setattr(where, name, endless)
            yield from real(*words)

    monkeypatch.setattr(session, "preflight", only_now)
    said = noticed(config, folder)
    assert f"timed out: {what}" in said
    assert not came_to_its_end
    assert not (folder / "preflight").exists()


def test_a_preflight_tries_a_slow_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = preflight.time_of, 0

    def time_of(*words: Any) -> float:
        nonlocal calls
        calls += 1
        time.sleep(0.6)
        return real(*words)

    monkeypatch.setattr(preflight, "time_of", time_of)
    for most, expected in ((3.0, 1), (30.0, 2)):
        calls = 0
        monkeypatch.setattr(preflight, "PREFLIGHT_SECONDS", most)
        noticed(settings("lstm", tmp_path, preflight="on"), tmp_path / str(expected))
        assert calls == expected


def test_a_short_run_has_no_preflight_and_a_long_one_has(tmp_path: Path) -> None:
    for steps, wanted in ((12, 0), (10**7, 1)):
        config = settings("lstm", tmp_path, steps=steps)
        events = run_through(config, tmp_path / str(steps), stop_after=2)
        assert len([e for e in events if isinstance(e, Noticed)]) == wanted
        assert any(isinstance(e, Prepared) for e in events)


def test_stopping_in_the_midst_is_an_interrupt_only_where_it_may_be() -> None:
    import os
    import signal

    def work(stop: Stop) -> None:
        with stop.interruptible():
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("not reached")

    with Stop() as stop:
        for _ in range(2):  # the second time because it was asked before
            with pytest.raises(Interrupted):
                work(stop)
            assert stop()
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
