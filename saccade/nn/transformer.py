"""The Transformer's blocks: attention, then a feed-forward network, each in a residual.

Vaswani et al. 2017, arxiv.org/abs/1706.03762; pre-norm as in Xiong et al. 2020,
arxiv.org/abs/2002.04745.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.nn.attention import (
    CrossAttention,
    MemoryHeads,
    SelfAttention,
    additive_mask,
    triangle,
)
from saccade.nn.cache import KeysValues, KVCache, Past
from saccade.nn.dropout import Dropout
from saccade.nn.padded import View
from saccade.nn.positions import DEFAULT_ROTARY, Relative, RotaryFrequencies
from saccade.nn.precision import computed
from saccade.nn.products import Linear
from saccade.nn.state import Fixed

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"]
GATED = ("swiglu", "geglu")
Norm = Literal["layer", "rms"]


class FeedForward(nn.Module):
    """Two linear layers with a non-linearity between, at every position alike."""

    def __init__(self, dim: int, ff_dim: int, activation: Activation, bias: bool = True):
        super().__init__()
        if activation not in get_args(Activation):
            choices = ", ".join(get_args(Activation))
            raise ValueError(f"no activation {activation!r}; choose one of {choices}")
        self.activation = activation
        self.up = Linear(dim, 2 * ff_dim if activation in GATED else ff_dim, bias=bias)
        self.down = Linear(ff_dim, dim, bias=bias)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        x = self.up(x)
        match self.activation:
            case "relu":
                x = F.relu(x, inplace=True)  # its gradient needs only its output
            case "gelu":
                x = F.gelu(x)
            case "gelu_tanh":  # the approximation of BERT's first code, GPT-2 and T5
                x = F.gelu(x, approximate="tanh")
            case "silu":
                x = F.silu(x)
            case "swiglu":  # Shazeer 2020, arxiv.org/abs/2002.05202
                gate, x = x.chunk(2, dim=-1)
                x = F.silu(gate) * x
            case "geglu":  # of the same paper, with the approximation, as in T5 1.1
                gate, x = x.chunk(2, dim=-1)
                x = F.gelu(gate, approximate="tanh") * x
        return self.down(x)  # type: ignore[no-any-return]


def build_norm(kind: Norm, dim: int, eps: float | None = None) -> nn.Module:
    """Layer norm (Ba et al. 2016), or RMS norm (Zhang & Sennrich 2019)."""
    match kind:
        case "layer":
            return nn.LayerNorm(dim, eps or 1e-5)
        case "rms":
            return nn.RMSNorm(dim, eps=eps or 1e-6)
        case _:
            raise ValueError(f"no norm {kind!r}; choose one of {', '.join(get_args(Norm))}")


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
        rotary_frequencies: RotaryFrequencies = DEFAULT_ROTARY,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        norm_eps: float | None = None,
    ):
        super().__init__()
        self.norm_first = norm_first
        self.attention = SelfAttention(
            dim,
            num_heads,
            attention_dropout,
            rotary,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            bias=bias,
            rotary_frequencies=rotary_frequencies,
        )
        self.attention_norm = build_norm(norm, dim, norm_eps)
        if memory_dim is not None:
            rate = attention_dropout
            self.cross = CrossAttention(
                dim, memory_dim, num_heads, rate, head_dim=head_dim, bias=bias
            )
            self.cross_norm = build_norm(norm, dim, norm_eps)
        self.feed_forward = FeedForward(dim, ff_dim, activation, bias)
        self.feed_forward_norm = build_norm(norm, dim, norm_eps)
        self.drop = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Tensor | None = None,
        past: Past | None = None,
        memory: Float[Tensor, "M S C"] | MemoryHeads | None = None,
        memory_mask: Tensor | None = None,
        position_ids: Int[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], KeysValues | None, MemoryHeads | None]:
        """The block's output, the keys and values so far, and those of the memory."""
        first = self.norm_first
        inner = computed(self.attention_norm(x) if first else x)
        attended, cached = self.attention(inner, mask, past, position_ids)
        x = x + self.drop(attended)
        x = x if first else self.attention_norm(x)
        heads = None
        if memory is not None:
            inner = computed(self.cross_norm(x) if first else x)
            attended, heads = self.cross(inner, memory, memory_mask)
            x = x + self.drop(attended)
            x = x if first else self.cross_norm(x)
        inner = computed(self.feed_forward_norm(x) if first else x)
        x = x + self.drop(self.feed_forward(inner))
        return x if first else self.feed_forward_norm(x), cached, heads


