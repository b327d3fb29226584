"""Layers that are packed for inference give what they were made of gives."""

from typing import get_args

import pytest
import torch
from torch import nn

from saccade.nn.packed import Int8Linear, PackedLinear, PackedRecurrent, WideInt8Linear
from saccade.nn.recurrent import Cell, build_layer, run_cell


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(1,), (2, 3), (17,), (4, 33)])
def test_a_packed_layer_is_the_layer(rows: tuple[int, ...], bias: bool) -> None:
    layer, x = nn.Linear(24, 40, bias=bias), torch.randn(*rows, 24)
    with torch.inference_mode():
        assert torch.allclose(PackedLinear(layer)(x), layer(x), atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(1,), (2, 3), (4, 33)])
@pytest.mark.parametrize("kind", [Int8Linear, WideInt8Linear])
def test_eight_bits_are_off_by_little(kind: type, rows: tuple[int, ...], bias: bool) -> None:
    if kind is WideInt8Linear and not torch.cpu._is_vnni_supported():
        pytest.skip("this processor has no sums of 32 bits for products of 8")
    layer, x = nn.Linear(64, 48, bias=bias), 3 * torch.randn(*rows, 64)
    x[0] *= 0.1
    with torch.inference_mode():
        exact, near = layer(x), kind(layer)(x)
        zero = kind(layer)(torch.zeros_like(x))
    step = float(x.abs().max()) / (127 if kind is WideInt8Linear else 64)
    assert (near - exact).abs().max() < 0.2 * step + 0.02 * float(exact.abs().max())
    assert torch.allclose(zero, layer(torch.zeros_like(x)), atol=1e-3)


@pytest.mark.parametrize("cell", get_args(Cell))
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_a_packed_recurrent_layer_steps_like_the_layer(cell: Cell, rows: int) -> None:
    layer, x = build_layer(cell, 24, 32), torch.randn(rows, 24)
    state = tuple(torch.randn(rows, 32) for _ in range(2 if cell == "lstm" else 1))
    with torch.inference_mode():
        exact = run_cell(layer, x, state)
        for ours, theirs in zip(PackedRecurrent(layer, PackedLinear)(x, state), exact, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5)
        for ours, theirs in zip(PackedRecurrent(layer, Int8Linear)(x, state), exact, strict=True):
            assert torch.allclose(ours, theirs, atol=0.1)
