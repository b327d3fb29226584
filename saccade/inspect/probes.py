"""Contrastive probes: of two outputs, or two inputs, that differ in a word, which is likelier?

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


def read_pairs(path: str, alone: bool) -> list[Pair]:
    """The pairs of a file; `alone` says that texts have no source."""
    usual = ["group", "better", "worse"] if alone else ["group", "source", "better", "worse"]
    columns, pairs = usual, []
    try:
        for number_, row in enumerate(lines_of(path), 1):
            if isinstance(row, Defect):
                raise DataError(str(row))
            cells = row.rstrip("\r\n").split("\t")
            if number_ == 1 and set(cells) <= NAMES and len(cells) > 1:
                columns = cells
                _check_columns(path, columns, alone)
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


def _check_columns(path: str, columns: list[str], alone: bool) -> None:
    two_outputs = {"better", "worse"} <= {*columns}
    two_inputs = {"better_source", "worse_source", "target"} <= {*columns}
    if two_outputs and (alone or "source" in columns):
        return
    if two_inputs and not alone:
        return
    wanted = "better and worse" if alone else "source, better and worse, or better_source, "
    wanted += "" if alone else "worse_source and target"
    raise DataError(f"{path}:1: the columns must be {wanted}, and group if there are several")


def probe(run: Run, path: str) -> dict[str, Any]:
    """The view: for each group in how many pairs the better one is likelier, and by how much."""
    task = run.task
    if isinstance(task, WordVectors):
        raise ConfigError("word vectors give no text a score: there is nothing to probe")
    alone = isinstance(task, PlainText)
    pairs = read_pairs(path, alone)
    examples = [_example(run, pair, side, alone) for pair in pairs for side in ("better", "worse")]
    # each by itself where long: batches hold examples of like lengths
    lengths = [sum(map(len, row.source)) + len(str(row.target or "")) for row in examples]
    budget = run.config.decode.batch_tokens
    scores = in_batches(examples, lengths, budget, lambda some: task.score(run.network, some))
    margins = [scores[2 * i][0] - scores[2 * i + 1][0] for i in range(len(pairs))]
    groups: dict[str, list[float]] = {}
    for pair, margin in zip(pairs, margins, strict=True):
        groups.setdefault(pair.get("group", ""), []).append(margin)
    return {
        "kind": "probes",
        "file": path,
        "all": _summary(margins),
        "groups": [{"group": name} | _summary(some) for name, some in groups.items()],
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


def _example(run: Run, pair: Pair, side: str, alone: bool) -> Example:
    if alone:
        return Example((pair[side],), None)
    if "target" in pair:
        return Example(run.source_of(pair[f"{side}_source"]), pair["target"])
    return Example(run.source_of(pair["source"]), pair[side])


def _summary(margins: Sequence[float]) -> dict[str, Any]:
    right = sum(margin > 0 for margin in margins)
    return {
        "pairs": len(margins),
        "accuracy": number(100 * right / len(margins)),
        "mean_margin": number(sum(margins) / len(margins)),
    }


def text_of(view: dict[str, Any]) -> list[str]:
    """The view as lines for people."""
    lines = ["group\tpairs\taccuracy\tmean margin"]
    rows = [*view["groups"], {"group": "all"} | view["all"]]
    for one in rows if len(view["groups"]) > 1 else rows[-1:]:
        lines.append(
            f"{one['group']}\t{one['pairs']}\t{one['accuracy']:.2f}\t{one['mean_margin']:+.4f}"
        )
    return lines
