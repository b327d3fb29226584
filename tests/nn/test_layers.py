"""Layers that torch has no twin of, each against its formula."""

from math import cos, pi, sin, sqrt

import pytest
import torch
import torch.nn.functional as F

from saccade.nn.attention import SelfAttention
from saccade.nn.bodies import RecurrentBody
from saccade.nn.convolution import GatedConvolution
from saccade.nn.dropout import WordDropout
from saccade.nn.padded import pad
from saccade.nn.positions import Learned, Relative, RotaryFrequencies, Sinusoidal, rotate, sinusoids
from saccade.nn.recurrent import Recurrent, run_layer
from saccade.nn.stems import Embedding, StandardisedConv2d, TextStem
from saccade.nn.transformer import FeedForward


def test_rotary_positions_turn_each_pair_of_columns() -> None:
    """Pair i at place n is turned by n / 10000^(2i/K), counter-clockwise."""
    x = torch.randn(1, 1, 3, 4)
    turned = rotate(x, 2)
    for n in range(3):
        for i in range(2):
            angle = (n + 2) / 10000 ** (2 * i / 4)
            a, b = x[0, 0, n, 2 * i : 2 * i + 2].tolist()
            expected = [a * cos(angle) - b * sin(angle), a * sin(angle) + b * cos(angle)]
            found = turned[0, 0, n, 2 * i : 2 * i + 2].tolist()
            assert found == pytest.approx(expected, abs=1e-6)


def test_only_slow_rotary_pairs_are_slowed_down() -> None:
    """Four pairs that turn about 10, 2.5, 0.6 and 0.16 times in 64 tokens."""
    turns = RotaryFrequencies(256.0, factor=8.0, low=0.5, high=3.5, context=64)
    speed = turns.speeds(8, None) / RotaryFrequencies(256.0).speeds(8, None)
    turned = 64 * RotaryFrequencies(256.0).speeds(8, None) / (2 * torch.pi)  # times in the context
    kept = ((turned - 0.5) / 3.0).clamp(0, 1)
    assert torch.allclose(speed, kept + (1 - kept) / 8)
    assert speed[0] == 1.0
    assert speed[-1] == pytest.approx(1 / 8)
    assert torch.allclose(
        RotaryFrequencies(256.0, 8.0).speeds(8, None), RotaryFrequencies(256.0).speeds(8, None) / 8
    )  # linear: all are


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    query, key = torch.randn(2, 1, 1, 1, 8)
    scores = [float((rotate(query, n + 3) * rotate(key, n)).sum()) for n in (0, 5, 40)]
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-4)
    nearer = float((rotate(query, 1) * rotate(key, 0)).sum())
    assert nearer != pytest.approx(scores[0], abs=1e-3)
    assert float(rotate(query, 7).norm()) == pytest.approx(float(query.norm()), rel=1e-5)


@pytest.mark.parametrize("both", [False, True])
def test_a_residual_adds_what_a_layer_read_from_the_second_on(both: bool) -> None:
    stack = Recurrent("gru", 5, 8, 3, bidirectional=both, residual=True)
    x, lengths = torch.randn(2, 4, 5), torch.tensor([4, 2])
    found, states = stack(x, lengths=lengths)
    first, _ = run_layer(stack.layers[0], x, None, lengths)
    second, last = run_layer(stack.layers[1], first, None, lengths)
    third, _ = run_layer(stack.layers[2], first + second, None, lengths)
    assert torch.allclose(found, first + second + third, atol=1e-6)
    assert torch.allclose(states[1][0], last[0], atol=1e-6)  # a state is the cell's own


def test_the_summary_of_a_recurrent_body_is_its_top_layers_last_state() -> None:
    body = RecurrentBody(Recurrent("lstm", 6, 8, 2, bidirectional=True), 0.0)
    x, lengths = torch.randn(2, 5, 6), torch.tensor([5, 3])
    keep = torch.arange(5) < lengths[:, None]
    memory = body(x, keep, lengths)
    for b, length in enumerate(lengths.tolist()):
        forward = memory.values[b, length - 1, :4]  # ends at the last position
        backward = memory.values[b, 0, 4:]  # ends at the first
        assert torch.allclose(memory.summary[b], torch.cat([forward, backward]), atol=1e-6)


def test_swiglu_is_its_formula() -> None:
    """down(silu(gate) * up), with silu(x) = x / (1 + e^-x)     Shazeer 2020"""
    layer, x = FeedForward(6, 5, "swiglu"), torch.randn(2, 3, 6)
    gate, value = F.linear(x, layer.up.weight, layer.up.bias).split(5, -1)
    expected = F.linear(gate / (1 + (-gate).exp()) * value, layer.down.weight, layer.down.bias)
    assert torch.allclose(layer(x), expected, atol=1e-6)


