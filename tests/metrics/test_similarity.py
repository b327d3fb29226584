"""How near one text is to others, by the sentence."""

import pytest

from saccade.metrics.text import similarity


def test_errors_are_counted_in_the_unit_that_is_asked_for() -> None:
    assert similarity("token_error", "char")("kitten", ["sitting"]) == [pytest.approx(400 / 7)]
    assert similarity("token_error", "token")("a b c d", ["a x c d", "a b c d"]) == [75, 100]
    assert similarity("token_error")("kitten", ["sitting"]) == [0]


def test_a_text_is_compared_with_each_of_the_others() -> None:
    text, others = "the cat sat on the mat", ["the cat sat on the mat", "the cat sat", "dogs bark"]
    for metric in ("chrf", "bleu", "token_error", "sequence_error"):
        found = similarity(metric)(text, others)
        assert found[0] == pytest.approx(100)
        assert found == sorted(found, reverse=True)
    assert similarity("sequence_error")(text, others) == [100, 0, 0]


def test_bleu_of_a_short_sentence_is_not_zero() -> None:
    """A sentence without 4-grams is measured by the shorter ones that it has."""
    assert similarity("bleu")("a b", ["a b"]) == [pytest.approx(100)]
