"""Contrastive probes: which of two outputs, or inputs, that differ in a word is likelier?

A file has a pair in each line, by group. Its columns are group, better and worse (two texts of a
language model), or group, source, better and worse (two outputs for one input); a first line of
names may say otherwise: with better_source, worse_source and target two inputs share an output.
"""

from collections.abc import Sequence
from typing import Any

from saccade.data.lines import Defect, Example, FileError, lines_of
from saccade.errors import ConfigError, DataError
from saccade.inspect.packing import log_prob, number
from saccade.runs.run import Run
from saccade.tasks.plain import PlainText
from saccade.tasks.task import in_batches
from saccade.tasks.vectors import WordVectors

NAMES = {"group", "source", "target", "better", "worse", "better_source", "worse_source"}
Pair = dict[str, str]


def read_pairs(path: str, text_only: bool) -> list[Pair]:
    """The pairs of a file; `text_only` is for runs without sources."""
    default = ["group", "better", "worse"] if text_only else ["group", "source", "better", "worse"]
    columns, pairs = default, []
    try:
        for number_, row in enumerate(lines_of(path), 1):
            if isinstance(row, Defect):
                raise DataError(str(row))
            cells = row.rstrip("\r\n").split("\t")
            if number_ == 1 and set(cells) <= NAMES and len(cells) > 1:
                columns = cells
                _check_columns(path, columns, text_only)
                continue
            if not row.strip():
                continue
            if len(cells) != len(columns):
                raise DataError(
                    f"{path}:{number_}: expected {len(columns)} columns ({', '.join(columns)}), "
                    f"found {len(cells)}"
                )
            pairs.append(dict(zip(columns, cells, strict=True)))
    except FileError as error:
        raise DataError(str(error.defect)) from None
    if not pairs:
        raise DataError(f"{path}: holds no pair")
    return pairs


def _check_columns(path: str, columns: list[str], text_only: bool) -> None:
    two_outputs = {"better", "worse"} <= {*columns}
    two_inputs = {"better_source", "worse_source", "target"} <= {*columns}
    if two_outputs and (text_only or "source" in columns):
        return
    if two_inputs and not text_only:
        return
    wanted = "better and worse" if text_only else "source, better and worse, or better_source, "
    wanted += "" if text_only else "worse_source and target"
    raise DataError(f"{path}:1: the columns must be {wanted}, and group if there are several")


def probe(run: Run, path: str) -> dict[str, Any]:
    """The view: by group the accuracy, and the mean margin in log p."""
    task = run.task
    if isinstance(task, WordVectors):
        raise ConfigError("word vectors give no text a score: there is nothing to probe")
    text_only = isinstance(task, PlainText)
    pairs = read_pairs(path, text_only)
    examples = [
        _example(run, pair, side, text_only) for pair in pairs for side in ("better", "worse")
    ]
    # in batches of similar lengths
    lengths = [sum(map(len, row.source)) + len(str(row.target or "")) for row in examples]
    budget = run.config.decode.batch_tokens
    scores = in_batches(examples, lengths, budget, lambda batch: task.score(run.network, batch))
    margins = [scores[2 * i][0] - scores[2 * i + 1][0] for i in range(len(pairs))]
    groups: dict[str, list[float]] = {}
    for pair, margin in zip(pairs, margins, strict=True):
        groups.setdefault(pair.get("group", ""), []).append(margin)
    return {
        "kind": "probes",
        "file": path,
        "all": _summary(margins),
        "groups": [{"group": name} | _summary(of_group) for name, of_group in groups.items()],
        "pairs": [
            pair
            | {
                "better_log_p": log_prob(scores[2 * i][0]),
                "worse_log_p": log_prob(scores[2 * i + 1][0]),
                "margin": log_prob(margin),
            }
            for i, (pair, margin) in enumerate(zip(pairs, margins, strict=True))
        ],
    }


def _example(run: Run, pair: Pair, side: str, text_only: bool) -> Example:
    if text_only:
        return Example((pair[side],), None)
    if "target" in pair:
        return Example(run.source_of(pair[f"{side}_source"]), pair["target"])
    return Example(run.source_of(pair["source"]), pair[side])


def _summary(margins: Sequence[float]) -> dict[str, Any]:
    correct = sum(margin > 0 for margin in margins)
    return {
        "pairs": len(margins),
        "accuracy": number(100 * correct / len(margins)),
        "mean_margin": number(sum(margins) / len(margins)),
    }


def text_of(view: dict[str, Any]) -> list[str]:
    """The view as lines of text."""
    lines = ["group\tpairs\taccuracy\tmean margin"]
    rows = [*view["groups"], {"group": "all"} | view["all"]]
    for one in rows if len(view["groups"]) > 1 else rows[-1:]:
        lines.append(
            f"{one['group']}\t{one['pairs']}\t{one['accuracy']:.2f}\t{one['mean_margin']:+.4f}"
        )
    return lines
