"""Metrics of labels, and of spans of BIO labels, in percent."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from math import sqrt
from typing import NamedTuple

from saccade.errors import DataError


class Score(NamedTuple):
    """Precision, recall and F1 of one label."""

    precision: float
    recall: float
    f1: float
    support: int  # occurrences in gold


def accuracy(gold: Sequence[str], guess: Sequence[str]) -> float:
    """The percentage of correct guesses."""
    _check(gold, guess)
    return 100 * sum(a == b for a, b in zip(gold, guess, strict=True)) / len(gold)


def per_label(gold: Sequence[str], guess: Sequence[str]) -> dict[str, Score]:
    """The scores of every label that occurs in either; 0 where the divisor is 0."""
    _check(gold, guess)
    right = Counter(a for a, b in zip(gold, guess, strict=True) if a == b)
    wanted, given = Counter(gold), Counter(guess)
    return {
        label: Score(*_f1(right[label], given[label], wanted[label]), wanted[label])
        for label in sorted(wanted | given)
    }


def macro_f1(gold: Sequence[str], guess: Sequence[str]) -> float:
    """The mean F1 of the labels that occur in either, unweighted."""
    scores = per_label(gold, guess)
    return sum(score.f1 for score in scores.values()) / len(scores)


def f1_of_two(labels: Sequence[str], gold: Sequence[str], guess: Sequence[str]) -> dict[str, float]:
    """The F1 of each label if there are two; else empty."""
    if len(labels) != 2:
        return {}
    scores = per_label(gold, guess)
    return {f"f1: {label}": scores[label].f1 if label in scores else 0.0 for label in labels}


def matthews(gold: Sequence[str], guess: Sequence[str]) -> float:
    """The Matthews correlation coefficient, times 100: 0 for a constant guess.

    With more than two labels it is Gorodkin's generalisation (2004).
    """
    _check(gold, guess)
    n, right = len(gold), sum(a == b for a, b in zip(gold, guess, strict=True))
    wanted, given = Counter(gold), Counter(guess)
    product = sum(count * given[label] for label, count in wanted.items())
    spread = [n * n - sum(c * c for c in counts.values()) for counts in (wanted, given)]
    return 100 * (n * right - product) / sqrt(spread[0] * spread[1]) if all(spread) else 0.0


def span_f1(
    gold_tags: Sequence[Sequence[str]], guess_tags: Sequence[Sequence[str]]
) -> tuple[float, float, float]:
    """Precision, recall and F1 of spans in sentences of BIO tags, as by conlleval.

    Unlike conlleval's, they are 100 where neither side has a span.
    """
    _check(gold_tags, guess_tags)
    right = given = wanted = 0
    for number, (gold, guess) in enumerate(zip(gold_tags, guess_tags, strict=True), start=1):
        if len(gold) != len(guess):
            raise DataError(f"sentence {number}: {len(gold)} gold tags, but {len(guess)} guessed")
        ours, theirs = spans_of(guess), spans_of(gold)
        right += len(ours & theirs)
        given += len(ours)
        wanted += len(theirs)
    return _f1(right, given, wanted) if given or wanted else (100.0, 100.0, 100.0)


def is_bio(labels: Iterable[str]) -> bool:
    """Whether the labels mark spans: each is O, B-something or I-something, and not all are O."""
    kinds = set(labels)
    return bool(kinds - {"O"}) and all(re.fullmatch(r"O|[BI](-.+)?", label) for label in kinds)


def well_formed(labels: Sequence[str]) -> bool:
    """Whether every I-x follows B-x or I-x."""
    return all(may_follow(before, label) for before, label in pairwise(["O", *labels]))


def may_follow(before: str, label: str) -> bool:
    """Whether a BIO label may stand after another, or after O, as the first does."""
    return label[0] != "I" or before in ("B" + label[1:], label)


def spans_of(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """The (start, end, type) of each span; an I- after O or after another type begins one, too."""
    spans = set()
    start = 0
    inside: str | None = None  # the type of the current span
    for i, tag in enumerate(chain(tags, ["O"])):
        mark, _, kind = tag.partition("-")
        now = kind if mark in ("B", "I") else None
        if inside is not None and (mark == "B" or now != inside):
            spans.add((start, i, inside))
            inside = None
        if now is not None and inside is None:
            start, inside = i, now
    return spans


def _f1(right: int, given: int, wanted: int) -> tuple[float, float, float]:
    precision = 100 * right / given if given else 0.0
    recall = 100 * right / wanted if wanted else 0.0
    return precision, recall, 200 * right / (given + wanted)


def _check(gold: Sequence[object], guess: Sequence[object]) -> None:
    if len(gold) != len(guess):
        raise DataError(f"{len(gold)} gold answers, but {len(guess)} guesses")
    if not gold:
        raise DataError("nothing to score: there are no answers")
