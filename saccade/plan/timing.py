"""How long a run takes: by a device's published figures, or by steps of its own, tried here."""

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
from saccade.models.networks import Network, halved
from saccade.nn.precision import Halved
from saccade.plan.costs import Shape
from saccade.plan.flops import Flops, flops_of
from saccade.plan.hardware import Hardware
from saccade.plan.layers import layers_of
from saccade.plan.layout import Layout
from saccade.plan.subject import Subject, sampled, shape_of
from saccade.runs.machine import (
    BUSY,
    HALF_GAIN,
    LONG_ENOUGH_SECONDS,
    PROCESSES_GAIN,
    exchange_seconds,
    precisions,
)

TRIED_SECONDS = 20.0  # for two ways, at most
TRIED_BATCHES = 8
REPEATS = 2  # of each: the mean counts, as the machine may have other work


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of a step and of a run on some devices, and its price."""

    step: float  # seconds
    run: float | None  # seconds; None where the run has no number of steps
    cost: float | None  # US dollars
    tried: bool = False  # whether steps were tried here


def predicted(
    subject: Subject, flops: Flops, parameters: int, hardware: Hardware, layout: Layout
) -> Timing:
    """By FLOPs at the assumed utilisation, the traffic of an update at full bandwidth, and what
    the devices tell each other, as if none of it happened meanwhile."""
    devices = layout.data * layout.tensor
    computing = flops.step / (hardware.peak * hardware.utilisation) / devices
    own = parameters / (layout.tensor * (layout.data if layout.sharded else 1))
    update = 28.0 * own / hardware.bandwidth  # read four numbers of a weight, write three
    return _timing(subject, computing + update + layout.seconds, hardware, devices)


def _timing(
    subject: Subject, step: float, hardware: Hardware, devices: int, tried: bool = False
) -> Timing:
    limits = [] if subject.steps is None else [step * subject.steps]
    if subject.config.train.minutes:
        limits.append(60.0 * subject.config.train.minutes)
    run = min(limits, default=None)
    cost = None
    if run is not None and hardware.price is not None:
        cost = run / 3600 * devices * hardware.price
    return Timing(step, run, cost, tried)


def tried(subject: Subject, hardware: Hardware) -> Timing | None:
    """Some of the run's own steps on this machine; None where there is no data, or no memory."""
    if subject.ready is None:
        return None
    count = sum(p.numel() for p in subject.network.parameters())
    if 20.0 * count > 0.5 * hardware.memory:
        return None
    network = materialize(subject.ready.task.build_meta(), subject.config.seed).train()
    batches = subject.ready.task.epoch(subject.ready.train, 0)
    some = [batches[i] for i in sampled(len(batches))][:: max(1, 24 // TRIED_BATCHES)]
    update = _update_seconds(network)
    mean = sum(_flops(network, shape) for shape in subject.shapes) / len(subject.shapes)

    def step_by(way: Way) -> float:
        """The seconds of a step: a batch takes what its FLOPs take, at the rate of those tried."""
        seconds = _seconds(network, some, way)
        flops = [_flops(network, shape_of(batch, network)) for batch in some[: len(seconds)]]
        exchange = exchange_seconds(count) if way.processes > 1 else 0.0
        return sum(seconds) / sum(flops) * mean * subject.batches + update + exchange

    ways = _ways(subject)
    step = step_by(ways[0])
    # As in training, other ways are tried where that is worth while, and have to gain something.
    if len(ways) > 1 and step * (subject.steps or 0) >= LONG_ENOUGH_SECONDS:
        found = {way: step_by(way) for way in ways[1:]} | {ways[0]: step}
        step = found[min(found, key=lambda way: found[way] * way.handicap)]
    return _timing(subject, step, hardware, 1, tried=True)


class Way(NamedTuple):
    """By how many processes a step is shared, and in which number format."""

    dtype: torch.dtype
    processes: int

    @property
    def handicap(self) -> float:
        half = HALF_GAIN if self.dtype != torch.float32 else 1.0
        return half * (PROCESSES_GAIN if self.processes > 1 else 1.0)


def _ways(subject: Subject) -> list[Way]:
    """What is open to the run; the plainest first."""
    train = subject.config.train
    formats = [torch.float32 if name == "fp32" else torch.bfloat16 for name in precisions(train)]
    numbers = [train.processes] if train.processes else [1, cores()]
    return [Way(*pair) for pair in product(formats, dict.fromkeys(numbers))]


def _flops(network: Network, shape: Shape) -> float:
    return flops_of(layers_of(network, shape)).step


def _seconds(network: Network, batches: Sequence[Batch], way: Way) -> list[float]:
    """Forward and backward through each batch, or through one process's share of its rows."""
    found: list[float] = []
    shared = way.processes > 1
    computing = network if way.dtype == torch.float32 else halved(network, way.dtype)
    end = perf_counter() + TRIED_SECONDS / 2
    with _threads(1 if shared else torch.get_num_threads()):
        for batch in batches:
            part = batch.rows(torch.arange(-(-batch.count // way.processes))) if shared else batch
            _step(computing, part)  # the first of a shape is slower: kernels are made for it
            began = perf_counter()
            for _ in range(REPEATS):
                _step(computing, part)
            each = (perf_counter() - began) / REPEATS
            found.append(each * (BUSY if shared else 1.0))
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
