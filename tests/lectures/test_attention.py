"""The course's worked numbers on attention, positions and the Transformer's parts."""

from math import cos, exp, sin, sqrt, tanh

import pytest
import torch
from torch import Tensor, nn

from saccade.config import parse
from saccade.models.build import build_network
from saccade.models.presets import expand
from saccade.nn.attention import (
    Additive,
    Attention,
    Concat,
    Dot,
    General,
    ParameterFree,
    ScaledDot,
    SelfAttention,
    attend,
    attention_weights,
)
from saccade.nn.cache import Past
from saccade.nn.positions import Sinusoidal, sinusoids
from saccade.nn.transformer import Block, build_norm
from saccade.text.vocab import Inventory


def test_the_decks_attention_example() -> None:
    """x = e1, e2, e1 in R^4, y = [1,-1,0]: q = [-1,1,0,1], scores [-1,1,-1], d = 4."""
    e = torch.eye(4)
    x = torch.stack([e[0], e[1], e[0]])[None]  # (1, 3, 4)
    y = torch.tensor([1.0, -1, 0])
    w_q = torch.tensor([[0.0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, -1]])
    w_v = torch.tensor([[1.0, 0, 0, 0], [0, 1, 1, 0]])
    query = (w_q @ y)[None, None]  # (1, 1, 4)
    assert query.flatten().tolist() == [-1, 1, 0, 1]
    keys, values = x, x @ w_v.T  # W_K = I
    assert Dot(4, 4)(query, keys).flatten().tolist() == [-1, 1, -1]
    z = attend(ScaledDot(4, 4)(query, keys), values).flatten()
    total = 2 * exp(-0.5) + exp(0.5)
    assert z.tolist() == pytest.approx([2 * exp(-0.5) / total, exp(0.5) / total], abs=1e-6)


SCORES = {
    "parameter_free": ParameterFree,
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "general": General,
    "concat": Concat,
    "additive": Additive,
}


