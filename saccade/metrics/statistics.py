"""Metrics as sufficient statistics: what each line adds, and the metric of a sum.

Every metric here is a function of sums over lines: BLEU of n-gram counts, an error rate of edits
and lengths, a mean of values and ones. So the metric of any resample of lines is cheap.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from rapidfuzz.distance import Levenshtein

from saccade.errors import DataError
from saccade.metrics import captions, summaries, trees
from saccade.metrics.labels import spans_of
from saccade.metrics.text import check_references, streams

Array = np.ndarray[Any, np.dtype[Any]]
Value = Callable[[Array], Array]  # sums (m, k) -> the metric of each (m,)


class Statistics(NamedTuple):
    """Statistics of each line (n, k), the metric of their sums, and whether higher is better."""

    rows: Array
    value: Value
    higher: bool = True

    @property
    def score(self) -> float:
        """The metric of all lines."""
        return float(self.value(self.rows.sum(0, keepdims=True))[0])


def mean_of(values: Sequence[float], higher: bool = True) -> Statistics:
    """A metric that is a mean over lines."""
    return ratio(values, np.ones(len(values)), 1.0, higher)


def ratio(above: Any, below: Any, factor: float = 100.0, higher: bool = True) -> Statistics:
    """A sum over a sum of counts, which is at least 1 so that it can divide."""
    rows = np.stack([np.asarray(above, float), np.asarray(below, float)], 1)
    return Statistics(rows, lambda sums: factor * sums[:, 0] / np.maximum(sums[:, 1], 1), higher)


def f1(counts: Sequence[tuple[int, int, int]]) -> Statistics:
    """F1 in percent, from each line's counts of (right, guessed, gold)."""

    def value(sums: Array) -> Array:
        return np.asarray(200 * sums[:, 0] / np.maximum(sums[:, 1] + sums[:, 2], 1e-12))

    return Statistics(np.array(counts, float), value)


def macro_f1(gold: Sequence[Sequence[str]], guess: Sequence[Sequence[str]]) -> Statistics:
    """The mean F1 of the labels that occur, in percent; a line has one or several labels."""
    names = sorted({label for row in (*gold, *guess) for label in row})
    index = {name: i for i, name in enumerate(names)}
    rows = np.zeros((len(gold), len(names), 3))
    for n, (gold_row, guess_row) in enumerate(zip(gold, guess, strict=True)):
        for a, b in zip(gold_row, guess_row, strict=True):
            rows[n, index[a], 0] += a == b
            rows[n, index[b], 1] += 1
            rows[n, index[a], 2] += 1

    def value(sums: Array) -> Array:
        counts = sums.reshape(len(sums), -1, 3)
        occurs = counts[..., 1] + counts[..., 2]
        scores = np.where(occurs > 0, 200 * counts[..., 0] / np.maximum(occurs, 1), 0.0)
        return np.asarray(scores.sum(1) / np.maximum((occurs > 0).sum(1), 1))

    return Statistics(rows.reshape(len(gold), -1), value)


def span_f1(gold: Sequence[Sequence[str]], guess: Sequence[Sequence[str]]) -> Statistics:
    """F1 of whole spans of BIO labels; 100 where there is no span in either."""
    counts = []
    for gold_row, guess_row in zip(gold, guess, strict=True):
        ours, theirs = spans_of(guess_row), spans_of(gold_row)
        counts.append((len(ours & theirs), len(ours), len(theirs)))
    spans = f1(counts)
    return spans._replace(value=lambda sums: np.where(sums[:, 1:].any(1), spans.value(sums), 100.0))


def perplexity(log_probs: Sequence[float], tokens: Sequence[int]) -> Statistics:
    """exp of the mean -log p per token."""
    rows = np.stack([np.asarray(log_probs, float), np.asarray(tokens, float)], 1)
    return Statistics(
        rows, lambda sums: np.exp(np.minimum(-sums[:, 0] / np.maximum(sums[:, 1], 1), 100.0)), False
    )


