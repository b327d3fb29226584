"""Predictions as the lines that a command prints."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from saccade.data.lines import counted
from saccade.tasks.task import Prediction


def printed(one: Prediction, nbest: int, as_json: bool, task: Any) -> list[str]:
    """The lines that a prediction is printed as."""
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
    if one.tokens:
        answers[0]["tokens"] = [token._asdict() for token in one.tokens]
    if one.tree is not None:
        names = task.output.tokens([node.token for node in one.tree.nodes])
        nodes = zip(one.tree.nodes, names, strict=True)
        answers[0]["tree"] = [asdict(node) | {"text": name} for node, name in nodes]
    return [json.dumps(answers, ensure_ascii=False)]


def warning_of_unknown(counts: Sequence[int], task: Any) -> str:
    """How much of its input a language model has read as <unk>: its answers may suffer."""
    thing = "word" if task.output.config.kind == "word" else "character"
    what = f"{counted(sum(counts), thing)} of the input in {lines_in_words(len(counts))}"
    return f"{what} not in the model's vocabulary: read as <unk>, and printed as given"


def lines_in_words(count: int) -> str:
    return counted(count, "line")


def one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")
