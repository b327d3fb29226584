"""Scores of generated text, against numbers worked out by hand."""

import math
from collections.abc import Callable, Sequence

import pytest

from saccade.errors import DataError
from saccade.metrics import bleu, chrf, exact_match, sequence_error_rate, token_error_rate
from saccade.metrics.text import distinct

Metric = Callable[[Sequence[str], Sequence[Sequence[str]]], float]
GOOD: list[Metric] = [bleu, chrf, exact_match]
BAD: list[Metric] = [sequence_error_rate, token_error_rate]
TEXTS = ["the cat sat on the mat .", "a dog ran over the hill ."]


def test_the_perfect_score_is_100_or_no_error() -> None:
    for metric in GOOD:
        assert metric(TEXTS, [[text] for text in TEXTS]) == pytest.approx(100)
    for metric in BAD:
        assert metric(TEXTS, [[text] for text in TEXTS]) == 0


def test_any_of_several_references_may_be_met_and_items_may_have_different_numbers() -> None:
    references = [["nothing like it at all", TEXTS[0]], [TEXTS[1]]]
    for metric in GOOD:
        assert metric(TEXTS, references) == pytest.approx(100)
    for metric in BAD:
        assert metric(TEXTS, references) == 0
    assert bleu(TEXTS[::-1], references[::-1]) == pytest.approx(100)  # the longer list second


def test_bleu_is_the_mean_of_precisions_and_the_brevity_penalty() -> None:
    # 1- to 4-grams: 5/6, 3/5, 2/4, 1/3, as long as the reference
    score = bleu(["the cat sat on a mat"], [["the cat sat on the mat"]])
    assert score == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    # all right, but 4 words for 6
    assert bleu(["the cat sat on"], [["the cat sat on the mat"]]) == pytest.approx(
        100 * math.exp(1 - 6 / 4)
    )


def test_bleu_sees_case_and_cuts_off_punctuation() -> None:
    assert bleu(["The cat sat on."], [["The cat sat on ."]]) == pytest.approx(100)
    assert bleu(["the cat sat on."], [["The cat sat on."]]) < 100


def test_chrf_weighs_recall_twice() -> None:
    # 1-grams 3/3 and 3/4, 2-grams 2/2 and 2/3, 3-grams 1/1 and 1/2; no 4-grams in the hypothesis
    recall = (3 / 4 + 2 / 3 + 1 / 2) / 3
    assert chrf(["abc"], [["abcd"]]) == pytest.approx(100 * 5 * recall / (4 + recall))


def test_token_errors_are_counted_against_the_closest_reference() -> None:
    assert token_error_rate(["a b c"], [["a x c d"]]) == 50  # one changed, one left out, of 4
    assert token_error_rate(["a b c"], [["x y", "a b"]]) == 50  # one too many, of 2
    assert token_error_rate(["a b", "c d"], [["a b"], ["c e f g"]]) == 50  # 3 of 6: not the mean
    assert token_error_rate(["a b"], [["a", "a b c"]]) == pytest.approx(100 / 3)  # the longer one
    assert token_error_rate(["kitten"], [["sitting"]], unit="char") == pytest.approx(300 / 7)
    assert token_error_rate(["a b c d"], [["x"]]) == 400


def test_sequence_errors_are_what_is_not_matched() -> None:
    assert exact_match(["a", "b", "c"], [["a"], ["x", "b"], ["C"]]) == pytest.approx(200 / 3)
    assert sequence_error_rate(["a", "b", "c"], [["a"], ["x", "b"], ["C"]]) == pytest.approx(
        100 / 3
    )


def test_empty_texts_are_scored() -> None:
    for metric in GOOD:
        assert metric(["", ""], [["a b"], ["c"]]) == 0
    for metric in BAD:
        assert metric(["", ""], [["a b"], ["c"]]) == 100
    assert token_error_rate([""], [[""]]) == 0
    assert token_error_rate(["a b"], [[""]]) == 200
    assert bleu(["a"], [[""]]) == 0


@pytest.mark.parametrize("metric", GOOD + BAD)
def test_what_cannot_be_scored_is_an_error(metric: Metric) -> None:
    with pytest.raises(DataError, match="no hypotheses"):
        metric([], [])
    with pytest.raises(DataError, match="1 hypotheses, but references for 2"):
        metric(["a"], [["a"], ["b"]])
    with pytest.raises(DataError, match="item 2: expected a list"):
        metric(["a", "b"], [["a"], []])
    with pytest.raises(DataError, match="item 1: expected a list"):
        metric(["abc"], ["abc"])


def test_distinct_counts_different_words_and_pairs() -> None:
    said = ["i do not know", "i do", "", "i do not"]
    assert distinct(said, 1) == pytest.approx(100 * 4 / 9)
    assert distinct(said, 2) == pytest.approx(100 * 3 / 6)  # over all texts, never across two
    assert distinct([""], 2) == 0.0
