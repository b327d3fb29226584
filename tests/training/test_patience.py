"""What evaluations lead to: the best is remembered, patience ends, the rate falls."""

from pathlib import Path
from typing import Any

from saccade.setup.prepare import prepare
from saccade.training.budget import Budget
from saccade.training.events import Evaluated, StepDone
from saccade.training.loop import Ending, reached
from saccade.training.trainer import Trainer
from tests.helpers import run_through, settings


def trainer_of(folder: Path, **train: Any) -> Trainer:
    task = prepare(settings("lstm", folder, **train), folder).task
    return Trainer(task, task.build(), folder)


def noted(trainer: Trainer, *metrics: float, loss: float = 1.0) -> list[bool]:
    """Which of these evaluations were the best so far; the metric is an error."""
    return [trainer.record({trainer.task.metric: value, "loss": loss}) for value in metrics]


def test_patience_begins_anew_with_every_better_evaluation(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, patience=3)
    assert noted(trainer, 50.0, 60.0, 60.0, 40.0, 60.0, 40.0) == [
        True, False, False, True, False, False,
    ]  # fmt: skip
    assert trainer.at.since_best == 2
    budget = Budget(trainer.task.config, 0.0, 1)
    assert (
        reached(trainer, 10, budget) is None
    )  # of five that were not better, but never three in a row
    assert noted(trainer, 39.0, 41.0, 41.0) == [True, False, False]
    assert reached(trainer, 10, budget) is None
    assert noted(trainer, 39.0) == [False]
    assert reached(trainer, 10, budget) is Ending.PATIENCE


def test_a_run_ends_after_just_so_many_evaluations_without_a_better_one(tmp_path: Path) -> None:
    train = {"steps": 1000, "patience": 2, "rate": 1e-30, "evaluate_every": 2, "average": 0.0}
    events = run_through(settings("lstm", tmp_path, **train), tmp_path / "run")
    assert [e.best for e in events if isinstance(e, Evaluated)] == [True, False, False]
    assert events[-1].step == 6
    assert "in the last 2" in events[-1].reason


def test_where_the_metric_is_the_same_the_lower_loss_is_better(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    assert noted(trainer, 50.0, loss=2.0) == [True]
    assert noted(trainer, 50.0, loss=3.0) == [False]
    assert noted(trainer, 50.0, loss=1.0) == [True]
    assert noted(trainer, 49.0, loss=9.0) == [True]


def test_on_a_plateau_the_rate_is_halved(tmp_path: Path) -> None:
    plateau, constant = (trainer_of(tmp_path, schedule=name) for name in ("plateau", "constant"))
    for trainer in (plateau, constant):
        noted(trainer, 50.0, 40.0, 60.0, 30.0, 60.0)
    assert (plateau.at.plateau, constant.at.plateau) == (0.25, 1.0)


def test_every_epoch_of_a_text_begins_with_nothing_carried(tmp_path: Path) -> None:
    """With weights that stay, all epochs have the same losses."""
    train = {"steps": 7, "rate": 1e-30, "average": 0.0, "word_dropout": 0.0, "evaluate_every": 100}
    config = settings("language model", tmp_path, batch_tokens=300, **train)
    config = config.model_copy(
        update={"decoder": config.decoder.model_copy(update={"dropout": 0.0})}
    )
    losses = [e.loss for e in run_through(config, tmp_path / "run") if isinstance(e, StepDone)]
    assert len(losses) == 7
    size = losses.index(min(losses[1:], key=lambda loss: abs(loss - losses[0])), 1)  # of an epoch
    assert size < 6
    assert losses[: 7 - size] == losses[size:]
