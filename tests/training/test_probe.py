"""Before a long run on a CPU: what is fastest is tried, and nothing of it is left."""

from pathlib import Path

import pytest
import torch

from saccade import config as c
from saccade.runs import machine
from saccade.setup.prepare import prepare
from saccade.training import probe
from saccade.training.stop import Stop
from saccade.training.trainer import Trainer
from tests.helpers import settings

ALONE = {probe.Mode("fp32", 1), probe.Mode("fp32", 2)}
WITH_HALF = ALONE | {probe.Mode("bf16", 1), probe.Mode("bf16", 2)}


@pytest.mark.parametrize(
    ("steps", "half", "modes"),
    [(10**9, True, WITH_HALF), (10**9, False, ALONE), (12, True, set())],
    ids=["long", "long, without fast half precision", "short"],
)
def test_only_a_long_run_is_probed(
    steps: int,
    half: bool,
    modes: set[probe.Mode],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "cores", lambda: 2)
    monkeypatch.setattr(machine, "has_half_products", lambda: half)
    ready = prepare(settings("lstm", tmp_path, steps=steps, processes=0), tmp_path)
    trainer = Trainer(ready.task, ready.task.build(), tmp_path)
    before = [p.detach().clone() for p in trainer.parameters]
    threads, gradients = torch.get_num_threads(), trainer.gradients
    batches = ready.task.epoch(ready.train, 0)
    found = probe.fastest(trainer, [batches[0], batches[1]], len(batches), Stop())
    assert set(found) == modes
    costs = [probe.cost(*pair) for pair in found.items()]
    assert costs == sorted(costs)
    assert all(map(torch.equal, before, trainer.parameters))
    assert all(p.grad is None for p in trainer.parameters)
    assert torch.get_num_threads() == threads
    assert trainer.gradients is gradients
    assert trainer.gradients.ranks.size == 1


def test_a_way_that_gains_little_is_not_taken() -> None:
    plain, both, half = probe.Mode("fp32", 1), probe.Mode("fp32", 2), probe.Mode("bf16", 1)
    assert probe.cost(both, 0.97) > probe.cost(plain, 1.0) > probe.cost(both, 0.9)
    assert probe.cost(half, 0.9) > probe.cost(plain, 1.0) > probe.cost(half, 0.8)


def test_what_the_user_has_chosen_is_not_probed(tmp_path: Path) -> None:
    chosen = {"processes": 1, "precision": "fp32"}
    ready = prepare(settings("lstm", tmp_path, steps=10**9, **chosen), tmp_path)
    trainer = Trainer(ready.task, ready.task.build(), tmp_path)
    batches = ready.task.epoch(ready.train, 0)
    assert probe.fastest(trainer, [batches[0]], len(batches), Stop()) == {}


def test_word_vectors_are_never_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_half_products", lambda: True)
    assert machine.precisions(c.Train()) == ["fp32", "bf16"]
    assert machine.precisions(c.Train(optimizer="sparse")) == ["fp32"]
