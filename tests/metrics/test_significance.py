"""Significance tests: sums are the metrics, p-values are those of theory, chance stays chance."""

from math import comb

import numpy as np
import pytest

from saccade.errors import DataError
from saccade.metrics import captions, labels, summaries, trees
from saccade.metrics import statistics as sums
from saccade.metrics import text as metrics
from saccade.metrics.significance import (
    bootstrap,
    compare,
    mcnemar,
    randomisation,
)

GOLD = [["the cat sits on the mat"], ["a dog runs", "the dog is running"], ["b c d e f g"], ["x"]]
TEXTS = ["the cat sat on the mat", "a dog is running", "b c d e f", "y"]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("bleu", metrics.bleu(TEXTS, GOLD)),
        ("chrf", metrics.chrf(TEXTS, GOLD)),
        ("cider", captions.cider(TEXTS, GOLD)),
        ("bleu_1", captions.caption_bleu(TEXTS, GOLD)[0]),
        ("bleu_3", captions.caption_bleu(TEXTS, GOLD)[2]),
        ("exact_match", metrics.exact_match(TEXTS, GOLD)),
        ("sequence_error", metrics.sequence_error_rate(TEXTS, GOLD)),
        ("token_error", metrics.token_error_rate(TEXTS, GOLD)),
        ("char_error", metrics.token_error_rate(TEXTS, GOLD, unit="char")),
        ("rougeL", summaries.rouge(TEXTS, GOLD)["rougeL"]),
        ("token_f1", summaries.token_f1(TEXTS, GOLD)),
    ],
)
def test_the_metric_of_all_sums_is_the_metric(name: str, wanted: float) -> None:
    found = sums.of_texts(name, TEXTS, GOLD)
    assert found.score == pytest.approx(wanted, abs=1e-9)
    assert found.higher == (not name.endswith("_error"))
    # of some lines as well: those twice that are drawn twice
    weights = np.array([[2.0, 0.0, 1.0, 1.0]])
    drawn = [0, 0, 2, 3]
    value = float(found.value(weights @ found.rows)[0])
    if name not in ("cider",):  # whose rarities are those of all lines
        again = sums.of_texts(name, [TEXTS[i] for i in drawn], [GOLD[i] for i in drawn])
        assert value == pytest.approx(again.score, abs=1e-9)


def test_labels_and_trees_are_sums_too() -> None:
    gold, guess = ["a", "b", "a", "c"], ["a", "a", "b", "c"]
    pairs = [[one] for one in gold], [[one] for one in guess]
    assert sums.macro_f1(*pairs).score == pytest.approx(labels.macro_f1(gold, guess))
    tags = [["B-X", "I-X", "O"], ["O", "B-Y"]], [["B-X", "O", "O"], ["B-Y", "B-Y"]]
    assert sums.span_f1(*tags).score == pytest.approx(labels.span_f1(*tags)[2])
    trees_ = (
        ["(S (NP (D a) (N b)) (V c))", "(S (V c))"],
        [["(S (NP (D a) (N b)) (V c))"], ["(S x)"]],
    )
    wanted = trees.bracket_scores(*trees_)["bracket_f1"]
    assert sums.of_texts("bracket_f1", *trees_).score == pytest.approx(wanted)


def test_of_nothing_the_metric_of_sums_is_the_metric_too() -> None:
    """So that no draw of lines that are all empty decides an interval."""
    texts, gold = ["a b", ""], [[""], [""]]
    assert sums.of_texts("token_error", texts, gold).score == 200.0
    assert metrics.token_error_rate(texts, gold, "token") == 200.0
    assert sums.of_texts("char_error", texts, gold).score == 300.0
    outside = [["O", "O"]]
    assert sums.span_f1(outside, outside).score == labels.span_f1(outside, outside)[2] == 100.0


