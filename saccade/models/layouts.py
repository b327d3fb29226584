"""Conversions between tensors of other toolkits and ours: `join` theirs into one, `split` it again.

`shape` is that of the result of `join`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Same:
    """The same tensor, times a factor."""

    factor: float = 1.0

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        return shapes[0]

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        (tensor,) = tensors
        return tensor if self.factor == 1.0 else tensor * self.factor

    def split(self, tensor: Tensor) -> list[Tensor]:
        return [tensor if self.factor == 1.0 else tensor / self.factor]


@dataclass(frozen=True)
class Transposed:
    """GPT-2 keeps (in, out)."""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        return shapes[0][::-1]

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        (tensor,) = tensors
        return tensor.T

    def split(self, tensor: Tensor) -> list[Tensor]:
        return [tensor.T]


@dataclass(frozen=True)
class Stacked:
    """Concatenated rows: the two inputs of a gated feed-forward network."""

    parts: int = 2

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        return _stacked_shape(shapes)

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(tensors))

    def split(self, tensor: Tensor) -> list[Tensor]:
        return list(tensor.chunk(self.parts))


@dataclass(frozen=True)
class Heads:
    """Queries, keys and values as rows by group of heads: (groups, queries + 2, K)."""

    head_dim: int
    queries: int = 1  # of a group
    rotary: bool = False  # their pairs are half a head apart, ours are neighbours
    factor: float = 1.0  # of the queries
    fused: bool = False  # one tensor (in, 3 * out), as in GPT-2

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        return shapes[0][::-1] if self.fused else _stacked_shape(shapes)

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        if self.fused:
            (tensor,) = tensors
            tensors = (tensor.T if tensor.dim() > 1 else tensor).chunk(3)
        query, key, value = (_rows(t, -1, self.head_dim) for t in tensors)
        if self.rotary:
            query, key = self._interleave(query), self._interleave(key)
        query = query * self.factor if self.factor != 1.0 else query
        grouped = _rows(query, -1, self.queries)
        return torch.cat([grouped, key.unsqueeze(1), value.unsqueeze(1)], 1).flatten(0, 2)

    def split(self, tensor: Tensor) -> list[Tensor]:
        groups = _rows(tensor, -1, self.queries + 2, self.head_dim)
        query, key, value = groups[:, :-2].flatten(0, 1), groups[:, -2], groups[:, -1]
        query = query / self.factor if self.factor != 1.0 else query
        if self.rotary:
            query, key = self._deinterleave(query), self._deinterleave(key)
        parts = [part.flatten(0, 1) for part in (query, key, value)]
        if not self.fused:
            return parts
        fused = torch.cat(parts)
        return [fused.T if fused.dim() > 1 else fused]

    def _interleave(self, heads: Tensor) -> Tensor:
        return (
            heads.view(len(heads), 2, self.head_dim // 2, *heads.shape[2:])
            .transpose(1, 2)
            .flatten(1, 2)
        )

    def _deinterleave(self, heads: Tensor) -> Tensor:
        return (
            heads.view(len(heads), self.head_dim // 2, 2, *heads.shape[2:])
            .transpose(1, 2)
            .flatten(1, 2)
        )


@dataclass(frozen=True)
class MemoryHeads:
    """Keys and values of a memory as rows by head: (H, 2, K)."""

    head_dim: int

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        return _stacked_shape(shapes)

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        parts = [_rows(t, -1, self.head_dim) for t in tensors]
        return torch.stack(parts, 1).flatten(0, 2)

    def split(self, tensor: Tensor) -> list[Tensor]:
        heads = _rows(tensor, -1, 2, self.head_dim)
        return [heads[:, 0].flatten(0, 1), heads[:, 1].flatten(0, 1)]


@dataclass(frozen=True)
class Flat:
    """One row, as BART keeps the bias of its output: (1, V)."""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        return (torch.Size(shapes[0]).numel(),)

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        (tensor,) = tensors
        return tensor.reshape(-1)

    def split(self, tensor: Tensor) -> list[Tensor]:
        return [tensor.unsqueeze(0)]


Layout = Same | Transposed | Stacked | Heads | MemoryHeads | Flat


def _rows(tensor: Tensor, *shape: int) -> Tensor:
    """A tensor with its first dimension as several."""
    return tensor.reshape(*shape, *tensor.shape[1:])


def _stacked_shape(shapes: Sequence[Shape]) -> Shape:
    """The shape of concatenated rows."""
    return sum(shape[0] for shape in shapes), *shapes[0][1:]
