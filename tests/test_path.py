"""The way of a batch through the house is short: few files, in order, without going back."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import saccade
from tests.helpers import corpus

ROOT = str(Path(saccade.__file__).parent) + os.sep
OPTIMIZERS = str(Path(torch.optim.__file__).parent)


class Trace:
    """The files of the package that are entered, one after the other."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.updates: set[int] = set()  # where an optimiser steps

    def hook(self, frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event in ("call", "return") and path.startswith(ROOT):
            name = path.removeprefix(ROOT)
            if not self.files or self.files[-1] != name:
                self.files.append(name)
        elif event == "call" and frame.f_code.co_name == "step" and path.startswith(OPTIMIZERS):
            self.updates.add(len(self.files))


@contextmanager
def traced() -> Iterator[Trace]:
    trace, before = Trace(), sys.getprofile()
    sys.setprofile(trace.hook)
    try:
        yield trace
    finally:
        sys.setprofile(before)


def apart(files: list[str]) -> list[str]:
    return [name for name in files if not name.startswith("nn" + os.sep)]


def crossings(files: list[str]) -> int:
    """How often the way leads from one room into another."""
    return sum(a.split(os.sep)[0] != b.split(os.sep)[0] for a, b in pairwise(files))


def test_a_batch_passes_few_files_in_order(tmp_path: Path) -> None:
    part = {"kind": "transformer", "dim": 32, "num_layers": 1, "num_heads": 2, "ff_dim": 64}
    settings = {f"{side}.{k}": v for side in ("encoder", "decoder") for k, v in part.items()}
    settings |= {"train.steps": 12, "train.evaluate_every": 12}
    with traced() as trace:
        model = saccade.train(
            corpus(tmp_path, "translate"),
            out=tmp_path / "run", task="translate", settings=settings, quiet=True,
        )  # fmt: skip
    steps = [trace.files[a:b] for a, b in pairwise(sorted(trace.updates))]
    step = sorted(steps, key=len)[len(steps) // 2]  # others hold a report, or an evaluation
    assert len(set(apart(step))) <= 9, sorted(set(apart(step)))
    assert crossings(step) <= 20, step
    for name in set(apart(step)):
        assert step.count(name) <= 4, (name, step)

    model.predict(["ab"])  # the first one makes an engine
    with traced() as trace:
        model.predict(["ba"])
    assert len(set(apart(trace.files))) <= 8, sorted(set(apart(trace.files)))
    # four of them look up which of its characters the model has no token for
    assert crossings(trace.files) <= 20, trace.files
