"""The number format that a network computes in, where it is not that of its weights.

In training with half precision the weights, their gradients and what an optimiser keeps are single
precision. Once a step the weights of products are cast; activations follow them. What sums much
stays single: embedding tables (a word's gradient comes from every place it stands in), output
layers (see `loss`, `distributions`), norms, and what the blocks of a Transformer add to.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from saccade.nn.distributions import Distribution
from saccade.nn.horizon import Effects, ForecastScale, Shortcut

SUMS = Effects | Shortcut | ForecastScale  # of a forecast, whose window is single precision

# Of what is computed, not of a module, as torch's own modes; no other thread sees it.
_computing: ContextVar[torch.dtype | None] = ContextVar("number format", default=None)


@contextmanager
def computing_in(dtype: torch.dtype) -> Iterator[None]:
    """Inside, what enters a network is of this number format."""
    token = _computing.set(dtype)
    try:
        yield
    finally:
        _computing.reset(token)


def current_format() -> torch.dtype | None:
    """What `computing_in` has said."""
    return _computing.get()


def computed(x: Tensor) -> Tensor:
    """`x` in the number format that is computed in; as it is outside of `computing_in`."""
    dtype = _computing.get()
    return x if dtype is None else x.to(dtype)


class Halved(nn.Module):
    """A network whose products are computed with half-precision copies of its weights.

    The copies are made by `cast`, once for all batches of a step, and keep a gradient's way back.
    """

    def __init__(self, network: nn.Module, dtype: torch.dtype, single: tuple[nn.Module, ...]):
        super().__init__()
        self.network, self.dtype = network, dtype
        stay = {id(p) for module in single for p in module.parameters()}
        norms = nn.LayerNorm | nn.RMSNorm | nn.GroupNorm
        for module in network.modules():
            if isinstance(module, nn.Embedding | norms | Distribution | SUMS):
                stay |= {id(p) for p in module.parameters()}
        self.names = [name for name, p in network.named_parameters() if id(p) not in stay]
        self.weights: dict[str, Tensor] = {}

    def cast(self) -> None:
        parameters = dict(self.network.named_parameters())
        self.weights = {name: parameters[name].to(self.dtype) for name in self.names}

    def forward(self, *arguments: Any) -> Any:
        with computing_in(self.dtype):
            return functional_call(self.network, self.weights, arguments)
