"""What training promises: exact resuming, exact accumulation, honest schedules and averages."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import saccade
from saccade.config import Train, parse
from saccade.errors import CheckpointError
from saccade.runs import checkpoints, files
from saccade.runs.run import read_config
from saccade.training.events import Evaluated, Finished, Saved, StepDone
from saccade.training.optim import MovingAverage, rate_at, scale_gradients
from saccade.training.session import resume
from tests.helpers import SMALL, corpus, run_through, settings, weights


@pytest.mark.parametrize("name", SMALL)
def test_resuming_is_never_having_stopped(name: str, tmp_path: Path) -> None:
    config = settings(name, tmp_path)
    run_through(config, tmp_path / "straight")
    events = run_through(config, tmp_path / "halted", stop_after=5)
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "stopped"
    assert events[-1].step == 5
    list(resume(tmp_path / "halted"))
    straight, halted = weights(tmp_path / "straight"), weights(tmp_path / "halted")
    assert straight.keys() == halted.keys()
    for key, value in straight.items():
        assert torch.equal(value, halted[key]), key
    last = [checkpoints.paths(tmp_path / run / "checkpoints")[-1] for run in ("straight", "halted")]
    one, other = (files.read_tensors(path / "training.safetensors") for path in last)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_accumulated_batches_are_one_big_batch(tmp_path: Path) -> None:
    """Two halves of unequal sizes give the whole's gradient: sums, divided by the global count."""
    from saccade.data.batches import collate
    from saccade.setup.prepare import prepare
    from saccade.training.loop import Trainer

    config = settings("transformer", tmp_path, average=0.0, word_dropout=0.0, optimizer="sgd")
    config = parse(
        config.model_dump(exclude_none=True)
        | {
            "encoder": SMALL["transformer"]["encoder"] | {"dropout": 0.0},
            "decoder": SMALL["transformer"]["decoder"] | {"dropout": 0.0},
        },
        "x",
    )
    ready = prepare(config, tmp_path)
    import numpy as np

    rows = np.arange(30)
    found = []
    for cut in ([rows], [rows[:7], rows[7:]], [rows[:1], rows[1:20], rows[20:]]):
        trainer = Trainer(ready.task, ready.task.build(), tmp_path)
        trainer.step([collate(ready.train, some) for some in cut], 0.5)
        found.append(files.weights_of(trainer.network))
    for other in found[1:]:
        for name, weight in found[0].items():
            assert torch.allclose(weight, other[name], atol=1e-6), name


def test_the_loop_reports_steps_evaluations_and_saves(tmp_path: Path) -> None:
    events = run_through(settings("lstm", tmp_path), tmp_path / "run")
    assert [e.step for e in events if isinstance(e, Evaluated)] == [4, 8, 12]
    assert [e.step for e in events if isinstance(e, Saved)] == [3, 6, 9, 12]
    assert any(isinstance(e, StepDone) for e in events)
    assert isinstance(events[-1], Finished)
    assert "sequence_error" in events[-1].scores


def test_the_best_weights_are_kept(tmp_path: Path) -> None:
    events = run_through(settings("tagger", tmp_path), tmp_path / "run")
    scores = [e.scores["accuracy"] for e in events if isinstance(e, Evaluated)]
    assert saccade.load(tmp_path / "run").evaluate()["accuracy"] == pytest.approx(max(scores))


@pytest.mark.parametrize("which", ["last", "best"])
def test_the_mean_of_checkpoints_is_their_mean(which: str, tmp_path: Path) -> None:
    config = settings(
        "lstm", tmp_path, average=0.0, average_checkpoints=3, average_of=which, save_every=4
    )
    run_through(config, tmp_path / "run")
    paths = checkpoints.paths(tmp_path / "run" / "checkpoints")
    assert len(paths) == 3
    each = [files.read_tensors(path / "model.safetensors") for path in paths]
    for name, weight in weights(tmp_path / "run").items():
        expected = torch.stack([tensors[name] for tensors in each]).double().mean(0).float()
        assert torch.allclose(weight, expected)


