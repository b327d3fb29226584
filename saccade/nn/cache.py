"""The KV cache: keys and values of the positions that a decoder has read, of every layer.

Hypotheses about one source share a row of keys and values. Each step appends to it and nothing is
moved: reordering hypotheses reorders only their slots, the indices of a hypothesis' positions among
those of its source. Positions without references are dropped from time to time.

A cache is a value: two continuations of it are independent, and tensors handed out never change.
M sources, B rows (hypotheses), H heads, L positions of a source, t of a row, K head width.
"""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.nn.state import Fixed, Wrapped

COMPACT_STEPS = 8  # between two searches for positions without references


@dataclass(frozen=True, slots=True)
class Buffer(Wrapped):
    """A tensor (M, H, L, K) to which positions are appended, mostly without copying it.

    It is the beginning of a larger storage. The first to append writes behind it; any other, into a
    larger copy.
    """

    storage: Tensor
    length: int
    written: list[int]  # up to where, by any buffer with this storage

    @classmethod
    def of(cls, tensor: Float[Tensor, "M H L K"]) -> "Buffer":
        return cls(tensor, tensor.size(2), [tensor.size(2)])

    @property
    def tensor(self) -> Float[Tensor, "M H L K"]:
        full = self.length == self.storage.size(2)  # avoids the gradient of a slice
        return self.storage if full else self.storage[:, :, : self.length]

    def append(self, more: Float[Tensor, "M H n K"]) -> "Buffer":
        """The tensor with more positions behind it."""
        if torch.is_grad_enabled():
            return Buffer.of(torch.cat([self.tensor, more], 2))
        storage, written, end = self.storage, self.written, self.length + more.size(2)
        writable = torch.is_inference_mode_enabled() or not storage.is_inference()
        if not writable or written[0] != self.length or end > storage.size(2):
            M, H, _, K = storage.shape
            storage, written = storage.new_empty(M, H, end + end // 2 + 8, K), [self.length]
            storage[:, :, : self.length] = self.tensor
        storage[:, :, self.length : end] = more
        written[0] = end
        return Buffer(storage, end, written)


KeysValues = tuple[Buffer, Buffer]  # of one layer


@dataclass(frozen=True, slots=True)
class Past:
    """What new positions attend to in one layer: the cached positions, and a mask."""

    cached: KeysValues | None
    length: int  # of what each row has read before
    sources: int  # M
    # added to scores; None: every row has its own keys, and sees all up to itself
    mask: Float[Tensor, "#M #H _ L"] | None

    @classmethod
    def empty(cls, rows: int) -> "Past":
        """No past positions: plain causal attention."""
        return cls(None, 0, rows, None)

    def of(self, cached: KeysValues | None) -> "Past":
        """The same for a layer with these keys and values."""
        return Past(cached, self.length, self.sources, self.mask)

    def biased(self, bias: Float[Tensor, "1 H T t"], slots: Int[Tensor, "B t"] | None) -> "Past":
        """The same with a bias added to the scores of a row's own positions."""
        H, T, t = bias.shape[1:]
        if self.mask is None or slots is None:
            hidden = torch.full((T, t), -inf, dtype=bias.dtype, device=bias.device)
            mask = bias + hidden.triu(t - T + 1) if T > 1 else bias
            return Past(self.cached, self.length, self.sources, mask)
        B, total = slots.size(0), self.mask.size(-1)
        spread = bias.new_zeros(B, H, T, total)
        index = slots[:, None, None, :].expand(-1, H, T, -1)
        spread = spread.scatter(3, index, bias.expand(B, -1, -1, -1))
        return Past(self.cached, self.length, self.sources, self.mask + self.fold(spread))

    def fold(self, heads: Float[Tensor, "B H T K"]) -> Float[Tensor, "M H _ K"]:
        """The rows of a source as further positions of one row."""
        if heads.size(0) == self.sources:
            return heads
        folded = heads.view(self.sources, -1, *heads.shape[1:])  # (M, rows, H, T, K)
        return folded.transpose(1, 2).flatten(2, 3)

    def append(self, key: Float[Tensor, "B H T K"], value: Float[Tensor, "B H T K"]) -> KeysValues:
        """All keys and values, with the new positions last."""
        key, value = self.fold(key), self.fold(value)
        if self.cached is None:
            return Buffer.of(key), Buffer.of(value)
        return self.cached[0].append(key), self.cached[1].append(value)


class KVCache(NamedTuple):
    layers: Fixed | None = None  # KeysValues of each layer; None before the first position
    slots: Int[Tensor, "B t"] | None = None  # None: each row is a source, its positions in order

    def extend(
        self, rows: int, columns: int, sources: int | None, like: Tensor
    ) -> tuple["KVCache", Past]:
        """The cache with slots for new columns of every row, and what these may attend to.

        `sources` is how many rows share a memory; None where there is none. `like` gives the dtype
        and the device of a mask.
        """
        cache = self.compact() if self.slots is not None else self
        M = sources or (rows if cache.layers is None else cache.layers.tree[0][0].storage.size(0))
        if rows == M and cache.slots is None:
            return cache, Past(None, cache.length, M, None)
        slots, mask = cache.slot_mask(rows, columns, M, like)
        return KVCache(cache.layers, slots), Past(None, cache.length, M, mask)

    def layer(self, i: int) -> KeysValues | None:
        return None if self.layers is None else self.layers.tree[i]

    @property
    def length(self) -> int:
        """How many positions each row has read."""
        return self.positions if self.slots is None else self.slots.size(1)

    @property
    def positions(self) -> int:
        """How many positions there are of a source, of all hypotheses together."""
        return 0 if self.layers is None else self.layers.tree[0][0].length

    def slot_mask(
        self, rows: int, columns: int, sources: int, like: Tensor
    ) -> tuple[Int[Tensor, "B n"], Float[Tensor, "M 1 q k"]]:
        """The slots with those of new columns, and a mask for these.

        Each new position sees its own row's positions, up to itself.
        """
        device, before = like.device, self.positions
        slots = self.slots
        if slots is None:
            slots = torch.arange(before, device=device).expand(rows, -1)
        total = before + rows // sources * columns
        new = torch.arange(before, total, device=device).view(-1, columns).repeat(sources, 1)
        slots = torch.cat([slots, new], 1)
        mask = torch.full((rows, columns, total), -inf, dtype=like.dtype, device=device)
        for i in range(columns):
            mask[:, i].scatter_(1, slots[:, : slots.size(1) - columns + i + 1], 0.0)
        return slots, mask.view(sources, 1, -1, total)

    def compact(self) -> "KVCache":
        """The cache without positions to which no row refers, if they are at least half of all.

        Hypotheses about one source have most of their past in common.
        """
        if self.layers is None or self.slots is None or self.slots.size(1) % COMPACT_STEPS:
            return self
        layers, slots = self.layers.tree, self.slots
        M, _, length, _ = layers[0][0].tensor.shape
        by_source = slots.view(M, -1)  # (M, rows * t)
        used = torch.zeros(M, length, dtype=torch.long, device=slots.device)
        used.scatter_(1, by_source, 1)
        kept = int(used.sum(1).max())
        if 2 * kept > length:
            return self
        indices = used.argsort(dim=1, descending=True, stable=True)[:, :kept]  # (M, kept)
        slots = (used.cumsum(1) - 1).gather(1, by_source).view_as(slots)

        def gathered(buffer: Buffer) -> Buffer:
            _, H, _, K = buffer.storage.shape
            index = indices[:, None, :, None].expand(-1, H, -1, K)
            return Buffer.of(buffer.tensor.gather(2, index))

        return KVCache(
            Fixed(tuple((gathered(key), gathered(value)) for key, value in layers)), slots
        )
