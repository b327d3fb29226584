"""Attention: how much each target position attends to each source position.

Every mechanism here is `softmax(mask(score(query, keys))) . values`; only `score` differs.
B batch, S source positions, T target positions, D width, H heads, K head width.
"""

from math import inf, sqrt
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from saccade.nn.cache import KeysValues, Past
from saccade.nn.dropout import dropout
from saccade.nn.positions import DEFAULT_ROTARY, RotaryFrequencies, rotate
from saccade.nn.products import Linear, linear
from saccade.nn.watch import is_watched, record


def attention_weights(
    scores: Float[Tensor, "*B T S"], keep: Bool[Tensor, "*#B #T S"] | None
) -> Float[Tensor, "*B T S"]:
    """The softmax of the scores over the positions in `keep`; all zeros where there is none."""
    if keep is None:
        return scores.softmax(-1)
    if scores.device.type == "cpu" and keep.any(-1).all():
        return scores.masked_fill(~keep, -inf).softmax(-1)
    lowest = torch.finfo(scores.dtype).min  # of a whole row of -inf the softmax is NaN
    return scores.masked_fill(~keep, lowest).softmax(-1).masked_fill(~keep, 0.0)


def attend(
    scores: Float[Tensor, "B T S"],
    values: Float[Tensor, "B S D"],
    keep: Bool[Tensor, "B S"] | None = None,
) -> Float[Tensor, "B T D"]:
    """The weighted mean of `values`, over the positions in `keep`."""
    return attention_weights(scores, None if keep is None else keep.unsqueeze(1)) @ values


class Dot(nn.Module):
    """score(q, k) = q . k; a linear layer first projects keys of another width to the query's."""

    def __init__(self, query_dim: int, key_dim: int):
        super().__init__()
        same = query_dim == key_dim
        self.bridge = nn.Identity() if same else Linear(key_dim, query_dim, bias=False)

    def prepare(self, keys: Float[Tensor, "B S C"]) -> Float[Tensor, "B S D"]:
        return self.bridge(keys)  # type: ignore[no-any-return]

    def forward(
        self, query: Float[Tensor, "B T D"], keys: Float[Tensor, "B S D"]
    ) -> Float[Tensor, "B T S"]:
        return query @ keys.mT


class ParameterFree(Dot):
    """score(q, x) = q . x, and the items themselves are the values: nothing is learned."""

    def __init__(self, query_dim: int, key_dim: int):
        if query_dim != key_dim:
            raise ValueError(
                f"query_dim ({query_dim}) and key_dim ({key_dim}) must be equal: without "
                "parameters items are compared with the query as they are"
            )
        super().__init__(query_dim, key_dim)


class ScaledDot(Dot):
    """score(q, k) = q . k / sqrt(d), whose variance does not grow with d     Vaswani et al. 2017"""

    def forward(
        self, query: Float[Tensor, "B T D"], keys: Float[Tensor, "B S D"]
    ) -> Float[Tensor, "B T S"]:
        return query @ keys.mT / sqrt(query.size(-1))


class General(nn.Module):
    """score(q, k) = q . W k     Luong et al. 2015, arxiv.org/abs/1508.04025"""

    def __init__(self, query_dim: int, key_dim: int):
        super().__init__()
        self.key = Linear(key_dim, query_dim, bias=False)  # W: (query_dim, key_dim)

    def prepare(self, keys: Float[Tensor, "B S C"]) -> Float[Tensor, "B S D"]:
        return self.key(keys)  # type: ignore[no-any-return]

    def forward(
        self, query: Float[Tensor, "B T D"], keys: Float[Tensor, "B S D"]
    ) -> Float[Tensor, "B T S"]:
        return query @ keys.mT


