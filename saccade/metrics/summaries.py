"""Metrics of summaries: ROUGE, token F1 and compression.

rouge-score is imported where it is used: it is an extra with many dependencies.
"""

from collections import Counter
from collections.abc import Sequence

from saccade.errors import ConfigError
from saccade.metrics.text import check_references

KINDS = ("rouge1", "rouge2", "rougeL")


def rouge(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """The means of ROUGE-1, ROUGE-2 and ROUGE-L, as F1 in percent, with Porter stemming.

    Lin 2004; of several references the best one, for each of the three.
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
        scores = scorer.score_multi(list(accepted), text)
        for kind in KINDS:
            sums[kind] += scores[kind].fmeasure
    return {kind: 100 * total / len(hypotheses) for kind, total in sums.items()}


def token_f1(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """The mean F1, in percent, of the tokens that a text and its reference have in common.

    Tokens are separated by whitespace, and repetitions count; of several references the best one.
    """
    check_references(hypotheses, references)
    pairs = zip(hypotheses, references, strict=True)
    total = sum(max(_f1(text, gold) for gold in accepted) for text, accepted in pairs)
    return 100 * total / len(hypotheses)


def _f1(text: str, gold: str) -> float:
    ours, theirs = Counter(text.split()), Counter(gold.split())
    if not ours or not theirs:
        return float(ours == theirs)
    return 2 * (ours & theirs).total() / (ours.total() + theirs.total())


def compression(sources: Sequence[str], hypotheses: Sequence[str]) -> float:
    """The length of the outputs in percent of that of their sources, in characters."""
    return 100 * sum(map(len, hypotheses)) / max(sum(map(len, sources)), 1)
