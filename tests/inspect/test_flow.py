"""Gradient flow: the norms are those of the Jacobians, and tell networks apart by their memory."""

from typing import Any

import pytest
import torch

from saccade import config as c
from saccade.inspect.case import LabelCase
from saccade.inspect.flow import flow, recurrence_of, state_gradients
from saccade.inspect.packing import unpacked
from saccade.models.build import build
from saccade.nn.padded import pad
from saccade.nn.recurrent import run_cell
from tests.architectures import IDS, config_of
from tests.inspect.cases import CASES, case_of

RECURRENT = [name for name in CASES if recurrence_of(case_of(name)) is not None]


def test_every_recurrent_network_has_states() -> None:
    cells = ("elman", "gru", "lstm", "elmo")
    own = {name for name in CASES if any(cell in name for cell in cells)}
    assert own <= set(RECURRENT)
    assert "read transformer" not in RECURRENT
    assert flow(case_of("classify transformer"))["states"] is None


@pytest.mark.parametrize("name", RECURRENT)
def test_the_norms_are_those_of_the_jacobians(name: str) -> None:
    found = recurrence_of(case_of(name))
    assert found is not None
    rows, norms = state_gradients(found)
    T = found.inputs.size(1)
    assert rows == list(range(T))
    assert torch.equal(norms.diagonal(), torch.ones(T))
    assert torch.equal(norms, norms.tril())

    def last(*state: torch.Tensor) -> torch.Tensor:
        for t in range(2, T):
            state = run_cell(found.layer, found.inputs[:, t], state)
        return state[0]

    state = found.state
    for t in range(2):
        state = run_cell(found.layer, found.inputs[:, t], state)
    jacobians = torch.autograd.functional.jacobian(last, tuple(s.detach() for s in state))
    total = sum(float(one.square().sum()) for one in jacobians)
    width = found.layer.hidden_size
    assert float(norms[T - 1, 1]) == pytest.approx((total / width) ** 0.5, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
    "name", ["classify lstm", "on gru_off", "said lstm_off", "tag transformer"]
)
def test_inputs_are_the_gradient_of_the_loss(name: str) -> None:
    case = case_of(name)
    leaf = case.vectors[0].clone().requires_grad_()
    with torch.enable_grad():
        case.scores((leaf,)).sum().backward()
    assert leaf.grad is not None
    sizes = leaf.grad[0].norm(dim=-1).tolist()
    assert flow(case)["inputs"] == pytest.approx(sizes, rel=1e-3, abs=1e-5)
    for parameter in case.network.parameters():
        parameter.grad = None


def first_weights(encoder: str, steps: int = 60, pool: str = "last") -> LabelCase:
    """A classifier as training begins with it, and a long input."""
    config = config_of("classify", encoder)
    assert config.head is not None
    parts: dict[str, Any] = {"head": config.head.model_copy(update={"pool": pool})}
    if isinstance(config.encoder, c.RecurrentEncoder):
        parts["encoder"] = config.encoder.model_copy(update={"bidirectional": False})
    net = build(config.model_copy(update=parts), [IDS], IDS, seed=1).eval()
    row = torch.randint(5, 20, (steps,), generator=torch.Generator().manual_seed(2)).tolist()
    names = [str(i) for i in range(steps)]
    return LabelCase(net, (pad([row]),), [names], ["3"], "", ids=[3])


def test_the_gradients_of_an_elman_network_vanish_first_and_a_transformers_do_not() -> None:
    # the share of the gradient that reaches the first of 60 positions, against the last
    shares = {}
    for encoder, pool in (("elman", "last"), ("lstm_one_way", "last"), ("transformer", "mean")):
        inputs = flow(first_weights(encoder, pool=pool))["inputs"]
        shares[encoder] = inputs[0] / max(inputs[-10:])
    assert shares["elman"] < 1e-9
    assert shares["lstm_one_way"] > 1e6 * shares["elman"]
    assert shares["transformer"] > 0.1


def test_an_lstm_that_has_learned_to_remember_keeps_its_gradients() -> None:
    case = first_weights("lstm_one_way", steps=40)
    found = recurrence_of(case)
    assert found is not None
    width = found.layer.hidden_size
    with torch.no_grad():  # what it learns where the first of many words counts: remember
        found.layer.bias_ih_l0[width : 2 * width] = 6.0
    norms = state_gradients(found)[1]
    assert float(norms[-1, 0]) > 0.1
    vanished = recurrence_of(first_weights("elman", steps=40))
    assert vanished is not None
    assert float(state_gradients(vanished)[1][-1, 0]) < 1e-2 * float(norms[-1, 0])


def test_long_inputs_are_followed_at_some_rows() -> None:
    view = flow(first_weights("elman", steps=300))
    assert len(view["inputs"]) == 300
    states = unpacked(view["states"])
    assert states.shape == (64, 256)
    assert view["rows"][0] == 0
    assert view["rows"][-1] == 255
    assert len(view["steps"]) == 256
    assert view["by_distance"][0] == 1.0
