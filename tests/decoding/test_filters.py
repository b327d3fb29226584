"""What sampling may draw from, on one distribution: 0.5, 0.2, 0.15, 0.1, 0.05."""

import pytest
import torch

from saccade.decoding import steps
from saccade.decoding.search import Step

CHANCES = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05])


def plain(tokens: torch.Tensor, state: object) -> tuple[torch.Tensor, object]:
    return CHANCES.log().expand(len(tokens), -1), state


def found(step: Step) -> list[float]:
    log_probs, _ = step(torch.tensor([1]), None)
    return log_probs[0].exp().tolist()


def kept(*places: int) -> list[float]:
    """The probabilities of these tokens alone, which add up to 1."""
    chances = torch.zeros(5).scatter(0, torch.tensor(places), CHANCES[list(places)])
    return pytest.approx((chances / chances.sum()).tolist(), abs=1e-6)  # type: ignore[no-any-return]


def test_top_k_keeps_the_k_likeliest() -> None:
    assert found(steps.top_k(plain, 1)) == kept(0)
    assert found(steps.top_k(plain, 3)) == kept(0, 1, 2)
    assert found(steps.top_k(plain, 9)) == kept(0, 1, 2, 3, 4)


def test_top_p_keeps_as_many_as_it_takes_to_reach_p() -> None:
    assert found(steps.top_p(plain, 0.3)) == kept(0)  # even where one is more than enough
    assert found(steps.top_p(plain, 0.6)) == kept(0, 1)
    assert found(steps.top_p(plain, 0.8)) == kept(0, 1, 2)
    assert found(steps.top_p(plain, 0.99)) == kept(0, 1, 2, 3, 4)


def test_typical_keeps_what_is_as_surprising_as_expected() -> None:
    """The entropy is 1.33 nats: e^-1.33 = 0.26, so that 0.2 is the most typical, then 0.15."""
    assert found(steps.typical(plain, 0.1)) == kept(1)
    assert found(steps.typical(plain, 0.3)) == kept(1, 2)
    assert found(steps.typical(plain, 0.5)) == kept(0, 1, 2)


def test_min_p_keeps_what_is_not_far_below_the_likeliest() -> None:
    assert found(steps.min_p(plain, 0.35)) == kept(0, 1)
    assert found(steps.min_p(plain, 0.15)) == kept(0, 1, 2, 3)


def test_a_temperature_is_a_power() -> None:
    for temperature in (0.5, 2.0):
        powers = CHANCES ** (1 / temperature)
        expected = (powers / powers.sum()).tolist()
        assert found(steps.tempered(plain, temperature)) == pytest.approx(expected, abs=1e-6)
