"""Layers that torch has no twin of, each against its formula."""

from math import cos, sin, sqrt

import pytest
import torch
import torch.nn.functional as F

from saccade.nn.bodies import RecurrentBody
from saccade.nn.convolution import GatedConvolution
from saccade.nn.positions import rotate
from saccade.nn.recurrent import Recurrent, run_layer
from saccade.nn.stems import StandardisedConv2d
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
