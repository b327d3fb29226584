"""The time of a run: from a device's published figures, or from steps measured on this machine."""

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import nn

from saccade.data.batches import Batch
from saccade.data.parallel import cores
from saccade.models.build import materialize
from saccade.models.networks import Network, half_precision
from saccade.nn.precision import Halved
from saccade.plan.costs import Shape
from saccade.plan.flops import Flops, flops_of
from saccade.plan.hardware import Hardware
from saccade.plan.layers import layers_of
from saccade.plan.layout import Layout
from saccade.plan.subject import Subject, sampled, shape_of
from saccade.runs.machine import (
    BUSY_SLOWDOWN,
    HALF_GAIN,
    LONG_ENOUGH_SECONDS,
    PROCESSES_GAIN,
    exchange_seconds,
    precisions,
)

MEASURE_SECONDS = 20.0  # for two modes, at most
MEASURED_BATCHES = 8
REPEATS = 2  # of each: the mean counts, as the machine may have other work


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of a step and of a run on some devices, and its price."""

    step: float  # seconds
    run: float | None  # seconds; None where the run has no number of steps
    cost: float | None  # US dollars
    measured: bool = False  # whether steps were tried here


def estimated(
    subject: Subject, flops: Flops, parameters: int, hardware: Hardware, layout: Layout
) -> Timing:
    """From FLOPs at the assumed utilisation, the memory traffic of an update, and communication,
    without any overlap."""
    devices = layout.data * layout.tensor
    computing = flops.step / (hardware.peak * hardware.utilisation) / devices
    local = parameters / (layout.tensor * (layout.data if layout.sharded else 1))
    update = 28.0 * local / hardware.bandwidth  # read four numbers of a weight, write three
    return _timing(subject, computing + update + layout.seconds, hardware, devices)


def _timing(
    subject: Subject, step: float, hardware: Hardware, devices: int, measured: bool = False
) -> Timing:
    limits = [] if subject.steps is None else [step * subject.steps]
    if subject.config.train.minutes:
        limits.append(60.0 * subject.config.train.minutes)
    run = min(limits, default=None)
    cost = None
    if run is not None and hardware.price is not None:
        cost = run / 3600 * devices * hardware.price
    return Timing(step, run, cost, measured)


def measure_steps(subject: Subject, hardware: Hardware) -> Timing | None:
    """Some of the run's own steps on this machine; None where there is no data, or no memory."""
    if subject.ready is None:
        return None
    count = sum(p.numel() for p in subject.network.parameters())
    if 20.0 * count > 0.5 * hardware.memory:
        return None
    network = materialize(subject.ready.task.build_meta(), subject.config.seed).train()
    batches = subject.ready.task.epoch(subject.ready.train, 0)
    sample = [batches[i] for i in sampled(len(batches))][:: max(1, 24 // MEASURED_BATCHES)]
    update = _update_seconds(network)
    mean = sum(_flops(network, shape) for shape in subject.shapes) / len(subject.shapes)

    def step_by(mode: Mode) -> float:
        """The seconds of a step: a batch takes what its FLOPs take, at the rate of those tried."""
        seconds = _seconds(network, sample, mode)
        flops = [_flops(network, shape_of(batch, network)) for batch in sample[: len(seconds)]]
        exchange = exchange_seconds(count) if mode.processes > 1 else 0.0
        return sum(seconds) / sum(flops) * mean * subject.batches + update + exchange

    modes = _modes(subject)
    step = step_by(modes[0])
    # As in training, other modes are tried in long runs, and have to gain something.
    if len(modes) > 1 and step * (subject.steps or 0) >= LONG_ENOUGH_SECONDS:
        found = {mode: step_by(mode) for mode in modes[1:]} | {modes[0]: step}
        step = found[min(found, key=lambda mode: found[mode] * mode.handicap)]
    return _timing(subject, step, hardware, 1, measured=True)


class Mode(NamedTuple):
    """The number of processes that share a step, and the number format."""

    dtype: torch.dtype
    processes: int

    @property
    def handicap(self) -> float:
        half = HALF_GAIN if self.dtype != torch.float32 else 1.0
        return half * (PROCESSES_GAIN if self.processes > 1 else 1.0)


def _modes(subject: Subject) -> list[Mode]:
    """The modes that training would try, the simplest first."""
    train = subject.config.train
    formats = [torch.float32 if name == "fp32" else torch.bfloat16 for name in precisions(train)]
    processes = [train.processes] if train.processes else [1, cores()]
    return [Mode(*pair) for pair in product(formats, dict.fromkeys(processes))]


def _flops(network: Network, shape: Shape) -> float:
    return flops_of(layers_of(network, shape)).step


def _seconds(network: Network, batches: Sequence[Batch], mode: Mode) -> list[float]:
    """Forward and backward through each batch, or through one process's share of its rows."""
    found: list[float] = []
    shared = mode.processes > 1
    module = network if mode.dtype == torch.float32 else half_precision(network, mode.dtype)
    end = perf_counter() + MEASURE_SECONDS / 2
    with _threads(1 if shared else torch.get_num_threads()):
        for batch in batches:
            part = batch.rows(torch.arange(-(-batch.count // mode.processes))) if shared else batch
            _step(module, part)  # the first of a shape is slower: kernels are made for it
            began = perf_counter()
            for _ in range(REPEATS):
                _step(module, part)
            each = (perf_counter() - began) / REPEATS
            found.append(each * (BUSY_SLOWDOWN if shared else 1.0))
            if perf_counter() > end:
                break
    return found


def _step(network: nn.Module, batch: Batch) -> None:
    if isinstance(network, Halved):
        network.cast()
    loss, _ = network(batch, None, 0.5)
    loss.sum.backward()
    for parameter in network.parameters():
        parameter.grad = None


def _update_seconds(network: Network) -> float:
    """An update of all weights, and the norm of their gradients."""
    weights = [p for p in network.parameters() if p.requires_grad]
    for parameter in weights:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(weights, fused=True)
    times = []
    for _ in range(4):
        began = perf_counter()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        times.append(perf_counter() - began)
    return median(times[1:])


@contextmanager
def _threads(number: int) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