MemoryLayers = Float[Tensor, "M S C"] | tuple[MemoryHeads, ...]  # as it is, or for each layer


class Stack(nn.Module):
    """Positional encoding, a stack of blocks, and with pre-norm a final norm.

    The residual stream is in single precision, whatever the blocks compute in, as it is a long sum.
    `first_norm` is that of the embeddings, as in BERT and BART.
    """

    causal = False

    def __init__(
        self,
        positions: nn.Module,
        blocks: list[Block],
        norm: nn.Module,
        dropout: float,
        first_norm: nn.Module | None = None,
    ):
        super().__init__()
        self.positions = positions
        self.first_norm = first_norm
        self.blocks: Sequence[Block] = nn.ModuleList(blocks)  # type: ignore[assignment]
        self.norm = norm
        self.drop = Dropout(dropout)

    def start(
        self,
        x: Float[Tensor, "B T D"],
        offset: int = 0,
        position_ids: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """The input of the first block, at positions from `offset` or at `position_ids`."""
        at = self.positions.at
        x = self.positions(x, offset) if position_ids is None else at(x, position_ids)  # type: ignore[operator]
        return self.drop(x if self.first_norm is None else self.first_norm(x)).float()  # type: ignore[no-any-return]

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        keep: Bool[Tensor, "B T"] | None = None,
        view: View | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Every position sees those in `keep` and its `view`; in a causal stack no later one."""
        mask = additive_mask(keep, x.dtype)
        position_ids = None if view is None else view.position_ids
        if view is not None:
            seen = view.seen if keep is None else view.seen & keep.unsqueeze(1)
            mask = additive_mask(seen, x.dtype)
        if self.causal:
            later = triangle(x.size(1), x.size(1), x)[None, None]  # (1, 1, T, T)
            mask = later if mask is None else mask + later
        if isinstance(self.positions, Relative):
            bias = self.positions.bias(x.size(1), x.size(1), x, position_ids)
            mask = bias if mask is None else mask + bias
        x = self.start(x, 0, position_ids)
        for block in self.blocks:
            x, _, _ = block(x, mask, position_ids=position_ids)
        return computed(self.norm(x))


class CausalStack(Stack):
    """The same, where a position sees itself, those before it, and a memory if there is one."""

    def forward(  # type: ignore[override]
        self,
        x: Float[Tensor, "B T D"],
        cache: KVCache,
        memory: MemoryLayers | None = None,
        memory_mask: Float[Tensor, "M 1 1 S"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], KVCache, tuple[MemoryHeads | None, ...]]:
        """The output, the cache with these positions, and each layer's keys of the memory."""
        sources = None
        if memory is not None:
            sources = (memory if isinstance(memory, Tensor) else memory[0][0]).size(0)
        cache, past = cache.extend(x.size(0), x.size(1), sources, x)
        if isinstance(self.positions, Relative):
            bias = self.positions.bias(x.size(1), past.length + x.size(1), x)
            past = past.biased(bias, cache.slots)
        x = self.start(x, past.length)
        cached, heads = [], []
        for i, block in enumerate(self.blocks):
            own = memory if memory is None or isinstance(memory, Tensor) else memory[i]
            x, new, of_memory = block(x, None, past.of(cache.layer(i)), own, memory_mask)
            cached.append(new)
            heads.append(of_memory)
        return computed(self.norm(x)), KVCache(Fixed(tuple(cached)), cache.slots), tuple(heads)