def by_hand(score: nn.Module, q: list[float], k: list[float]) -> float:
    """Every score's formula, with loops and no tensors."""

    def times(matrix: Tensor, vector: list[float]) -> list[float]:
        return [sum(w * v for w, v in zip(row, vector, strict=True)) for row in matrix.tolist()]

    def dot(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    match score:
        case ScaledDot():
            return dot(q, k) / sqrt(len(q))
        case Dot():  # and ParameterFree
            return dot(q, k)
        case General():
            return dot(q, times(score.key.weight, k))
        case Concat():
            inner = times(score.both.weight, q + k)
            return dot(score.score.weight[0].tolist(), [tanh(v) for v in inner])
        case Additive():
            left, right = times(score.query.weight, q), times(score.key.weight, k)
            bias = score.key.bias.tolist()
            inner = [tanh(a + b + c) for a, b, c in zip(left, right, bias, strict=True)]
            return dot(score.score.weight[0].tolist(), inner)
    raise AssertionError


@pytest.mark.parametrize("name", SCORES)
def test_every_score_is_its_formula(name: str) -> None:
    score = SCORES[name](5, 5)
    query, keys = torch.randn(2, 3, 5), torch.randn(2, 4, 5)
    scores = score(query, score.prepare(keys)).detach()
    for b in range(2):
        for t in range(3):
            for s in range(4):
                expected = by_hand(score, query[b, t].tolist(), keys[b, s].tolist())
                assert float(scores[b, t, s]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", SCORES)
def test_attention_weights_are_a_distribution_over_what_is_kept(name: str) -> None:
    attention = Attention(SCORES[name](6, 6))
    values, query = torch.randn(2, 5, 6), torch.randn(2, 3, 6)
    keep = torch.tensor([[True] * 5, [True, True, False, False, False]])
    mixed = attention(query, attention.prepare(values), values, keep)
    alone = attention(query[1:], attention.prepare(values[1:, :2]), values[1:, :2])
    assert torch.allclose(mixed[1:], alone, atol=1e-6)
    ones = attention(query, attention.prepare(values), torch.ones(2, 5, 1), keep)
    assert torch.allclose(ones, torch.ones(2, 3, 1))


def test_parameter_free_attention_has_no_parameters() -> None:
    assert not list(Attention(ParameterFree(4, 4)).parameters())


def test_dot_products_have_variance_d_and_one_after_scaling() -> None:
    d = 256
    query, keys = torch.randn(200, 10, d), torch.randn(200, 10, d)
    assert float(Dot(d, d)(query, keys).var()) == pytest.approx(d, rel=0.05)
    scaled = ScaledDot(d, d)(query, keys)
    assert float(scaled.var()) == pytest.approx(1, rel=0.05)
    # Without it one position gets nearly all of the weight.
    sharp, soft = (attention_weights(s, None).amax(-1).mean() for s in (scaled * sqrt(d), scaled))
    assert float(sharp) > 0.9 > 0.6 > float(soft)


def test_sinusoidal_positions_for_five_places_and_four_columns() -> None:
    """The formula holds; the deck's third column has a slip (sin(1/100) is 0.0100)."""
    expected = [[sin(n), cos(n), sin(n / 100), cos(n / 100)] for n in range(5)]
    table = sinusoids(5, 4)
    assert torch.allclose(table, torch.tensor(expected), atol=1e-6)
    assert float(table[1, 2]) == pytest.approx(0.0100, abs=5e-5)
    gram = table @ table.T
    assert gram.argmax(-1).tolist() == [0, 1, 2, 3, 4]


def test_self_attention_is_permutation_equivariant_and_positions_break_it() -> None:
    attention, positions = SelfAttention(8, 2), Sinusoidal(8)
    x, order = torch.randn(1, 6, 8), torch.randperm(6)
    assert torch.allclose(attention(x[:, order])[0], attention(x)[0][:, order], atol=1e-6)
    moved = attention(positions(x[:, order]))[0]
    assert not torch.allclose(moved, attention(positions(x))[0][:, order], atol=1e-3)


def test_with_the_causal_mask_output_t_ignores_inputs_after_t() -> None:
    block = Block(8, 2, 16).eval()
    x = torch.randn(1, 6, 8)
    changed = x.clone()
    changed[:, 4:] = torch.randn(1, 2, 8)
    before, after = (block(one, past=Past.empty(1))[0] for one in (x, changed))
    assert torch.allclose(before[:, :4], after[:, :4], atol=1e-6)
    assert not torch.allclose(before[:, 4:], after[:, 4:], atol=1e-3)


def test_layer_norm_is_its_formula() -> None:
    norm = build_norm("layer", 5)
    x = torch.randn(3, 5)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(5))  # type: ignore[operator]
        norm.bias.copy_(torch.randn(5))  # type: ignore[operator]
    mean = x.mean(-1, keepdim=True)
    sigma = (((x - mean) ** 2).sum(-1, keepdim=True) / 5 + 1e-5).sqrt()
    assert torch.allclose(norm(x), (x - mean) / sigma * norm.weight + norm.bias, atol=1e-6)


def test_a_residual_block_with_silent_layers_is_the_identity() -> None:
    block = Block(8, 2, 16, norm_first=True).eval()
    with torch.no_grad():
        for layer in (block.attention.out, block.feed_forward.down):
            layer.weight.zero_()
            layer.bias.zero_()
    x = torch.randn(2, 3, 8)
    assert torch.equal(block(x)[0], x)


def test_the_original_transformer_has_about_65_million_parameters() -> None:
    parts = {"kind": "transformer"} | expand("base", "transformer")
    raw = {"task": {"kind": "translate", "joint": True}, "encoder": parts, "decoder": parts}
    with torch.device("meta"):
        network = build_network(parse(raw, "test"), [Inventory(37_000)], Inventory(37_000))
    count = sum(p.numel() for p in network.parameters())
    assert count == pytest.approx(65e6, rel=0.035)
    assert (parts["dim"], parts["ff_dim"], parts["num_heads"]) == (512, 2048, 8)
