"""Which parallel layout fits some devices, and how much they tell each other in a step.

Where the whole network fits a device, each has it (data parallel). Else the fastest of those that
fit is taken: each device has a part of the weights, gradients and moments, and gathers what it
needs (fully sharded); heads and feed-forward are cut, too, among devices of one machine (tensor
parallel); and of what the backward pass needs only the inputs of blocks are kept (checkpointing).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from saccade import config as c
from saccade.models.networks import Network
from saccade.plan.costs import Layer, Shape
from saccade.plan.hardware import Hardware
from saccade.plan.layers import layers_of
from saccade.plan.memory import WIDTHS, fullest, memory_of

IN_MACHINE = 8  # devices that are linked closely enough for tensor parallelism
BETWEEN_MACHINES = 25e9  # bytes/s of a device, assumed: 200 Gbit/s
MOST_ROWS = 1 << 20
ROOM = 0.92  # of a device's memory, that a plan may fill


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
    """The layout that is to be taken, or the smallest if none fits.

    `layers` are those of the batch that a device computes at once; a step has so many of them.
    """
    tried = [
        _layout(layers, config, hardware, data, tensor, sharded, again, batches)
        for data, tensor, sharded, again in _choices(config, devices)
    ]
    fitting = [one for one in tried if one.fits]
    if not fitting:
        return min(tried, key=lambda one: one.memory)
    if fitting[0] is tried[0]:
        return fitting[0]
    reached = hardware.peak * hardware.utilisation
    forward = sum(layer.cost.forward for layer in layers if layer.block)
    again = forward * max(batches, devices) / devices / reached  # seconds, of checkpointing
    return min(fitting, key=lambda one: one.seconds + (again if one.checkpointing else 0.0))


def _choices(config: c.Config, devices: int) -> Iterator[tuple[int, int, bool, bool]]:
    for again in (False, True):
        yield devices, 1, False, again
    if devices > 1:
        for again in (False, True):
            yield devices, 1, True, again
    heads = [
        part.num_heads
        for part in (config.encoder, config.decoder)
        if isinstance(part, c.Transformer)
    ]
    for tensor in (2, 4, 8):
        if devices % tensor or not heads or any(number % tensor for number in heads):
            continue
        for again in (False, True):
            yield devices // tensor, tensor, devices > tensor, again


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
    whole = memory_of(layers, config.train, hardware.precision)
    parts = tensor * (data if sharded else 1)  # of weights, gradients and moments
    here = max(1.0, batches / data)  # batches of a step that a device computes
    together = 1.0  # of them, that it computes at once
    if sharded:  # a block's weights are gathered while it is computed
        gathered = max((layer.weights for layer in layers), default=0) * (width + 4) / tensor
        fixed = whole.static / parts + gathered
        each = (whole.checkpointed if checkpointing else whole.activations) / tensor
        together = min(here, max(1.0, (ROOM * hardware.memory - fixed) // max(each, 1.0)))
        memory = fixed + together * each
    else:  # what is kept shrinks while gradients grow: both are never whole
        moving = fullest(layers, width, checkpointing=checkpointing)
        memory = (whole.static - whole.gradients + moving) / tensor
    between, within = _volumes(layers, width, data, tensor, sharded, checkpointing, here, together)
    link = hardware.link if data * tensor <= IN_MACHINE else min(hardware.link, BETWEEN_MACHINES)
    seconds = between / link + within / hardware.link
    fits = memory <= ROOM * hardware.memory
    volume = between + within
    return Layout(data, tensor, sharded, checkpointing, memory, fits, volume, seconds)


def _volumes(
    layers: Sequence[Layer],
    width: int,
    data: int,
    tensor: int,
    sharded: bool,
    checkpointing: bool,
    here: float,
    together: float,
) -> tuple[float, float]:
    """The bytes that a device sends in a step, by rings: of weights and gradients to those that
    compute other rows, and of activations to those that share its blocks."""
    weights = sum(layer.parameters for layer in layers) / tensor
    share = (data - 1) / data
    if sharded:  # weights are gathered for each pass, gradients are summed where they belong
        passes = (3 if checkpointing else 2) * ceil(here / together)
        volume = share * weights * (width * passes + 4)
    else:
        volume = 2 * share * weights * 4
    within = 0.0
    if tensor > 1:  # after attention and after the feed-forward network, forward and backward
        sums = 6 if checkpointing else 4
        entries = sum(layer.entry for layer in layers if layer.block)
        within = 2 * (tensor - 1) / tensor * entries * width * sums * here
    return volume, within


def rows_that_fit(
    network: Network, shape: Shape, train: c.Train, hardware: Hardware, *, checkpointing: bool
) -> int:
    """How many rows as long as these a batch may have on one device; 0 if not even one."""

    def peak(rows: int) -> float:
        layers = layers_of(network, shape.of_rows(rows))
        found = memory_of(layers, train, hardware.precision)
        return float(found.checkpointed_peak if checkpointing else found.peak)

    room, most = ROOM * hardware.memory, 1
    if peak(1) > room:
        return 0
    while peak(2 * most) <= room and most < MOST_ROWS:
        most *= 2
    low, high = most, 2 * most  # the peak grows with the rows, though not evenly
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (middle, high) if peak(middle) <= room else (low, middle)
    return low
