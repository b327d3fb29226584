"""What tests of several rooms share: small corpora and configurations, and runs made of them."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from saccade.runs import files
from saccade.runs.files import FORMAT
from saccade.setup.choose import fill_config, gather
from saccade.training import loop
from saccade.training.session import new_folder, start
from saccade.training.stop import Stop

GOLDEN = Path(__file__).parent / "golden" / str(FORMAT)  # a run of each kind
SMALL: dict[str, dict[str, Any]] = {
    "transformer": {
        "encoder": {"kind": "transformer", "dim": 16, "num_heads": 2, "ff_dim": 32},
        "decoder": {"kind": "transformer", "dim": 16, "num_heads": 2, "ff_dim": 32},
    },
    "lstm": {
        "encoder": {"kind": "recurrent", "dim": 16},
        "decoder": {"kind": "recurrent", "dim": 16, "attention": "additive"},
    },
    "language model": {"decoder": {"kind": "recurrent", "dim": 16, "attention": "off"}},
    "windows": {"decoder": {"kind": "transformer", "dim": 16, "num_heads": 2, "ff_dim": 32}},
    "tagger": {"encoder": {"kind": "recurrent", "dim": 16}},
    "classifier": {"encoder": {"kind": "convolution", "dim": 16}},
}
TASK = {
    "transformer": "translate",
    "lstm": "translate",
    "language model": "language",
    "windows": "language",
    "tagger": "tag",
    "classifier": "classify",
}


def corpus(folder: Path, task: str) -> Path:
    numbers = random.Random(2)
    words = ["".join(numbers.choices("abcd", k=numbers.randint(1, 6))) for _ in range(200)]
    path = folder / f"{task}.txt"
    match task:
        case "translate":
            lines = [f"{word}\t{word[::-1]}" for word in words]
        case "inflect":  # a stem, and what to do with it
            tags = ["N", "N;PL", "V;PST", "N;PL;ACC"]
            lines = [f"{word}\t{tags[i % 4]}\t{word}{i % 4}" for i, word in enumerate(words)]
        case "compare":
            lines = [f"{word}\t{words[i // 2]}\t{i % 2}" for i, word in enumerate(words)]
        case "classify":
            lines = [f"{word} x{i}\t{word[0]}" for i, word in enumerate(words)]
        case "letters":  # a label for each character, some of which are not scored
            masks = ["".join(numbers.choices("01", k=len(word))) for word in words]
            rows = zip(words, masks, strict=True)
            lines = [f"{word}\t{word.upper()}\t{mask}" for word, mask in rows]
        case "table":
            lines = [f"{i % 7}.5\t{len(w)}\t{w.count('a')}\t{w[0]}" for i, w in enumerate(words)]
        case "tag":
            lines = [line for word in words for line in (*(f"{c}\t{c.upper()}" for c in word), "")]
            path = path.with_suffix(".conll")
        case _:
            lines = [" ".join(words[i : i + 5]) for i in range(0, 200, 5)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def settings(name: str, folder: Path, **more: Any) -> Any:
    raw, where = gather(corpus(folder, TASK[name]), task=TASK[name])
    raw |= SMALL[name]
    raw["train"] = {
        "steps": 12,
        "batch_tokens": 200,
        "evaluate_every": 4,
        "save_every": 3,
        "keep": 10,
        "average": 0.9,
        "word_dropout": 0.1,
        "patience": 50,
        "processes": 1,
    } | more
    return fill_config(raw, where)[0]


def run_through(config: Any, folder: Path, stop_after: int | None = None) -> list[Any]:
    folder = new_folder(config, folder)
    return list(until(stop_after, lambda stop: start(config, folder, stop)))


def until(step: int | None, events: Callable[[Stop], Iterator[Any]]) -> Iterator[Any]:
    """The events of a run that is asked to stop once it has come so far."""
    stop = Stop()
    with mock.patch.object(loop, "REPORT_SECONDS", 0.0):  # every step is reported
        for event in events(stop):
            stop.requested |= step is not None and getattr(event, "step", 0) >= step
            yield event


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return files.read_tensors(folder / "model.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    """Whether two runs predict with the same weights, to the last bit."""
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )
