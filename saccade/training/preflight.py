"""Before a long run: try, in half a minute, what would otherwise fail after hours.

The largest batch forward and backward, an evaluation and a search over the longest dev examples, a
checkpoint written and read back, and room on the disk for all that are kept. Nothing of it is left
in the weights, in the random numbers or on the disk.
"""

import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch

from saccade.data.batches import Batch, Epoch
from saccade.data.lines import Example
from saccade.errors import TrainingError
from saccade.tasks.prepare import Prepared, in_memory
from saccade.tasks.task import Batches, Pair, Query, Request
from saccade.training import checkpoint as disk
from saccade.training.events import Event, Noticed
from saccade.training.stop import Stop
from saccade.training.trainer import Trainer, to_disk

LONG = 600.0  # seconds of training that are worth a preflight
MOST = 30.0  # seconds that it may take
FEW = 4  # dev examples


def preflight(trainer: Trainer, ready: Prepared, stop: Stop) -> Iterator[Event]:
    """Try everything once if the run is long, and say what was found."""
    wanted = trainer.config.preflight
    if wanted == "off":
        return
    began = perf_counter()
    batches = trainer.task.epoch(ready.train, trainer.at.epoch)
    batch = largest(batches)
    step = seconds = LONG
    for _ in range(2):  # the first of all is slower than those that follow
        if wanted == "on" or seconds >= LONG:
            step = min(step, time_of(trainer, batch, stop))
            seconds = expected(trainer, len(batches), step)
    if wanted == "auto" and seconds < LONG:
        return
    size = try_disk(trainer)
    late = False
    try:
        with stop.interruptible(), torch.random.fork_rng(devices=[]), within(began + MOST):
            few = longest(ready.dev_pairs)
            if few:
                rows = [Example(source, target) for source, target in few]
                dev, network = in_memory(trainer.task, rows), trainer.network.eval()
                trainer.task.evaluate(network, dev, few, quick=False)
                query, decode = Query(few[0][0]), trainer.task.config.decode
                trainer.task.predict(network, [query], Request(decode))
    except TimeoutError:
        late = True
    trainer.network.train()
    left = "; an evaluation takes longer than this test, and was not tried to its end"
    yield Noticed(
        f"preflight: the largest batch took {step:.1f} s, a checkpoint has {megabytes(size)}, "
        f"the disk has room{left if late else ''}; {perf_counter() - began:.1f} s in all"
    )


def time_of(trainer: Trainer, batch: Batch, stop: Stop) -> float:
    """The seconds that a batch takes, forward and backward; the weights stay as they are."""
    began = perf_counter()
    with stop.interruptible(), torch.random.fork_rng(devices=[]):
        carry, trainer.carry = trainer.carry, None
        try:
            trainer.gradients([batch], 0.5)
        finally:
            trainer.carry = carry
            trainer.optimizer.zero_grad(set_to_none=True)
    return perf_counter() - began


def largest(batches: Batches) -> Batch:
    """The batch with the longest example."""
    if not isinstance(batches, Epoch):
        return batches[0]
    source, target = batches.corpus.source, batches.corpus.target
    lengths = target.lengths + (0 if source is None else source.lengths)
    longest = lengths.argmax()
    return batches[next(i for i, rows in enumerate(batches.plan) if longest in rows)]


def expected(trainer: Trainer, batches: int, step: float) -> float:
    """How many seconds the run may still take, if every batch is as slow as the largest."""
    config, at = trainer.config, trainer.at
    found = [60 * config.minutes - at.seconds] if config.minutes else []
    if config.epochs:
        found.append((config.epochs - at.epoch) * batches * step)
    if config.steps:
        found.append((config.steps - at.step) * config.accumulate * step)
    return min(found, default=LONG)


def longest(pairs: list[Pair]) -> list[Pair]:
    return sorted(pairs, key=lambda pair: -sum(map(len, pair[0])))[:FEW]


def try_disk(trainer: Trainer) -> int:
    """Write a checkpoint as large as any, read it back, and see that the disk has room for all."""
    weights, slots = disk.weights_of(trainer.network), {"adamw": 2, "sgd": 1}
    files: dict[str, Any] = {"model": weights, "training": {}}
    for i in range(slots[trainer.config.optimizer]):  # the optimiser has no state yet
        files["training"] |= {f"{i}.{name}": tensor for name, tensor in weights.items()}
    if trainer.average is not None:
        files["raw"] = weights
    folder = trainer.folder / "preflight"
    with to_disk(trainer.folder):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            path = disk.save_checkpoint(folder, 0, files, {})
            problem = disk.defect(path)
            size = sum(file.stat().st_size for file in path.iterdir())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if problem:
        raise TrainingError(
            f"{folder}: a checkpoint was not read back as it was written: {problem}"
        )
    many = max(trainer.config.keep, trainer.config.average_checkpoints)
    there = len(disk.checkpoints(trainer.folder / "checkpoints"))
    needed = size * (max(many - there, 0) + 2)  # one is written before the oldest is removed
    free = shutil.disk_usage(trainer.folder).free
    if free < needed:
        raise TrainingError(
            f"{trainer.folder}: the run needs {megabytes(needed)} for {many} checkpoints, and "
            f"the disk has {megabytes(free)}: make room, or lower train.keep"
        )
    return size


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


@contextmanager
def within(moment: float) -> Iterator[None]:
    """TimeoutError at a moment of the clock, where signals reach this thread."""
    left = moment - perf_counter()
    if left <= 0:
        raise TimeoutError
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, left)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
