"""Attention's shortcuts are exact, and a shard of its heads is attention too."""

import copy
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from saccade.nn.attention import (
    Additive,
    Attention,
    Concat,
    CrossAttention,
    Dot,
    General,
    ScaledDot,
    SelfAttention,
    additive_mask,
    attend,
    tanh,
    tanh_of_sums,
)
from saccade.nn.cache import Past
from saccade.nn.padded import masked_mean
from saccade.nn.watch import watch


@given(
    st.lists(st.floats(-120, 120, width=32), min_size=1, max_size=9),
    st.lists(st.floats(-120, 120, width=32), min_size=1, max_size=9),
)
def test_tanh_of_sums_is_tanh_of_sums(left: list[float], right: list[float]) -> None:
    query, keys = torch.tensor(left).view(1, -1, 1), torch.tensor(right).view(1, -1, 1)
    exact = torch.tanh(query.double().unsqueeze(2) + keys.double().unsqueeze(1))
    with torch.no_grad():
        ours = tanh_of_sums(query, keys)
    plain = torch.tanh(query.unsqueeze(2) + keys.unsqueeze(1)).double()
    error = (ours.double() - exact).abs().max()
    assert error <= 4e-7 + (plain - exact).abs().max()


@given(st.lists(st.floats(-120, 120, width=32), min_size=1, max_size=9))
def test_tanh_is_tanh_and_so_is_its_slope(numbers: list[float]) -> None:
    x = torch.tensor(numbers, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    tanh(x).sum().backward()
    torch.tanh(exact).sum().backward()
    assert x.grad is not None
    assert exact.grad is not None
    assert (tanh(x) - torch.tanh(exact)).abs().max() <= 3e-7
    assert (x.grad - exact.grad).abs().max() <= 6e-7


def test_its_shortcut_is_taken_without_gradients_alone() -> None:
    query, keys = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    with torch.no_grad():
        short = tanh_of_sums(query, keys)
    plain = tanh(query.unsqueeze(2) + keys.unsqueeze(1))
    assert not torch.equal(short, plain)
    assert torch.equal(tanh_of_sums(query, keys), plain)
    with torch.no_grad():
        assert torch.equal(
            tanh_of_sums(30 * query.sign(), keys),
            tanh(30 * query.sign().unsqueeze(2) + keys.unsqueeze(1)),
        )


def half(module: SelfAttention | CrossAttention, which: int) -> SelfAttention | CrossAttention:
    """A copy with half the heads: rows of what goes in, columns of what comes out."""
    shard = copy.deepcopy(module)
    for name, layer in shard.named_children():
        assert isinstance(layer, nn.Linear)
        weight, bias = layer.weight.detach(), layer.bias.detach()
        if name == "out":
            bias = bias if which == 0 else torch.zeros_like(bias)  # once, in the sum of both
            weight = weight.chunk(2, 1)[which]
        else:
            weight, bias = weight.chunk(2, 0)[which], bias.chunk(2)[which]
        layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return shard


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("watched", [False, True])
def test_two_halves_of_the_heads_add_up_to_the_whole(rotary: bool, watched: bool) -> None:
    attention, x = SelfAttention(16, 4, rotary=rotary), torch.randn(3, 5, 16)
    cross, memory = CrossAttention(16, 12, 4), torch.randn(3, 7, 12)
    with torch.inference_mode():
        for past in (None, Past.empty(3)):
            parts = [half(attention, i)(x, past=past)[0] for i in (0, 1)]
            assert torch.allclose(sum(parts), attention(x, past=past)[0], atol=1e-6)
        shards = [half(cross, i) for i in (0, 1)]
        with watch(nn.ModuleList(shards)) if watched else nullcontext():
            parts = [shard(x, memory)[0] for shard in shards]
        assert torch.allclose(sum(parts), cross(x, memory)[0], atol=1e-6)


def blind_rows(length: int) -> torch.Tensor:
    """What two rows may see: the first some positions, the second none at all."""
    keep = torch.ones(2, length, dtype=torch.bool)
    keep[0, length // 2 :] = False
    keep[1] = False
    return keep


@pytest.mark.parametrize("score", [Dot, ScaledDot, General, Additive, Concat])
def test_a_query_that_may_see_nothing_hears_nothing(score: type[nn.Module]) -> None:
    attention, keep = Attention(score(4, 4)), blind_rows(6)
    query = torch.randn(2, 3, 4, requires_grad=True)
    values = torch.randn(2, 6, 4, requires_grad=True)
    heard = attention(query, attention.prepare(values), values, keep)
    assert torch.equal(heard[1], torch.zeros(3, 4))
    alone = attention(query[:1], attention.prepare(values[:1, :3]), values[:1, :3])
    assert torch.allclose(heard[:1], alone, atol=1e-6)
    heard.sum().backward()
    assert query.grad is not None
    assert values.grad is not None
    assert query.grad.isfinite().all()
    assert torch.equal(values.grad[1], torch.zeros(6, 4))
    assert torch.equal(attend(torch.randn(2, 3, 6), values, keep)[1], torch.zeros(3, 4))
    assert torch.equal(masked_mean(values, keep)[1], torch.zeros(4))


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("queries", [1, 3])
def test_every_path_of_attention_is_silent_where_nothing_may_be_seen(
    queries: int, rate: float
) -> None:
    cross, keep = CrossAttention(8, 8, 2, dropout=rate), blind_rows(20)
    mask = additive_mask(keep, torch.float32)
    x, memory = torch.randn(2, queries, 8, requires_grad=True), torch.randn(2, 20, 8)
    heard, _ = cross(x, memory, mask)  # the fused kernel, or by hand for dropout
    assert torch.allclose(heard[1], cross.out.bias.expand(queries, 8))
    heard.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    cross.eval()
    fused, _ = cross(x, memory, mask)
    with watch(cross) as maps:
        seen, _ = cross(x, memory, mask)
    assert torch.allclose(seen, fused, atol=1e-6)
    assert torch.equal(maps[""][0][1], torch.zeros(2, queries, 20))
    with torch.no_grad():  # two products where there is one query
        assert torch.allclose(cross(x, memory, mask)[0], fused, atol=1e-6)