def test_patience_ends_training(tmp_path: Path) -> None:
    config = settings("lstm", tmp_path, steps=1000, patience=2, rate=1e-9, evaluate_every=2)
    events = run_through(config, tmp_path / "run")
    assert "no improvement" in events[-1].reason
    assert events[-1].step <= 10


def test_a_time_budget_is_kept(tmp_path: Path) -> None:
    config = settings("lstm", tmp_path, steps=10**6, minutes=0.05, patience=10**6)
    events = run_through(config, tmp_path / "run")
    *before, last = [e for e in events if isinstance(e, StepDone)]
    assert all(e.progress < 1.0 for e in before)
    assert "train.minutes" in events[-1].reason
    assert events[-1].seconds >= 0.8 * 60 * 0.05  # a tenth is kept for what follows the last step
    assert events[-1].scores
    assert last.rate < 0.1 * config.train.rate  # the schedule was fitted to the budget


def test_where_the_metric_is_the_same_the_loss_decides(tmp_path: Path) -> None:
    """All outputs are wrong at first: the first evaluation is not the best for that."""
    config = settings("lstm", tmp_path, steps=8, evaluate_every=2, rate=1e-4)
    events = [e for e in run_through(config, tmp_path / "run") if isinstance(e, Evaluated)]
    assert {e.scores["sequence_error"] for e in events} == {100.0}
    losses = [e.scores["loss"] for e in events]
    lowest = [loss == min(losses[: i + 1]) for i, loss in enumerate(losses)]
    assert [e.best for e in events] == lowest


def test_a_table_made_in_evaluation_serves_training() -> None:
    from saccade.nn.attention import SelfAttention

    attention, x = SelfAttention(8, 2, rotary=True), torch.randn(1, 700, 8)
    with torch.inference_mode():
        attention(x)
    attention(x)[0].sum().backward()
    assert attention.qkv.weight.grad is not None


def test_files_of_a_run_are_readable_like_any_other(tmp_path: Path) -> None:
    run_through(settings("lstm", tmp_path), tmp_path / "run")
    (tmp_path / "plain").write_text("")
    mode = (tmp_path / "plain").stat().st_mode
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            assert path.stat().st_mode == mode, path


def learned(events: list[Any]) -> float:
    """What the last evaluation has left of the first one's loss."""
    losses = [e.scores["loss"] for e in events if isinstance(e, Evaluated)]
    return losses[-1] / losses[0]


LONGER = {"steps": 60, "evaluate_every": 4, "save_every": 60, "rate": 0.01, "warmup": 5}


def test_scheduled_sampling_trains(tmp_path: Path) -> None:
    config = settings("lstm", tmp_path, scheduled_sampling=0.5, **LONGER)
    sampled = run_through(config, tmp_path / "run")
    plain = run_through(settings("lstm", tmp_path, **LONGER), tmp_path / "plain")
    assert learned(sampled) < 0.9
    assert learned(sampled) != learned(plain)  # it has a part in training


@pytest.mark.parametrize("name", ["transformer", "windows", "tagger"])
def test_half_precision_trains(name: str, tmp_path: Path) -> None:
    half = run_through(settings(name, tmp_path, precision="bf16", **LONGER), tmp_path / "half")
    whole = run_through(settings(name, tmp_path, precision="fp32", **LONGER), tmp_path / "whole")
    assert learned(half) < 0.9
    assert learned(half) == pytest.approx(learned(whole), rel=0.1)
    assert learned(half) != learned(whole)
    assert all(bool(tensor.isfinite().all()) for tensor in weights(tmp_path / "half").values())


@pytest.mark.parametrize("most", [1, 3])
def test_what_a_checkpoint_says_of_evaluations_does_not_grow(tmp_path: Path, most: int) -> None:
    from saccade.setup.prepare import prepare
    from saccade.training.trainer import Trainer

    config = settings("lstm", tmp_path, average_checkpoints=most, average_of="best")
    task = prepare(config, tmp_path).task
    trainer = Trainer(task, task.build(), tmp_path)
    for step in range(200):
        trainer.at.step = step
        trainer.record({task.metric: 100.0 - step % 50, "loss": 1.0})
    assert len(trainer.at.ranked) == most
    assert {value for value, _ in trainer.at.ranked} == {-51.0}  # of all the best, not the last