class Additive(nn.Module):
    """score(q, k) = w . tanh(W q + U k)     Bahdanau et al. 2015, arxiv.org/abs/1409.0473"""

    def __init__(self, query_dim: int, key_dim: int):
        super().__init__()
        self.query = Linear(query_dim, query_dim, bias=False)  # W
        self.key = Linear(key_dim, query_dim)  # U, and the one bias that the sum needs
        self.score = Linear(query_dim, 1, bias=False)  # w

    def prepare(self, keys: Float[Tensor, "B S C"]) -> Float[Tensor, "B S D"]:
        return self.key(keys)  # type: ignore[no-any-return]

    def forward(
        self, query: Float[Tensor, "B T D"], keys: Float[Tensor, "B S D"]
    ) -> Float[Tensor, "B T S"]:
        return self.score(tanh_of_sums(self.query(query), keys)).squeeze(-1)  # type: ignore[no-any-return]


class Concat(nn.Module):
    """score(q, k) = v . tanh(W [q; k])     Luong et al. 2015

    W is kept whole and applied by halves, so that the keys' half is computed once a source.
    """

    def __init__(self, query_dim: int, key_dim: int):
        super().__init__()
        self.both = Linear(query_dim + key_dim, query_dim, bias=False)  # W
        self.score = Linear(query_dim, 1, bias=False)  # v

    def prepare(self, keys: Float[Tensor, "B S C"]) -> Float[Tensor, "B S D"]:
        return linear(keys, self.both.weight[:, -keys.size(-1) :])

    def forward(
        self, query: Float[Tensor, "B T D"], keys: Float[Tensor, "B S D"]
    ) -> Float[Tensor, "B T S"]:
        half = linear(query, self.both.weight[:, : query.size(-1)])
        return self.score(tanh_of_sums(half, keys)).squeeze(-1)  # type: ignore[no-any-return]


MAX_QUERY_FOR_EXP = 20.0  # beyond it, e^2q could overflow where tanh(q + k) is not yet 1


def tanh_of_sums(
    query: Float[Tensor, "B T D"], keys: Float[Tensor, "B S D"]
) -> Float[Tensor, "B T S D"]:
    """tanh(q + k) of every pair.

    Without gradients as 1 - 2 / (e^2q e^2k + 1): an exponential for each query and each key, where
    tanh takes more than one for each pair.
    """
    plain = torch.is_grad_enabled() or query.device.type != "cpu" or query.dtype != torch.float32
    if plain or float(query.abs().amax()) > MAX_QUERY_FOR_EXP:
        return tanh(query.unsqueeze(2) + keys.unsqueeze(1))
    left, right = (2 * query).exp(), (2 * keys).exp()
    both = left.unsqueeze(2) * right.unsqueeze(1)
    return both.add_(1.0).reciprocal_().mul_(-2.0).add_(1.0)


