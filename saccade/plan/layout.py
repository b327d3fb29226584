"""The parallel layout of a network on some devices, and their communication in a step.

Where the whole network fits a device, each has it (data parallel). Else the fastest layout that
fits is chosen: each device has a part of the weights, gradients and moments, and gathers others
when they are needed (fully sharded); heads and feed-forward are split among devices of one machine
(tensor parallel); and only the inputs of blocks are kept for the backward pass (checkpointing).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from saccade import config as c
from saccade.models.networks import Network
from saccade.plan.costs import Layer, Shape
from saccade.plan.hardware import Hardware
from saccade.plan.layers import layers_of
from saccade.plan.memory import WIDTHS, memory_of, peak_activations

PER_MACHINE = 8  # devices that are linked closely enough for tensor parallelism
BETWEEN_MACHINES = 25e9  # bytes/s of a device, assumed: 200 Gbit/s
MAX_ROWS = 1 << 20
USABLE = 0.92  # of a device's memory, that a plan may fill


@dataclass(frozen=True, slots=True)
class Layout:
    """How a network is laid out on devices, and what that takes."""

    data: int  # replicas, or shards of the weights
    tensor: int  # devices that share each block
    sharded: bool
    checkpointing: bool
    memory: float  # bytes of a device
    fits: bool
    volume: float  # bytes that a device sends in a step
    seconds: float  # for them, over its link

    @property
    def name(self) -> str:
        kind = "fully sharded" if self.sharded else "data parallel"
        parts = [f"{kind} x {self.data}"] if self.data > 1 else []
        parts += [f"tensor parallel x {self.tensor}"] if self.tensor > 1 else []
        found = ", ".join(parts) or "one device"
        return f"{found}, checkpointing" if self.checkpointing else found


def layout_of(
    layers: Sequence[Layer],
    config: c.Config,
    hardware: Hardware,
    devices: int,
    batches: float,
) -> Layout:
    """The best layout, or the smallest if none fits.

    `layers` are those of the batch that a device computes at once; a step has `batches` of them.
    """
    candidates = [
        _layout(layers, config, hardware, data, tensor, sharded, recompute, batches)
        for data, tensor, sharded, recompute in _choices(config, devices)
    ]
    fitting = [one for one in candidates if one.fits]
    if not fitting:
        return min(candidates, key=lambda one: one.memory)
    if fitting[0] is candidates[0]:
        return fitting[0]
    speed = hardware.peak * hardware.utilisation
    forward = sum(layer.cost.forward for layer in layers if layer.block)
    recompute = forward * max(batches, devices) / devices / speed  # seconds, of checkpointing
    return min(fitting, key=lambda one: one.seconds + (recompute if one.checkpointing else 0.0))


def _choices(config: c.Config, devices: int) -> Iterator[tuple[int, int, bool, bool]]:
    for recompute in (False, True):
        yield devices, 1, False, recompute
    if devices > 1:
        for recompute in (False, True):
            yield devices, 1, True, recompute
    heads = [
        part.num_heads
        for part in (config.encoder, config.decoder)
        if isinstance(part, c.Transformer)
    ]
    for tensor in (2, 4, 8):
        if devices % tensor or not heads or any(number % tensor for number in heads):
            continue
        for recompute in (False, True):
            yield devices // tensor, tensor, devices > tensor, recompute


def _layout(
    layers: Sequence[Layer],
    config: c.Config,
    hardware: Hardware,
    data: int,
    tensor: int,
    sharded: bool,
    checkpointing: bool,
    batches: float,
) -> Layout:
    width = WIDTHS[hardware.precision]
    total = memory_of(layers, config.train, hardware.precision)
    parts = tensor * (data if sharded else 1)  # of weights, gradients and moments
    local = max(1.0, batches / data)  # batches of a step that a device computes
    at_once = 1.0  # of them, that it computes at once
    if sharded:  # a block's weights are gathered while it is computed
        gathered = max((layer.weights for layer in layers), default=0) * (width + 4) / tensor
        fixed = total.static / parts + gathered
        each = (total.checkpointed if checkpointing else total.activations) / tensor
        at_once = min(local, max(1.0, (USABLE * hardware.memory - fixed) // max(each, 1.0)))
        memory = fixed + at_once * each
    else:  # what is kept shrinks while gradients grow: both are never whole
        activations = peak_activations(layers, width, checkpointing=checkpointing)
        memory = (total.static - total.gradients + activations) / tensor
    between, within = _volumes(layers, width, data, tensor, sharded, checkpointing, local, at_once)
    link = hardware.link if data * tensor <= PER_MACHINE else min(hardware.link, BETWEEN_MACHINES)
    seconds = between / link + within / hardware.link
    fits = memory <= USABLE * hardware.memory
    volume = between + within
    return Layout(data, tensor, sharded, checkpointing, memory, fits, volume, seconds)


def _volumes(
    layers: Sequence[Layer],
    width: int,
    data: int,
    tensor: int,
    sharded: bool,
    checkpointing: bool,
    local: float,
    at_once: float,
) -> tuple[float, float]:
    """The bytes that a device sends in a step, in ring all-reduces: of weights and gradients among
    data parallel devices, and of activations among tensor parallel ones."""
    weights = sum(layer.parameters for layer in layers) / tensor
    share = (data - 1) / data
    if sharded:  # weights are gathered for each pass, gradients are summed where they belong
        passes = (3 if checkpointing else 2) * ceil(local / at_once)
        volume = share * weights * (width * passes + 4)
    else:
        volume = 2 * share * weights * 4
    within = 0.0
    if tensor > 1:  # after attention and after the feed-forward network, forward and backward
        sums = 6 if checkpointing else 4
        entries = sum(layer.entry for layer in layers if layer.block)
        within = 2 * (tensor - 1) / tensor * entries * width * sums * local
    return volume, within


def rows_that_fit(
    network: Network, shape: Shape, train: c.Train, hardware: Hardware, *, checkpointing: bool
) -> int:
    """The most rows of this length in a batch on one device; 0 if not even one fits."""

    def peak(rows: int) -> float:
        layers = layers_of(network, shape.of_rows(rows))
        found = memory_of(layers, train, hardware.precision)
        return float(found.checkpointed_peak if checkpointing else found.peak)

    limit, rows = USABLE * hardware.memory, 1
    if peak(1) > limit:
        return 0
    while peak(2 * rows) <= limit and rows < MAX_ROWS:
        rows *= 2
    low, high = rows, 2 * rows  # the peak grows with the rows, though not evenly
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (middle, high) if peak(middle) <= limit else (low, middle)
    return low
