"""Paired significance tests of two systems on the same lines.

They take the `Statistics` of both systems on the same lines, and model the choice of lines: a small
p says that other lines of the same kind would show the difference too, not that other training runs
would.
"""

from math import exp, lgamma, log
from typing import Any, NamedTuple

import numpy as np

from saccade.errors import DataError
from saccade.metrics.statistics import Array, Statistics

SAMPLES = 2000
LEVEL = 0.05  # of significance
MAX_WEIGHTS = 1 << 22  # random numbers in one chunk


class Paired(NamedTuple):
    """Two systems compared by one metric."""

    first: float
    second: float
    difference: float  # second - first
    low: float  # of the bootstrap's 95 % interval of the difference
    high: float
    bootstrap_p: float
    randomisation_p: float

    @property
    def differs(self) -> bool:
        """Whether the difference is significant, by randomisation."""
        return self.randomisation_p < LEVEL


def compare(first: Statistics, second: Statistics, samples: int = SAMPLES, seed: int = 1) -> Paired:
    """Both tests of one metric: the bootstrap gives the interval, randomisation decides."""
    if len(first.rows) != len(second.rows):
        raise DataError(
            f"{len(first.rows)} lines of one system, but {len(second.rows)} of the other"
        )
    if not len(first.rows):
        raise DataError("nothing to compare: there are no lines")
    scores = first.score, second.score
    difference = scores[1] - scores[0]
    resampled = bootstrap(first, second, samples, seed)
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Paired(
        *scores,
        difference,
        float(low),
        float(high),
        p_value(resampled - resampled.mean(), difference),
        p_value(randomisation(first, second, samples, seed + 1), difference),
    )


def p_value(chance: Array, difference: float) -> float:
    """The share of chance differences that are as large, with the observed one added to both."""
    threshold = abs(difference) * (1 - 1e-9) - 1e-12  # equal sums may differ in their last bits
    return float((1 + (np.abs(chance) >= threshold).sum()) / (1 + len(chance)))


def bootstrap(first: Statistics, second: Statistics, samples: int, seed: int) -> Array:
    """The differences on `samples` resamples of the lines, drawn with replacement.

    Koehn 2004, aclanthology.org/W04-3250
    """
    n, rng, differences = len(first.rows), np.random.default_rng(seed), []
    for size in _sizes(samples, n):
        weights = rng.multinomial(n, np.full(n, 1 / n), size).astype(float)  # (size, n)
        differences.append(second.value(weights @ second.rows) - first.value(weights @ first.rows))
    return np.concatenate(differences)


def randomisation(first: Statistics, second: Statistics, samples: int, seed: int) -> Array:
    """The differences when the systems' outputs are swapped at random, line by line.

    Noreen 1989; Riezler & Maxwell 2005, aclanthology.org/W05-0908
    """
    n, rng, differences = len(first.rows), np.random.default_rng(seed), []
    total, change = first.rows.sum(0), second.rows - first.rows
    for size in _sizes(samples, n):
        swapped = rng.integers(0, 2, (size, n)).astype(float) @ change
        differences.append(first.value(second.rows.sum(0) - swapped) - first.value(total + swapped))
    return np.concatenate(differences)


def _sizes(samples: int, n: int) -> list[int]:
    """The number of samples in each chunk that fits into memory."""
    each = max(1, min(samples, MAX_WEIGHTS // max(n, 1)))
    return [min(each, samples - start) for start in range(0, samples, each)]


class McNemar(NamedTuple):
    """The number of items that only one of two systems gets right, and the p-value."""

    only_first: int
    only_second: int
    p: float


def mcnemar(first: Any, second: Any) -> McNemar:
    """The exact test of two systems that are right or wrong on the same items.

    McNemar 1947: under the null hypothesis, either system is equally likely to be the one that is
    right.
    """
    a, b = np.asarray(first, bool), np.asarray(second, bool)
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    n, least = only_first + only_second, min(only_first, only_second)
    tail = sum(
        exp(lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) - n * log(2))
        for i in range(least + 1)
    )
    return McNemar(only_first, only_second, min(1.0, 2 * tail))
