"""Metrics of forecasts, by values that were computed by hand."""

from math import erf, pi, sqrt

import numpy as np
import pytest

from saccade.metrics.numbers import coverage, crps, mae, mase, mse, rmse, sample_crps

GOLD = np.array([[1.0, 2.0], [3.0, np.nan]])
GUESS = np.array([[1.0, 4.0], [2.0, 9.0]])


def test_errors_leave_out_what_is_missing() -> None:
    assert mae(GUESS, GOLD) == pytest.approx((0 + 2 + 1) / 3)
    assert mse(GUESS, GOLD) == pytest.approx((0 + 4 + 1) / 3)
    assert rmse(GUESS, GOLD) == pytest.approx(sqrt(5 / 3))


def test_mase_is_in_units_of_the_naive_forecast() -> None:
    naive = np.array([[1.0, 4.0], [0.5, 1.0]])
    assert mase(GUESS, GOLD, naive) == pytest.approx((0 + 0.5 + 2) / 3)


def test_the_crps_of_a_gaussian_is_its_closed_form() -> None:
    found = crps(np.array([0.0, 1.0]), np.array([1.0, 2.0]), np.array([0.0, 3.0]))
    at_mean = sqrt(2 / pi) - 1 / sqrt(pi)
    z = 1.0
    density, below = np.exp(-0.5) / sqrt(2 * pi), 0.5 * (1 + erf(z / sqrt(2)))
    assert found[0] == pytest.approx(at_mean)
    assert found[1] == pytest.approx(2 * (z * (2 * below - 1) + 2 * density - 1 / sqrt(pi)))


def test_the_crps_of_a_certain_forecast_is_its_absolute_error() -> None:
    assert crps(np.array([2.0]), np.array([0.0]), np.array([5.0])) == pytest.approx(3.0)


def test_the_crps_of_samples_is_that_of_their_distribution() -> None:
    two = sample_crps(np.array([[0.0], [2.0]]), np.array([1.0]))
    assert two == pytest.approx(1.0 - 2.0 / 2)  # E|X - y| = 1, E|X - X'| = 2
    many = np.random.default_rng(0).normal(1.0, 2.0, (20_000, 1))
    exact = crps(np.array([1.0]), np.array([2.0]), np.array([3.0]))
    assert sample_crps(many, np.array([3.0])) == pytest.approx(exact, rel=0.03)


def test_coverage_is_the_percentage_inside() -> None:
    low, high = np.zeros((2, 2)), np.full((2, 2), 2.5)
    assert coverage(low, high, GOLD) == pytest.approx(200 / 3)
