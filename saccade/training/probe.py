"""Autotuning: by how many processes a step is shared, and in which number format.

Before a run of some minutes on a CPU, a few of its batches are timed in each mode. The fastest is
written into the run's configuration, and kept when it is resumed.
"""

from itertools import product
from statistics import median
from typing import NamedTuple

import torch

from saccade.data.batches import Batch
from saccade.data.parallel import cores
from saccade.distributed.ranks import Ranks, can_pass_descriptors
from saccade.runs.machine import (
    BUSY_SLOWDOWN,
    HALF_GAIN,
    LONG_ENOUGH_SECONDS,
    PROCESSES_GAIN,
    exchange_seconds,
    precisions,
)
from saccade.training.gradients import Gradients
from saccade.training.preflight import expected, time_of
from saccade.training.stop import Stop
from saccade.training.trainer import Trainer

MAX_STEP_SECONDS = 1.0  # assumed before any is timed: a run of few steps is not probed
BATCHES = 3  # timed in each mode
UPDATE_NANOSECONDS = 1.0  # per weight on one core, measured


class Mode(NamedTuple):
    """How a step is computed."""

    precision: str
    processes: int

    def __str__(self) -> str:
        count = "one process" if self.processes == 1 else f"{self.processes} processes"
        return f"{self.precision}, {count}"


PLAIN = Mode("fp32", 1)


class RankZero(Ranks):
    """Rank 0 of several, without the others: it computes its share alone."""

    def __init__(self, size: int):
        self.size = size


def fastest(
    trainer: Trainer, batches: list[Batch], epoch_size: int, stop: Stop
) -> dict[Mode, float]:
    """The seconds of a step in each possible mode, the best first; empty without a choice.

    `batches` are some of an epoch's.
    """
    config = trainer.config
    pairs = product(precisions(config), processes(config.processes))
    modes = [Mode(precision, number) for precision, number in pairs]
    short = expected(trainer, epoch_size, MAX_STEP_SECONDS) < LONG_ENOUGH_SECONDS
    if trainer.device.type != "cpu" or len(modes) < 2 or short:
        return {}
    plain = seconds(trainer, PLAIN, batches, stop)
    if expected(trainer, epoch_size, plain) < LONG_ENOUGH_SECONDS:
        return {}
    timed = {mode: seconds(trainer, mode, batches, stop) for mode in modes}
    if PLAIN in timed:
        timed[PLAIN] = min(timed[PLAIN], plain)
    return dict(sorted(timed.items(), key=lambda pair: cost(*pair)))


def cost(mode: Mode, seconds: float) -> float:
    """The seconds of a step, increased where a mode has to be clearly faster to be chosen."""
    half = HALF_GAIN if mode.precision != "fp32" else 1.0
    return seconds * half * (PROCESSES_GAIN if mode.processes > 1 else 1.0)


def processes(configured: int) -> list[int]:
    """The possible numbers of processes."""
    if configured:
        return [configured]
    return [1, cores()] if cores() > 1 and can_pass_descriptors() else [1]


def seconds(trainer: Trainer, mode: Mode, batches: list[Batch], stop: Stop) -> float:
    """The seconds of a step in a mode, with its update; the weights stay as they are."""
    threads, gradients = torch.get_num_threads(), trainer.gradients
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[mode.precision]
    weights = sum(p.numel() for p in trainer.parameters)
    update = 1e-9 * UPDATE_NANOSECONDS * weights
    seed = trainer.task.config.seed
    trainer.gradients = Gradients(
        trainer.network, trainer.parameters, trainer.device, dtype, trainer.scaler, seed
    )
    trainer.gradients.ranks = RankZero(mode.processes)
    torch.set_num_threads(threads if mode.processes == 1 else 1)
    try:
        time_of(trainer, batches[0], stop)  # a warm-up
        step = median(time_of(trainer, batch, stop) for batch in batches)
    finally:
        trainer.gradients = gradients
        torch.set_num_threads(threads)
    if mode.processes == 1:
        return step + update / threads
    return BUSY_SLOWDOWN * step + update + exchange_seconds(weights)
