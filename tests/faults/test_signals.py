"""SIGTERM and Ctrl-C, in every phase of a run: exit 75 in time, and nothing is lost."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.faults.conftest import Small
from tests.faults.processes import Server, result_of

STEPS = 17
DECODER = "saccade.models.decoders:RecurrentDecoder.hidden"
PHASES: dict[str, list[tuple[str, int]]] = {
    "preparing": [
        ("saccade.setup.choose.survey", 1),
        ("saccade.setup.prepare.task_class", 1),
        ("saccade.text.tokenizers:Tokenizer.encode", 1),
        ("saccade.text.tokenizers:Tokenizer.encode", 9),
        ("saccade.setup.prepare.save_examples", 1),
        ("saccade.setup.prepare.write_corpus", 2),
    ],
    "training": [("saccade.training.trainer:Trainer.step", n) for n in (1, 4, 7, 10, 14, 17)],
    "evaluating": [
        ("saccade.tasks.translate:Translate.evaluate", 1),
        ("saccade.tasks.translate:Translate.evaluate", 2),
        ("saccade.tasks.translate:Translate.evaluate", 3),
        ("saccade.tasks.translate:Translate.evaluate", 4),  # the last, of all dev examples
        (DECODER, 1),
        ("saccade.training.trainer:Trainer.note", 2),
    ],
    "decoding": [(DECODER, n) for n in (2, 4, 6, 9, 13, 18)],
    "saving": [("save", n) for n in (25, 40, 55, 70, 90, 110)],
}
CASES = [(phase, where, n) for phase, cases in PHASES.items() for where, n in cases]


def stop_and_go_on(small: Small, server: Server, number: int, where: str, nth: int) -> None:
    expected, _ = small.straight("lstm", 0, STEPS)
    recipe, run = small.recipe("lstm", 0, STEPS), small.new()
    done = server.run("train", recipe, "--out", run, signal=[number, where, nth])
    assert done.code == 75, f"{done.code}: {done.said}"
    assert done.seconds < 10
    assert f"saccade resume {run}" in done.said
    assert "Traceback" not in done.said
    assert len(done.said.splitlines()) < 20
    again = server.run("resume", run)
    assert again.code == 0, again.said
    assert result_of(run) == expected


@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_any_phase_saves_and_exits_with_75(
    phase: str, small: Small, server: Server
) -> None:
    where, nth = PHASES[phase][1]
    stop_and_go_on(small, server, signal.SIGTERM, where, nth)


@pytest.mark.faults
@pytest.mark.parametrize(("phase", "where", "nth"), CASES)
def test_thirty_of_thirty_signals_save_and_exit_with_75(
    phase: str, where: str, nth: int, small: Small, server: Server
) -> None:
    stop_and_go_on(small, server, signal.SIGTERM, where, nth)


@pytest.mark.faults
@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_does_the_same(phase: str, small: Small, server: Server) -> None:
    where, nth = PHASES[phase][2]
    stop_and_go_on(small, server, signal.SIGINT, where, nth)


def stopped(server: Server, number: int, where: str, nth: int, run: Path, *words: object) -> None:
    done = server.run(*words, signal=[number, where, nth])
    assert done.code == 75, f"{done.code}: {done.said}"
    assert done.seconds < 10
    assert f"saccade resume {run}" in done.said
    assert "Traceback" not in done.said


RESUMING = [
    ("saccade.training.session.reopen", 1),
    ("saccade.runs.files.recover", 1),
    ("saccade.runs.files.digest", 1),
    ("saccade.runs.files.digest", 6),
    ("saccade.training.trainer:Trainer.restore", 1),
]
PREFLIGHT = [
    ("saccade.training.preflight.try_disk", 1),
    ("saccade.training.preflight.time_of", 1),
    ("saccade.training.preflight.time_of", 2),
    ("saccade.training.preflight.try_dev", 1),
]


def stop_while_resuming(small: Small, server: Server, number: int, where: str, nth: int) -> None:
    expected, _ = small.straight("lstm", 0, STEPS)
    recipe, run = small.recipe("lstm", 0, STEPS), small.new()
    step = "saccade.training.trainer:Trainer.step"
    stopped(server, number, step, 7, run, "train", recipe, "--out", run)
    stopped(server, number, where, nth, run, "resume", run)
    assert small.finish(recipe, run) == expected


def stop_in_the_preflight(small: Small, server: Server, number: int, where: str, nth: int) -> None:
    expected, _ = small.straight("lstm", 0, STEPS)
    recipe, run = small.recipe("lstm", 0, STEPS), small.new()
    words = ["train", recipe, "--out", run, "--set", "train.preflight=on"]
    stopped(server, number, where, nth, run, *words)
    assert small.finish(recipe, run) == expected


def test_a_signal_while_resuming_and_in_the_preflight_does_the_same(
    small: Small, server: Server
) -> None:
    stop_while_resuming(small, server, signal.SIGTERM, *RESUMING[0])
    stop_in_the_preflight(small, server, signal.SIGTERM, *PREFLIGHT[0])


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_so_does_any_signal_there(number: int, small: Small, server: Server) -> None:
    for where, nth in RESUMING:
        stop_while_resuming(small, server, number, where, nth)
    for where, nth in PREFLIGHT:
        stop_in_the_preflight(small, server, number, where, nth)


STUCK = [  # the model, where, after which step, in which of a step's or an evaluation's losses
    ("language model", "backward", 8, 2),
    ("language model", "forward", 13, 3),
    ("language model", "evaluation", 7, 2),
    ("lstm", "backward", 1, 1),
    ("lstm", "forward", 0, 1),
    ("lstm", "evaluation", 14, 1),
]


def stop_while_stuck(
    small: Small, server: Server, number: int, kind: str, where: str, step: int, nth: int
) -> None:
    """The call never ends, so that this thread can neither answer nor save."""
    recipe, run, straight = small.recipe(kind, 0, STEPS), small.new(), small.new()
    more = ["--set", "train.accumulate=3", "--set", "train.preflight=off"]
    carries = kind == "language model"
    more += ["--set", "task.context=8"] if carries else []
    assert server.run("train", recipe, "--out", straight, *more).code == 0
    words = ["train", recipe, "--out", run, *more]
    done = server.run(*words, stuck=[number, where, step, nth])
    assert done.code == 75, f"{done.code}: {done.said}"
    assert done.seconds < 10
    last = max((run / "checkpoints").glob("step-*"), default=run)
    assert last.name == f"step-{step:08d}"
    assert f"all is saved; go on with: saccade resume {run}" in done.said
    assert "Traceback" not in done.said
    state = json.loads((last / "state.json").read_text())
    assert state["pending"] == (where == "evaluation")
    assert (b"carry.0" in (last / "training.safetensors").read_bytes()) == carries
    assert small.finish(recipe, run) == result_of(straight)


def test_a_signal_in_a_call_that_does_not_come_back_saves_and_exits_with_75(
    small: Small, server: Server
) -> None:
    stop_while_stuck(small, server, signal.SIGTERM, *STUCK[0])


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("kind", "where", "step", "nth"), STUCK)
def test_so_does_any_signal_in_any_such_call(
    number: int, kind: str, where: str, step: int, nth: int, small: Small, server: Server
) -> None:
    stop_while_stuck(small, server, number, kind, where, step, nth)


@pytest.mark.faults
def test_a_process_that_cannot_answer_ends_in_time(small: Small, server: Server) -> None:
    expected, _ = small.straight("lstm", 0, STEPS)
    run = small.new()
    done = server.run("train", small.recipe("lstm", 0, STEPS), "--out", run, slow=60.0)
    assert done.code == 75
    assert done.seconds < 12  # 10 seconds after the signal
    assert f"saccade resume {run}" in done.said
    assert small.finish(small.recipe("lstm", 0, STEPS), run) == expected


@pytest.mark.parametrize("full", [False, True])
def test_nobody_goes_on_while_a_thread_saves(full: bool, tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import os, signal, time\n"
        "from saccade.training import stop as module\n"
        "module.PATIENCE = 0.2\n"
        "state = ['old']\n"
        "def save():\n"
        "    time.sleep(1)\n"
        f"    if {full}: raise OSError('the disk is full')\n"
        "    print('saved:', *state, flush=True)\n"
        "with module.Stop() as stop:\n"
        "    with stop.unchanged(save):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(0.6)\n"  # the end of a long call comes within the save
        "    state[0] = 'new'\n"
        "    print('went on', flush=True)\n"
        "    time.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=30, check=False, text=True
    )
    said = done.stderr.splitlines()[1:]  # behind "stopping"
    if full:  # as where this thread saves: an error, and no word of what was not saved
        assert (done.returncode, done.stdout, said) == (2, "", ["saccade: the disk is full"])
    else:
        assert (done.returncode, done.stdout, said) == (75, "saved: old\n", ["all is saved"])


def test_a_second_ctrl_c_ends_the_process_at_once(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import os, signal, time\n"
        "from saccade.training.stop import Stop\n"
        "with Stop() as stop:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    assert stop()\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"  # a second SIGTERM is the same request
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 130


def test_a_second_ctrl_c_does_not_wait_for_a_computation(tmp_path: Path) -> None:
    """While one call outside Python lasts, no handler of Python's can run."""
    import subprocess
    import sys
    import time

    code = (
        "import hashlib, os, signal, threading\n"
        "from saccade.training.stop import Stop\n"
        "with Stop() as stop:\n"
        "    for seconds in (0.2, 0.5):\n"
        "        kill = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))\n"
        "        kill.daemon = True\n"
        "        kill.start()\n"
        "    hashlib.pbkdf2_hmac('sha256', b'a', b'b', 2**31 - 1)\n"  # many minutes
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 130
    assert time.monotonic() - began < 6  # less than anybody's patience


def test_a_second_process_is_refused_and_a_dead_one_is_not_in_the_way(tmp_path: Path) -> None:
    from saccade.errors import CheckpointError
    from saccade.runs.folder import locked
    from saccade.training.session import resume, start
    from tests.helpers import new_folder, settings

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