def test_half_precision_is_refused_where_it_has_no_use(tmp_path: Path) -> None:
    config = settings("lstm", tmp_path, precision="fp16", device="cpu")
    with pytest.raises(saccade.ConfigError, match="fp16 is not supported on CPU"):
        run_through(config, tmp_path / "run")


def test_metrics_are_written_for_programs(tmp_path: Path) -> None:
    saccade.train(
        corpus(tmp_path, "translate"),
        out=tmp_path / "run",
        quiet=True,
        settings=SMALL["lstm"] | {"train.steps": 5},
    )
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    names = [json.loads(line)["event"] for line in lines]
    assert (names[0], names[-1]) == ("Prepared", "Finished")


# --- parts ----------------------------------------------------------------------------------------


def test_every_schedule_warms_up_and_does_what_it_says() -> None:
    def rates(schedule: str, plateau: float = 1.0) -> list[float]:
        train = Train(schedule=schedule, rate=1.0, warmup=10)  # type: ignore[arg-type]
        return [rate_at(train, step, step / 1000, plateau) for step in range(1, 1001)]

    for schedule in ("constant", "noam", "cosine", "plateau"):
        assert rates(schedule)[:10] == pytest.approx([0.1 * i for i in range(1, 11)], abs=0.01)
    assert rates("constant")[-1] == 1.0
    assert rates("noam")[39] == pytest.approx(0.5)  # (10 / 40)^0.5
    assert rates("cosine")[499] == pytest.approx(0.505, abs=0.01)
    assert rates("cosine")[-1] == pytest.approx(0.01, abs=0.001)
    assert rates("plateau", 0.25)[-1] == 0.25


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_slices_of_a_batch_draw_from_their_own_device(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no such device, its generator is a stand-in."""
    from saccade.training.gradients import random_state, set_random_state

    state, restored = torch.tensor([1, 2], dtype=torch.uint8), []
    monkeypatch.setattr(getattr(torch, device), "get_rng_state", lambda: state)
    monkeypatch.setattr(getattr(torch, device), "set_rng_state", restored.append)
    assert random_state(torch.device(device)) is state
    set_random_state(state, torch.device(device))
    assert restored == [state]


def test_gradients_are_divided_and_clipped() -> None:
    weight = torch.nn.Parameter(torch.zeros(4))
    weight.grad = torch.full((4,), 10.0)
    assert float(scale_gradients([weight], 5, clip=1.0)) == pytest.approx(4.0)
    assert float(weight.grad.norm()) == pytest.approx(1.0, rel=1e-5)
    weight.grad = torch.full((4,), 10.0)
    scale_gradients([weight], 5, clip=0.0)
    assert weight.grad.tolist() == [2.0] * 4


def test_the_moving_average_follows_and_swaps_back() -> None:
    layer = torch.nn.Linear(2, 2)
    average = MovingAverage(list(layer.parameters()), 0.9)
    before = layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight.add_(1.0)
    average.update(step=1000)
    assert torch.allclose(average.weights[0], before + 0.1)
    average.swap()
    assert torch.allclose(layer.weight, before + 0.1)
    average.swap()
    assert torch.allclose(layer.weight, before + 1.0)


def test_a_damaged_checkpoint_is_skipped(tmp_path: Path) -> None:
    config = settings("lstm", tmp_path)
    run_through(config, tmp_path / "run", stop_after=7)
    folder = tmp_path / "run" / "checkpoints"
    *_, older, newest = checkpoints.paths(folder)
    file = newest / "training.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    sound, problems = checkpoints.latest(folder)
    assert sound == older
    assert "damaged" in problems[0]


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    run_through(settings("lstm", tmp_path), tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace("dim = 16", "dim = 32"))
    with pytest.raises(CheckpointError, match=r"does not fit config\.toml"):
        saccade.load(tmp_path / "run")
    assert read_config(tmp_path / "run").seed == 1


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a run"):
        saccade.load(tmp_path)
