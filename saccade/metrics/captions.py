"""How near captions are to their references, as the captioning field measures it.

Protocol of both metrics: texts are lower-cased and cut as sacrebleu's 13a cuts them, and tokens
without a letter or a digit (punctuation) are left out, as coco-caption's tokenizer leaves them out.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from math import exp, log

from saccade.metrics.text import check_references, streams

ORDERS = 4  # n-grams of one to four words
SIGMA = 6.0  # of the penalty of a difference in length, in words

Ngrams = Counter[tuple[str, ...]]
Weights = dict[tuple[str, ...], float]


def scores(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """All of them, by name."""
    orders = enumerate(caption_bleu(hypotheses, references), 1)
    return {f"bleu_{n}": value for n, value in orders} | {"cider": cider(hypotheses, references)}


def caption_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Corpus BLEU-1 to BLEU-4, 0 to 100, without smoothing; of references the closest in length.

    Papineni et al. 2002, aclanthology.org/P02-1040; the counts are sacrebleu's.
    """
    from sacrebleu.metrics.bleu import BLEU

    check_references(hypotheses, references)
    metric = BLEU(tokenize="none", smooth_method="none", force=True, max_ngram_order=ORDERS)
    cut = [" ".join(words_of(text)) for text in hypotheses]
    accepted = [[" ".join(words_of(text)) for text in texts] for texts in references]
    counted = metric.corpus_score(cut, streams(accepted))
    found, product = [], 1.0
    for order, precision in enumerate(counted.precisions, 1):
        product *= precision / 100
        found.append(100 * counted.bp * product ** (1 / order))
    return found


def cider(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """CIDEr-D times 100, as tables of results give it: 0 to 1000; n-grams weighed by their rarity.

    How rare an n-gram is, is counted in the references of all items: of one item alone every
    n-gram is in all, and the score is 0.     Vedantam et al. 2015, arxiv.org/abs/1411.5726
    """
    return sum(cider_of_each(hypotheses, references)) / len(hypotheses)


def cider_of_each(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """The same of each item, with the rarity of n-grams in the references of all."""
    check_references(hypotheses, references)
    accepted = [[ngrams_of(text) for text in texts] for texts in references]
    found_in = Counter(ngram for texts in accepted for ngram in set().union(*texts))
    rarity = {ngram: log(len(references) / count) for ngram, count in found_in.items()}
    unseen, found = log(len(references)), []
    for text, texts in zip(hypotheses, accepted, strict=True):
        ours = ngrams_of(text)
        each = (_similarity(ours, theirs, rarity, unseen) for theirs in texts)
        found.append(1000 * sum(each) / len(texts))
    return found


def _similarity(ours: Ngrams, theirs: Ngrams, rarity: Weights, unseen: float) -> float:
    """The mean over orders of the cosine of two texts, 0 to 1; repeated n-grams gain nothing."""
    products, squares, others = [0.0] * ORDERS, [0.0] * ORDERS, [0.0] * ORDERS
    for ngram, count in ours.items():
        weight = count * rarity.get(ngram, unseen)
        other = theirs[ngram] * rarity.get(ngram, unseen)
        products[len(ngram) - 1] += min(weight, other) * other
        squares[len(ngram) - 1] += weight**2
    for ngram, count in theirs.items():
        others[len(ngram) - 1] += (count * rarity[ngram]) ** 2
    lengths = [sum(n for ngram, n in some.items() if len(ngram) == 1) for some in (ours, theirs)]
    penalty = exp(-((lengths[0] - lengths[1]) ** 2) / (2 * SIGMA**2))
    cosines = (
        product / (square * other) ** 0.5 if square and other else 0.0
        for product, square, other in zip(products, squares, others, strict=True)
    )
    return penalty * sum(cosines) / ORDERS


def ngrams_of(text: str) -> Ngrams:
    """How often each n-gram of one to four words is in a text."""
    words = words_of(text)
    return Counter(
        tuple(words[i : i + n]) for n in range(1, ORDERS + 1) for i in range(len(words) - n + 1)
    )


def words_of(text: str) -> list[str]:
    """The words that count."""
    cut = _tokenizer()(text.lower())
    return [word for word in cut.split() if any(map(str.isalnum, word))]


@cache
def _tokenizer() -> Callable[[str], str]:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    return Tokenizer13a()  # type: ignore[no-untyped-call]
