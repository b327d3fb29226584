"""Before a long run: try within half a minute what would otherwise fail after hours.

The largest batch forward and backward, an evaluation and a search over the longest dev examples, a
checkpoint written and read back, and the disk space for all checkpoints that are kept. Weights,
random state and disk are left as they were.
"""

import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from heapq import nsmallest
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from saccade.data.batches import Batch, Batches, Epoch
from saccade.data.lines import Example
from saccade.data.windows import WindowExamples
from saccade.errors import TrainingError
from saccade.runs import checkpoints, files
from saccade.runs.failures import within_memory, writing
from saccade.setup.prepare import Prepared
from saccade.tasks.task import Query, Request
from saccade.training.events import Event, Noticed
from saccade.training.stop import Stop
from saccade.training.trainer import EVALUATING, Trainer

LONG_RUN_SECONDS = 600.0  # of training: shorter runs have no preflight
PREFLIGHT_SECONDS = 30.0  # its time limit
DEV_EXAMPLES = 4  # in its evaluation
Files = dict[str, dict[str, Tensor]]


def preflight(trainer: Trainer, ready: Prepared, stop: Stop) -> Iterator[Event]:
    """Try everything once if the run is long, and report the result."""
    mode = trainer.config.preflight
    if mode == "off":
        return
    began = perf_counter()
    batches = trainer.task.epoch(ready.train, trainer.at.epoch)
    batch = largest(batches)
    step = seconds = LONG_RUN_SECONDS

    def try_batch() -> None:
        nonlocal step, seconds
        for _ in range(2):  # the first is a warm-up
            early = perf_counter() - began < PREFLIGHT_SECONDS / 6
            if (mode == "on" or seconds >= LONG_RUN_SECONDS) and early:
                step = min(step, time_of(trainer, batch, stop))
                seconds = expected(trainer, len(batches), step)

    deadline = began + PREFLIGHT_SECONDS
    late = [] if finishes_by(deadline, try_batch) else ["the largest batch"]
    if mode == "auto" and seconds < LONG_RUN_SECONDS:
        return
    parts = checkpoint_tensors(trainer)
    size = refuse_small_disk(trainer, parts)
    try:
        done = finishes_by(deadline, lambda: try_disk(trainer, parts))
        late += [] if done else ["a checkpoint"]
    finally:
        shutil.rmtree(trainer.folder / "preflight", ignore_errors=True)
    try:
        done = finishes_by(deadline, lambda: try_dev(trainer, ready.dev_examples, stop))
    finally:
        trainer.network.train()
    late += [] if done else ["an evaluation"]
    took = f"{step:.1f} s" if step < LONG_RUN_SECONDS else f"more than {PREFLIGHT_SECONDS:g} s"
    left = f"; timed out: {' and '.join(late)}" if late else ""
    yield Noticed(
        f"preflight: the largest batch took {took}, a checkpoint has {megabytes(size)}, "
        f"the disk has room{left}; {perf_counter() - began:.1f} s in all"
    )


def time_of(trainer: Trainer, batch: Batch, stop: Stop) -> float:
    """The seconds that a batch takes, forward and backward; the weights stay as they are."""
    began = perf_counter()
    with stop.interruptible(), torch.random.fork_rng(devices=[]):
        try:
            trainer.network.train()
            trainer.gradients.sum([batch], None, 0.5, trainer.at.step, Stop())
        finally:
            trainer.gradients.clear()
    return perf_counter() - began


def largest(batches: Batches) -> Batch:
    """The batch with the longest example."""
    if not isinstance(batches, Epoch):
        return batches[0]
    longest = batches.corpus.lengths.argmax()
    return batches[next(i for i, rows in enumerate(batches.plan) if longest in rows)]


def expected(trainer: Trainer, batches: int, step: float) -> float:
    """An upper bound of the run's remaining seconds: all batches as slow as the largest."""
    config, at = trainer.config, trainer.at
    limits = [60 * config.minutes - at.seconds] if config.minutes else []
    if config.epochs:
        limits.append((config.epochs - at.epoch) * batches * step)
    if config.steps:
        limits.append((config.steps - at.step) * config.accumulate * step)
    return min(limits, default=LONG_RUN_SECONDS)


def longest(examples: Sequence[Example]) -> list[Example]:
    if isinstance(examples, WindowExamples):  # all of one length
        return list(examples[:DEV_EXAMPLES])
    return nsmallest(DEV_EXAMPLES, examples, key=lambda row: -sum(map(len, row.source)))


def try_dev(trainer: Trainer, examples: Sequence[Example], stop: Stop) -> None:
    """Evaluate the longest dev examples, and search for an answer to the longest."""
    chosen = longest(examples)
    if not chosen:
        return
    trainer.doing = EVALUATING
    with (
        stop.interruptible(),
        torch.random.fork_rng(devices=[]),
        within_memory(trainer.folder, lambda: trainer.doing),
    ):
        dev, network = trainer.task.encode(chosen), trainer.network.eval()
        trainer.task.evaluate(network, dev, chosen, quick=False)
        query, decode = Query(chosen[0].source), trainer.task.config.decode
        trainer.task.predict(network, [query], Request(decode))


def checkpoint_tensors(trainer: Trainer) -> Files:
    """Tensors of the sizes in a checkpoint, by file; the optimiser has no state yet."""
    weights = files.weights_of(trainer.network)
    parts: Files = {"model": weights, "training": {}}
    for i in range(trainer.config.moments):
        parts["training"] |= {f"{i}.{n}": p.detach() for n, p in enumerate(trainer.parameters)}
    if trainer.average is not None:
        parts["raw"] = weights
    return parts


def try_disk(trainer: Trainer, parts: Files) -> None:
    """Write a checkpoint and read it back."""
    folder = trainer.folder / "preflight"
    with writing(trainer.folder):
        shutil.rmtree(folder, ignore_errors=True)
        problem = checkpoints.defect(checkpoints.save(folder, 0, parts, {}))
    if problem:
        raise TrainingError(
            f"{folder}: a checkpoint was not read back as it was written: {problem}"
        )


def refuse_small_disk(trainer: Trainer, parts: Files) -> int:
    """The bytes of a checkpoint; TrainingError if the disk has no room for all that are kept."""
    size = sum(t.numel() * t.element_size() for tensors in parts.values() for t in tensors.values())
    kept = max(trainer.config.keep, trainer.config.average_checkpoints)
    existing = len(checkpoints.paths(trainer.folder / "checkpoints"))
    needed = size * (max(kept - existing, 0) + 2)  # one is written before the oldest is removed
    free = shutil.disk_usage(trainer.folder).free
    if free < needed:
        raise TrainingError(
            f"{trainer.folder}: the run needs {megabytes(needed)} for {kept} checkpoints, and "
            f"the disk has {megabytes(free)}: make room, or lower train.keep"
        )
    return size


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


class DeadlinePassed(BaseException):
    """Not a TimeoutError, which a disk may raise, nor caught as an Exception by the work."""


def finishes_by(deadline: float, work: Callable[[], None]) -> bool:
    """Do some work; whether it was finished by the deadline, at which it is aborted.

    It is aborted only in the main thread, where there is a SIGALRM, and between Python operations.
    """
    left = deadline - perf_counter()
    if left <= 0:
        return False
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        work()
        return True

    def abort(number: int, frame: Any) -> None:
        raise DeadlinePassed

    before = signal.signal(signal.SIGALRM, abort)
    signal.setitimer(signal.ITIMER_REAL, left)
    try:
        try:
            work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except DeadlinePassed:
        return False
    finally:
        signal.signal(signal.SIGALRM, before)
    return True
