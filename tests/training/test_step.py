"""What one step does: its gradient, its rate, its random numbers, what it carries and leaves."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from saccade.config import parse
from saccade.runs import files
from saccade.setup.prepare import Prepared, prepare
from saccade.tasks.task import result_of
from saccade.training.stop import Stop
from saccade.training.trainer import Trainer
from tests.helpers import settings

# A step that leaves the weights almost as they are, so that the next one can be foretold.
STILL = {
    "optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "rate": 1e-9, "clip": 0.0,
    "average": 0.0, "word_dropout": 0.0, "warmup": 0,
}  # fmt: skip


def begun(
    name: str, folder: Path, dropout: float = 0.0, **train: Any
) -> tuple[Trainer, Prepared, list[Any]]:
    """A trainer at its first step, and the batches of its first epoch."""
    config = settings(name, folder, **(STILL | train))
    raw = config.model_dump(exclude_none=True)
    for part in {"encoder", "decoder", "head"} & raw.keys():
        raw[part]["dropout"] = dropout
    config = parse(raw, "test")
    ready = prepare(config, folder)
    trainer = Trainer(ready.task, ready.task.build(), folder)
    return trainer, ready, list(ready.task.epoch(ready.train, 0))


def nll_of(trainer: Trainer, batches: list[Any]) -> float:
    """The sum over batches, each going on where the one before it stopped."""
    total, carry = 0.0, None
    trainer.network.eval()
    with torch.no_grad():
        for batch in batches:
            loss, carry = trainer.network(batch, carry)
            total += float(loss.nll)
    trainer.network.train()
    return total


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in files.weights_of(trainer.network).items()}


# --- what is carried ------------------------------------------------------------------------------


def test_a_language_model_goes_on_where_the_batch_before_stopped(tmp_path: Path) -> None:
    trainer, _, batches = begun("language model", tmp_path, batch_tokens=80)
    some = batches[:3]
    found = [float(trainer.step([batch], 0.5).nll) for batch in some]
    assert sum(found) == pytest.approx(nll_of(trainer, some), rel=1e-4)
    anew = [nll_of(trainer, [batch]) for batch in some]
    assert found[0] == pytest.approx(anew[0], rel=1e-4)
    assert found[1] != pytest.approx(anew[1], rel=1e-4)  # as a batch that begins with nothing
    assert found[2] != pytest.approx(anew[2], rel=1e-4)


def test_accumulated_batches_of_a_text_go_on_too(tmp_path: Path) -> None:
    trainer, _, batches = begun("language model", tmp_path, batch_tokens=80)
    whole = nll_of(trainer, batches[:4])
    first = trainer.step(batches[:2], 0.5)
    second = trainer.step(batches[2:4], 0.5)
    assert float(first.nll + second.nll) == pytest.approx(whole, rel=1e-4)
    assert first.count + second.count == sum(int((b.target.lengths - 1).sum()) for b in batches[:4])


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["transformer", "language model", "tagger", "classifier"])
def test_a_step_follows_the_mean_gradient_of_a_token(name: str, tmp_path: Path) -> None:
    """The summed loss over the count of what was predicted, whatever the rows and batches."""
    trainer, _, batches = begun(name, tmp_path, rate=0.5, schedule="constant")
    some, before = batches[:2], weights_of(trainer)
    loss, carry, count = torch.zeros(()), None, 0
    for batch in some:
        part, carry = trainer.network(batch, carry)
        loss, count = loss + part.sum, count + part.count
    (loss / count).backward()
    slopes = {n: p.grad.clone() for n, p in trainer.network.named_parameters()}  # type: ignore[union-attr]
    trainer.network.zero_grad()
    result = trainer.step(some, 0.5)
    assert (result.rate, result.count) == (0.5, count)
    for weight in slopes:
        expected = before[weight] - 0.5 * slopes[weight]
        assert torch.allclose(weights_of(trainer)[weight], expected, atol=1e-6), weight


def test_a_step_that_is_not_finite_leaves_the_weights(tmp_path: Path) -> None:
    trainer, _, batches = begun("lstm", tmp_path, optimizer="adamw", rate=0.1)
    trainer.step(batches[:1], 0.5)
    with torch.no_grad():
        trainer.network.decoder.output.bias[7] = float("inf")  # type: ignore[union-attr]
    before = weights_of(trainer)
    assert not trainer.step(batches[1:2], 0.5).finite
    assert all(torch.equal(weight, before[name]) for name, weight in weights_of(trainer).items())
    assert (trainer.at.step, trainer.at.skipped, trainer.at.bad_streak) == (2, 1, 1)
    with torch.no_grad():
        trainer.network.decoder.output.bias[7] = 0.0  # type: ignore[union-attr]
    assert trainer.step(batches[1:2], 0.5).finite
    assert (trainer.at.skipped, trainer.at.bad_streak) == (1, 0)
    assert any(not torch.equal(w, before[name]) for name, w in weights_of(trainer).items())


def test_the_rate_is_what_going_back_has_left_of_it(tmp_path: Path) -> None:
    trainer, _, batches = begun("lstm", tmp_path, schedule="constant", rate=1e-3)
    assert trainer.step(batches[:1], 0.5).rate == 1e-3
    trainer.at.rate_scale = 0.25
    assert trainer.step(batches[:1], 0.5).rate == 2.5e-4


# --- random numbers -------------------------------------------------------------------------------


def test_every_step_draws_its_own_numbers_and_draws_them_again(tmp_path: Path) -> None:
    trainer, _, batches = begun("transformer", tmp_path, dropout=0.5)
    found = [float(trainer.step(batches[:1], 0.5).nll) for _ in range(3)]
    assert len(set(found)) == 3
    other, _, _ = begun("transformer", tmp_path, dropout=0.5)
    torch.rand(5)  # what was drawn elsewhere does not matter
    assert [float(other.step(batches[:1], 0.5).nll) for _ in range(3)] == pytest.approx(found)


@pytest.mark.parametrize("name", ["transformer", "lstm", "language model", "tagger"])
def test_a_batch_that_is_cut_gives_the_step_of_the_whole(name: str, tmp_path: Path) -> None:
    """As where memory ends: in slices, with the dropout and the words that the whole would drop."""
    found = []
    for too_large in (None, 60):
        train = {"rate": 0.1, "word_dropout": 0.3, "batch_tokens": 160}
        trainer, _, batches = begun(name, tmp_path, dropout=0.4, **train)
        trainer.gradients.too_large = too_large
        results = [trainer.step([batch], 0.5) for batch in batches[:2]]
        found.append(([float(r.nll) for r in results], weights_of(trainer)))
    (whole, weights), (cut, others) = found
    assert cut == pytest.approx(whole, rel=1e-5)
    for name_, weight in weights.items():
        assert torch.allclose(weight, others[name_], atol=1e-5), name_


def test_scheduled_sampling_hears_how_far_training_is(tmp_path: Path) -> None:
    """At the start no guess is taken; at the end the loss is that of a network that guesses."""
    trainer, _, batches = begun("lstm", tmp_path, scheduled_sampling=0.9)
    plain = nll_of(trainer, batches[:1])
    assert float(trainer.step(batches[:1], 0.0).nll) == pytest.approx(plain, rel=1e-4)
    assert float(trainer.step(batches[:1], 1.0).nll) != pytest.approx(plain, rel=1e-4)


# --- evaluation -----------------------------------------------------------------------------------


def test_the_average_of_the_weights_is_evaluated_and_predicts(tmp_path: Path) -> None:
    trainer, ready, batches = begun(
        "tagger", tmp_path, optimizer="adamw", rate=0.05, average=0.9, schedule="constant"
    )
    for batch in batches[:8]:
        trainer.step([batch], 0.5)
    before, examples = weights_of(trainer), ready.dev_examples[:20]
    found = result_of(trainer.evaluating(ready.dev, examples, Stop()))
    assert all(torch.equal(w, before[name]) for name, w in weights_of(trainer).items())
    with torch.no_grad():
        for name, weight in trainer.prediction_weights().items():
            files.weights_of(trainer.network)[name].copy_(weight)
    assert any(not torch.equal(w, before[name]) for name, w in weights_of(trainer).items())
    trainer.network.eval()
    again = ready.task.evaluate(trainer.network, ready.dev, examples, True)
    assert found["loss"] == pytest.approx(again["loss"], rel=1e-5)
