"""Small tasks and runs with random weights, and what is asked of them."""

from pathlib import Path
from typing import Any

import torch

from saccade.models.networks import Network
from saccade.runs.run import Run
from saccade.setup.choose import fill_config, gather
from saccade.setup.prepare import prepare
from saccade.tasks.task import Prediction, Task
from tests.architectures import DECODERS, ENCODERS
from tests.helpers import corpus

SOURCES = {
    "translate": [("abc",), ("d",), ("abcdab",), ("ab",), ("cc",)],
    "classify": [("abc x1",), ("d",), ("abcd ab",), ("a b c",), ("cc",)],
    "tag": [("a", "b"), ("d",), ("a", "b", "c", "d"), ("c", "c"), ("b", "a", "d")],
    "language": [("abc d",), ("d",), ("abcd",), ("a",), ("cc ab",)],
    "inflect": [("abc", "V;PST"), ("d", "N"), ("abcdab", "N;PL;ACC"), ("ab", ""), ("", "N;PL")],
    "compare": [("abc", "ab d"), ("d", "d"), ("abcd", "a"), ("ab", ""), ("", "cc ab")],
}
SOURCES |= {
    "letters": [("a", "b"), ("d",), tuple("abcdab"), ("c", "c")],
    "table": [("[0.5, 2.0, 1.0]",), ("[1.5, 0.0, 3.0]",), ("[-4.0, 1.0, 2.5]",)],
}
SEVERAL = {"inflect": "translate", "compare": "classify"}  # tasks with two sources
TASK_OF = SEVERAL | {"letters": "tag", "table": "classify"}


def small_task(
    kind: str, folder: Path, encoder: str = "lstm", decoder: str | None = None, **more: Any
) -> tuple[Task, Network]:
    """A task with vocabularies from a small file, and a network with random weights."""
    raw, where = gather(corpus(folder, kind), task=TASK_OF.get(kind, kind))
    raw["data"]["max_len"] = 40
    if kind == "compare":
        raw["task"]["columns"] = {"2": {"kind": "char", "size": 30}}
    kind = TASK_OF.get(kind, kind)
    if kind != "language":
        raw["encoder"] = ENCODERS[encoder]
    if kind in ("translate", "language"):
        raw["decoder"] = DECODERS[decoder or ("gru_off" if kind == "language" else "transformer")]
    if more.pop("copy", False):
        raw["decoder"] = raw["decoder"] | {"copy": True}
    raw |= more
    config, _ = fill_config(raw, where)
    task = prepare(config, folder).task
    network = task.build().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return task, network


TEXTS = [source[0] for source in SOURCES["translate"]] * 9
TORCH = {"engine": "torch", "workers": 1}


def small_run(folder: Path, decoder: str = "transformer", **more: Any) -> Run:
    folder.mkdir(exist_ok=True)
    kind = more.pop("kind", "translate")
    encoder = more.pop("encoder", "lstm")
    task, network = small_task(kind, folder, encoder, decoder, **more)
    with torch.no_grad():  # a trained model does not say what is no text
        network.decoder.output.bias[list(task.output.specials.never_generated)] = -30.0
    return Run(folder, task.config, task, network)


def said(found: list[Prediction]) -> list[str]:
    return [one.text for one in found]
