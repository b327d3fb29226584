"""What holds of every view, for every architecture: it is true, and it changes nothing."""

from typing import Any

import pytest
import torch

from saccade.inspect.case import Case, LanguageModelCase
from saccade.inspect.maps import attention_maps, importance, without
from saccade.inspect.saliency import explained, gradient, integrated_gradients, occlusion, saliency
from saccade.inspect.view import attends
from saccade.models.heads import Pooled
from saccade.nn.attention import CrossAttention, SelfAttention
from tests.inspect.cases import CASES, case_of

ATTENTIVE = [name for name in CASES if attends(case_of(name).network)]


def everything(case: Case) -> Any:
    found = [saliency(case, method) for method in ("gradient", "integrated", "occlusion")]
    if attends(case.network):
        found.append(attention_maps(case, ablate=True).view())
    return found


@pytest.mark.parametrize("name", CASES)
def test_views_are_the_same_twice_and_change_nothing(name: str) -> None:
    case = case_of(name)
    weights = [parameter.clone() for parameter in case.network.parameters()]
    with torch.inference_mode():
        before = case.forward(1)
    first, second = everything(case), everything(case)
    with torch.inference_mode():
        assert torch.equal(case.forward(1), before)
    assert first == second
    pairs = zip(weights, case.network.parameters(), strict=True)
    assert all(torch.equal(a, b) and b.grad is None for a, b in pairs)
    hooks = [m for m in case.network.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert not hooks


@pytest.mark.parametrize("name", CASES)
def test_the_vectors_of_a_case_are_its_input(name: str) -> None:
    case = case_of(name)
    with torch.inference_mode():
        own, put = case.forward(1), case.scores(case.vectors)
    assert torch.allclose(own, put, atol=1e-5)
    assert [len(span) for span in case.spans] == [v.size(1) for v in case.vectors]
    assert len(case.names) == sum(map(len, case.spans))


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_differences(name: str) -> None:
    case = case_of(name)
    position = len(case.outputs) - 1
    (slope,) = gradient(case, case.vectors, position)
    numbers = torch.Generator().manual_seed(1)
    way = torch.randn(slope.shape, generator=numbers)
    size = 2e-3
    with torch.inference_mode():
        ends = [
            float(explained(case, (case.vectors[0] + sign * size * way,), position))
            for sign in (1, -1)
        ]
    difference = (ends[0] - ends[1]) / (2 * size)
    assert float((slope * way).sum()) == pytest.approx(difference, rel=0.1, abs=0.03)


@pytest.mark.parametrize("name", CASES)
def test_integrated_gradients_are_complete_up_to_their_error(name: str) -> None:
    case = case_of(name)
    scores, error = integrated_gradients(case, None)
    with torch.inference_mode():
        ends = [float(explained(case, some, None)) for some in (case.baseline, case.vectors)]
    assert abs(float(scores.sum()) - (ends[1] - ends[0])) == pytest.approx(error, abs=1e-3)
    assert error <= 0.02 * abs(ends[1] - ends[0]) + 0.02


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("on ")])
def test_nothing_counts_for_what_was_said_before_it(name: str) -> None:
    case = case_of(name)
    assert isinstance(case, LanguageModelCase)
    for method in ("gradient", "integrated", "occlusion"):
        scores = saliency(case, method, position=1)["scores"]
        assert scores[2:] == pytest.approx([0.0, 0.0], abs=1e-5)
        assert any(abs(score) > 1e-4 for score in scores[:2])


def test_occlusion_is_what_a_position_takes_away() -> None:
    case = case_of("classify transformer")
    hidden = case.vectors[0].clone()
    hidden[0, 2] = case.baseline[0][0, 2]
    with torch.inference_mode():
        less = explained(case, None, None) - explained(case, (hidden,), None)
    assert occlusion(case, None)[2] == pytest.approx(float(less), abs=1e-6)


@pytest.mark.parametrize("name", ATTENTIVE)
def test_attention_is_shared_out_among_the_columns(name: str) -> None:
    case = case_of(name)
    maps = attention_maps(case)
    for module, told in zip(maps.modules, maps.summary, strict=True):
        rows = {"source": len(maps.source), "target": len(maps.target), "output": 1}[module.rows]
        columns = {"source": len(maps.source), "read": len(maps.read)}[module.columns]
        assert module.maps.shape == (told["heads"], rows, columns)
        assert torch.allclose(module.maps.sum(-1), torch.ones(told["heads"], rows), atol=1e-5)
        assert all(0 <= x <= torch.tensor(columns).log() + 1e-4 for x in told["entropy"])
        assert len(told["thumbs"]) == told["heads"]
    shown = maps.view()
    assert sum(shown["coverage"]) == pytest.approx(len(shown["map"]), abs=1e-3)


@pytest.mark.parametrize("name", ["read transformer", "said transformer", "classify llama"])
def test_a_head_is_worth_what_its_weights_are(name: str) -> None:
    case = case_of(name)
    for module in attention_maps(case).modules:
        attention = case.network.get_submodule(module.path)
        if isinstance(attention, Pooled):
            continue
        assert isinstance(attention, SelfAttention | CrossAttention)
        width = attention.out.weight.size(1) // len(module.maps)
        with torch.inference_mode():
            whole, kept = float(case.forward(1).sum()), attention.out.weight.clone()
            losses = []
            for head in range(len(module.maps)):
                attention.out.weight[:, head * width : (head + 1) * width] = 0.0
                losses.append(whole - float(case.forward(1).sum()))
                attention.out.weight.copy_(kept)
        assert importance(case, module) == pytest.approx(losses, abs=1e-3)


def test_a_pool_without_its_weights_is_a_mean() -> None:
    from torch import nn

    from saccade.nn.padded import Memory

    torch.manual_seed(2)
    pool = Pooled(4, nn.Identity(), "attention", 0.0)
    values = torch.randn(1, 5, 4)
    with torch.inference_mode(), without(pool, [0], 1):
        found = pool.vector(Memory(values, None, values[:, 0]))
    assert torch.allclose(found, values.mean(1), atol=1e-6)
