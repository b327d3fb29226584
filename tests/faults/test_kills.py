"""kill -9, for real: at random moments, and at every I/O call of a save."""

import random
from pathlib import Path

import pytest

from tests.faults.conftest import KINDS, Small
from tests.faults.processes import Server, result_of

STEPS = 60


def kill_often(
    small: Small, kind: str, workers: int, kills: int, seed: int, steps: int = STEPS
) -> None:
    """Kill runs at random moments, resume them, kill them again; what they give at the end."""
    numbers, server = random.Random(seed), small.server
    expected, seconds = small.straight(kind, 0, steps)
    recipe = small.recipe(kind, workers, steps)
    done = 0
    while done < kills:
        run, ended = small.new(), False
        while done < kills and not ended:
            known = (run / "config.toml").exists()
            words = ["resume", run] if known else ["train", recipe, "--out", run]
            outcome = server.run(*words, kill_after=numbers.uniform(0.0, seconds))
            assert outcome.code in (-9, 0), outcome.said
            done, ended = done + (outcome.code == -9), outcome.code == 0
        assert (result_of(run) if ended else small.finish(recipe, run)) == expected


def test_a_killed_run_goes_on_as_if_it_had_not_been(small: Small) -> None:
    kill_often(small, "language model", 2, 3, seed=1, steps=30)


@pytest.mark.faults
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_fifty_killed_runs_go_on_as_if_they_had_not_been(
    kind: str, workers: int, small: Small
) -> None:
    kill_often(small, kind, workers, 50, seed=2)


@pytest.mark.faults
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_any_call_of_a_save_is_survived(
    kind: str, workers: int, small: Small, server: Server
) -> None:
    recipe = small.recipe(kind, workers, 17)
    expected, _ = small.straight(kind, 0, 17)
    calls, number = 1, 0
    while number < calls:  # of the third save, when older ones are removed
        number += 1
        run = small.new()
        done = server.run("train", recipe, "--out", run, die_at=[3, number])
        if done.code == 0:
            break
        assert done.code == -9, done.said
        calls = number + 1
        assert small.finish(recipe, run) == expected
        shorten(run)
    assert number > 25, "a save has as many calls as that"


def shorten(run: Path) -> None:
    """Nobody reads it again."""
    import shutil

    shutil.rmtree(run)
