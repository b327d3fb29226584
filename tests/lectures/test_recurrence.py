"""The course's worked numbers on recurrent networks and back-propagation through time."""

import pytest
import torch
from torch import Tensor

from saccade.models.build import init_weights
from saccade.nn.attention import Attention, Dot
from saccade.nn.recurrent import Cell, Recurrent
from saccade.nn.state import detach


def test_one_step_of_a_recurrent_network_is_the_decks_example() -> None:
    """With ReLU, h' = [1,0,0] and o = 1.

    U = [[1,0],[0,1],[-1,0]], V = [[0,1,0],[0,0,1],[1,0,0]], W = [1,0,-1].
    """
    rnn = Recurrent("elman_relu", 2, 3)
    layer = rnn.layers[0]
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.tensor([[1.0, 0], [0, 1], [-1, 0]]))  # U
        layer.weight_hh_l0.copy_(torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]]))  # V
        layer.bias_ih_l0.zero_()
        layer.bias_hh_l0.zero_()
        start = (torch.tensor([[1.0, 0, 0]]),)
        hidden, ((state,),) = rnn(torch.tensor([[[1.0, 0]]]), (start,))
    assert hidden.flatten().tolist() == [1, 0, 0]
    assert state.flatten().tolist() == [1, 0, 0]
    assert float(hidden.flatten() @ torch.tensor([1.0, 0, -1])) == 1  # W


def linear_rnn(w_x: Tensor, w_h: Tensor) -> Recurrent:
    """h_t = w_x x_t + w_h h_{t-1}: with ReLU, as long as nothing is below 0."""
    rnn = Recurrent("elman_relu", w_x.size(1), w_h.size(0)).double()
    layer = rnn.layers[0]
    with torch.no_grad():
        layer.weight_ih_l0.copy_(w_x)
        layer.weight_hh_l0.copy_(w_h)
        layer.bias_ih_l0.zero_()
        layer.bias_hh_l0.zero_()
    return rnn


def unrolled(
    w_h: Tensor, inputs: Tensor, states: Tensor, readout: Tensor, first: int
) -> tuple[Tensor, Tensor]:
    """d(readout . h_T)/dw = sum_i (prod_{j>i} dh_j/dh_{j-1}) df_i/dw, from step `first` on."""
    by_x, by_h = torch.zeros_like(w_h[:, :1] * inputs[0]), torch.zeros_like(w_h)
    before = torch.cat([torch.zeros_like(states[:1]), states])  # h_{i-1}
    for i in range(first, len(inputs)):
        back = readout
        for _ in range(i + 1, len(inputs)):
            back = w_h.T @ back  # one Jacobian of the product
        by_x += torch.outer(back, inputs[i])
        by_h += torch.outer(back, before[i])
    return by_x, by_h


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("steps", [1, 2, 5, 9])
def test_back_propagation_through_time_is_the_unrolled_sum_of_products(
    steps: int, dim: int
) -> None:
    inputs = torch.rand(steps, dim, dtype=torch.float64)
    w_x, w_h = torch.rand(2, dim, dim, dtype=torch.float64)
    readout = torch.randn(dim, dtype=torch.float64)
    rnn = linear_rnn(w_x, w_h)
    states, _ = rnn(inputs[None])
    (states[0, -1] @ readout).backward()
    by_x, by_h = unrolled(w_h, inputs, states[0].detach(), readout, 0)
    assert torch.allclose(rnn.layers[0].weight_ih_l0.grad, by_x, rtol=1e-12)  # type: ignore[arg-type]
    assert torch.allclose(rnn.layers[0].weight_hh_l0.grad, by_h, rtol=1e-12)  # type: ignore[arg-type]


def test_truncated_back_propagation_leaves_out_the_terms_before_the_cut() -> None:
    inputs = torch.rand(7, 3, dtype=torch.float64)
    w_x, w_h = torch.rand(2, 3, 3, dtype=torch.float64)
    readout = torch.randn(3, dtype=torch.float64)
    rnn = linear_rnn(w_x, w_h)
    early, state = rnn(inputs[None, :4])
    late, _ = rnn(inputs[None, 4:], detach(state))
    (late[0, -1] @ readout).backward()
    states = torch.cat([early, late], 1)[0].detach()
    assert torch.allclose(states, rnn(inputs[None])[0][0], rtol=1e-12)  # the values go on
    by_x, by_h = unrolled(w_h, inputs, states, readout, 4)
    assert torch.allclose(rnn.layers[0].weight_ih_l0.grad, by_x, rtol=1e-12)  # type: ignore[arg-type]
    assert torch.allclose(rnn.layers[0].weight_hh_l0.grad, by_h, rtol=1e-12)  # type: ignore[arg-type]


def recurrent(cell: Cell, radius: float = 1.0, gate: float | None = None) -> Recurrent:
    """A layer with our first weights, always the same, its recurrent matrices times `radius`.

    `gate` is the bias of the gate that keeps the state: an LSTM's forget gate, a GRU's update gate.
    """
    stack = Recurrent(cell, 16, 16)
    torch.manual_seed(0)
    init_weights(stack)
    with torch.no_grad():
        stack.layers[0].weight_hh_l0.mul_(radius)
        if gate is not None:
            stack.layers[0].bias_ih_l0[16:32] = gate
    return stack


def reach(stack: Recurrent, steps: int) -> float:
    """How much of the gradient at the last output reaches the first input."""
    x = torch.zeros(1, steps, 16, requires_grad=True)
    outputs, _ = stack(x)
    outputs[0, -1].sum().backward()
    assert x.grad is not None
    return float(x.grad[0, 0].norm() / x.grad[0, -1].norm())


def test_gradients_vanish_below_spectral_radius_one_and_explode_above() -> None:
    assert reach(recurrent("elman", 0.5), 30) < 1e-6
    assert reach(recurrent("elman", 1.5), 30) > 1e3
    assert 0.1 < reach(recurrent("elman"), 30) < 10  # our first weights are a rotation


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_gated_cells_hold_gradients_longer(cell: Cell) -> None:
    """With the gates open to the past, 60 steps leave far more than an Elman cell's."""
    held = reach(recurrent(cell, 0.5, gate=4.0), 60)
    assert held > 1e6 * reach(recurrent("elman", 0.5), 60)
    assert held > 100 * reach(recurrent(cell, 0.5, gate=0.0), 60)


def test_an_lstm_remembers_at_first() -> None:
    """Its forget gate begins with a bias of 1, which keeps more than an even gate does."""
    assert reach(recurrent("lstm"), 20) > 100 * reach(recurrent("lstm", gate=0.0), 20)
    assert reach(recurrent("lstm"), 20) == pytest.approx(reach(recurrent("lstm", gate=1.0), 20))


def test_attention_is_a_short_way_back() -> None:
    """What vanishes on the way through 60 states arrives by an attention to each of them."""
    stack, attention = recurrent("elman", 0.5), Attention(Dot(16, 16))
    x, query = torch.zeros(1, 60, 16, requires_grad=True), torch.randn(1, 1, 16)
    values, _ = stack(x)
    attention(query, attention.prepare(values), values).sum().backward()
    assert x.grad is not None
    assert float(x.grad[0, 0].norm() / x.grad[0, -1].norm()) > 0.1
    assert reach(stack, 60) < 1e-12


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
