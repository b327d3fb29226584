"""Series drawn from a step whose distribution is known: a random walk, with or without an end."""

from math import nan
from typing import Any

import pytest
import torch
from torch import Tensor

from saccade.decoding.series import Series, drawn, expected, unroll
from saccade.nn.distributions import Gaussian

STEP = Gaussian(1, 2, (1,))  # a number, and whether it was the last


def walk(log_odds: float) -> Any:
    """A number is the one before it and 1 more, give or take 0.5; it ends with these odds."""

    def step(values: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        spread = torch.tensor(0.5 - STEP.floor).expm1().log()  # softplus of it is 0.5
        raw = torch.stack(
            [
                values[:, 0].nan_to_num(0.0) + 1.0,
                spread.expand(len(values)),
                torch.full((len(values),), log_odds),
            ],
            -1,
        )
        return raw, state + 1

    return step


def found(rows: int, log_odds: float, limit: int, seed: int = 1, **options: Any) -> list[Series]:
    first, state = torch.full((rows, 2), nan), torch.zeros(rows, 1)
    choose = options.pop("choose", None) or drawn(STEP, seed, range(rows), **options)
    limits = [limit] * rows
    return unroll(walk(log_odds), state, first, STEP, choose=choose, limits=limits, end=1)


def test_steps_are_drawn_each_by_itself() -> None:
    series = torch.stack([one.values[:, 0] for one in found(2000, -100.0, 12)])
    moves = torch.diff(series, dim=1, prepend=torch.zeros(2000, 1))  # (rows, t)
    assert torch.allclose(moves.mean(0), torch.ones(12), atol=0.06)
    assert torch.allclose(moves.std(0), torch.full((12,), 0.5), atol=0.04)
    together = torch.corrcoef(moves.T)
    assert (together - torch.eye(12)).abs().max() < 0.1  # one draw says nothing of another


def test_a_series_ends_as_often_as_its_odds_say() -> None:
    lengths = torch.tensor([len(one.values) for one in found(4000, 0.0, 30)]).float()
    assert lengths.mean() == pytest.approx(1.0, abs=0.1)  # each step ends half of them
    assert (lengths == 0).float().mean() == pytest.approx(0.5, abs=0.04)


def test_a_limit_is_an_end_and_costs_its_probability() -> None:
    series = found(3, -2.0, 4, choose=expected(STEP))
    assert [one.values[:, 0].tolist() for one in series] == [[1.0, 2.0, 3.0, 4.0]] * 3
    on, over = torch.sigmoid(torch.tensor([2.0, -2.0])).log().tolist()
    density = float(torch.distributions.Normal(0.0, 0.5).log_prob(torch.tensor(0.0)))
    assert series[0].score == pytest.approx(4 * (on + density) + over, abs=1e-4)


def test_a_temperature_narrows_what_is_drawn() -> None:
    cold = found(500, -100.0, 3, temperature=0.01)
    moves = torch.stack([one.values[0, 0] for one in cold])
    assert float(moves.std()) == pytest.approx(0.05, abs=0.01)


def test_rows_have_limits_of_their_own_without_an_end() -> None:
    first, state = torch.full((3, 2), nan), torch.zeros(3, 1)
    limits = [2, 0, 5]
    chosen = expected(STEP)
    series = unroll(walk(-100.0), state, first, STEP, choose=chosen, limits=limits)
    assert [len(one.values) for one in series] == limits
    assert series[1].score == 0.0
