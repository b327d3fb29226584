"""Fine-tuning: which parameters are trained, from when on, and at which rate, by their names."""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from saccade import config as c
from saccade.nn.lora import ADAPTERS

FIRST = re.compile(r"\.(?:stems?|embedding|marks|positions)\.")  # below all numbered layers
LAYER = re.compile(r"\.(?:blocks|layers)\.(\d+)\.")


class Group(NamedTuple):
    """Parameters with one learning rate and start."""

    parameters: Sequence[Tensor]
    scale: float = 1.0  # of the rate
    begins: float = 0.0  # the progress through training at which they are unfrozen


def groups_of(network: nn.Module, start: c.Start | None, taken: Collection[str]) -> list[Group]:
    """The trainable parameters, in groups; `taken` are the names of pretrained ones.

    The others are frozen: they have neither a gradient nor an optimiser state.
    """
    named = dict(network.named_parameters())
    for parameter in named.values():
        parameter.requires_grad_(True)
    match start:
        case None:
            return [Group(list(named.values()))]
        case c.Frozen() | c.LowRank():
            trainable = {name: _is_trainable(name, taken) for name in named}
            for name, parameter in named.items():
                parameter.requires_grad_(trainable[name])
            return [Group([parameter for name, parameter in named.items() if trainable[name]])]
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


def _is_trainable(name: str, taken: Collection[str]) -> bool:
    """Whether a parameter is new, or of an adapter of a pretrained one."""
    layer, _, leaf = name.rpartition(".")
    return f"{layer}.weight" in taken if leaf in ADAPTERS else name not in taken


def depths_of(names: Sequence[str], taken: Collection[str]) -> dict[str, int]:
    """The distance of each parameter from the output: 0 if new, 1 in the last layer, and so on.

    Encoder and decoder each count from their own last layer. What is below the first layer, such
    as embeddings, is the furthest; norms and output layers belong to the last.
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
    """The number of a parameter's layer, from 0; -1 below the first, None if it is in none."""
    if FIRST.search(name):
        return -1
    match = LAYER.search(name)
    return int(match[1]) if match else None


def thaw(groups: Sequence[Group], progress: float) -> None:
    """Unfreeze the groups whose turn has come, and freeze the others."""
    for group in groups:
        trainable = progress >= group.begins
        if group.parameters[0].requires_grad != trainable:
            for parameter in group.parameters:
                parameter.requires_grad_(trainable)