def root(squares: Any, counts: Any) -> Statistics:
    """A root mean square."""
    inner = ratio(squares, counts, 1.0, False)
    return inner._replace(value=lambda sums: np.sqrt(inner.value(sums)))


# --- texts ----------------------------------------------------------------------------------------


def of_texts(
    name: str,
    texts: Sequence[str],
    gold: Sequence[Sequence[str]],
    unit: Literal["char", "token"] = "token",
) -> Statistics:
    """The statistics of a metric of texts."""
    check_references(texts, gold)
    pairs = list(zip(texts, gold, strict=True))
    match name:
        case "bleu":
            from sacrebleu.metrics.bleu import BLEU

            return of_sacrebleu(BLEU(force=True), texts, gold)
        case "chrf":
            from sacrebleu.metrics.chrf import CHRF

            return of_sacrebleu(CHRF(), texts, gold)
        case "cider":
            return mean_of(captions.cider_of_each(texts, gold))
        case "bleu_1" | "bleu_2" | "bleu_3" | "bleu_4":
            return of_caption_bleu(int(name[-1]), texts, gold)
        case "exact_match":
            return mean_of([100.0 * (text in accepted) for text, accepted in pairs])
        case "sequence_error":
            return mean_of([100.0 * (text not in accepted) for text, accepted in pairs], False)
        case "token_error" | "word_error" | "char_error":
            unit = {"word_error": "token", "char_error": "char"}.get(name, unit)  # type: ignore[assignment]
            edits = [_edits(text, accepted, unit) for text, accepted in pairs]
            return ratio([e for e, _ in edits], [n for _, n in edits], 100.0, False)
        case "rouge1" | "rouge2" | "rougeL":
            return mean_of([summaries.rouge([t], [g])[name] for t, g in pairs])
        case "token_f1":
            return mean_of([summaries.token_f1([t], [g]) for t, g in pairs])
        case "bracket_f1":
            return f1([trees.bracket_counts(text, accepted[0]) for text, accepted in pairs])
        case _:
            raise DataError(f"no way to compare systems by {name}")


def of_sacrebleu(metric: Any, texts: Sequence[str], gold: Sequence[Sequence[str]]) -> Statistics:
    """The statistics of a metric of sacrebleu, which is a function of sums as well."""
    rows = np.array(metric._extract_corpus_statistics(texts, streams(gold)), float)

    def value(sums: Array) -> Array:
        return np.array([metric._compute_score_from_stats(row.tolist()).score for row in sums])

    return Statistics(rows, value)


def of_caption_bleu(order: int, texts: Sequence[str], gold: Sequence[Sequence[str]]) -> Statistics:
    """BLEU of captions: see `captions.caption_bleu`."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(
        tokenize="none", smooth_method="none", force=True, max_ngram_order=captions.ORDERS
    )
    tokenized = [" ".join(captions.words_of(text)) for text in texts]
    accepted = [[" ".join(captions.words_of(text)) for text in row] for row in gold]
    statistics = of_sacrebleu(metric, tokenized, accepted)

    def value(sums: Array) -> Array:
        scores = []
        for row in sums:
            counted = metric._compute_score_from_stats(row.tolist())
            product = float(np.prod(np.array(counted.precisions[:order]) / 100))
            scores.append(100 * counted.bp * product ** (1 / order))
        return np.array(scores)

    return statistics._replace(value=value)


def _edits(text: str, accepted: Sequence[str], unit: str) -> tuple[int, int]:
    """Edits to the closest reference, and its length: see `text.token_error_rate`."""
    split: Callable[[str], Sequence[str]] = str.split if unit == "token" else str
    ours = split(text)
    distance, shortness = min(
        (Levenshtein.distance(ours, ref), -len(ref)) for ref in map(split, accepted)
    )
    return distance, -shortness
