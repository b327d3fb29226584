"""Is one system better than another, or is it chance? Tests on the same lines, line by line paired.

All take `Statistics` of both systems on the same lines. What varies is the lines: a small p says
that other lines of the same kind would show the difference too, not that another training would.
"""

from math import exp, lgamma, log
from typing import Any, NamedTuple

import numpy as np

from saccade.errors import DataError
from saccade.metrics.statistics import Array, Statistics

SAMPLES = 2000
LEVEL = 0.05  # below which a difference counts
MAX_WEIGHTS = 1 << 22  # numbers drawn at once


class Paired(NamedTuple):
    """Two systems under one metric."""

    first: float
    second: float
    difference: float  # second less first
    low: float  # of the difference, the interval in which 95 % of the bootstrap's lie
    high: float
    bootstrap_p: float
    randomisation_p: float

    @property
    def differs(self) -> bool:
        """Whether a difference as large is rarer than one in twenty where there is none."""
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
    drawn = bootstrap(first, second, samples, seed)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Paired(
        *scores,
        difference,
        float(low),
        float(high),
        p_value(drawn - drawn.mean(), difference),
        p_value(randomisation(first, second, samples, seed + 1), difference),
    )


def p_value(chance: Array, difference: float) -> float:
    """How often chance makes as large a difference, with one more for what was seen itself."""
    edge = abs(difference) * (1 - 1e-9) - 1e-12  # equal sums may differ in their last bits
    return float((1 + (np.abs(chance) >= edge).sum()) / (1 + len(chance)))


def bootstrap(first: Statistics, second: Statistics, samples: int, seed: int) -> Array:
    """The differences on so many samples of the lines, drawn with replacement.

    Koehn 2004, aclanthology.org/W04-3250
    """
    n, rng, found = len(first.rows), np.random.default_rng(seed), []
    for size in _sizes(samples, n):
        weights = rng.multinomial(n, np.full(n, 1 / n), size).astype(float)  # (size, n)
        found.append(second.value(weights @ second.rows) - first.value(weights @ first.rows))
    return np.concatenate(found)


def randomisation(first: Statistics, second: Statistics, samples: int, seed: int) -> Array:
    """The differences when it is drawn anew for each line which system said what.

    Noreen 1989; Riezler & Maxwell 2005, aclanthology.org/W05-0908
    """
    n, rng, found = len(first.rows), np.random.default_rng(seed), []
    total, change = first.rows.sum(0), second.rows - first.rows
    for size in _sizes(samples, n):
        moved = rng.integers(0, 2, (size, n)).astype(float) @ change
        found.append(first.value(second.rows.sum(0) - moved) - first.value(total + moved))
    return np.concatenate(found)


def _sizes(samples: int, n: int) -> list[int]:
    """The samples in parts that fit into memory."""
    each = max(1, min(samples, MAX_WEIGHTS // max(n, 1)))
    return [min(each, samples - start) for start in range(0, samples, each)]


class McNemar(NamedTuple):
    """On how many items only the first, and only the second system is right, and how likely."""

    only_first: int
    only_second: int
    p: float


def mcnemar(first: Any, second: Any) -> McNemar:
    """The exact test of two systems that are right or wrong on the same items.

    McNemar 1947: where they do not differ, each of the items on which one alone is right is as
    likely the one's as the other's.
    """
    one, other = np.asarray(first, bool), np.asarray(second, bool)
    only_first, only_second = int((one & ~other).sum()), int((other & ~one).sum())
    n, least = only_first + only_second, min(only_first, only_second)
    tail = sum(
        exp(lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) - n * log(2))
        for i in range(least + 1)
    )
    return McNemar(only_first, only_second, min(1.0, 2 * tail))
