"""Metrics: lists of predictions and of gold answers to scores, in percent."""

from saccade.metrics.captions import caption_bleu, cider
from saccade.metrics.labels import accuracy, is_bio, macro_f1, per_label, span_f1
from saccade.metrics.text import bleu, chrf, exact_match, sequence_error_rate, token_error_rate

__all__ = [
    "accuracy",
    "bleu",
    "caption_bleu",
    "chrf",
    "cider",
    "exact_match",
    "is_bio",
    "macro_f1",
    "per_label",
    "sequence_error_rate",
    "span_f1",
    "token_error_rate",
]