def test_mcnemar_is_the_binomial_test() -> None:
    one = [True] * 12 + [False] * 3 + [True] * 50
    other = [False] * 12 + [True] * 3 + [True] * 50
    found = mcnemar(one, other)
    exact = 2 * sum(comb(15, i) for i in range(4)) / 2**15
    assert (found.only_first, found.only_second) == (12, 3)
    assert found.p == pytest.approx(exact)
    assert mcnemar([True], [True]).p == 1.0


def systems(n: int, first: float, second: float, seed: int) -> tuple[sums.Statistics, ...]:
    """Two systems that are right with these probabilities, more often on the easy lines."""
    rng = np.random.default_rng(seed)
    hard = rng.normal(0, 0.7, n)
    return tuple(
        sums.mean_of((100.0 * (rng.normal(0, 1, n) + hard < rate)).tolist())
        for rate in (first, second)
    )


def test_systems_alike_come_out_as_no_difference_at_the_stated_rate() -> None:
    found = [compare(*systems(200, 0.4, 0.4, seed), samples=500) for seed in range(50)]
    # of 50 pairs alike one in twenty is called different: more than 7 in 1 of 300 such tests
    assert sum(one.differs for one in found) <= 7
    assert sum(one.bootstrap_p < 0.05 for one in found) <= 7
    assert sum(one.low <= 0 <= one.high for one in found) >= 43
    # and p is spread out evenly
    assert 0.35 <= np.mean([one.randomisation_p for one in found]) <= 0.65


def test_systems_apart_come_out_as_different() -> None:
    found = [compare(*systems(400, 0.0, 0.5, seed), samples=500) for seed in range(20)]
    assert sum(one.differs for one in found) >= 18
    assert all(one.difference > 0 for one in found)


def test_p_values_are_those_of_sacrebleu() -> None:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.significance import PairedTest

    rng = np.random.default_rng(3)
    words = [f"w{i}" for i in range(30)]
    gold = [" ".join(rng.choice(words, 12)) for _ in range(80)]

    def noisy(rate: float) -> list[str]:
        return [
            " ".join(w if rng.random() > rate else str(rng.choice(words)) for w in text.split())
            for text in gold
        ]

    one, other = noisy(0.2), noisy(0.25)
    ours = compare(
        *(sums.of_texts("bleu", texts, [[g] for g in gold]) for texts in (one, other)), samples=2000
    )
    theirs = {}
    for kind in ("bs", "ar"):
        named = [("Baseline", one), ("other", other)]
        test = PairedTest(named, {"BLEU": BLEU(force=True)}, [gold], kind, 2000, n_jobs=1)
        theirs[kind] = test()[1]["BLEU"][1]
    assert ours.first == pytest.approx(BLEU(force=True).corpus_score(one, [gold]).score)
    assert ours.bootstrap_p == pytest.approx(theirs["bs"].p_value, abs=0.04)
    assert ours.randomisation_p == pytest.approx(theirs["ar"].p_value, abs=0.04)


def test_the_same_system_twice_never_differs() -> None:
    one = sums.of_texts("bleu", TEXTS, GOLD)
    found = compare(one, one, samples=200)
    assert (found.difference, found.low, found.high) == (0.0, 0.0, 0.0)
    assert found.randomisation_p == found.bootstrap_p == 1.0


def test_samples_are_the_same_for_a_seed_and_any_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = systems(50, 0.0, 0.3, 1)
    whole = bootstrap(first, second, 100, 7)
    assert np.array_equal(whole, bootstrap(first, second, 100, 7))
    swapped = randomisation(first, second, 300, 7)
    assert abs(float(swapped.mean())) < 1.0
    monkeypatch.setattr("saccade.metrics.significance.MAX_WEIGHTS", 50 * 7)
    assert len(bootstrap(first, second, 100, 7)) == 100


def test_lines_must_be_the_same() -> None:
    one = sums.mean_of([1.0, 2.0])
    with pytest.raises(DataError, match="2 lines of one system, but 1"):
        compare(one, sums.mean_of([1.0]))
    with pytest.raises(DataError, match="no lines"):
        compare(sums.mean_of([]), sums.mean_of([]))