def tanh(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """tanh x; on a CPU as 2 sigmoid(2x) - 1, which torch computes five times as fast."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return torch.tanh(x)
    return _Tanh.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = (2.0 * x).sigmoid_().mul_(2.0).sub_(1.0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(slope, y)  # type: ignore[no-any-return]


Score = Dot | General | Additive | Concat


class Attention(nn.Module):
    """One head with any score: the weighted mean of the values.

    Several rows of queries may share a row of keys, as hypotheses about one source do: they are
    folded into further positions of one row.
    """

    def __init__(self, score: Score):
        super().__init__()
        self.score = score

    def prepare(self, values: Float[Tensor, "B S C"]) -> Float[Tensor, "B S D"]:
        """The keys of these values: computed once a source."""
        return self.score.prepare(values)

    def forward(
        self,
        query: Float[Tensor, "B T D"],
        keys: Float[Tensor, "M S K"],
        values: Float[Tensor, "M S C"],
        keep: Bool[Tensor, "M S"] | None = None,
    ) -> Float[Tensor, "B T C"]:
        mask = None if keep is None else keep.unsqueeze(1)
        folded = query.reshape(keys.size(0), -1, query.size(-1))  # (M, rows * T, D)
        weights = attention_weights(self.score(folded, keys), mask)  # (M, rows * T, S)
        record(self, weights.reshape(*query.shape[:2], -1))
        return (weights @ values).reshape(*query.shape[:2], -1)


MemoryHeads = tuple[Float[Tensor, "M H S K"], Float[Tensor, "M H S K"]]  # keys and values


def head_width(dim: int, num_heads: int) -> int:
    """The width of each of `num_heads` heads."""
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f"dim ({dim}) must be divisible by num_heads ({num_heads})")
    return dim // num_heads


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself, causal or not     Vaswani et al. 2017

    The rows of `qkv` are laid out by head (H, 3, K), so a slice of rows is a set of whole heads;
    how many there are is read from the data. With grouped queries (Ainslie et al. 2023,
    arxiv.org/abs/2305.13245) several query heads share one of keys and values, and the rows of a
    group are its queries, its key and its value: (groups, queries + 2, K).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float = 0.0,
        rotary: bool = False,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        rotary_frequencies: RotaryFrequencies = DEFAULT_ROTARY,
    ):
        super().__init__()
        groups = num_kv_heads or num_heads
        if num_heads % groups:
            raise ValueError(
                f"num_heads ({num_heads}) must be divisible by num_kv_heads ({groups})"
            )
        self.head_dim = head_dim or head_width(dim, num_heads)
        if rotary and self.head_dim % 2:
            raise ValueError(f"rotary positions need heads of an even width, not {self.head_dim}")
        self.queries = num_heads // groups  # of a group
        rows = groups * (self.queries + 2) * self.head_dim
        self.qkv = Linear(dim, rows, bias=bias)  # (groups * (queries + 2) * K, D)
        self.out = Linear(num_heads * self.head_dim, dim, bias=bias)  # (D, H * K)
        self.dropout = dropout
        self.rotary = rotary
        self.rotary_frequencies = rotary_frequencies

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Float[Tensor, "#B #H #T T"] | None = None,
        past: Past | None = None,
        position_ids: Int[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], KeysValues | None]:
        """The attended values, and with a `past` the keys and values so far.

        With a `past` (even an empty one) it is causal; without, the `mask` that is added to the
        scores decides. `position_ids` default to 0, 1, 2 ...
        """
        each = self.queries + 2
        heads = self.qkv(x).unflatten(-1, (-1, each, self.head_dim)).transpose(1, 2)
        if each == 3:
            query, key, value = heads.unbind(-2)  # of (B, H, T, 3, K)
        else:
            query = heads[..., :-2, :].transpose(2, 3).flatten(1, 2)  # (B, H, T, K)
            key, value = heads[..., -2, :], heads[..., -1, :]  # (B, groups, T, K)
        if self.rotary:
            before = 0 if past is None else past.length
            query = rotate(query, before, self.rotary_frequencies, position_ids)
            key = rotate(key, before, self.rotary_frequencies, position_ids)
        if past is None:
            mixed = multi_head(self, query, key, value, mask)
            return self.out(mixed.transpose(1, 2).flatten(2)), None
        cached = past.append(key, value)
        seen = cached[0].tensor, cached[1].tensor
        causal = past.mask is None
        mixed = multi_head(self, past.fold(query), *seen, past.mask, causal, x.size(0))
        return self.out(mixed.transpose(1, 2).reshape(*x.shape[:2], -1)), cached


class CrossAttention(nn.Module):
    """Multi-head attention of a sequence to a memory     Vaswani et al. 2017"""

    def __init__(
        self,
        dim: int,
        memory_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        head_dim: int | None = None,
        bias: bool = True,
    ):
        super().__init__()
        self.head_dim = head_dim or head_width(dim, num_heads)
        width = num_heads * self.head_dim
        self.query = Linear(dim, width, bias=bias)  # (H * K, D)
        self.kv = Linear(memory_dim, 2 * width, bias=bias)  # (H * 2 * K, C)
        self.out = Linear(width, dim, bias=bias)  # (D, H * K)
        self.dropout = dropout

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "M S C"] | MemoryHeads,
        mask: Float[Tensor, "M 1 1 S"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], MemoryHeads]:
        """The attended values, and the memory's keys and values: computed once for a memory.

        Several rows of `x` may share a row of the memory, see `Attention`.
        """
        if isinstance(memory, Tensor):
            heads = self.kv(memory).unflatten(-1, (-1, 2, self.head_dim)).transpose(1, 2)
            key, value = heads.unbind(-2)
        else:
            key, value = memory
        query = self.query(x).unflatten(-1, (-1, self.head_dim))  # (B, T, H, K)
        folded = query.reshape(key.size(0), -1, *query.shape[2:]).transpose(1, 2)
        mixed = multi_head(self, folded, key, value, mask, rows=x.size(0))
        return self.out(mixed.transpose(1, 2).reshape(*x.shape[:2], -1)), (key, value)


def additive_mask(
    keep: Bool[Tensor, "B S"] | Bool[Tensor, "B T S"] | None, dtype: torch.dtype
) -> Tensor | None:
    """The mask, 0 or -inf, that is added to scores; computed once for all layers.

    `keep` is shared by all queries, or has a row for each.
    """
    if keep is None:
        return None
    zeros = torch.zeros(keep.shape, dtype=dtype, device=keep.device)
    added = zeros.masked_fill_(~keep, -inf)
    return added[:, None] if keep.dim() == 3 else added[:, None, None, :]


def masked_softmax(scores: Float[Tensor, "B H T S"], mask: Tensor) -> Float[Tensor, "B H T S"]:
    """softmax(scores + mask); as in the fused kernel, zeros where the mask leaves no position.

    The scores are overwritten.
    """
    all_masked = (mask == -inf).all(-1, keepdim=True)
    if scores.device.type == "cpu" and not all_masked.any():
        return scores.add_(mask).softmax(-1)  # the gradient of a product does not need its result
    return (scores + mask.masked_fill(all_masked, 0.0)).softmax(-1).masked_fill(all_masked, 0.0)


def triangle(queries: int, keys: int, like: Tensor) -> Float[Tensor, "T S"]:
    """The causal mask of the last `queries` of `keys` positions, to be added to scores."""
    blocked = torch.full((queries, keys), -inf, dtype=like.dtype, device=like.device)
    return blocked.triu(keys - queries + 1)


MIN_KEYS_FOR_TWO_PRODUCTS = 16  # with one query a row, on a CPU: then they beat the fused kernel


def multi_head(
    module: SelfAttention | CrossAttention,
    query: Float[Tensor, "B H T K"],
    key: Float[Tensor, "B G S K"],
    value: Float[Tensor, "B G S K"],
    mask: Tensor | None,
    causal: bool = False,
    rows: int | None = None,
) -> Float[Tensor, "B H T K"]:
    """softmax(query . key / sqrt(K) + mask) . value, for every head; zeros where all is masked.

    `rows` is how many rows of hypotheses are folded into the positions of `query`; there may be
    fewer heads of keys and values than of queries.
    """
    T, S = query.size(2), key.size(2)
    if key.size(1) != query.size(1):
        shared = query.size(1) // key.size(1)
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    rate = module.dropout if module.training else 0.0
    plain = causal and T == S and mask is None  # the kernel's own causal mask
    if causal and T > 1 and not plain:  # a later chunk, which sees all that came before it
        later = triangle(T, S, query)
        mask = later if mask is None else mask + later
    if torch.is_grad_enabled():
        # In half precision the kernel's backward pass takes ten times as long as products do
        # (torch 2.13, heads of 32, 14 keys), and twice as long for 256 keys.
        products = query.dtype != torch.float32
    else:
        products = T == 1 and S >= MIN_KEYS_FOR_TWO_PRODUCTS
    products = products and query.device.type == "cpu"
    if not rate and not products and not is_watched(module):
        triangular = bool(plain and T > 1)
        return F.scaled_dot_product_attention(query, key, value, mask, is_causal=triangular)

    # Unfused: to record or drop weights, and on a CPU where two products are faster.
    scores = (query / sqrt(query.size(-1))) @ key.mT
    mask = triangle(T, S, query) if plain else mask
    weights = scores.softmax(-1) if mask is None else masked_softmax(scores, mask)
    if is_watched(module):
        each = torch.stack(weights.chunk((rows or len(weights)) // len(weights), 2), 1)
        record(module, each.flatten(0, 1))  # (rows, H, T, S)
    return dropout(weights, rate, training=True) @ value
