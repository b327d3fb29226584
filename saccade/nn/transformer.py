"""The Transformer's blocks: attention, then a feed-forward network, each in a residual.

Vaswani et al. 2017, arxiv.org/abs/1706.03762; pre-norm as in Xiong et al. 2020,
arxiv.org/abs/2002.04745.
"""

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.nn.attention import Cache, CrossAttention, SelfAttention, Source
from saccade.nn.dropout import Dropout

Activation = Literal["relu", "gelu", "swiglu"]
Norm = Literal["layer", "rms"]


class FeedForward(nn.Module):
    """Two maps with a bend between, at every position alike."""

    def __init__(self, dim: int, ff_dim: int, activation: Activation):
        super().__init__()
        self.activation = activation
        self.up = nn.Linear(dim, 2 * ff_dim if activation == "swiglu" else ff_dim)
        self.down = nn.Linear(ff_dim, dim)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        x = self.up(x)
        match self.activation:
            case "relu":
                x = F.relu(x, inplace=True)  # its own output is all that its gradient needs
            case "gelu":
                x = F.gelu(x)
            case "swiglu":  # Shazeer 2020, arxiv.org/abs/2002.05202
                gate, x = x.chunk(2, dim=-1)
                x = F.silu(gate) * x
        return self.down(x)  # type: ignore[no-any-return]


def build_norm(kind: Norm, dim: int) -> nn.Module:
    """Layer norm (Ba et al. 2016), or RMS norm (Zhang & Sennrich 2019)."""
    return nn.LayerNorm(dim) if kind == "layer" else nn.RMSNorm(dim, eps=1e-6)


class Block(nn.Module):
    """Self-attention, cross-attention if there is a memory, feed-forward; each `x + drop(f(x))`."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        ff_dim: int,
        *,
        memory_dim: int | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        norm_first: bool = True,
        norm: Norm = "layer",
        activation: Activation = "relu",
        rotary: bool = False,
    ):
        super().__init__()
        self.norm_first = norm_first
        self.attention = SelfAttention(dim, num_heads, attention_dropout, rotary)
        self.attention_norm = build_norm(norm, dim)
        if memory_dim is not None:
            self.cross = CrossAttention(dim, memory_dim, num_heads, attention_dropout)
            self.cross_norm = build_norm(norm, dim)
        self.feed_forward = FeedForward(dim, ff_dim, activation)
        self.feed_forward_norm = build_norm(norm, dim)
        self.drop = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Tensor | None = None,
        *,
        cache: Cache | None = None,
        causal: bool = False,
        past: int = 0,
        sources: int | None = None,
        memory: Source | None = None,
        memory_mask: Tensor | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Cache]:
        """The block's output, and the keys and values so far; see `SelfAttention`."""
        before = self.norm_first
        inner = self.attention_norm(x) if before else x
        inner, cache = self.attention(inner, mask, cache, causal, past, sources)
        x = x + self.drop(inner)
        x = x if before else self.attention_norm(x)
        if memory is not None:
            inner = self.cross(self.cross_norm(x) if before else x, memory, memory_mask)
            x = x + self.drop(inner)
            x = x if before else self.cross_norm(x)
        x = x + self.drop(self.feed_forward(self.feed_forward_norm(x) if before else x))
        return x if before else self.feed_forward_norm(x), cache
