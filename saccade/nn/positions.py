"""Where a token stands: sinusoidal, learned, or rotary positions."""

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import DataError


@lru_cache(maxsize=32)
def sinusoids(length: int, dim: int, device: torch.device | None = None) -> Float[Tensor, "n D"]:
    """sin(n / 10000^(2i/d)) in the even columns, cos in the odd.

    Vaswani et al. 2017, arxiv.org/abs/1706.03762
    """
    with torch.inference_mode(False):  # a table may be made in evaluation and used in training
        angle = _angles(length, dim, device)  # (n, D/2)
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class Sinusoidal(nn.Module):
    """Adds the fixed waves; has no end and no parameters."""

    def __init__(self, dim: int):
        super().__init__()
        if dim % 2:
            raise ValueError(f"dim ({dim}) must be even: sines and cosines come in pairs")
        self.dim = dim

    def forward(self, x: Float[Tensor, "B T D"], offset: int = 0) -> Float[Tensor, "B T D"]:
        end = offset + x.size(1)
        table = sinusoids(_rounded(end), self.dim, x.device)
        return x + table[offset:end].to(x.dtype)


class Learned(nn.Module):
    """Adds a learned vector for each of `max_positions` positions."""

    def __init__(self, max_positions: int, dim: int):
        super().__init__()
        self.table = nn.Embedding(max_positions, dim)  # (max_positions, D)

    def forward(self, x: Float[Tensor, "B T D"], offset: int = 0) -> Float[Tensor, "B T D"]:
        end, limit = offset + x.size(1), self.table.num_embeddings
        if end > limit:
            raise DataError(
                f"a sequence of {end} tokens is longer than the model's {limit} learned positions: "
                "shorten it, or train with a larger max_positions or with sinusoidal positions"
            )
        marks: Tensor = self.table(torch.arange(offset, end, device=x.device))
        return x + marks.to(x.dtype)


class Unmarked(nn.Module):
    """Adds nothing: the network must find the order by other means, or ignore it."""

    def forward(self, x: Float[Tensor, "B T D"], offset: int = 0) -> Float[Tensor, "B T D"]:
        return x


def rotate(x: Float[Tensor, "B H T K"], offset: int) -> Float[Tensor, "B H T K"]:
    """`x` with each pair of columns turned by its position's angle.

    Su et al. 2021, arxiv.org/abs/2104.09864
    """
    end = offset + x.size(-2)
    cos, sin = _turns(_rounded(end), x.size(-1), x.device)
    cos, sin = cos[offset:end].to(x.dtype), sin[offset:end].to(x.dtype)  # (T, K/2)
    left, right = x[..., 0::2], x[..., 1::2]
    return torch.stack([left * cos - right * sin, left * sin + right * cos], dim=-1).flatten(-2)


@lru_cache(maxsize=32)
def _turns(length: int, dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        angle = _angles(length, dim, device)
        return angle.cos(), angle.sin()


def _angles(length: int, dim: int, device: torch.device | None) -> Float[Tensor, "n half"]:
    frequency = 10000.0 ** (-torch.arange(0, dim, 2, device=device) / dim)  # (D/2,)
    return torch.arange(length, device=device)[:, None] * frequency


def _rounded(length: int) -> int:
    return max(
        64, 1 << (length - 1).bit_length()
    )  # few different tables, so that the cache holds them
