"""Metrics of predicted numbers and distributions. NaN in the gold numbers is ignored."""

from math import pi, sqrt
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, np.dtype[Any]]


def rmse(guess: Array, gold: Array) -> float:
    """The root of the mean squared error, over all numbers."""
    return float(np.sqrt(np.nanmean((guess - gold) ** 2)))


def mae(guess: Array, gold: Array) -> float:
    """The mean absolute error, over all numbers."""
    return float(np.nanmean(np.abs(guess - gold)))


def r2(guess: Array, gold: Array) -> float:
    """The share of variance explained: 1 is all of it, 0 is predicting the mean.

    The mean over the columns (n, F) that are not constant; 0 if all are.
    """
    present = ~np.isnan(gold)
    count = np.maximum(present.sum(0), 1)
    mean = np.where(present, gold, 0.0).sum(0) / count
    total = np.where(present, (gold - mean) ** 2, 0.0).sum(0)
    residual = np.where(present, (gold - guess) ** 2, 0.0).sum(0)
    vary = total > 1e-12 * np.maximum(np.abs(mean), 1e-12) ** 2 * count
    return float(np.mean(1.0 - residual[vary] / total[vary])) if vary.any() else 0.0


def mse(guess: Array, gold: Array) -> float:
    """The mean squared error, over all numbers."""
    return float(np.nanmean((guess - gold) ** 2))


def mase(guess: Array, gold: Array, naive: Array) -> float:
    """The mean absolute scaled error, where `naive` is the error of the naive forecast.

    Hyndman & Koehler 2006
    """
    return float(np.nanmean(np.abs(guess - gold) / naive))


def coverage(low: Array, high: Array, gold: Array) -> float:
    """The percentage of gold numbers within `low` and `high`."""
    inside = np.where(np.isnan(gold), np.nan, (gold >= low) & (gold <= high))
    return float(100 * np.nanmean(inside))


def crps(mean: Array, deviation: Array, gold: Array) -> Array:
    """The continuous ranked probability score of a Gaussian prediction, for each number.

    With deviation 0 it is the absolute error. Gneiting & Raftery 2007, equation 21
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(deviation > 0, (gold - mean) / deviation, 0.0)
    below = torch.special.ndtr(torch.from_numpy(np.asarray(z, np.float64))).numpy()
    density = np.exp(-0.5 * z * z) / sqrt(2 * pi)
    score = deviation * (z * (2 * below - 1) + 2 * density - 1 / sqrt(pi))
    return np.asarray(np.where(deviation > 0, score, np.abs(gold - mean)))


def sample_crps(samples: Array, gold: Array) -> Array:
    """The same for two or more samples (n, ...): E|X - y| - E|X - X'| / 2."""
    n = len(samples)
    assert n > 1
    weights = 2 * np.arange(1, n + 1) - n - 1  # sums |a - b| over all pairs of sorted samples
    weights = weights.reshape(-1, *[1] * (samples.ndim - 1))
    spread = 2 * (weights * np.sort(samples, 0)).sum(0) / (n * (n - 1))
    return np.asarray(np.abs(samples - gold).mean(0) - spread / 2)


def spearman(a: Array, b: Array) -> float:
    """The rank correlation, ties averaged; 0 if one side is constant.     Spearman 1904"""
    first, second = _ranks(a), _ranks(b)
    if min(len(np.unique(first)), len(np.unique(second))) < 2:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(numbers: Array) -> Array:
    _, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    return np.asarray((counts.cumsum() - (counts - 1) / 2)[inverse])
