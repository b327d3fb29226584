"""Consumers of events: a progress bar or plain lines, metrics.jsonl, and TensorBoard.

The bar is for a terminal, the lines for elsewhere; metrics.jsonl is always written, TensorBoard's
files if it is installed. rich is imported only where it is used, as its import takes a while.
"""

import json
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from saccade.data.lines import counted
from saccade.runs.failures import disk_failure
from saccade.tasks.task import Evaluation, advance
from saccade.training.events import (
    Changed,
    Evaluated,
    Evaluating,
    Event,
    Finished,
    Noticed,
    Prepared,
    Skipped,
    StepDone,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Item = TypeVar("Item")
TAIL_BYTES = 1 << 16  # bytes; no event is longer
NUMBERS = ("loss", "rate", "speed", "norm")  # of a step, for TensorBoard
LOG_SECONDS = 5.0  # between steps in metrics.jsonl; four times as much between printed lines


def show(events: Iterable[Event], folder: Path, quiet: bool = False) -> Iterator[Event]:
    """The events, passed on as they come and shown on the way."""
    console = _console(quiet)
    supply = iter(events)
    first = next(supply, None)  # after it the run is locked, and so is its log
    if first is None:
        return
    with ExitStack() as stack:
        log = stack.enter_context(_log(folder / "metrics.jsonl"))
        board = stack.enter_context(_tensorboard(folder))
        bar = stack.enter_context(_bar(console)) if console.is_terminal and not quiet else None
        task = bar.add_task("", total=1.0, status="") if bar else None
        logged = printed = 0.0
        for event in chain([first], supply):
            if isinstance(event, StepDone):
                if event.seconds - logged >= LOG_SECONDS or event.progress >= 1.0:
                    logged = event.seconds
                    _write(log, event)
                    board(event)
                if bar is not None and task is not None:
                    bar.update(task, completed=event.progress, status=status(event))
                elif event.seconds - printed >= 4 * LOG_SECONDS:
                    printed = event.seconds
                    console.print(status(event))
            elif isinstance(event, Evaluating):
                words = f"step {event.step:,}  {'last ' if event.last else ''}evaluation"
                if bar is not None and task is not None and event.last:
                    bar.update(task, completed=event.share, status=words)
                elif bar is not None and task is not None:
                    bar.update(task, status=f"{words} {event.share:.0%}")
                elif event.seconds - printed >= 4 * LOG_SECONDS:
                    printed = event.seconds
                    console.print(f"{words} {event.share:.0%}")
            else:
                _write(log, event)
                board(event)
                if line := sentence(event):
                    console.print(line)
            yield event


def status(event: StepDone) -> str:
    """One line about a step: where, how well, how fast, how long to go."""
    return (
        f"step {event.step:,}  epoch {event.epoch:.1f}  loss {event.loss:.3f}  "
        f"{event.speed:,.0f} tokens/s{_left(event.seconds, event.progress)}"
    )


def _left(seconds: float, share: float) -> str:
    """The time left, if so many seconds were this share of all."""
    if not 0.0 < share < 1.0:
        return ""
    return f"  {_clock(seconds * (1 - share) / share)} left"


def sentence(event: Event) -> str | None:
    """One line about anything else."""
    match event:
        case Prepared():
            dropped = f", {event.left_out:,} too long and left out" if event.left_out else ""
            start = f", from step {event.start:,}" if event.start else ""
            return (
                f"{counted(event.train_examples, 'example')} to learn from, "
                f"{event.dev_examples:,} to measure on{dropped}; "
                f"{event.parameters:,} parameters on {event.device}{start}"
            )
        case Evaluated():
            scores = "  ".join(f"{name} {value:.4g}" for name, value in event.scores.items())
            star = ("  (best)" if event.best else "") + _measured(event)
            return f"{_clock(event.seconds)}  step {event.step:,}  {scores}{star}"
        case Skipped():
            return (
                f"step {event.step:,}: the loss or its gradient was not finite; "
                f"the step was skipped ({event.total:,} so far)"
            )
        case Changed():
            threads = event.key == "threads"
            because = ": results may differ in the last bits" if threads else ""
            return f"{event.key} was {event.old}, and is now {event.new}{because}"
        case Noticed():
            return event.text
        case Finished():
            return (
                f"finished after {counted(event.step, 'step')} and {_clock(event.seconds)}: "
                f"{event.reason}"
                f"{_measured(event)}"
            )
        case _:
            return None


def _measured(event: Evaluated | Finished) -> str:
    """How many examples were evaluated, if not all, because of train.minutes."""
    if event.examples >= event.wanted:
        return ""
    counts = f"{event.examples:,} of {event.wanted:,}"
    return f"; evaluated on {counts} dev examples (time limit)"


def following(evaluation: Evaluation) -> dict[str, float]:
    """The metrics of an evaluation, whose progress is shown."""
    console, began, printed = _console(), monotonic(), monotonic()
    scores = None
    with ExitStack() as stack:
        bar, task = None, None
        while scores is None:
            share, scores = advance(evaluation)
            if (
                console.is_terminal and bar is None
            ):  # workers are forked before the bar's thread starts
                bar = stack.enter_context(_bar(console))
                task = bar.add_task("", total=1.0, status="evaluating")
            words = f"evaluating{_left(monotonic() - began, share)}"
            if bar is not None and task is not None:
                bar.update(task, completed=share, status=words)
            elif monotonic() - printed >= 4 * LOG_SECONDS:
                printed = monotonic()
                console.print(f"{share:.0%}  {words}")
    return scores


def counting(items: Iterable[Item], path: Path | None) -> Iterator[Item]:
    """The items, one for each line of a file, counted by a bar on a terminal that shows no text."""
    supply = iter(items)
    first = next(supply, None)  # workers are forked before the bar's thread starts
    if first is None:
        return
    yield first
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield from supply
        return
    console = _console()
    total, start = _lines_in(path), monotonic()
    with _bar(console) as bar:
        task = bar.add_task("", total=total, status="")
        for done, item in enumerate(supply, 2):
            speed = done / max(monotonic() - start, 1e-9)
            bar.update(task, completed=done, status=f"{done:,} lines  {speed:,.0f}/s")
            yield item


def _lines_in(path: Path | None) -> float | None:
    """The number of lines in an uncompressed file; None if it is unknown."""
    if path is None or not path.is_file() or path.suffix in (".gz", ".zst"):
        return None
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) or None


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextmanager
def _log(path: Path) -> Iterator[Any]:
    """A log to append to, after its last complete line: a process may have died while writing."""
    try:
        with path.open("ab") as end:
            if end.tell():
                with path.open("rb") as file:
                    file.seek(max(0, end.tell() - TAIL_BYTES))
                    tail = file.read()
                end.truncate(end.tell() - len(tail) + tail.rfind(b"\n") + 1)
        log = path.open("a", encoding="utf-8")
    except OSError as error:
        raise disk_failure(path, path.parent, error) from None
    try:
        yield log
    finally:
        with suppress(OSError):  # of a full disk, reported before
            log.close()


