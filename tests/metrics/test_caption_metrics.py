"""Scores of captions, against numbers worked out by hand."""

from math import exp, log

import pytest

from saccade.errors import DataError
from saccade.metrics import caption_bleu, cider
from saccade.metrics.captions import words_of

GOLD = [["a dog runs on grass", "a brown dog runs"], ["a cat sleeps", "the cat is asleep"]]


def test_case_and_punctuation_do_not_count() -> None:
    assert words_of("A T-shirt, on the man's back .") == [
        "a",
        "t-shirt",
        "on",
        "the",
        "man's",
        "back",
    ]
    said = ["A dog runs on grass .", "A cat sleeps!"]
    plain = ["a dog runs on grass", "a cat sleeps"]
    assert caption_bleu(said, GOLD) == caption_bleu(plain, GOLD)
    assert cider(said, GOLD) == cider(plain, GOLD)


def test_bleu_n_is_the_mean_of_n_precisions_and_the_brevity_penalty() -> None:
    # of 6 words 5, of 5 pairs 3, of 4 triples 2
    found = caption_bleu(["a dog runs on the grass"], [GOLD[0]])
    p1, p2, p3 = 5 / 6, 3 / 5, 2 / 4
    assert found[:3] == pytest.approx(
        [100 * p1, 100 * (p1 * p2) ** 0.5, 100 * (p1 * p2 * p3) ** (1 / 3)]
    )
    # the closest reference in length has four words: two are too few
    assert caption_bleu(["brown dog"], [GOLD[0]])[0] == pytest.approx(100 * exp(1 - 4 / 2))


def test_cider_is_the_cosine_of_ngrams_weighed_by_rarity() -> None:
    # Two items, one reference each: what both have weighs log(2/2) = 0, the rest w = log(2/1).
    references = [["a red dog"], ["a cat"]]
    w = log(2)
    # "a red cat" of "a red dog": words {red: w, cat: w (it is in one item)} of {red: w, dog: w};
    # pairs {a red, red cat} of {a red, red dog}; no triple in common; no quadruple at all
    words, pairs = (w * w) / (2 * w * w), (w * w) / (2 * w * w)
    first = (words + pairs + 0 + 0) / 4
    # "a a cat" of "a cat": words {cat} of {cat}: 1, and "a" weighs 0; pairs {a a, a cat} of
    # {a cat}: 1 / sqrt(2); one word too many
    second = (1 + 1 / 2**0.5 + 0 + 0) / 4 * exp(-(1**2) / (2 * 6**2))
    expected = 100 * 10 * (first + second) / 2
    assert cider(["a red cat", "a a cat"], references) == pytest.approx(expected)


def test_a_repeated_ngram_gains_nothing() -> None:
    references = [["dog"], ["cat"]]
    once, twice = cider(["dog", "x"], references), cider(["dog dog", "x"], references)
    # clipped to one "dog" of the reference: w * w / (2 w * w) in words; the penalty of a length
    assert twice == pytest.approx(once / 2 * exp(-1 / 72))


def test_cider_is_the_mean_over_references() -> None:
    pair = cider(["a dog runs on grass", "x"], GOLD)
    apart = [cider(["a dog runs on grass", "x"], [[one], GOLD[1]]) for one in GOLD[0]]
    assert min(apart) < pair < max(apart)


def test_cider_of_all_that_is_right_is_a_thousand() -> None:
    texts = ["a dog runs on grass", "two cats sleep in chairs"]
    assert cider(texts, [[text] for text in texts]) == pytest.approx(1000)


def test_what_cannot_be_measured_is_named() -> None:
    with pytest.raises(DataError, match="nothing to score"):
        cider([], [])
    with pytest.raises(DataError, match="item 1"):
        caption_bleu(["a"], [[]])
