"""Listen from outside: `with watch(model) as maps:` records attention weights by module path.

With nobody listening the fused kernels run and this costs one dictionary look-up a layer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

Maps = dict[str, list[Tensor]]  # module path -> the weights of each call, in order
_ears: ContextVar[dict[int, list[Tensor]] | None] = ContextVar("ears", default=None)


@contextmanager
def watch(model: nn.Module) -> Iterator[Maps]:
    """The maps of every attention in `model` while the block runs: (B, [H,] T, S) a call."""
    maps: Maps = {}
    ears: dict[int, list[Tensor]] = {}
    for path, module in model.named_modules():
        ears[id(module)] = maps.setdefault(path, [])
    token = _ears.set(ears)
    try:
        yield maps
    finally:
        _ears.reset(token)
        for path in [path for path, weights in maps.items() if not weights]:
            del maps[path]


def is_watched(module: nn.Module) -> bool:
    """Whether somebody wants this module's weights."""
    ears = _ears.get()
    return ears is not None and id(module) in ears


def watched() -> bool:
    """Whether somebody listens to any model, so that its work has to be done here and by torch."""
    return _ears.get() is not None


def record(module: nn.Module, weights: Tensor) -> None:
    """Hand the weights of one call to the listener, if there is one."""
    ears = _ears.get()
    if ears is not None and id(module) in ears:
        ears[id(module)].append(weights.detach())


def over_time(calls: list[Tensor]) -> Tensor:
    """The maps of successive steps as one: (..., T, S), with zeros where the earlier saw less."""
    longest = max(call.size(-1) for call in calls)
    widened = [nn.functional.pad(call, (0, longest - call.size(-1))) for call in calls]
    return torch.cat(widened, dim=-2)
