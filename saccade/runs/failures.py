"""What to say when the disk or the memory ends: what failed, what is left, what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from saccade.errors import TrainingError
from saccade.runs import checkpoints
from saccade.runs.machine import out_of_memory


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
def within_memory(folder: Path, work: str, advice: str) -> Iterator[None]:
    """Inside, memory that ends is a TrainingError: for work that cannot be cut into parts."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        reason = (str(error).splitlines() or ["no memory"])[0]
        raise _stopped(f"{folder}: out of memory in {work} ({reason})", advice, folder) from None


def _stopped(problem: str, advice: str, folder: Path) -> TrainingError:
    last, _ = checkpoints.latest(folder / "checkpoints")
    left = f"{last.name} is sound" if last else "there is no checkpoint yet"
    known = (folder / "config.toml").is_file()
    again = f": saccade resume {folder}" if known else " try again"
    return TrainingError(f"{problem}; training has stopped, {left}; {advice}, then{again}")
