"""Metrics of captions: BLEU-1 to BLEU-4 and CIDEr-D.

For both, texts are lower-cased and tokenized by sacrebleu's 13a, and tokens without a letter or a
digit (punctuation) are left out, as by coco-caption's tokenizer.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from math import exp, log

from saccade.metrics.text import check_references, streams

ORDERS = 4  # n-grams of one to four words
SIGMA = 6.0  # of the Gaussian penalty for a difference in length, in words

Ngrams = Counter[tuple[str, ...]]
Weights = dict[tuple[str, ...], float]


def scores(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """All metrics of captions, by name."""
    orders = enumerate(caption_bleu(hypotheses, references), 1)
    return {f"bleu_{n}": value for n, value in orders} | {"cider": cider(hypotheses, references)}


def caption_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Corpus BLEU-1 to BLEU-4, 0 to 100, without smoothing; closest reference length.

    Papineni et al. 2002, aclanthology.org/P02-1040; the counts are sacrebleu's.
    """
    from sacrebleu.metrics.bleu import BLEU

    check_references(hypotheses, references)
    metric = BLEU(tokenize="none", smooth_method="none", force=True, max_ngram_order=ORDERS)
    tokenized = [" ".join(words_of(text)) for text in hypotheses]
    accepted = [[" ".join(words_of(text)) for text in texts] for texts in references]
    counted = metric.corpus_score(tokenized, streams(accepted))
    bleus, product = [], 1.0
    for order, precision in enumerate(counted.precisions, 1):
        product *= precision / 100
        bleus.append(100 * counted.bp * product ** (1 / order))
    return bleus


def cider(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """CIDEr-D times 100, as usual in papers: 0 to 1000.

    Document frequencies are those of the references of all items, so that the score of a single
    item is 0.     Vedantam et al. 2015, arxiv.org/abs/1411.5726
    """
    return sum(cider_of_each(hypotheses, references)) / len(hypotheses)


def cider_of_each(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """CIDEr-D of each item, with document frequencies from the references of all."""
    check_references(hypotheses, references)
    accepted = [[ngrams_of(text) for text in texts] for texts in references]
    document_counts = Counter(ngram for texts in accepted for ngram in set().union(*texts))
    idf = {ngram: log(len(references) / count) for ngram, count in document_counts.items()}
    unseen_idf, values = log(len(references)), []
    for text, texts in zip(hypotheses, accepted, strict=True):
        ours = ngrams_of(text)
        similarities = (_similarity(ours, theirs, idf, unseen_idf) for theirs in texts)
        values.append(1000 * sum(similarities) / len(texts))
    return values


def _similarity(ours: Ngrams, theirs: Ngrams, idf: Weights, unseen_idf: float) -> float:
    """The mean over orders of the tf-idf cosine of two texts, 0 to 1, with clipped counts and a
    length penalty."""
    products, squares, others = [0.0] * ORDERS, [0.0] * ORDERS, [0.0] * ORDERS
    for ngram, count in ours.items():
        weight = count * idf.get(ngram, unseen_idf)
        other = theirs[ngram] * idf.get(ngram, unseen_idf)
        products[len(ngram) - 1] += min(weight, other) * other
        squares[len(ngram) - 1] += weight**2
    for ngram, count in theirs.items():
        others[len(ngram) - 1] += (count * idf[ngram]) ** 2
    lengths = [sum(n for ngram, n in text.items() if len(ngram) == 1) for text in (ours, theirs)]
    penalty = exp(-((lengths[0] - lengths[1]) ** 2) / (2 * SIGMA**2))
    cosines = (
        product / (square * other) ** 0.5 if square and other else 0.0
        for product, square, other in zip(products, squares, others, strict=True)
    )
    return penalty * sum(cosines) / ORDERS


def ngrams_of(text: str) -> Ngrams:
    """The counts of a text's n-grams of one to four words."""
    words = words_of(text)
    return Counter(
        tuple(words[i : i + n]) for n in range(1, ORDERS + 1) for i in range(len(words) - n + 1)
    )


def words_of(text: str) -> list[str]:
    """The tokens of a text, without punctuation."""
    tokenized = _tokenizer()(text.lower())
    return [word for word in tokenized.split() if any(map(str.isalnum, word))]


@cache
def _tokenizer() -> Callable[[str], str]:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    return Tokenizer13a()  # type: ignore[no-untyped-call]
