"""The errors of a full disk or memory: what failed, which checkpoint is left, what to do."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from saccade.errors import TrainingError
from saccade.runs import checkpoints
from saccade.runs.machine import out_of_memory

Work = tuple[str, str]  # what needs memory, and the advice if it is not enough


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Inside, a disk that is full or fails is a TrainingError."""
    try:
        yield
    except OSError as error:
        raise disk_failure(folder, folder, error) from None


def disk_failure(path: Path, folder: Path, error: OSError) -> TrainingError:
    """The error of a run's file that cannot be written."""
    return _stopped(f"{path}: cannot be written: {error.strerror or error}", "make room", folder)


@contextmanager
def within_memory(folder: Path, doing: Callable[[], Work | None]) -> Iterator[None]:
    """Inside, out of memory is a TrainingError: for work that cannot be split into parts.

    `doing` gives the work and the advice; None where the caller handles the error itself.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if (known := doing()) is None or not out_of_memory(error):
            raise
        reason, (work, advice) = (str(error).splitlines() or ["no memory"])[0], known
        raise _stopped(f"{folder}: out of memory in {work} ({reason})", advice, folder) from None


def _stopped(problem: str, advice: str, folder: Path) -> TrainingError:
    last, _ = checkpoints.latest(folder / "checkpoints")
    left = f"{last.name} is intact" if last else "there is no checkpoint yet"
    known = (folder / "config.toml").is_file()
    again = f": saccade resume {shlex.quote(str(folder))}" if known else " try again"
    return TrainingError(f"{problem}; training has stopped, {left}; {advice}, then{again}")
