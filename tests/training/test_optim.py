"""Optimisers, schedules and averages, each by what it does to a few weights."""

from typing import Any

import pytest
import torch
from torch import nn

from saccade.config import Train
from saccade.training.optim import MovingAverage, build_optimizer, rate_at, scale_gradients
from saccade.training.tune import Group


def all_of(module: nn.Module) -> list[Group]:
    """All weights of a module, as one group."""
    return [Group(list(module.parameters()))]


def stepped(gradient: float, steps: int = 1, **train: Any) -> tuple[float, float]:
    """A weight of a matrix and one of a bias, both 1 at first, after steps with this gradient."""
    layer = nn.Linear(2, 2)
    for parameter in layer.parameters():
        nn.init.ones_(parameter)
    optimizer = build_optimizer(all_of(layer), Train(rate=0.1, **train))
    for _ in range(steps):
        for parameter in layer.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        optimizer.step()
    return float(layer.weight.detach()[0, 0]), float(layer.bias.detach()[0])


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_matrices_decay_and_biases_do_not(optimizer: str) -> None:
    matrix, bias = stepped(0.0, optimizer=optimizer, weight_decay=0.5)
    assert (matrix, bias) == (pytest.approx(0.95), 1.0)  # 1 - rate * decay
    assert stepped(0.0, optimizer=optimizer, weight_decay=0.0) == (1.0, 1.0)


def test_norms_do_not_decay_either() -> None:
    norm = nn.LayerNorm(3)
    optimizer = build_optimizer(all_of(norm), Train(rate=0.1, weight_decay=0.5))
    norm.weight.grad, norm.bias.grad = torch.zeros(3), torch.zeros(3)
    optimizer.step()
    assert norm.weight.tolist() == [1.0, 1.0, 1.0]


def test_sgd_has_the_momentum_that_is_asked_for() -> None:
    for momentum, moved in ((0.0, 2.0), (0.5, 2.5), (0.9, 2.9)):  # g, then g + momentum * g
        settings = {"optimizer": "sgd", "momentum": momentum, "weight_decay": 0.0}
        found = stepped(1.0, 2, **settings)
        assert found == (pytest.approx(1 - 0.1 * moved), pytest.approx(1 - 0.1 * moved))


def test_adam_has_the_betas_that_are_asked_for() -> None:
    """A first step of 2, then one of 0: the second moves by what the means have left."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    optimizer = build_optimizer(all_of(layer), Train(rate=0.1, betas=(0.5, 0.75), weight_decay=0.0))
    for gradient in (2.0, 0.0):
        layer.weight.grad = torch.full((1, 1), gradient)
        optimizer.step()
    mean, square = 0.5 * 0.5 * 2 / (1 - 0.5**2), 0.75 * 0.25 * 4 / (1 - 0.75**2)
    assert float(layer.weight.detach()) == pytest.approx(-0.1 - 0.1 * mean / square**0.5, rel=1e-4)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "plateau"])
def test_a_warm_up_takes_no_more_than_a_tenth_of_the_run(schedule: str) -> None:
    train = Train(schedule=schedule, rate=1.0, warmup=10_000)  # type: ignore[arg-type]
    assert rate_at(train, 5, 0.05, 1.0) == pytest.approx(0.5)
    assert rate_at(train, 10, 0.1, 1.0) > 0.97
    assert rate_at(train, 5, 0.0, 1.0) == pytest.approx(5 / 10_000)


def test_noam_falls_with_the_root_of_the_step() -> None:
    train = Train(schedule="noam", rate=1.0, warmup=100)
    for step in (100, 400, 2500):
        assert rate_at(train, step, 0.5, 1.0) == pytest.approx((100 / step) ** 0.5)
    assert rate_at(train, 50, 0.01, 1.0) == pytest.approx(0.5)


def test_a_mean_gradient_is_clipped_and_not_its_sum() -> None:
    weight = nn.Parameter(torch.zeros(4))
    weight.grad = torch.full((4,), 10.0)  # a norm of 20, and of 0.2 for each of 100
    assert float(scale_gradients([weight], 100, clip=1.0)) == pytest.approx(0.2)
    assert weight.grad.tolist() == pytest.approx([0.1] * 4)
    weight.grad = torch.full((4,), 10.0)
    scale_gradients([weight], 2, clip=1.0)
    assert weight.grad.tolist() == pytest.approx([0.5] * 4, rel=1e-5)


def test_an_average_forgets_the_first_steps_soon() -> None:
    """At step n it keeps at most (1 + n) / (10 + n): else the first weights would stay for long."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    average = MovingAverage(list(layer.parameters()), 0.999)
    nn.init.ones_(layer.weight)
    average.update(step=1)
    assert float(average.weights[0]) == pytest.approx(1 - 2 / 11)
    average.update(step=2)
    assert float(average.weights[0]) == pytest.approx(1 - 2 / 11 * 3 / 12)
    slow = MovingAverage(list(layer.parameters()), 0.999)
    nn.init.zeros_(layer.weight)
    slow.update(step=10**6)
    assert float(slow.weights[0]) == pytest.approx(0.999)
