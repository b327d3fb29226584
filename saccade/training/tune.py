"""What of a network learns, from when on, and how fast: a function of the names of its weights."""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from saccade import config as c
from saccade.nn.lora import ADAPTERS

BELOW = re.compile(r"\.(?:stems?|embedding|marks|positions)\.")  # the first layer
LAYER = re.compile(r"\.(?:blocks|layers)\.(\d+)\.")


class Group(NamedTuple):
    """Weights that learn alike."""

    parameters: Sequence[Tensor]
    scale: float = 1.0  # of the rate
    begins: float = 0.0  # to learn, at this progress through training


def groups_of(network: nn.Module, start: c.Start | None, taken: Collection[str]) -> list[Group]:
    """The weights that learn, in groups; `taken` are those that were taken over.

    The others are marked as frozen: they cost neither a gradient nor what an optimiser keeps.
    """
    named = dict(network.named_parameters())
    for parameter in named.values():
        parameter.requires_grad_(True)
    match start:
        case None:
            return [Group(list(named.values()))]
        case c.Frozen() | c.LowRank():
            learns = {name: _learns(name, taken) for name in named}
            for name, parameter in named.items():
                parameter.requires_grad_(learns[name])
            return [Group([parameter for name, parameter in named.items() if learns[name]])]
        case c.Whole() | c.Gradual():
            share = start.share if isinstance(start, c.Gradual) else 0.0
            if share == 0.0 and start.layer_decay == 1.0:
                return [Group(list(named.values()))]
            depths, groups = depths_of(list(named), taken), []
            order = sorted({*depths.values()})
            for i, depth in enumerate(order):
                own = [parameter for name, parameter in named.items() if depths[name] == depth]
                begins = share * i / max(len(order) - 1, 1)
                groups.append(Group(own, start.layer_decay**depth, begins))
            return groups


def _learns(name: str, taken: Collection[str]) -> bool:
    """Whether a weight is new, or that of an adapter for one that is not."""
    layer, _, leaf = name.rpartition(".")
    return f"{layer}.weight" in taken if leaf in ADAPTERS else name not in taken


def depths_of(names: Sequence[str], taken: Collection[str]) -> dict[str, int]:
    """How far each weight is from the output: 0 of what is new, 1 of the last layer, and so on.

    An encoder and a decoder are counted each from its own last layer. What is below the first, as
    embeddings, is the furthest; norms and output layers belong to the last.
    """
    numbers = {name: _layer(name) for name in names}
    last: dict[str, int] = {}
    for name, number in numbers.items():
        part = name.partition(".")[0]
        last[part] = max(last.get(part, 0), number or 0)
    depths = {}
    for name, number in numbers.items():
        own = last[name.partition(".")[0]]
        depths[name] = 0 if name not in taken else 1 if number is None else own - number + 1
    return depths


def _layer(name: str) -> int | None:
    """The number of a weight's layer, from 0; -1 below the first, None where it is in none."""
    if BELOW.search(name):
        return -1
    found = LAYER.search(name)
    return int(found[1]) if found else None


def thaw(groups: Sequence[Group], progress: float) -> None:
    """Let the groups learn that have to by now, and no others."""
    for group in groups:
        learns = progress >= group.begins
        if group.parameters[0].requires_grad != learns:
            for parameter in group.parameters:
                parameter.requires_grad_(learns)
