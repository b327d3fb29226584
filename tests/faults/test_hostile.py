"""Run directories made by an attacker: a CheckpointError each, little memory, and nothing else.

A hostile run may take 1.5 times the size of its files, and what text needs at most, a constant: a
JSON value takes many times the memory of its two or three bytes, so that no multiple bounds it.
"""

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import saccade
from saccade.errors import CheckpointError
from saccade.runs import files, guard
from saccade.verify import verify
from tests.faults import hostile
from tests.faults.hostile import LM, Edit, UnchangedError, checkpoint_of
from tests.faults.hostile_uses import used
from tests.faults.processes import MB, PYTHON, Server
from tests.helpers import GOLDEN

EDITS = [*hostile.EDITS, *used()]
RUNS = sorted(path.name for path in GOLDEN.iterdir())


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound run with a network and a checkpoint of tens of megabytes."""
    run = tmp_path_factory.mktemp("large") / "run"
    hostile.make_large(run)
    return run


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """A test that opens a pipe would wait for ever: end it."""
    timer = threading.Timer(300, os._exit, [1])
    timer.start()
    yield
    timer.cancel()


def attack(edit: Edit, base: Path, folder: Path, server: Server) -> None:
    """An edited run is refused, and nothing outside of it is written."""
    run, outside = folder / "run", folder / "outside"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, run)
    outside.mkdir()
    (outside / "secret.txt").write_text("do not touch\n")
    if edit.work == "resume":
        config = run / "config.toml"
        config.write_text(re.sub(r"steps = 150", "steps = 152", config.read_text()))
    edit.apply(run)
    before = {p: p.read_bytes() for p in outside.rglob("*") if p.is_file()}
    assert edit.says in server.refuses(edit.work, run, edit.name, edit.allowance)
    assert before == {p: p.read_bytes() for p in outside.rglob("*") if p.is_file()}


@pytest.mark.parametrize("number", range(len(EDITS)), ids=lambda number: EDITS[number].name)
def test_a_hostile_run_is_refused(number: int, large: Path, tmp_path: Path, server: Server) -> None:
    edit = EDITS[number]
    if edit.base == "any":
        bases = [GOLDEN / RUNS[(number + i) % len(RUNS)] for i in range(len(RUNS))]
    else:
        bases = [large if edit.base == "large" else GOLDEN / edit.base]
    for base in bases:
        try:
            attack(edit, base, tmp_path / "scene", server)
            return
        except UnchangedError:
            continue
    pytest.fail("there is no run that the edit changes")


@pytest.mark.faults
@pytest.mark.parametrize("name", RUNS)
def test_every_hostile_edit_of_every_run_is_refused(
    name: str, tmp_path: Path, server: Server
) -> None:
    more = hostile.resumed(True) if name == LM else ()
    for edit in (*hostile.loaded(), *more, *used(True)):
        if edit.base in ("any", name):
            with suppress(UnchangedError):
                attack(edit, GOLDEN / name, tmp_path / "scene", server)


def test_what_measures_memory_sees_it(server: Server) -> None:
    for _ in range(3):  # and again, when the first has left its memory to the second
        if not (peak := server.measure("numbers", Path()).peak):
            pytest.skip("this system does not let a process set its peak of memory back")
        assert 39 * MB <= peak < 43 * MB
        assert 5 * MB <= server.measure("texts", Path()).peak < 12 * MB


def test_what_watches_sees_what_is_done(server: Server, tmp_path: Path) -> None:
    done = server.measure("harm", tmp_path / "run").done
    assert [word.split()[0] for word in done] == ["compile", "exec", "open"]


def test_a_model_and_a_state_take_no_more_than_their_own_files(large: Path, server: Server) -> None:
    """Beside the network and its average each tensor of a state is read to where it stays."""
    weights = (large / "model.safetensors").stat().st_size
    state = (checkpoint_of(large) / "training.safetensors").stat().st_size
    assert min(weights, state) > PYTHON
    assert server.measure("load", large).peak < 1.2 * weights + PYTHON
    assert int(server.measure("restore", large).said) < 1.2 * state + weights + PYTHON


def test_a_vocabulary_that_the_weights_are_large_enough_for_is_read(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same words are refused where there is next to nothing else."""
    monkeypatch.setattr(guard, "JSON_MEMORY_BYTES", MB)
    for base, words in ((GOLDEN / LM, "would take"), (large, "does not fit config.toml")):
        shutil.copytree(base, tmp_path / base.name)
        hostile.words(2000)(tmp_path / base.name)
        with pytest.raises(CheckpointError, match=words):
            saccade.load(tmp_path / base.name)


def test_data_of_another_run_is_neither_measured_nor_verified(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / LM, tmp_path / "run")
    data, run = tmp_path / "run" / "data", saccade.load(tmp_path / "run")
    (data / files.MANIFEST).unlink()
    for name, work in (("dev", run.evaluate), ("train", lambda: list(verify(run.folder)))):
        ids = data / f"{name}.target.ids"
        before = ids.read_bytes()
        np.full(len(before) // 4, 10**6, np.int32).tofile(ids)
        with pytest.raises(CheckpointError, match="does not fit this run"):
            work()
        ids.write_bytes(before)
    (data / "dev.jsonl").write_text("")
    with pytest.raises(CheckpointError, match="no example"):
        list(verify(run.folder))
