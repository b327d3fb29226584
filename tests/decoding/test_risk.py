"""Minimum Bayes risk: the expected utility decides, in which equal texts add their weights."""

from math import log

import pytest

from saccade.decoding.risk import least_risk
from saccade.metrics.text import similarity


def same(text: str, others: list[str]) -> list[float]:
    return [float(text == other) for other in others]


def test_equal_texts_add_their_weights() -> None:
    assert least_risk(["a", "b", "b"], [0.0] * 3, same) == [1, 0]
    # 0.4 against 0.25 + 0.25
    assert least_risk(["a", "b", "b"], [log(0.4), log(0.25), log(0.25)], same) == [1, 0]
    assert least_risk(["b", "a", "b"], [log(0.1), log(0.4), log(0.2)], same) == [1, 0]


def test_a_heavier_text_counts_for_more() -> None:
    assert least_risk(["a", "b"], [log(0.3), log(0.7)], same) == [1, 0]
    assert least_risk(["a", "b"], [-1000.0, -1001.0], same) == [0, 1]  # nothing underflows


def test_equally_good_texts_stay_in_their_order() -> None:
    assert least_risk(["c", "a", "b"], [0.0] * 3, same) == [0, 1, 2]


def test_the_expected_utility_is_the_weighted_sum() -> None:
    gains = {("x", "y"): 0.9, ("y", "z"): 0.8, ("x", "z"): 0.0}
    texts, weights = ["x", "y", "z"], [0.5, 0.2, 0.3]

    def utility(text: str, others: list[str]) -> list[float]:
        pairs = [tuple(sorted((text, other))) for other in others]
        return [1.0 if a == b else gains[(a, b)] for a, b in pairs]

    # x: 0.5 + 0.18 + 0 = 0.68; y: 0.45 + 0.2 + 0.24 = 0.89; z: 0 + 0.16 + 0.3 = 0.46
    assert least_risk(texts, [log(w) for w in weights], utility) == [1, 0, 2]


@pytest.mark.parametrize("name", ["chrf", "bleu", "token_error"])
def test_the_one_in_the_middle_is_the_nearest_to_all(name: str) -> None:
    texts = ["z z z z z", "a b c d x", "a b c d e", "a b c y e"]
    order = least_risk(texts, [0.0] * 4, similarity(name))
    assert (order[0], order[-1]) == (2, 0)
