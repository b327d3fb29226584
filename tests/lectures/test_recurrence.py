"""The course's worked numbers on recurrent networks and back-propagation through time."""

import pytest
import torch
from torch import Tensor, nn

from saccade.nn.recurrent import Recurrent, build_layer, run_layer


def test_one_step_of_a_recurrent_network_is_the_decks_example() -> None:
    """With ReLU, h' = [1,0,0] and o = 1.

    U = [[1,0],[0,1],[-1,0]], V = [[0,1,0],[0,0,1],[1,0,0]], W = [1,0,-1].
    """
    layer = build_layer("elman_relu", 2, 3)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.tensor([[1.0, 0], [0, 1], [-1, 0]]))  # U
        layer.weight_hh_l0.copy_(torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]]))  # V
        layer.bias_ih_l0.zero_()
        layer.bias_hh_l0.zero_()
    with torch.no_grad():
        start = (torch.tensor([[1.0, 0, 0]]),)
        hidden, state = run_layer(layer, torch.tensor([[[1.0, 0]]]), start)
    assert hidden.flatten().tolist() == [1, 0, 0]
    assert state[0].flatten().tolist() == [1, 0, 0]
    assert float(hidden.flatten() @ torch.tensor([1.0, 0, -1])) == 1  # W


def linear_rnn(w_x: Tensor, w_h: Tensor, inputs: Tensor) -> list[Tensor]:
    """h_t = w_x x_t + w_h h_{t-1}, for scalars."""
    states, h = [], torch.zeros(())
    for x in inputs:
        h = w_x * x + w_h * h
        states.append(h)
    return states


@pytest.mark.parametrize("steps", [1, 2, 5, 9])
def test_back_propagation_through_time_is_the_unrolled_sum_of_products(steps: int) -> None:
    """dh_t/dw = df/dw + sum_i (prod_{j>i} df/dh_{j-1}) df_i/dw, against autograd."""
    inputs = torch.randn(steps, dtype=torch.float64)
    w_x = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    w_h = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    states = linear_rnn(w_x, w_h, inputs)
    states[-1].backward()

    before = [0.0, *(float(h.detach()) for h in states)]  # h_{i-1}
    slope = float(w_h.detach())  # df/dh_{j-1}
    by_x = by_h = 0.0
    for i in range(steps):
        product = 1.0
        for _ in range(i + 1, steps):
            product *= slope
        by_x += product * float(inputs[i])  # df/dw_x at step i
        by_h += product * before[i]  # df/dw_h at step i
    assert float(w_x.grad) == pytest.approx(by_x, rel=1e-12)  # type: ignore[arg-type]
    assert float(w_h.grad) == pytest.approx(by_h, rel=1e-12, abs=1e-15)  # type: ignore[arg-type]


def test_matrices_too_obey_the_unrolled_sum() -> None:
    steps, dim = 6, 3
    w_x = torch.randn(dim, dim, dtype=torch.float64, requires_grad=True)
    w_h = (0.5 * torch.randn(dim, dim, dtype=torch.float64)).requires_grad_()
    inputs = torch.randn(steps, dim, dtype=torch.float64)
    states, h = [torch.zeros(dim, dtype=torch.float64)], torch.zeros(dim, dtype=torch.float64)
    for x in inputs:
        h = w_x @ x + w_h @ h
        states.append(h)
    readout = torch.randn(dim, dtype=torch.float64)
    (readout @ h).backward()

    expected = torch.zeros(dim, dim, dtype=torch.float64)
    for i in range(steps):
        back = readout.clone()
        for _ in range(i + 1, steps):
            back = w_h.detach().T @ back  # one Jacobian of the product
        expected += torch.outer(back, states[i].detach())
    assert torch.allclose(w_h.grad, expected, atol=1e-12)  # type: ignore[arg-type]


def reach(layer: nn.Module, steps: int) -> float:
    """How much of the gradient at the last output reaches the first input."""
    x = torch.zeros(1, steps, 16, requires_grad=True)
    outputs, _ = run_layer(layer, x, None)
    outputs[0, -1].sum().backward()
    assert x.grad is not None
    return float(x.grad[0, 0].norm() / x.grad[0, -1].norm())


def elman_with_radius(radius: float) -> nn.Module:
    layer = build_layer("elman", 16, 16)
    with torch.no_grad():
        nn.init.orthogonal_(layer.weight_hh_l0)
        layer.weight_hh_l0.mul_(radius)
        layer.bias_ih_l0.zero_()
        layer.bias_hh_l0.zero_()
    return layer


def test_gradients_vanish_below_spectral_radius_one_and_explode_above() -> None:
    assert reach(elman_with_radius(0.5), 30) < 1e-6
    assert reach(elman_with_radius(1.5), 30) > 1e3
    assert 0.1 < reach(elman_with_radius(1.0), 30) < 10


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_gated_cells_hold_gradients_longer(cell: str) -> None:
    """With the gates open to the past, 60 steps leave far more than an Elman cell's."""
    layer = build_layer(cell, 16, 16)  # type: ignore[arg-type]
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            if "bias" in name:
                weight.zero_()
                if cell == "lstm" and "ih" in name:
                    weight[16:32] = 4.0  # forget nothing
                if cell == "gru" and "ih" in name:
                    weight[16:32] = 4.0  # keep the state
            elif "weight_hh" in name:
                for gate in weight.split(16):
                    nn.init.orthogonal_(gate, gain=0.5)
    assert reach(layer, 60) > 1e6 * reach(elman_with_radius(0.5), 60)


def test_both_directions_see_the_whole_sequence() -> None:
    x = torch.randn(1, 5, 4, requires_grad=True)
    both = Recurrent("gru", 4, 6, bidirectional=True)
    outputs, _ = both(x)
    outputs[0, 2].sum().backward()
    assert x.grad is not None
    assert bool((x.grad[0].abs().sum(-1) > 0).all())
    one = Recurrent("gru", 4, 6)
    x.grad = None
    outputs, _ = one(x)
    outputs[0, 2].sum().backward()
    seen = (x.grad[0].abs().sum(-1) > 0).tolist()  # type: ignore[index]
    assert seen == [True, True, True, False, False]
