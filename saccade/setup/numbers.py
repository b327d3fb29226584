"""Defaults for numeric targets: the source is read as for a label."""

from collections.abc import Mapping, Sequence
from typing import Any

from saccade import config as c
from saccade.setup.survey import Survey, tag_separator

MAX_SERIES = 1000  # rows of a series that is predicted


def number_defaults(
    task: Mapping[str, Any], sources: Sequence[c.Column], chosen: dict[str, Any], seen: Survey
) -> dict[str, Any]:
    """The defaults `chosen` for a label, changed for a numeric target."""
    chosen["train"] |= {"label_smoothing": 0.0, "word_dropout": 0.0}
    head = chosen.pop("head")
    dropout = head["dropout"] / 2  # regression suffers more from dropout than classification
    chosen["encoder"]["dropout"] = min(chosen["encoder"]["dropout"], dropout)
    if task["kind"] == "regress":
        kind = "per_word" if task.get("per_position") else "pooled"
        chosen["head"] = {"kind": kind, "dropout": dropout}
        chosen["output"] = {"kind": "gaussian"}
        return chosen
    if "columns" not in task:  # the source of a series is often a label
        cells = [seen.first_cells, *seen.side_cells]
        labels = [name for name, some in zip(sources, cells, strict=False) if _are_labels(some)]
        chosen["task"]["columns"] = {str(name): {"kind": "label"} for name in labels}
    n = seen.count
    chosen["decoder"] = {
        "kind": "recurrent",
        "dim": 128 if n < 1000 else 256,
        "num_layers": 1,
        "dropout": dropout,
        "attention": "additive",
        "context": "output",
        "tied": False,
    }
    chosen["output"] = {"kind": "mixture", "components": 20}
    chosen["train"] |= {"rate": 2e-3, "batch_tokens": 4096}
    chosen["train"].pop("patience", None)
    chosen["decode"] = {"max_len": MAX_SERIES}
    return chosen


def _are_labels(cells: Sequence[str]) -> bool:
    """Whether these cells recur, and are single tags."""
    return tag_separator(cells) == ""
