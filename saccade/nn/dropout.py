"""Dropout that is cheap on a CPU.

Torch's CPU generator is serial and spends a 32-bit draw on every element. Here one 64-bit draw
serves eight elements, so the probability is rounded to 1/256 and the scale is exact for the rounded
one. Elsewhere torch's own kernel runs. Both follow torch's generators.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """Zeroes a share `p` of its input in training, and scales the rest to keep the mean."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """`x` with a share `p` zeroed while training."""
    if not training or p == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    threshold = round(p * 256)
    if threshold == 0:
        return F.dropout(x, p)  # too rare for a byte
    draws = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    # NumPy compares bytes ten times faster than torch does, and torch multiplies by bytes faster
    # than by bools.
    kept = draws.view(torch.uint8)[: x.numel()].numpy() >= threshold
    keep = torch.from_numpy(kept).view(torch.uint8).view(x.shape)
    scale = 256 / (256 - threshold)
    return _Drop.apply(x, keep, scale)  # type: ignore[no-any-return,no-untyped-call]


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return (x * keep).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return (gradients[0] * keep).mul_(ctx.scale), None, None
