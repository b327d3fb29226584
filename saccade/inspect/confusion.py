"""Scores by label, and the confusion matrix."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from saccade.data.lines import Example
from saccade.errors import ConfigError, DataError
from saccade.inspect.comparing import predict_labels
from saccade.inspect.examples import dev_examples
from saccade.inspect.packing import number
from saccade.metrics.labels import per_label
from saccade.runs.run import Run
from saccade.tasks.labels import LabelTask

MAX_LABELS = 40  # in a matrix; the rarest are merged
OTHERS = "(others)"


def confusion(run: Run, data: Sequence[str] = ()) -> dict[str, Any]:
    """The view: how often each gold label (a row) was predicted as each (a column), and scores.

    On these files, or on the run's own dev set.
    """
    task = run.task
    if not isinstance(task, LabelTask):
        raise ConfigError(
            f"a run of {run.config.task.title} gives no labels: --by-label and --confusion are for "
            "classify and tag"
        )
    rows: Sequence[Example] = list(run.rows(*data)) if data else dev_examples(run, None)
    gold_rows, predicted_rows, _ = predict_labels(run, task, rows)
    gold = [label for row in gold_rows for label in row]
    predicted = [label for row in predicted_rows for label in row]
    if not gold:
        raise DataError("nothing to score: there are no labels")
    common = [label for label, _ in Counter([*gold, *predicted]).most_common()]
    names = sorted(common) if len(common) <= MAX_LABELS else [*sorted(common[:MAX_LABELS]), OTHERS]
    index = {name: i for i, name in enumerate(names)}
    counts = [[0] * len(names) for _ in names]
    for a, b in zip(gold, predicted, strict=True):
        counts[index.get(a, len(names) - 1)][index.get(b, len(names) - 1)] += 1
    scores = per_label(gold, predicted)
    return {
        "kind": "confusion",
        "labels": names,
        "counts": counts,
        "by_label": [
            {
                "label": label,
                "precision": number(score.precision),
                "recall": number(score.recall),
                "f1": number(score.f1),
                "support": score.support,
            }
            for label, score in sorted(scores.items(), key=lambda pair: -pair[1].support)
        ],
    }


def label_lines(view: dict[str, Any]) -> list[str]:
    """The scores by label, as lines of text."""
    lines = ["label\tprecision\trecall\tf1\tsupport"]
    for one in view["by_label"]:
        scores = "\t".join(f"{one[name]:.2f}" for name in ("precision", "recall", "f1"))
        lines.append(f"{one['label']}\t{scores}\t{one['support']}")
    return lines


def matrix_lines(view: dict[str, Any]) -> list[str]:
    """The matrix, as lines of text: gold labels down, predicted ones across."""
    names = view["labels"]
    wide = max(map(len, names))
    cell = max(5, min(12, wide)) + 1
    lines = [" " * wide + "".join(f"{name[: cell - 1]:>{cell}}" for name in names)]
    for name, row in zip(names, view["counts"], strict=True):
        lines.append(f"{name:<{wide}}" + "".join(f"{count or '.':>{cell}}" for count in row))
    return lines
