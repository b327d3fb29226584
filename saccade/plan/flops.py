"""FLOPs of a step and of a run, from those of the layers."""

from collections.abc import Sequence
from dataclasses import dataclass

from saccade.plan.costs import Cost, Layer


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs of a step: forward and backward, and of both what attention and the output take."""

    forward: float
    backward: float
    attention: float
    output: float

    @property
    def step(self) -> float:
        return self.forward + self.backward


def flops_of(layers: Sequence[Layer], *, checkpointing: bool = False) -> Flops:
    """The FLOPs of one batch; with checkpointing the blocks are computed twice."""
    total = sum((layer.cost for layer in layers), Cost())
    output = sum(layer.cost.flops for layer in layers if layer.output)
    again = sum(layer.cost.forward for layer in layers if layer.block) if checkpointing else 0.0
    return Flops(total.forward, total.backward + again, total.attention, output)
