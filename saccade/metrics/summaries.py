"""How near summaries are to their references: ROUGE, the tokens that were kept, and their length.

rouge-score is imported where it is used: it is an extra, and brings much with it.
"""

from collections import Counter
from collections.abc import Sequence

from saccade.errors import ConfigError
from saccade.metrics.text import check_references

KINDS = ("rouge1", "rouge2", "rougeL")


def rouge(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """The means of ROUGE-1, ROUGE-2 and ROUGE-L, as F1 in percent, with Porter's stems.

    Lin 2004; of several references the one that fits best, for each of the three.
    """
    check_references(hypotheses, references)
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise ConfigError(
            "task.metric 'rouge' needs rouge-score: pip install 'saccade[metrics]'"
        ) from None
    scorer = RougeScorer([*KINDS], use_stemmer=True)
    sums = dict.fromkeys(KINDS, 0.0)
    for text, accepted in zip(hypotheses, references, strict=True):
        found = scorer.score_multi(list(accepted), text)
        for kind in KINDS:
            sums[kind] += found[kind].fmeasure
    return {kind: 100 * total / len(hypotheses) for kind, total in sums.items()}


def token_f1(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """The mean F1, in percent, of the tokens that a text and its reference have in common.

    Tokens are what blanks separate, each as often as it comes; of several references the nearest.
    """
    check_references(hypotheses, references)
    return (
        100
        * sum(
            max(_common(text, one) for one in accepted)
            for text, accepted in zip(hypotheses, references, strict=True)
        )
        / len(hypotheses)
    )


def _common(text: str, gold: str) -> float:
    own, due = Counter(text.split()), Counter(gold.split())
    if not own or not due:
        return float(own == due)
    return 2 * (own & due).total() / (own.total() + due.total())


def compression(sources: Sequence[str], hypotheses: Sequence[str]) -> float:
    """How many characters outputs have for every 100 of their sources."""
    return 100 * sum(map(len, hypotheses)) / max(sum(map(len, sources)), 1)
