"""How far numbers are from the right ones; what is missing (NaN) in the right ones is left out."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def rmse(guess: Array, gold: Array) -> float:
    """The root of the mean squared error, over all numbers."""
    return float(np.sqrt(np.nanmean((guess - gold) ** 2)))


def mae(guess: Array, gold: Array) -> float:
    """The mean absolute error, over all numbers."""
    return float(np.nanmean(np.abs(guess - gold)))


def r2(guess: Array, gold: Array) -> float:
    """The share of the variance that is explained: 1 is all, 0 is what the mean explains.

    The mean over the columns (n, F) that vary; 0 where none does.
    """
    there = ~np.isnan(gold)
    count = np.maximum(there.sum(0), 1)
    mean = np.where(there, gold, 0.0).sum(0) / count
    total = np.where(there, (gold - mean) ** 2, 0.0).sum(0)
    left = np.where(there, (gold - guess) ** 2, 0.0).sum(0)
    vary = total > 1e-12 * np.maximum(np.abs(mean), 1e-12) ** 2 * count
    return float(np.mean(1.0 - left[vary] / total[vary])) if vary.any() else 0.0
