"""Metrics of generated texts, each with one or more references.

sacrebleu is imported where it is used, since importing it is slow.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, Literal

from rapidfuzz.distance import Levenshtein

from saccade.errors import DataError


def bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Corpus BLEU, 0 to 100: sacrebleu's default, 13a and cased."""
    from sacrebleu.metrics.bleu import BLEU

    check_references(hypotheses, references)
    # force: no warning that a text looks tokenized, which may be on purpose
    return float(BLEU(force=True).corpus_score(hypotheses, streams(references)).score)


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Corpus chrF2, 0 to 100: sacrebleu's default."""
    from sacrebleu.metrics.chrf import CHRF

    check_references(hypotheses, references)
    return float(CHRF().corpus_score(hypotheses, streams(references)).score)


def streams(references: Sequence[Sequence[str]]) -> list[list[Any]]:
    """All first references, all second ones ...; None for missing ones, as sacrebleu expects."""
    return [list(stream) for stream in zip_longest(*references)]


def exact_match(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """The percentage of hypotheses that equal one of their references."""
    check_references(hypotheses, references)
    hits = sum(guess in accepted for guess, accepted in zip(hypotheses, references, strict=True))
    return 100 * hits / len(hypotheses)


def sequence_error_rate(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """The percentage of hypotheses that equal none of their references.

    In grapheme-to-phoneme conversion and inflection this is called the word error rate.
    """
    return 100 - exact_match(hypotheses, references)


def token_error_rate(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    unit: Literal["token", "char"] = "token",
) -> float:
    """Levenshtein edits per 100 tokens, or characters, of the reference, over the corpus.

    Each hypothesis is compared with its closest reference, the longest of equally close ones;
    tokens are separated by whitespace. If they are words, it is the word error rate of speech
    recognition. It exceeds 100 where hypotheses are far too long.
    """
    check_references(hypotheses, references)
    split: Callable[[str], Sequence[str]] = str.split if unit == "token" else str
    edits = length = 0
    for guess, accepted in zip(hypotheses, references, strict=True):
        ours, theirs = split(guess), map(split, accepted)
        distance, shortness = min((Levenshtein.distance(ours, ref), -len(ref)) for ref in theirs)
        edits += distance
        length -= shortness
    return 100 * edits / max(length, 1)  # if all references are empty, 100 for each edit


def distinct(texts: Sequence[str], n: int) -> float:
    """distinct-n: the percentage of distinct n-grams among the n-grams of all texts.

    Low where a model's outputs are repetitive. Li et al. 2016, arxiv.org/abs/1510.03055
    """
    rows = [text.split() for text in texts]
    ngrams = [tuple(row[i : i + n]) for row in rows for i in range(len(row) - n + 1)]
    return 100 * len(set(ngrams)) / max(len(ngrams), 1)


Similarity = Callable[[str, Sequence[str]], list[float]]


def similarity(metric: str, unit: Literal["char", "token"] = "token") -> Similarity:
    """The sentence-level similarity of a text to each of others: chrf, bleu, or 100 - error."""
    match metric:
        case "chrf":
            from sacrebleu.metrics.chrf import CHRF

            chrf_one = CHRF()
            return lambda text, others: [
                float(chrf_one.sentence_score(text, [other]).score) for other in others
            ]
        # effective_order: a sentence may have no 4-grams; BLEU stands in for the other metrics here
        case "bleu" | "cider" | "rouge" | "token_f1" | "bracket_f1" | "perplexity":
            from sacrebleu.metrics.bleu import BLEU

            bleu_one = BLEU(force=True, effective_order=True)
            return lambda text, others: [
                float(bleu_one.sentence_score(text, [other]).score) for other in others
            ]
        case "token_error" | "word_error" | "char_error":
            if metric != "token_error":
                unit = "char" if metric == "char_error" else "token"
            return lambda text, others: [
                100.0 - token_error_rate([text], [[other]], unit=unit) for other in others
            ]
        case "sequence_error" | "exact_match":
            return lambda text, others: [100.0 * (text == other) for other in others]
        case _:
            raise AssertionError(f"no similarity by {metric}")


def check_references(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if len(hypotheses) != len(references):
        raise DataError(f"{len(hypotheses)} hypotheses, but references for {len(references)}")
    if not hypotheses:
        raise DataError("nothing to score: there are no hypotheses")
    for number, accepted in enumerate(references, start=1):
        # a str is a Sequence[str], too
        if not accepted or isinstance(accepted, str):
            raise DataError(f"item {number}: expected a list of one or more references")
