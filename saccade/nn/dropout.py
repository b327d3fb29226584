"""Dropout that is cheap on a CPU.

Torch's CPU generator is serial and spends a 32-bit draw on every element. Here one 64-bit draw
serves eight elements, so the probability is rounded to 1/256 and the scale is exact for the rounded
one. Elsewhere torch's own kernel runs. Both follow torch's generators.

A slice of a batch can have the random numbers of the full batch (`slice_of`): splitting a batch
that does not fit into memory then changes none of them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Some rows of a batch, and sizes of the full batch."""

    first: int
    last: int  # not included
    batch_rows: int
    words: int = 0  # of its longest sentence


# Of what is computed, not of a module, as torch's own modes; no other thread sees it.
_current: ContextVar[RowSlice | None] = ContextVar("row slice", default=None)


@contextmanager
def slice_of(part: RowSlice | None) -> Iterator[None]:
    """Inside, rows are a slice of a larger batch, and have its random numbers."""
    token = _current.set(part)
    try:
        yield
    finally:
        _current.reset(token)


def current_slice() -> RowSlice | None:
    """The slice of `slice_of`; None outside."""
    return _current.get()


def most_words(own: int) -> int:
    """The words of the longest sentence in the full batch; `own` is that of these rows."""
    part = _current.get()
    return own if part is None else max(own, part.words)


def uniform(shape: Sequence[int], device: torch.device) -> Tensor:
    """Uniform random numbers in [0, 1), whose first dimension is the rows of the batch."""
    part = _current.get()
    if part is None:
        return torch.rand(*shape, device=device)
    return torch.rand(part.batch_rows, *shape[1:], device=device)[part.first : part.last]


class WordDropout(nn.Module):
    """Replaces a share of its input ids, but no special one, by `unk` in training."""

    def __init__(self, share: float, unk: int, special: Sequence[int]):
        super().__init__()
        self.share, self.unk, self.special = share, unk, tuple(special)

    def forward(self, tokens: Tensor) -> Tensor:
        if not self.training or self.share == 0.0:
            return tokens
        special = torch.tensor(self.special, device=tokens.device)
        dropped = uniform(tokens.shape, tokens.device) < self.share
        return tokens.masked_fill(dropped & ~torch.isin(tokens, special), self.unk)


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
    part, threshold = _current.get(), round(p * 256)
    shape = x.shape if part is None else torch.Size((part.batch_rows, *x.shape[1:]))
    if x.device.type != "cpu" or threshold == 0:  # too rare for a byte
        if part is None:
            return F.dropout(x, p)
        return x * F.dropout(x.new_ones(shape), p)[part.first : part.last]
    count = shape.numel()
    draws = torch.empty((count + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    # NumPy compares bytes ten times faster than torch does, and torch multiplies by bytes faster
    # than by bools.
    kept = draws.view(torch.uint8)[:count].numpy() >= threshold
    keep = torch.from_numpy(kept).view(torch.uint8).view(shape)
    if part is not None:
        keep = keep[part.first : part.last]
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
