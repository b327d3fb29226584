"""Minimum Bayes risk: of several candidates the one most similar to all, not the likeliest.

Kumar & Byrne 2004; over samples, Eikema & Aziz 2020, arxiv.org/abs/2005.10283.
"""

from collections.abc import Callable, Sequence
from math import exp

Utility = Callable[[str, Sequence[str]], list[float]]  # a text against each of others


def least_risk(texts: Sequence[str], log_weights: Sequence[float], utility: Utility) -> list[int]:
    """The indices of the distinct texts, the highest expected utility first; ties in their order.

    Each text serves as a reference with its weight; equal texts add theirs.
    """
    top = max(log_weights)
    weights: dict[str, float] = {}
    place: dict[str, int] = {}
    for i, (text, log_weight) in enumerate(zip(texts, log_weights, strict=True)):
        weights[text] = weights.get(text, 0.0) + exp(log_weight - top)
        place.setdefault(text, i)
    distinct = list(weights)

    def expected(text: str) -> float:
        gains = utility(text, distinct)
        return sum(weights[other] * gain for other, gain in zip(distinct, gains, strict=True))

    gain = {text: expected(text) for text in distinct}
    return [place[text] for text in sorted(distinct, key=lambda text: -gain[text])]
