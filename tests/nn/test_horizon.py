"""The parts of a forecast: what is taken out comes back, and what a weight does to a gradient."""

import pytest
import torch

from saccade.nn.horizon import Effects, ForecastScale, Shortcut, normalised, weighted_nll


@pytest.mark.parametrize("centre", ["last", "mean", "none"])
@pytest.mark.parametrize("scale", [True, False])
def test_what_a_window_was_normalised_by_is_undone(centre: str, scale: bool) -> None:
    x = 5 + 3 * torch.randn(4, 9, 2)
    found, level = normalised(x, centre, scale)  # type: ignore[arg-type]
    torch.testing.assert_close(found * level.scale + level.centre, x)
    again, _ = normalised(7 * x + 2, centre, scale)  # type: ignore[arg-type]
    if centre != "none" and scale:
        torch.testing.assert_close(again, found, rtol=1e-3, atol=1e-3)


def test_a_cycle_is_the_same_a_season_later() -> None:
    effects = Effects(series=2, season=3, known=1)
    assert effects.cycle is not None
    assert effects.known is not None
    with torch.no_grad():
        effects.cycle.copy_(torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]))
        effects.known.copy_(torch.tensor([[100.0], [0.0]]))
    series, steps = torch.tensor([[0], [1]]), torch.tensor([[2, 3, 4], [-1, 0, 1]])
    known = torch.tensor([[[0.0], [1.0], [0.0]], [[1.0], [1.0], [1.0]]])
    said = effects(series, steps, known).squeeze(-1)
    assert said.tolist() == [[3.0, 101.0, 2.0], [30.0, 10.0, 20.0]]


def test_a_shortcut_begins_as_the_mean_and_maps_each_series_alike() -> None:
    shortcut = Shortcut(lookback=4, horizon=2, past=1)
    shortcut.reset_parameters()
    x, past = torch.randn(3, 4, 2), torch.randn(3, 4, 1)
    torch.testing.assert_close(shortcut(x, past), x.mean(1, keepdim=True).expand(3, 2, 2))
    torch.nn.init.normal_(shortcut.weight)
    swapped = shortcut(x.flip(-1), past)
    torch.testing.assert_close(shortcut(x, past).flip(-1), swapped)


def test_means_learn_from_squared_errors_and_deviations_from_the_likelihood() -> None:
    values = torch.randn(3, 4, 1)
    values[0, 1] = torch.nan
    there = ~values.isnan()
    for beta in (0.0, 0.5, 1.0):
        mean = torch.randn(3, 4, 1, requires_grad=True)
        deviation = (torch.rand(3, 4, 1) + 0.5).requires_grad_()
        loss, nll, count = weighted_nll(values, mean, deviation, beta)
        loss.backward()
        assert count == 11
        error = (mean - values).where(there, 0.0).detach()
        fixed = deviation.detach()
        exact = torch.distributions.Normal(mean, deviation).log_prob(values.nan_to_num(0.0))
        torch.testing.assert_close(nll, -exact.where(there, 0.0).sum())
        torch.testing.assert_close(mean.grad, error / fixed**2 * fixed ** (2 * beta))
        likelihood = (1 / fixed - error**2 / fixed**3).where(there, 0.0)
        torch.testing.assert_close(deviation.grad, likelihood)


def test_a_spread_may_follow_the_deviation_of_the_window() -> None:
    spread = ForecastScale(series=1, horizon=2)
    spread.reset_parameters()
    window = torch.tensor([[[2.0]], [[4.0]]])
    series = torch.zeros(2, 1, dtype=torch.int64)
    torch.testing.assert_close(spread(series, window, 0.0), torch.full((2, 2, 1), 1.001))
    torch.nn.init.ones_(spread.follow)
    torch.testing.assert_close(spread(series, window, 0.0), window.expand(2, 2, 1) + 0.001)
