"""`with watch(model) as maps:` records attention weights by module path, from outside.

Watches may be nested: each records. Without any, the fused kernels run, and the cost is one
dictionary look-up per layer.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

import torch
from torch import Tensor, nn

Maps = dict[str, list[Tensor]]  # module path -> the weights of each call, in order
Watchers = Mapping[int, tuple[list[Tensor], ...]]  # a module's id -> the lists of all who watch it
_watchers: ContextVar[Watchers] = ContextVar("watchers", default=MappingProxyType({}))


@contextmanager
def watch(model: nn.Module) -> Iterator[Maps]:
    """The maps of every attention in `model` while the block runs: (B, [H,] T, S) a call."""
    maps: Maps = {}
    watchers = dict(_watchers.get())
    for path, module in model.named_modules():
        outer = watchers.get(id(module), ())
        watchers[id(module)] = (*outer, maps.setdefault(path, []))
    token = _watchers.set(watchers)
    try:
        yield maps
    finally:
        _watchers.reset(token)
        for path in [path for path, weights in maps.items() if not weights]:
            del maps[path]


def is_watched(module: nn.Module) -> bool:
    """Whether this module's weights are recorded."""
    return id(module) in _watchers.get()


def watched(*models: nn.Module) -> bool:
    """Whether a module of these is watched: then they have to be used, and not copies."""
    watchers = _watchers.get()
    return bool(watchers) and any(id(m) in watchers for model in models for m in model.modules())


def record(module: nn.Module, weights: Tensor) -> None:
    """Add the weights of one call to all watches of the module."""
    for weights_so_far in _watchers.get().get(id(module), ()):
        weights_so_far.append(weights.detach())


def over_time(calls: list[Tensor]) -> Tensor:
    """The maps of successive steps as one, (..., T, S), padded with zeros for earlier steps."""
    longest = max(call.size(-1) for call in calls)
    widened = [nn.functional.pad(call, (0, longest - call.size(-1))) for call in calls]
    return torch.cat(widened, dim=-2)
