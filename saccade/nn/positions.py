"""Where a token stands: sinusoidal, learned, rotary or relative positions."""

from functools import lru_cache
from math import log, pi
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.errors import DataError
from saccade.nn.tracing import traced_positions


@lru_cache(maxsize=32)
def sinusoids(length: int, dim: int, device: torch.device | None = None) -> Float[Tensor, "n D"]:
    """sin(n / 10000^(2i/d)) in the even columns, cos in the odd.

    Vaswani et al. 2017, arxiv.org/abs/1706.03762
    """
    with torch.inference_mode(False):  # a table may be made in evaluation and used in training
        position_ids = torch.arange(length, device=device)
        angle = position_ids[:, None] * frequencies(dim, device)  # (n, D/2)
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class Sinusoidal(nn.Module):
    """Adds the fixed waves; has no end and no parameters.

    With `halves` all sines come first, then all cosines, as in Marian.
    """

    def __init__(self, dim: int, halves: bool = False):
        super().__init__()
        if dim % 2:
            raise ValueError(f"dim ({dim}) must be even: sines and cosines come in pairs")
        self.dim = dim
        self.halves = halves

    def table(self, length: int, device: torch.device | None = None) -> Float[Tensor, "n D"]:
        """The encodings of the first `length` positions."""
        waves = sinusoids(length, self.dim, device)
        return torch.cat([waves[:, 0::2], waves[:, 1::2]], 1) if self.halves else waves

    def forward(self, x: Float[Tensor, "B T D"], offset: int = 0) -> Float[Tensor, "B T D"]:
        end = offset + x.size(1)
        table = self.table(_rounded(end), x.device)
        return x + table[offset:end].to(x.dtype)

    def at(
        self, x: Float[Tensor, "B T D"], position_ids: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        """The same at `position_ids`."""
        table = self.table(_rounded(int(position_ids.max()) + 1), x.device)
        return x + table[position_ids].to(x.dtype)


class Learned(nn.Module):
    """Adds a learned vector for each of `max_positions` positions.

    `skipped` rows at the table's beginning are never used: RoBERTa and BART have two.
    """

    def __init__(self, max_positions: int, dim: int, skipped: int = 0):
        super().__init__()
        self.table = nn.Embedding(max_positions + skipped, dim)
        self.skipped = skipped

    def forward(self, x: Float[Tensor, "B T D"], offset: int = 0) -> Float[Tensor, "B T D"]:
        end, limit = offset + x.size(1), self.table.num_embeddings - self.skipped
        if end > limit:
            raise DataError(
                f"a sequence of {end} tokens is longer than the model's {limit} learned positions: "
                "shorten it, or train with a larger max_positions or with sinusoidal positions"
            )
        position_ids = torch.arange(offset + self.skipped, end + self.skipped, device=x.device)
        marks: Tensor = self.table(position_ids)
        return x + marks.to(x.dtype)

    def at(
        self, x: Float[Tensor, "B T D"], position_ids: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        marks: Tensor = self.table(position_ids + self.skipped)
        return x + marks.to(x.dtype)


class Unmarked(nn.Module):
    """No positional encoding."""

    def forward(self, x: Float[Tensor, "B T D"], offset: int = 0) -> Float[Tensor, "B T D"]:
        return x

    def at(
        self, x: Float[Tensor, "B T D"], position_ids: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        return x


class Relative(Unmarked):
    """Adds nothing to vectors, but to the scores a learned number for each distance, by head.

    Near distances have a bucket each, farther ones share buckets that grow with the logarithm; all
    layers of a stack share the table. Raffel et al. 2020, arxiv.org/abs/1910.10683
    """

    def __init__(self, num_heads: int, buckets: int, max_distance: int, both_ways: bool):
        super().__init__()
        self.table = nn.Embedding(buckets, num_heads)
        self.max_distance = max_distance
        self.both_ways = both_ways

    def bias(
        self, queries: int, keys: int, like: Tensor, position_ids: Int[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "#B H T S"]:
        """The bias of the scores of the last `queries` of `keys` positions.

        With `position_ids` all positions are queries, at these.
        """
        if position_ids is not None:
            most = int(position_ids.max())
            distances = torch.arange(-most, most + 1, device=like.device)
            biases: Tensor = self.table(self.bucket(distances))  # (2 most + 1, H)
            index = position_ids[:, None, :] - position_ids[:, :, None] + most  # (B, T, S)
            return biases[index].permute(0, 3, 1, 2).to(like.dtype)
        positions = torch.arange(keys, device=like.device)
        distance = positions - positions[keys - queries :, None]  # (T, S), from query to key
        bias: Tensor = self.table(self.bucket(distance))
        return bias.permute(2, 0, 1).unsqueeze(0).to(like.dtype)

    def bucket(self, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        buckets, first = self.table.num_embeddings, torch.zeros_like(distance)
        if self.both_ways:
            buckets //= 2
            first = (distance > 0) * buckets
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        near = buckets // 2
        growth = log(self.max_distance / near)
        far = near + ((distance / near).clamp(min=1.0).log() / growth * (buckets - near)).long()
        return first + torch.where(distance < near, distance, far.clamp(max=buckets - 1))


class RotaryFrequencies(NamedTuple):
    """The frequencies of rotary positions: theta^(-2i/K) for pair i, or lower.

    For texts longer than the `context` tokens of pretraining, pairs that rotate less than `low`
    times within these are slowed down by `factor`, those that rotate more than `high` times are
    not, and those between in part (Llama 3.1, arxiv.org/abs/2407.21783). With `high` = 0 all are
    (linear: Chen et al. 2023, arxiv.org/abs/2306.15595).
    """

    theta: float = 10000.0
    factor: float = 1.0
    low: float = 0.0
    high: float = 0.0
    context: int = 1

    def speeds(self, dim: int, device: torch.device | None) -> Float[Tensor, "half"]:
        """The angle between two neighbouring positions, for each pair of `dim` columns."""
        speed = frequencies(dim, device, self.theta)
        if self.factor == 1.0:
            return speed
        if not self.high:
            return speed / self.factor
        kept = (self.context * speed / (2 * pi) - self.low) / (self.high - self.low)
        kept = kept.clamp(0.0, 1.0)
        return speed * (kept + (1 - kept) / self.factor)


DEFAULT_ROTARY = RotaryFrequencies()


def rotate(
    x: Float[Tensor, "B H T K"],
    offset: int,
    rotary: RotaryFrequencies = DEFAULT_ROTARY,
    position_ids: Int[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B H T K"]:
    """`x` with each pair of columns rotated by the angle of its position.

    Su et al. 2021, arxiv.org/abs/2104.09864
    """
    end = offset + x.size(-2) if position_ids is None else int(position_ids.max()) + 1
    cos, sin = _cos_sin(_rounded(end), x.size(-1), x.device, rotary)
    where = slice(offset, end) if position_ids is None else position_ids[:, None]
    cos, sin = cos[where].to(x.dtype), sin[where].to(x.dtype)  # (T, K/2), or (B, 1, T, K/2)
    left, right = x[..., 0::2], x[..., 1::2]
    return torch.stack([left * cos - right * sin, left * sin + right * cos], dim=-1).flatten(-2)


@lru_cache(maxsize=32)
def _cos_sin(
    length: int, dim: int, device: torch.device, rotary: RotaryFrequencies
) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        angle = torch.arange(length, device=device)[:, None] * rotary.speeds(dim, device)
        return angle.cos(), angle.sin()


def frequencies(
    dim: int, device: torch.device | None, theta: float = 10000.0
) -> Float[Tensor, "half"]:
    """theta^(-2i/d) for each pair of columns."""
    return theta ** (-torch.arange(0, dim, 2, device=device) / dim)


def _rounded(length: int) -> int:
    # few different tables, so that the cache holds them; of a graph, one
    return traced_positions() or max(64, 1 << (length - 1).bit_length())
