"""What is fastest here: by how many processes a step is shared, and in which number format.

Before a run of some minutes on a CPU, a few of its batches are tried each way. What was chosen is
written into the run, and a resumed run keeps to it.
"""

from itertools import product
from statistics import median
from typing import NamedTuple

import torch

from saccade.data.batches import Batch
from saccade.data.parallel import cores
from saccade.distributed.ranks import Ranks, possible
from saccade.runs.machine import (
    BUSY,
    HALF_GAIN,
    LONG_ENOUGH_SECONDS,
    PROCESSES_GAIN,
    exchange_seconds,
    has_half_products,
)
from saccade.training.gradients import Gradients
from saccade.training.preflight import expected, time_of
from saccade.training.stop import Stop
from saccade.training.trainer import Trainer

MOST_STEP_SECONDS = 1.0  # that a step usually takes: a run of few steps is not even tried
BATCHES = 3  # that are tried each way
UPDATE_NANOSECONDS = 1.0  # for each weight, of one core, measured


class Way(NamedTuple):
    """A way to compute a step."""

    precision: str
    processes: int

    def __str__(self) -> str:
        one = self.processes == 1
        return f"{self.precision}, {'one process' if one else f'{self.processes} processes'}"


PLAIN = Way("fp32", 1)


class OneOf(Ranks):
    """The first of several ranks, without the others."""

    def __init__(self, size: int):
        self.size = size


def fastest(trainer: Trainer, batches: list[Batch], epoch: int, stop: Stop) -> dict[Way, float]:
    """The seconds of a step for every way that is open, the best first; none to choose: none.

    `batches` are some of an epoch of so many.
    """
    config = trainer.config
    pairs = product(precisions(config.precision), processes(config.processes))
    ways = [Way(precision, number) for precision, number in pairs]
    short = expected(trainer, epoch, MOST_STEP_SECONDS) < LONG_ENOUGH_SECONDS
    if trainer.device.type != "cpu" or len(ways) < 2 or short:
        return {}
    single = seconds(trainer, PLAIN, batches, stop)
    if expected(trainer, epoch, single) < LONG_ENOUGH_SECONDS:
        return {}
    found = {way: seconds(trainer, way, batches, stop) for way in ways}
    if PLAIN in found:
        found[PLAIN] = min(found[PLAIN], single)
    return dict(sorted(found.items(), key=lambda pair: cost(*pair)))


def cost(way: Way, seconds: float) -> float:
    """The seconds of a step, and what a way costs beside them."""
    half = HALF_GAIN if way.precision != "fp32" else 1.0
    return seconds * half * (PROCESSES_GAIN if way.processes > 1 else 1.0)


def precisions(wanted: str) -> list[str]:
    """The number formats that are open: the user's, or those that the processor is made for."""
    if wanted != "auto":
        return [wanted]
    return ["fp32", "bf16"] if has_half_products() else ["fp32"]


def processes(wanted: int) -> list[int]:
    """The numbers of processes that are open."""
    if wanted:
        return [wanted]
    return [1, cores()] if cores() > 1 and possible() else [1]


def seconds(trainer: Trainer, way: Way, batches: list[Batch], stop: Stop) -> float:
    """How long a step takes this way, with its update; the weights stay as they are."""
    threads, gradients = torch.get_num_threads(), trainer.gradients
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[way.precision]
    weights = sum(p.numel() for p in trainer.parameters)
    update = 1e-9 * UPDATE_NANOSECONDS * weights
    seed = trainer.task.config.seed
    trainer.gradients = Gradients(
        trainer.network, trainer.parameters, trainer.device, dtype, trainer.scaler, seed
    )
    trainer.gradients.ranks = OneOf(way.processes)
    torch.set_num_threads(threads if way.processes == 1 else 1)
    try:
        time_of(trainer, batches[0], stop)  # the first of all is slower
        step = median(time_of(trainer, batch, stop) for batch in batches)
    finally:
        trainer.gradients = gradients
        torch.set_num_threads(threads)
    if way.processes == 1:
        return step + update / threads
    return BUSY * step + update + exchange_seconds(weights)
