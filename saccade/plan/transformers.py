"""The costs of the layers of a Transformer on a batch."""

from collections.abc import Iterator

from torch import nn

from saccade.nn.attention import CrossAttention, SelfAttention
from saccade.nn.positions import Relative
from saccade.nn.transformer import GATED, Block, FeedForward, Stack
from saccade.plan.costs import Cost, Layer, dropout_mask, linear, norm_inputs, pairwise


def stack(
    found: Stack, name: str, rows: int, positions: int, memory: int | None = None
) -> Iterator[tuple[nn.Module | None, Layer]]:
    """The layers of a stack over so many positions, with a memory of so many if there is one."""
    n, D = rows * positions, found.blocks[0].attention.out.out_features
    start = dropout_mask(found.drop, n * D) + norm_inputs(found.first_norm, n, D)
    relative = isinstance(found.positions, Relative)
    if relative:  # numbers added to scores, the same in all layers
        heads = found.blocks[0].attention.out.in_features // found.blocks[0].attention.head_dim
        start += Cost(numbers=2.0 * heads * positions * positions)
    yield found.positions, Layer(f"{name}.positions", 0, start)
    if found.first_norm is not None:
        yield found.first_norm, Layer(f"{name}.first_norm", 0, Cost())
    for i, one in enumerate(found.blocks):
        path = f"{name}.blocks.{i}"
        cost = block(one, rows, positions, memory, relative)
        widest = max(one.feed_forward.up.out_features, one.attention.qkv.out_features)
        momentary = 4.0 * n * (2 * widest if one.feed_forward.activation in GATED else widest)
        made = Layer(path, 0, cost, block=True, entry=n * D, transient=(momentary, 2 * momentary))
        yield one, made
    last = norm_inputs(found.norm, n, D)
    yield found.norm, Layer(f"{name}.norm", 0, last)


def block(
    one: Block, rows: int, positions: int, memory: int | None = None, relative: bool = False
) -> Cost:
    """A block: self-attention, cross-attention if there is a memory, and feed-forward."""
    n, D = rows * positions, one.attention.out.out_features
    found = self_attention(one.attention, rows, positions, relative)
    found += residual(one.attention_norm, n, D) + dropout_mask(one.drop, n * D)
    if memory is not None:
        found += cross_attention(one.cross, rows, positions, memory)
        found += residual(one.cross_norm, n, D) + dropout_mask(one.drop, n * D)
    found += feed_forward(one.feed_forward, n)
    return found + residual(one.feed_forward_norm, n, D) + dropout_mask(one.drop, n * D)


def residual(norm: nn.Module, n: float, width: int) -> Cost:
    """What a norm keeps, and its result, which a product reads (with post-norm, the next)."""
    return norm_inputs(norm, n, width) + Cost(numbers=n * width)


def self_attention(one: SelfAttention, rows: int, positions: int, relative: bool) -> Cost:
    n, width = rows * positions, one.out.in_features
    heads = width // one.head_dim
    found = linear(one.qkv, n) + linear(one.out, n)
    by_hand = one.dropout > 0 or relative
    found += attended(rows, heads, positions, positions, one.head_dim, one.dropout, by_hand)
    if by_hand:  # queries, keys and values are copied head by head
        return found + Cost(numbers=3.0 * n * width)
    if one.queries > 1:  # queries, a key and a value for each head, and the result in a row
        return found + Cost(numbers=4.0 * n * width)
    if one.rotary:  # turned queries and keys, and the result in a row, beside the whole product
        found += Cost(numbers=3.0 * n * width)
    return found + Cost(numbers=n * one.qkv.out_features)


def cross_attention(one: CrossAttention, rows: int, positions: int, memory: int) -> Cost:
    n, m, width = rows * positions, rows * memory, one.out.in_features
    found = linear(one.query, n) + linear(one.kv, m) + linear(one.out, n)
    found += Cost(numbers=n * width + 2.0 * m * width)
    heads = width // one.head_dim
    drop = one.dropout
    return found + attended(rows, heads, positions, memory, one.head_dim, drop, drop > 0)


def attended(
    rows: int, heads: int, queries: int, keys: int, width: int, drop: float, by_hand: bool
) -> Cost:
    """softmax(Q K^T) V, by the fused kernel or with all weights in memory."""
    pairs = float(rows * heads * queries * keys)
    found = pairwise(pairs, 2 * width) + Cost(numbers=rows * heads * queries * width)
    if not by_hand:
        return found + Cost(single=rows * heads * queries)  # a logarithm for each row of weights
    if drop:
        return found + Cost(numbers=2 * pairs, masks=pairs)
    return found + Cost(numbers=pairs)


def feed_forward(one: FeedForward, n: float) -> Cost:
    found, inner = linear(one.up, n) + linear(one.down, n), one.down.in_features
    match one.activation:
        case "relu":  # in place
            kept = 1.0
        case "swiglu" | "geglu":  # gate and value, the gate's result, and the product
            kept = 4.0
        case _:
            kept = 2.0
    return found + Cost(numbers=kept * n * inner)
