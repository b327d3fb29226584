"""Processes that share each batch: together they are one process."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from saccade.data.batches import Batch
from saccade.distributed.ranks import Leader, Ranks
from saccade.errors import TrainingError
from saccade.setup.prepare import prepare
from saccade.training import share
from saccade.training.gradients import Gradients, Sums
from saccade.training.session import new_folder, resume, start
from saccade.training.stop import Stop
from tests.helpers import SMALL, run_through, settings, until


class Part(Ranks):
    """A rank whose gradients are looked at before they are added to the others'."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size


def sums_of(
    gradients: Gradients, ranks: Ranks, batches: list[Batch], carry: Any
) -> tuple[Sums, list[Tensor]]:
    gradients.ranks = ranks
    gradients.clear()
    sums = gradients.sum(batches, carry, 0.5, 3, Stop())
    return sums, [
        torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in gradients.parameters
    ]


@pytest.mark.parametrize(
    ("dtype", "size", "error"),
    [(torch.float32, 2, 2e-6), (torch.float32, 3, 2e-6), (torch.bfloat16, 2, 0.02)],
)
@pytest.mark.parametrize("name", SMALL)
def test_the_gradients_of_all_ranks_are_those_of_one_process(
    name: str, dtype: torch.dtype, size: int, error: float, tmp_path: Path
) -> None:
    """Dropout included: a rank draws the random numbers that its rows have in the whole."""
    ready = prepare(settings(name, tmp_path), tmp_path)
    network = ready.task.build().train()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    gradients = Gradients(
        network, list(network.parameters()), torch.device("cpu"), dtype, scaler, seed=5
    )
    batches = [ready.task.epoch(ready.train, 0)[i] for i in range(2)]
    whole, expected = sums_of(gradients, Ranks(), batches, None)
    found = [sums_of(gradients, Part(rank, size), batches, None) for rank in range(size)]
    assert sum(sums.count for sums, _ in found) == whole.count
    assert float(sum(sums.nll for sums, _ in found)) == pytest.approx(
        float(whole.nll), rel=max(1e-5, error / 4)
    )
    scale = max(float(g.abs().max()) for g in expected)
    for i, one in enumerate(expected):
        together = torch.stack([parts[i] for _, parts in found]).sum(0)
        assert float((together - one).abs().max()) < error * scale


def sgd(name: str, folder: Path, **more: Any) -> Any:
    return settings(name, folder, optimizer="sgd", rate=0.05, preflight="off", **more)


def test_two_processes_train_as_one_does(tmp_path: Path) -> None:
    for processes in (1, 2):
        config = sgd("language model", tmp_path, processes=processes)
        run_through(config, tmp_path / f"of {processes}")
    one, two = (load_file(tmp_path / f"of {n}" / "model.safetensors") for n in (1, 2))
    assert all(torch.allclose(one[name], two[name], atol=1e-6) for name in one)


@pytest.mark.faults
@pytest.mark.parametrize("name", ["lstm", "language model"])
def test_a_shared_run_that_is_resumed_was_never_stopped(name: str, tmp_path: Path) -> None:
    config = settings(name, tmp_path, processes=2, preflight="off")
    run_through(config, tmp_path / "whole")
    run_through(config, tmp_path / "halted", stop_after=5)
    list(resume(tmp_path / "halted"))
    whole, halted = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "halted"))
    assert all(torch.equal(whole[name], halted[name]) for name in whole)


@pytest.mark.faults
def test_a_rank_that_is_killed_ends_the_run_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaders: list[Leader] = []

    class Watched(Leader):
        def __init__(self, *arguments: Any):
            super().__init__(*arguments)
            leaders.append(self)

    monkeypatch.setattr(share, "Leader", Watched)
    config = settings("lstm", tmp_path, processes=2, preflight="off")
    folder = new_folder(config, tmp_path / "run")

    def kill_at_step_4() -> None:
        for event in until(None, lambda stop: start(config, folder, stop)):
            if getattr(event, "step", 0) == 4:
                leaders[0].processes[0].send_signal(signal.SIGKILL)

    with pytest.raises(TrainingError, match="saccade resume"):
        kill_at_step_4()
    assert all(process.poll() is not None for process in leaders[0].processes)
    list(resume(folder))
    assert (folder / "model.safetensors").exists()
