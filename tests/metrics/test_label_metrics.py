"""Scores of labels and spans, against numbers worked out by hand."""

import statistics

import pytest

from saccade.errors import DataError
from saccade.metrics import accuracy, is_bio, macro_f1, per_label, span_f1
from saccade.metrics.labels import matthews

GOLD = ["a", "a", "a", "b", "b", "c"]
GUESS = ["a", "a", "b", "b", "c", "d"]


def test_accuracy_is_the_share_of_right_guesses() -> None:
    assert accuracy(GOLD, GUESS) == 50
    assert accuracy(GOLD, GOLD) == 100


def test_each_label_has_its_precision_recall_f1_and_support() -> None:
    assert per_label(GOLD, GUESS) == {
        "a": (100, pytest.approx(200 / 3), pytest.approx(80), 3),
        "b": (50, 50, 50, 2),
        "c": (0, 0, 0, 1),
        "d": (0, 0, 0, 0),
    }
    assert macro_f1(GOLD, GUESS) == pytest.approx((80 + 50) / 4)
    assert macro_f1(GOLD, GOLD) == 100


def test_spans_count_only_when_whole() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG", "O"]]
    guess = [["B-PER", "I-PER", "O", "B-ORG"], ["B-ORG", "I-ORG", "O"]]
    assert span_f1(gold, guess) == pytest.approx((100 / 3, 100 / 3, 100 / 3))
    assert span_f1(gold, gold) == (100, 100, 100)
    fewer = [["B-PER", "I-PER", "O", "O"], ["O", "O", "O"]]
    assert span_f1(gold, fewer) == pytest.approx((100, 100 / 3, 50))


@pytest.mark.parametrize(
    ("loose", "strict"),
    [
        ("I-A I-A O", "B-A I-A O"),  # an I- that nothing began
        ("B-A I-B I-B", "B-A B-B I-B"),  # another type begins another span
        ("B-A I-B I-A", "B-A B-B B-A"),
        ("O I-A I-B O", "O B-A B-B O"),
        ("I I O", "B I O"),  # without types
    ],
)
def test_an_inside_tag_may_begin_a_span(loose: str, strict: str) -> None:
    assert span_f1([strict.split()], [loose.split()]) == (100, 100, 100)


def test_neighbouring_spans_of_one_type_are_two() -> None:
    assert span_f1([["B-A", "B-A"]], [["B-A", "I-A"]]) == (0, 0, 0)
    assert span_f1([["B-A", "B-A"]], [["B-A", "O"]]) == pytest.approx((100, 50, 200 / 3))


def test_types_may_hold_hyphens() -> None:
    assert span_f1([["B-A-x", "I-A-x"]], [["B-A-x", "I-A-y"]]) == (0, 0, 0)


def test_no_spans_at_all_are_scored() -> None:
    assert span_f1([["O", "O"], []], [["O", "O"], []]) == (100, 100, 100)
    assert span_f1([["B-A", "O"]], [["O", "O"]]) == (0, 0, 0)
    assert span_f1([["O", "O"]], [["B-A", "O"]]) == (0, 0, 0)


def test_bio_labels_are_recognised() -> None:
    assert is_bio(["O", "B-PER", "I-PER"])
    assert is_bio(["B-NP", "I-NP"])
    assert is_bio(["B", "I", "O"])
    for labels in (["NOUN", "VERB"], ["O"], [], ["O", "B-PER", "X"], ["B-"], ["O", "S-PER"]):
        assert not is_bio(labels)


def test_what_cannot_be_scored_is_an_error() -> None:
    for metric in (accuracy, per_label, macro_f1, span_f1):
        with pytest.raises(DataError, match="nothing to score"):
            metric([], [])
        with pytest.raises(DataError, match="1 gold answers, but 2 guesses"):
            metric(["a"], ["a", "b"])
    with pytest.raises(DataError, match="sentence 2: 1 gold tags, but 2 guessed"):
        span_f1([["O"], ["O"]], [["O"], ["O", "O"]])


def test_matthews_is_the_correlation_of_two_labels_and_nothing_for_one_answer() -> None:
    gold, guess = list("1111100000"), list("1110011000")
    numbers = [[float(x) for x in row] for row in (gold, guess)]
    assert matthews(gold, guess) == pytest.approx(100 * statistics.correlation(*numbers))
    assert matthews(gold, gold) == 100
    assert matthews(list("abcabc"), list("abcabc")) == pytest.approx(100)
    assert matthews(gold, ["1"] * 10) == 0
