"""Small runs with random weights, and what is asked of them."""

from pathlib import Path
from typing import Any

import torch

from saccade.runs.run import Run
from saccade.tasks.task import Prediction
from tests.tasks.test_tasks import SOURCES, small_task

TEXTS = [source[0] for source in SOURCES["translate"]] * 9
TORCH = {"engine": "torch", "workers": 1}


def small_run(folder: Path, decoder: str = "transformer", **more: Any) -> Run:
    folder.mkdir(exist_ok=True)
    kind = more.pop("kind", "translate")
    encoder = more.pop("encoder", "lstm")
    task, network = small_task(kind, folder, encoder, decoder, **more)
    with torch.no_grad():  # a trained model does not say what is no text
        network.decoder.output.bias[list(task.output.specials.silent)] = -30.0
    return Run(folder, task.config, task, network)


def said(found: list[Prediction]) -> list[str]:
    return [one.text for one in found]
