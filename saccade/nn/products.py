"""Matrix products in single precision, by the faster of torch's libraries on this processor.

torch multiplies with MKL, which uses no AVX-512 on processors that are not Intel's. oneDNN, also
part of torch, uses it on AMD processors, and is twice as fast there.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from saccade.nn.tracing import traced_positions

MIN_MULTIPLICATIONS = 1 << 22  # of a product: below, the overhead exceeds the gain
MIN_WIDTH = 16  # of a matrix: long sums into few results are slow


@cache
def onednn_is_faster() -> bool:
    """Whether this is an AMD processor with AVX-512."""
    ready = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not ready or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


class Linear(nn.Linear):
    """y = x W^T + b     (out, in), (out)"""

    def forward(self, x: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape F"]:
        return linear(x, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*shape D"], weight: Float[Tensor, "F D"], bias: Tensor | None = None
) -> Float[Tensor, "*shape F"]:
    """x W^T + b"""
    if not _by_onednn(x, weight):
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.size(-1))
    if torch.is_grad_enabled():
        y = _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    else:
        y = _onednn(rows, weight, bias)
    return y.view(*x.shape[:-1], weight.size(0))  # type: ignore[no-any-return]


def times(a: Float[Tensor, "N D"], b: Float[Tensor, "D F"]) -> Float[Tensor, "N F"]:
    """a b, without a gradient."""
    return _onednn(a, b.t(), None) if _by_onednn(a, b) else a @ b


def transposed_times(a: Float[Tensor, "N D"], b: Float[Tensor, "N F"]) -> Float[Tensor, "D F"]:
    """a^T b, without a gradient."""
    if not _by_onednn(a.t(), b):
        return a.t() @ b
    if a.size(1) > b.size(1):  # the first factor is copied: it should be the smaller one
        return _onednn(b.t(), a.t(), None).t()
    return _onednn(a.t(), b.t(), None)


def _by_onednn(x: Tensor, weight: Tensor) -> bool:
    if x.dtype != torch.float32 or weight.dtype != torch.float32 or x.device.type != "cpu":
        return False
    if min(weight.shape) < MIN_WIDTH or traced_positions() is not None:
        return False
    return x.numel() * weight.numel() >= MIN_MULTIPLICATIONS * x.size(-1) and onednn_is_faster()


def _onednn(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """a b^T + bias"""
    a, b = _dense(a), _dense(b)
    return torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")  # type: ignore[no-any-return]


def _dense(matrix: Tensor) -> Tensor:
    """The matrix, copied if it is strided: there is no fast kernel for it."""
    dense = matrix.is_contiguous() or matrix.t().is_contiguous()
    return matrix if dense else matrix.contiguous()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            times(d_y, weight) if of_x else None,
            transposed_times(d_y, x) if of_weight else None,
            d_y.sum(0) if of_bias else None,
        )
