"""Before a long run on a CPU: what is fastest is tried, and nothing of it is left."""

from pathlib import Path

import pytest
import torch

from saccade.setup.prepare import prepare
from saccade.training import probe
from saccade.training.stop import Stop
from saccade.training.trainer import Trainer
from tests.helpers import settings


@pytest.mark.parametrize(("steps", "tried"), [(10**9, True), (12, False)])
def test_only_a_long_run_is_probed(
    steps: int, tried: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "cores", lambda: 2)
    ready = prepare(settings("lstm", tmp_path, steps=steps, processes=0), tmp_path)
    trainer = Trainer(ready.task, ready.task.build(), tmp_path)
    before = [p.detach().clone() for p in trainer.parameters]
    threads, gradients = torch.get_num_threads(), trainer.gradients
    batches = ready.task.epoch(ready.train, 0)
    found = probe.fastest(trainer, [batches[0], batches[1]], len(batches), Stop())
    assert set(found) == ({probe.Way("fp32", 1), probe.Way("fp32", 2)} if tried else set())
    assert list(found.values()) == sorted(found.values())
    assert all(map(torch.equal, before, trainer.parameters))
    assert all(p.grad is None for p in trainer.parameters)
    assert torch.get_num_threads() == threads
    assert trainer.gradients is gradients
    assert trainer.gradients.ranks.size == 1


def test_what_the_user_has_chosen_is_not_probed(tmp_path: Path) -> None:
    ready = prepare(settings("lstm", tmp_path, steps=10**9, processes=1), tmp_path)
    trainer = Trainer(ready.task, ready.task.build(), tmp_path)
    batches = ready.task.epoch(ready.train, 0)
    assert probe.fastest(trainer, [batches[0]], len(batches), Stop()) == {}