def _write(log: Any, event: Event) -> None:
    record = {"event": type(event).__name__} | asdict(event)
    try:
        log.write(json.dumps(record, default=str) + "\n")
        log.flush()
    except OSError as error:
        path = Path(log.name)
        raise disk_failure(path, path.parent, error) from None


def _console(quiet: bool = False) -> "Console":
    """Standard error, without markup, which names of labels and files may look like."""
    from rich.console import Console

    return Console(
        stderr=True, quiet=quiet, markup=False, emoji=False, highlight=False, soft_wrap=True
    )


@contextmanager
def _bar(console: "Console") -> Iterator["Progress"]:
    from rich.progress import BarColumn, Progress, TextColumn

    status = TextColumn("{task.percentage:>3.0f}%  {task.fields[status]}", markup=False)
    with Progress(
        BarColumn(bar_width=24), status, console=console, refresh_per_second=5
    ) as progress:
        yield progress


@contextmanager
def _tensorboard(folder: Path) -> Iterator[Any]:
    """A function that sends an event to TensorBoard, or nowhere if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield lambda event: None
        return
    path = folder / "tensorboard"
    others = set(threading.enumerate())
    try:
        writer = SummaryWriter(str(path))
    except OSError as error:
        raise disk_failure(path, folder, error) from None

    def send(event: Event) -> None:
        if isinstance(event, StepDone):
            scalars = {f"train/{name}": getattr(event, name) for name in NUMBERS}
        elif isinstance(event, Evaluated):
            scalars = {f"dev/{name}": value for name, value in event.scores.items()}
        else:
            return
        try:
            for name, value in scalars.items():
                writer.add_scalar(name, value, event.step)
        except OSError as error:
            raise disk_failure(path, folder, error) from None

    writer_threads = set(threading.enumerate()) - others
    before = threading.excepthook

    def hook(failure: Any) -> None:
        """Ignore an OSError in the writer's thread: the next call of the writer raises it."""
        if failure.thread not in writer_threads or not issubclass(failure.exc_type, OSError):
            before(failure)

    threading.excepthook = hook
    try:
        yield send
    finally:
        with suppress(OSError):  # of a full disk, reported before
            writer.close()
        threading.excepthook = before
