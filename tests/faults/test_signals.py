"""SIGTERM, Ctrl-C and kill -9, in every phase of a run: nothing is lost, and exit 75 in time."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from saccade.errors import CheckpointError
from saccade.runs.folder import locked
from saccade.training.session import resume, start
from tests.faults.conftest import KINDS, Small
from tests.faults.processes import Outcome, result_of
from tests.helpers import new_folder, settings

STEPS = 17
SECONDS = 10.0  # from a signal to the end of the process: measured in the tier of faults alone
DECODER = "saccade.models.decoders:RecurrentDecoder.hidden"
STEP = "saccade.training.trainer:Trainer.step"
EVALUATE = "saccade.tasks.translate:Translate.evaluate_answers"
ENCODE = "saccade.text.tokenizers:Tokenizer.encode"
PHASES: dict[str, list[tuple[str, int]]] = {
    "preparing": [
        ("saccade.setup.prepare.task_class", 1), (ENCODE, 1),
        (ENCODE, 9), ("saccade.setup.prepare.save_examples", 1),
        ("saccade.setup.prepare.write_corpus", 2),
    ],
    "training": [(STEP, n) for n in (1, 4, 7, 10, 14, 17)],
    "evaluating": [  # the fourth is the last, of all dev examples
        *((EVALUATE, n) for n in (1, 2, 3, 4)), (DECODER, 1),
        ("saccade.training.trainer:Trainer.record", 2),
    ],
    "decoding": [(DECODER, n) for n in (2, 4, 6, 9, 13, 18)],
    "saving": [("save", n) for n in (25, 40, 55, 70, 90, 110)],
}  # fmt: skip
RESUMING = [
    ("saccade.training.session.reopen", 1), ("saccade.runs.checkpoints.recover", 1),
    ("saccade.runs.files.digest", 1), ("saccade.runs.files.digest", 6),
    ("saccade.training.session.restore", 1),
]  # fmt: skip
CHECKS = (("try_disk", 1), ("time_of", 1), ("time_of", 2), ("try_dev", 1))
PREFLIGHT = [(f"saccade.training.preflight.{name}", nth) for name, nth in CHECKS]
PREFLIGHT_ON = ("--set", "train.preflight=on")
both = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


def stopped(small: Small, run: Path, *words: object, **fault: Any) -> Outcome:
    """A command that is asked to stop, and does so with a word on how to go on."""
    done = small.server.run(*words, **fault)
    assert done.code == 75, f"{done.code}: {done.said}"
    assert f"saccade resume {run}" in done.said
    assert "Traceback" not in done.said
    assert len(done.said.splitlines()) < 20
    return done


def stop_and_go_on(small: Small, number: int, where: str, nth: int, *more: str) -> Outcome:
    recipe, run = small.recipe("lstm", 0, STEPS), small.new()
    done = stopped(small, run, "train", recipe, "--out", run, *more, signal=[number, where, nth])
    assert small.finish(recipe, run) == small.straight(recipe)[0]
    return done


def stop_while_resuming(small: Small, number: int, where: str, nth: int) -> Outcome:
    recipe, run = small.recipe("lstm", 0, STEPS), small.new()
    stopped(small, run, "train", recipe, "--out", run, signal=[number, STEP, 7])
    done = stopped(small, run, "resume", run, signal=[number, where, nth])
    assert small.finish(recipe, run) == small.straight(recipe)[0]
    return done


@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_any_phase_saves_and_exits_with_75(phase: str, small: Small) -> None:
    stop_and_go_on(small, signal.SIGTERM, *PHASES[phase][1])


def test_a_signal_while_resuming_and_in_the_preflight_does_the_same(small: Small) -> None:
    stop_while_resuming(small, signal.SIGTERM, *RESUMING[0])
    stop_and_go_on(small, signal.SIGTERM, *PREFLIGHT[0], *PREFLIGHT_ON)


@both
def test_a_signal_before_the_data_is_known_leaves_nothing_and_says_so(
    number: int, small: Small
) -> None:
    recipe, run = small.recipe("lstm", 0, STEPS), small.new()
    where = [number, "saccade.setup.choose.survey", 1]
    done = small.server.run("train", recipe, "--out", run, signal=where)
    assert done.code == 75
    assert "stopped before there was anything to save: give the same command again" in done.said
    assert "all is saved" not in done.said
    assert "resume" not in done.said
    assert not run.exists()


@pytest.mark.faults
@pytest.mark.parametrize("phase", PHASES)
@both
def test_any_signal_saves_and_exits_with_75_in_time(number: int, phase: str, small: Small) -> None:
    for where, nth in PHASES[phase]:
        assert stop_and_go_on(small, number, where, nth).seconds < SECONDS


@pytest.mark.faults
@both
def test_so_does_any_while_resuming_and_in_the_preflight(number: int, small: Small) -> None:
    for where, nth in RESUMING:
        assert stop_while_resuming(small, number, where, nth).seconds < SECONDS
    for where, nth in PREFLIGHT:
        assert stop_and_go_on(small, number, where, nth, *PREFLIGHT_ON).seconds < SECONDS


# --- calls that do not come back ------------------------------------------------------------------

STUCK = [  # the model, where, after which step, in which of a step's or an evaluation's losses
    ("language model", "backward", 8, 2), ("language model", "forward", 13, 3),
    ("language model", "evaluation", 7, 2), ("lstm", "backward", 1, 1), ("lstm", "forward", 0, 1),
    ("lstm", "evaluation", 14, 1),
]  # fmt: skip


def stop_while_stuck(
    small: Small, number: int, kind: str, where: str, step: int, nth: int, **faults: Any
) -> Outcome:
    """The call never ends, so that this thread can neither answer nor save."""
    recipe, run, carries = small.recipe(kind, 0, STEPS), small.new(), kind == "language model"
    more = ["--set", "train.accumulate=3", "--set", "train.preflight=off"]
    more += ["--set", "task.context=8"] if carries else []
    faults["stuck"] = [number, where, step, nth]
    done = stopped(small, run, "train", recipe, "--out", run, *more, **faults)
    assert "all is saved; go on with" in done.said
    last = max((run / "checkpoints").glob("step-*"), default=run)
    assert last.name == f"step-{step:08d}"
    assert json.loads((last / "state.json").read_text())["pending"] == (where == "evaluation")
    assert (b"carry.0" in (last / "training.safetensors").read_bytes()) == carries
    assert small.finish(recipe, run) == small.straight(recipe, *more)[0]
    return done


def test_a_signal_in_a_call_that_does_not_come_back_saves_and_exits_with_75(small: Small) -> None:
    stop_while_stuck(small, signal.SIGTERM, *STUCK[0], patience=[0.3])


@pytest.mark.faults
@both
@pytest.mark.parametrize(("kind", "where", "step", "nth"), STUCK)
def test_so_does_any_signal_in_any_such_call(
    number: int, kind: str, where: str, step: int, nth: int, small: Small
) -> None:
    assert stop_while_stuck(small, number, kind, where, step, nth).seconds < SECONDS


@pytest.mark.faults
def test_a_process_that_cannot_answer_ends_in_time(small: Small) -> None:
    recipe, run = small.recipe("lstm", 0, STEPS), small.new()
    done = stopped(small, run, "train", recipe, "--out", run, slow=[60.0])
    assert done.seconds < SECONDS + 2
    assert small.finish(recipe, run) == small.straight(recipe)[0]


# --- kill -9 --------------------------------------------------------------------------------------


def kill_often(small: Small, kind: str, workers: int, kills: int, steps: int) -> None:
    """Kill runs at random moments, resume them, kill them again; what they give at the end."""
    expected, seconds = small.straight(small.recipe(kind, 0, steps))
    recipe, numbers, done = small.recipe(kind, workers, steps), random.Random(kills), 0
    while done < kills:
        run, ended = small.new(), False
        while done < kills and not ended:
            known = (run / "config.toml").exists()
            words = ["resume", run] if known else ["train", recipe, "--out", run]
            outcome = small.server.run(*words, kill_after=numbers.uniform(0.0, seconds))
            assert outcome.code in (-9, 0), outcome.said
            done, ended = done + (outcome.code == -9), outcome.code == 0
        assert (result_of(run) if ended else small.finish(recipe, run)) == expected


def test_a_killed_run_goes_on_as_if_it_had_not_been(small: Small) -> None:
    kill_often(small, "language model", 2, 3, steps=30)


@pytest.mark.faults
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_fifty_killed_runs_do(kind: str, workers: int, small: Small) -> None:
    kill_often(small, kind, workers, 50, steps=60)


@pytest.mark.faults
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_any_call_of_a_save_is_survived(kind: str, workers: int, small: Small) -> None:
    expected, _ = small.straight(small.recipe(kind, 0, STEPS))
    recipe = small.recipe(kind, workers, STEPS)
    for number in range(1, 1000):  # of the third save, when older ones are removed
        run = small.new()
        done = small.server.run("train", recipe, "--out", run, die_at=[3, number])
        if done.code == 0:
            break
        assert done.code == -9, done.said
        assert small.finish(recipe, run) == expected
        shutil.rmtree(run)
    assert 25 < number < 999, "a save has as many calls as that"


# --- two requests, two processes ------------------------------------------------------------------


def python(code: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, timeout=60, check=False, text=True)


@pytest.mark.parametrize("full", [False, True])
def test_nobody_goes_on_while_a_thread_saves(full: bool) -> None:
    done = python(
        "import os, signal, time\n"
        "from saccade.training import stop as module\n"
        "module.PATIENCE_SECONDS = 0.1\n"
        "state = ['old']\n"
        "def save():\n"
        "    time.sleep(0.4)\n"
        f"    if {full}: raise OSError('the disk is full')\n"
        "    print('saved:', *state, flush=True)\n"
        "with module.Stop() as stop:\n"
        "    with stop.unchanged(save):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(0.3)\n"  # the end of a long call comes within the save
        "    state[0] = 'new'\n"
        "    print('went on', flush=True)\n"
        "    time.sleep(60)\n"
    )
    said = done.stderr.splitlines()[1:]  # behind "stopping"
    if full:  # as where this thread saves: an error, and no word of what was not saved
        assert (done.returncode, done.stdout, said) == (2, "", ["saccade: the disk is full"])
    else:
        assert (done.returncode, done.stdout, said) == (75, "saved: old\n", ["all is saved"])


def test_a_second_ctrl_c_ends_the_process_at_once() -> None:
    done = python(
        "import os, signal, time\n"
        "from saccade.training.stop import Stop\n"
        "with Stop() as stop:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    assert stop()\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"  # a second SIGTERM is the same request
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(60)\n"
    )
    assert done.returncode == 130


def test_a_second_ctrl_c_does_not_wait_for_a_computation() -> None:
    """While one call outside Python lasts, no handler of Python's can run."""
    done = python(
        "import hashlib, os, signal, threading\n"
        "from saccade.training import stop\n"
        "stop.PATIENCE_SECONDS = stop.GRACE_SECONDS = 60\n"  # nobody else ends the process
        "with stop.Stop():\n"
        "    for seconds in (0.1, 0.2):\n"
        "        kill = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))\n"
        "        kill.daemon = True\n"
        "        kill.start()\n"
        "    hashlib.pbkdf2_hmac('sha256', b'a', b'b', 2**31 - 1)\n"  # many minutes
    )
    assert done.returncode == 130


def test_a_second_process_is_refused_and_a_dead_one_is_not_in_the_way(tmp_path: Path) -> None:
    config = settings("lstm", tmp_path)
    folder = new_folder(config, tmp_path / "run")
    events = start(config, folder)
    next(events)
    with pytest.raises(CheckpointError, match=f"another process \\({os.getpid()}\\)"):
        next(resume(folder))
    events.close()
    with locked(folder):
        pass
    assert (folder / ".lock").exists()  # what a dead process leaves does not lock
    list(resume(folder))
