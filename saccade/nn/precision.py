"""Mixed precision: the number format that a network computes in, if not that of its weights.

In training with half precision the weights, their gradients and the optimiser's state are in single
precision. The weights of matrix products are cast once a step; activations follow them. Long sums
stay in single precision: embeddings (a token's gradient is summed over all its occurrences), output
layers (see `loss`, `distributions`), norms, and the residual stream of a Transformer.
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
    """Inside, inputs of a network are cast to this number format."""
    token = _computing.set(dtype)
    try:
        yield
    finally:
        _computing.reset(token)


def current_format() -> torch.dtype | None:
    """The number format of `computing_in`; None outside."""
    return _computing.get()


def computed(x: Tensor) -> Tensor:
    """`x` in the current number format; unchanged outside of `computing_in`."""
    dtype = _computing.get()
    return x if dtype is None else x.to(dtype)


class Halved(nn.Module):
    """A network whose products are computed with half-precision copies of its weights.

    The copies are made by `cast`, once for all batches of a step, and are part of the graph.
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
