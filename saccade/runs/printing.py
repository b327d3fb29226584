"""Predictions as printed lines."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from saccade.data.lines import counted
from saccade.tasks.task import Prediction

MOST_PLACES, MOST_UNITS = 5, 10  # that a warning names


class Unknown(NamedTuple):
    """The characters or words of an input that the model has no token for."""

    place: str
    total: int
    units: Sequence[str]


def printed(one: Prediction, nbest: int, as_json: bool, task: Any) -> list[str]:
    """The printed lines of a prediction."""
    ranked = [(one.text, one.score), *one.others]
    if not as_json:
        if nbest == 1:
            return [one_line(one.text)]
        return [f"{score:.4f}\t{one_line(text)}" for text, score in ranked]
    if one.problem:
        return [json.dumps([{"text": "", "problem": one.problem}], ensure_ascii=False)]
    answers: list[dict[str, Any]] = [{"text": text, "score": score} for text, score in ranked]
    if one.unknown:
        answers[0]["unknown"] = one.unknown
        answers[0]["unknown_units"] = one.unknown_units
    if one.tokens:
        answers[0]["tokens"] = [token._asdict() for token in one.tokens]
    if one.tree is not None:
        names = task.output.tokens([node.token for node in one.tree.nodes])
        nodes = zip(one.tree.nodes, names, strict=True)
        answers[0]["tree"] = [asdict(node) | {"text": name} for node, name in nodes]
    return [json.dumps(answers, ensure_ascii=False)]


def warning_of_unknown(found: Sequence[Unknown], task: Any) -> str:
    """A warning that names what was read as <unk>, and where."""
    words = any(len(unit) > 1 for one in found for unit in one.units)
    lines = [
        f"{one.place}: not in the model's vocabulary: {_some(dict.fromkeys(one.units))}"
        for one in found[:MOST_PLACES]
    ]
    total = counted(sum(one.total for one in found), "word" if words else "character")
    what = f"{total} of the input in {lines_in_words(len(found))}"
    given = ", and printed as given" if task.config.task.kind == "language" else ""
    return "\n".join([*lines, f"{what} not in the model's vocabulary: read as <unk>{given}"])


def _some(units: Iterable[str]) -> str:
    """The first few unknown units."""
    shown = [f"{unit!r:.60}" for unit in units]
    more = [f"and {len(shown) - MOST_UNITS:,} more"] if len(shown) > MOST_UNITS else []
    return ", ".join(shown[:MOST_UNITS] + more)


def lines_in_words(count: int) -> str:
    return counted(count, "line")


def one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")