def test_geglu_is_its_formula() -> None:
    """down(gelu(gate) * up), with gelu(x) = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))"""
    layer, x = FeedForward(6, 5, "geglu", bias=False), torch.randn(2, 3, 6)
    gate, value = F.linear(x, layer.up.weight).split(5, -1)
    curve = 0.5 * gate * (1 + torch.tanh(sqrt(2 / pi) * (gate + 0.044715 * gate**3)))
    assert torch.allclose(layer(x), F.linear(curve * value, layer.down.weight), atol=1e-6)
    plain = FeedForward(6, 5, "gelu_tanh")
    inner = F.linear(x, plain.up.weight, plain.up.bias)
    curve = 0.5 * inner * (1 + torch.tanh(sqrt(2 / pi) * (inner + 0.044715 * inner**3)))
    assert torch.allclose(plain(x), plain.down(curve), atol=1e-6)


def test_relative_positions_share_buckets_that_grow_with_the_distance() -> None:
    """T5's buckets: half for each direction, half of those for one distance each."""
    both, back = Relative(2, 8, 16, both_ways=True), Relative(2, 8, 16, both_ways=False)
    ahead = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 100]])
    assert both.bucket(ahead).tolist() == [[0, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7]]
    assert both.bucket(-ahead).tolist() == [[0, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3]]
    assert back.bucket(-ahead).tolist() == [[0, 1, 2, 3, 4, 4, 5, 5, 6, 7, 7, 7]]
    assert back.bucket(ahead).tolist() == [[0] * 12]
    bias = both.bias(2, 3, torch.zeros(1))  # of the last two of three positions
    assert bias.shape == (1, 2, 2, 3)
    assert torch.equal(bias[0, :, 0, 0], both.table.weight[1])  # one back
    assert torch.equal(bias[0, :, 0, 2], both.table.weight[5])  # one ahead


def test_grouped_queries_are_heads_with_the_same_keys_and_values() -> None:
    """(groups, queries + 2, K) rows, against a layer that has them all."""
    few, all_heads = SelfAttention(12, 6, num_kv_heads=2, bias=False), SelfAttention(12, 6)
    groups = few.qkv.weight.detach().view(2, 5, 2, 12)
    whole = [torch.stack([g[n], g[3], g[4]]) for g in groups for n in range(3)]  # (3, K, D) each
    with torch.no_grad():
        all_heads.qkv.weight.copy_(torch.cat(whole).flatten(0, 1))
        all_heads.out.weight.copy_(few.out.weight)
        all_heads.qkv.bias.zero_()
        all_heads.out.bias.zero_()
        x = torch.randn(2, 5, 12)
        assert torch.allclose(few(x)[0], all_heads(x)[0], atol=1e-6)


def test_positions_with_unused_rows_begin_after_them() -> None:
    table, x = Learned(4, 6, skipped=2), torch.zeros(1, 3, 6)
    assert torch.equal(table(x)[0], table.table.weight[2:5])
    assert torch.equal(table(x, 1)[0], table.table.weight[3:6])


def test_waves_in_halves_are_the_same_waves() -> None:
    waves, halves = sinusoids(5, 8), Sinusoidal(8, halves=True)(torch.zeros(1, 5, 8))[0]
    assert torch.equal(halves, torch.cat([waves[:, 0::2], waves[:, 1::2]], 1))


def test_a_segment_ends_with_its_separator() -> None:
    stem = TextStem(Embedding(9, 4), WordDropout(0.0, 1, ()), segments=2, separator=4)
    source = pad([[2, 7, 4, 8, 4, 5], [2, 6, 6]])
    assert stem.segment(source.values, 1).tolist() == [[0, 0, 0, 1, 1, 1], [0] * 6]
    assert stem.segments is not None
    added = stem(source).values - stem.embedding(source.values)
    assert torch.allclose(added[0, 3], stem.segments.weight[1], atol=1e-6)
    assert torch.allclose(added[1, 0], stem.segments.weight[0], atol=1e-6)


def test_a_gated_convolution_is_its_formula() -> None:
    """sqrt(1/2) (x + (A x) * sigmoid(B x)), where positions beyond the edge are zeros."""
    layer, x = GatedConvolution(3, 3), torch.randn(1, 5, 3)
    weight, bias = layer.convolution.weight, layer.convolution.bias
    assert bias is not None
    wide = F.pad(x, (0, 0, 1, 1))  # (1, 7, 3)
    rows = []
    for t in range(5):
        window = wide[0, t : t + 3].T  # (channels, kernel)
        a, b = ((weight * window).sum((1, 2)) + bias).chunk(2)
        rows.append(sqrt(0.5) * (x[0, t] + a / (1 + (-b).exp())))
    assert torch.allclose(layer(x)[0], torch.stack(rows), atol=1e-6)


def test_a_standardised_convolution_has_filters_of_mean_0_and_length_1() -> None:
    layer, x = StandardisedConv2d(3, 5, 3, 2, padding=1, bias=False), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        filters = torch.stack([w - w.mean() for w in layer.weight])
        filters /= filters.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        assert torch.allclose(layer(x), F.conv2d(x, filters, None, 2, 1), atol=1e-5)
        before = layer(x)
        layer.weight.mul_(3.0).add_(0.7)  # neither their scale nor their mean matters
        assert torch.allclose(layer(x), before, atol=1e-5)
