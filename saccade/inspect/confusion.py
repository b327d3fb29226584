"""Labels one by one: how each fares, and which is taken for which."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from saccade.data.lines import Example
from saccade.errors import ConfigError, DataError
from saccade.inspect.comparing import guesses
from saccade.inspect.examples import dev_examples
from saccade.inspect.packing import number
from saccade.metrics.labels import per_label
from saccade.runs.run import Run
from saccade.tasks.labels import LabelTask

MAX_LABELS = 40  # in a matrix; the rarest are counted together
OTHERS = "(others)"


def confusion(run: Run, data: Sequence[str] = ()) -> dict[str, Any]:
    """The view: how often each right label (a row) was guessed as each (a column), and its scores.

    On these files, or on the run's own dev set.
    """
    task = run.task
    if not isinstance(task, LabelTask):
        raise ConfigError(
            f"a run of {run.config.task.title} gives no labels: --by-label and --confusion are for "
            "classify and tag"
        )
    rows: Sequence[Example] = list(run.rows(*data)) if data else dev_examples(run, None)
    each, said, _ = guesses(run, task, rows)
    gold, guess = [tag for row in each for tag in row], [tag for row in said for tag in row]
    if not gold:
        raise DataError("nothing to score: there are no labels")
    common = [label for label, _ in Counter([*gold, *guess]).most_common()]
    names = sorted(common) if len(common) <= MAX_LABELS else [*sorted(common[:MAX_LABELS]), OTHERS]
    index = {name: i for i, name in enumerate(names)}
    counts = [[0] * len(names) for _ in names]
    for a, b in zip(gold, guess, strict=True):
        counts[index.get(a, len(names) - 1)][index.get(b, len(names) - 1)] += 1
    scores = per_label(gold, guess)
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
            for label, score in sorted(scores.items(), key=lambda one: -one[1].support)
        ],
    }


def label_lines(view: dict[str, Any]) -> list[str]:
    """How each label fares, as lines for people."""
    lines = ["label\tprecision\trecall\tf1\tsupport"]
    for one in view["by_label"]:
        scores = "\t".join(f"{one[name]:.2f}" for name in ("precision", "recall", "f1"))
        lines.append(f"{one['label']}\t{scores}\t{one['support']}")
    return lines


def matrix_lines(view: dict[str, Any]) -> list[str]:
    """The matrix, as lines for people: right labels down, guessed ones across."""
    names = view["labels"]
    wide = max(map(len, names))
    cell = max(5, min(12, wide)) + 1
    lines = [" " * wide + "".join(f"{name[: cell - 1]:>{cell}}" for name in names)]
    for name, row in zip(names, view["counts"], strict=True):
        lines.append(f"{name:<{wide}}" + "".join(f"{count or '.':>{cell}}" for count in row))
    return lines
