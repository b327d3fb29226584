"""Numbers that are not finite, and memory that is not there: neither reaches the weights."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from saccade.config import parse, write_toml
from saccade.data.batches import Loader, collate
from saccade.errors import TrainingError
from saccade.models.networks import Generator
from saccade.runs import checkpoints, files
from saccade.setup.prepare import prepare
from saccade.tasks.task import Evaluation
from saccade.tasks.translate import Translate
from saccade.training import loop
from saccade.training.events import Evaluated, Noticed, Saved, Skipped
from saccade.training.gradients import Gradients
from saccade.training.optim import scale_gradients
from saccade.training.session import resume, start
from saccade.training.stop import Stop
from saccade.training.trainer import Trainer
from tests.faults.conftest import Small
from tests.faults.processes import Server
from tests.helpers import SMALL, new_folder, run_through, same_weights, settings, until, weights


def spoil(monkeypatch: pytest.MonkeyPatch, kind: str, when: Any) -> None:
    """Make the loss of some steps not finite, or only its gradient."""
    real_step, real_sum = Trainer.step, Gradients.sum
    trainer: Trainer | None = None  # none yet in a preflight

    def step(self: Trainer, *words: Any) -> Any:
        nonlocal trainer
        trainer = self
        return real_step(self, *words)

    def spoilt(self: Gradients, *words: Any) -> Any:
        sums = real_sum(self, *words)
        if trainer is None or not when(trainer):
            return sums
        if kind == "gradient":
            trainer.parameters[-1].grad = torch.full_like(trainer.parameters[-1], torch.inf)
        return replace(sums, nll=sums.nll * torch.nan) if kind == "loss" else sums

    monkeypatch.setattr(Trainer, "step", step)
    monkeypatch.setattr(Gradients, "sum", spoilt)


def at_full_rate(trainer: Trainer) -> bool:
    return trainer.at.rate_scale == 1.0


def pretend(monkeypatch: pytest.MonkeyPatch, values: list[float]) -> None:
    """Let evaluations find these values, and 0 then; higher is better."""
    supply = iter(values)

    def evaluating(self: Any, *words: Any, **named: Any) -> Evaluation:
        value = next(supply, 0.0)
        yield 0.5
        return {"loss": 1.0, self.metric: value if self.higher_is_better else -value}

    monkeypatch.setattr(Translate, "evaluating", evaluating)


@pytest.mark.parametrize(("kind", "name"), [("loss", "language model"), ("gradient", "lstm")])
def test_a_step_that_is_not_finite_never_reaches_the_weights(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(name, tmp_path)
    spoil(monkeypatch, kind, lambda trainer: trainer.at.step in (4, 7, 8))
    events = run_through(config, tmp_path / "run")
    assert [(e.step, e.total) for e in events if isinstance(e, Skipped)] == [(5, 1), (8, 2), (9, 3)]
    for path in checkpoints.paths(tmp_path / "run" / "checkpoints"):
        for file in path.glob("*.safetensors"):
            assert all(t.isfinite().all() for t in files.read_tensors(file).values())
    ready, before = prepare(config, tmp_path / "run"), None
    trainer = Trainer(ready.task, ready.task.build(), tmp_path)
    trainer.at.step = 4
    before = {name: weight.clone() for name, weight in files.weights_of(trainer.network).items()}
    trainer.step(Loader(partial(ready.task.epoch, ready.train)).take(0, 0, 1), 0.5)
    assert all(torch.equal(before[n], w) for n, w in files.weights_of(trainer.network).items())
    assert trainer.at.bad_streak == 1


def test_after_many_the_run_goes_back_with_a_lower_rate_and_resuming_does_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps from 7 on fail at the full rate, and not at a lower one."""
    config = settings("lstm", tmp_path)
    spoil(monkeypatch, "loss", lambda trainer: trainer.at.step >= 7 and at_full_rate(trainer))
    events = run_through(config, tmp_path / "straight")
    said = [e.text for e in events if isinstance(e, Noticed)]
    assert len(said) == 1
    assert "back to step 6, at 0.5 of the rate" in said[0]
    assert "batch " in said[0]
    assert events[-1].step == 12
    for halt in (9, 14):  # reports, of which the run that went back has more than steps
        folder, stop, count = new_folder(config, tmp_path / f"halted-{halt}"), Stop(), 0
        for event in until(None, lambda _, folder=folder, stop=stop: start(config, folder, stop)):
            count += isinstance(event, loop.StepDone)
            stop.requested |= count >= halt
        list(resume(folder))
        assert same_weights(tmp_path / "straight", folder), halt


def test_before_any_checkpoint_the_run_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, "loss", at_full_rate)
    events = run_through(settings("tagger", tmp_path), tmp_path / "run")
    assert any("back to step 0" in e.text for e in events if isinstance(e, Noticed))
    assert events[-1].step == 12


def test_going_back_keeps_the_best_checkpoints_for_their_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first four evaluations are the best; that of step 4, which is skipped, does not count.

    The steps from 10 on fail at the full rate.
    """
    more = {"average_checkpoints": 3, "average_of": "best", "average": 0.0, "keep": 1}
    config = settings("lstm", tmp_path, steps=20, evaluate_every=2, save_every=100, **more)
    failing = {3, *range(10, 20)}
    spoil(monkeypatch, "loss", lambda trainer: trainer.at.step in failing and at_full_rate(trainer))
    pretend(monkeypatch, [3.0, 9.0, 2.0, 1.0])
    folder, each = new_folder(config, tmp_path / "run"), {}
    said = ""
    for event in start(config, folder):
        if isinstance(event, Saved):
            each[event.step] = files.read_tensors(event.path / "model.safetensors")
        said += f"{event.text}\n" if isinstance(event, Noticed) else ""
    assert "back to step 10" in said
    assert "left out" not in said
    for name, weight in weights(folder).items():
        best = torch.stack([each[step][name] for step in (2, 6, 8)]).double()
        assert torch.equal(weight, best.mean(0).float()), name


def test_going_back_passes_over_what_is_damaged_and_keeps_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints are due at 3 and 6, the best evaluation is at 4, the steps from 7 on fail."""
    config = settings("lstm", tmp_path, average=0.0)
    spoil(monkeypatch, "loss", lambda trainer: trainer.at.step >= 7 and at_full_rate(trainer))
    pretend(monkeypatch, [3.0])
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)  # after every step, too
    folder, saves, best = new_folder(config, tmp_path / "run"), [], {}
    for event in start(config, folder):
        match event:
            case Evaluated(best=True):
                assert not best
                best = weights(folder)
            case Skipped(step=8):
                damaged = folder / "checkpoints" / "step-00000006" / "model.safetensors"
                damaged.write_bytes(b"?")
            case Noticed() if "back to step 3" in event.text:
                saves = [path.name for path in checkpoints.paths(folder / "checkpoints")]
    assert saves == ["step-00000003"]  # what is later is no more
    assert event.step == 12
    assert all(torch.equal(weight, best[name]) for name, weight in weights(folder).items())


def test_in_the_end_it_stops_and_names_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings("lstm", tmp_path)
    real = Generator.forward

    def forward(self: Any, batch: Any, *words: Any) -> Any:
        found, carry = real(self, batch, *words)
        four = (batch.sources[0].lengths == 5).any()  # words of four letters, and an end mark
        bad = torch.nan if bool(four) else 1.0
        return type(found)(found.sum * bad, found.nll * bad, found.count), carry

    monkeypatch.setattr(Generator, "forward", forward)
    monkeypatch.setattr(loop, "BAD_STEPS", 1)
    with pytest.raises(TrainingError) as caught:
        run_through(config, tmp_path / "run")
    said = str(caught.value)
    assert "not finite" in said
    assert "lower train.rate" in said
    assert "epoch 0, " in said
    lines = (tmp_path / "translate.txt").read_text().splitlines()
    named = [word.split(":")[1].rstrip(",;") for word in said.split() if "translate.txt:" in word]
    assert 1 <= len(named) <= 5
    assert any(len(lines[int(number) - 1].split("\t")[0]) == 4 for number in named)


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_a_batch_that_does_not_fit_is_cut_with_the_same_result(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout, dropped words, carried states and all: within 1e-6 of the whole batch.

    The weights after two steps of SGD, and the clipped gradients, of which AdamW makes much.
    """
    more = {"word_dropout": 0.2, "rate": 0.1, "warmup": 1, "accumulate": 2, "optimizer": "sgd"}
    raw = settings(name, tmp_path, batch_tokens=70, **more).model_dump(exclude_none=True)
    raw["task"] |= {"context": 16} if raw["task"]["kind"] == "language" else {}
    ready = prepare(parse(raw, "x"), tmp_path)
    kind = type(ready.task.build())
    real, loader = kind.forward, Loader(partial(ready.task.epoch, ready.train))

    def forward(self: Any, batch: Any, *words: Any) -> Any:
        if batch.count > most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")
        return real(self, batch, *words)

    monkeypatch.setattr(kind, "forward", forward)
    found = []
    for most in (10**9, 3, 1):
        trainer = Trainer(ready.task, ready.task.build(), tmp_path)
        starts = range(0, min(4, len(loader.epoch(0))), 2)
        steps = [trainer.step(loader.take(0, i, 2), 0.5) for i in starts]
        assert (trainer.gradients.too_large is None) == (most > 1000)
        sums = trainer.gradients.sum(loader.take(0, 0, 2), trainer.carry, 0.5, 1, Stop())
        scale_gradients(trainer.parameters, sums.count, 1.0)
        gradients = [p.grad for p in trainer.parameters if p.grad is not None]
        tensors = [*gradients, *files.weights_of(trainer.network).values()]
        found.append((tensors, float(steps[-1].nll), (steps[-1].count, sums.count)))
    for tensors, nll, counts in found[1:]:
        assert counts == found[0][2]
        assert nll == pytest.approx(found[0][1], rel=1e-5)
        for whole, cut in zip(found[0][0], tensors, strict=True):
            assert torch.allclose(whole, cut, rtol=0, atol=1e-6)


STRAIGHT: dict[str, Path] = {}  # by how they are trained, uninterrupted


def straight(config: Any, factory: pytest.TempPathFactory) -> Path:
    """The run that a configuration gives if nothing happens; it is trained once."""
    key = str(config.train)
    if key not in STRAIGHT:
        STRAIGHT[key] = factory.mktemp("straight") / "run"
        run_through(config, STRAIGHT[key])
    return STRAIGHT[key]


OUT = RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")


@pytest.mark.parametrize(
    ("where", "name", "nth", "preflight", "words"),
    [
        (Translate, "evaluate_answers", 2, "off", "decode.batch_tokens"),
        (
            Translate,
            "evaluate_answers",
            4,
            "off",
            "decode.batch_tokens",
        ),  # the last, of all dev examples
        (torch.optim.AdamW, "step", 5, "off", "train.batch_tokens"),
        (torch.optim.AdamW, "step", 1, "off", "train.batch_tokens"),
        (Translate, "evaluate_answers", 1, "on", "decode.batch_tokens"),
        (Translate, "predict", 1, "on", "decode.batch_tokens"),
        (checkpoints, "mean", 1, "off", "free memory"),
    ],
)
def test_where_nothing_can_be_cut_training_ends_with_a_line_and_goes_on_later(
    where: Any, name: str, nth: int, preflight: str, words: str,
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    more = {"average_checkpoints": 2, "average": 0.0} if name == "mean" else {}
    config = settings("lstm", tmp_path, preflight=preflight, **more)
    expected = straight(config, tmp_path_factory)
    real, calls = getattr(where, name), 0

    def out_at_the_nth(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OUT
        return real(*given, **named)

    monkeypatch.setattr(where, name, out_at_the_nth)
    with pytest.raises(TrainingError) as caught:
        run_through(config, tmp_path / "run")
    said = str(caught.value)
    assert "out of memory" in said
    assert words in said
    assert f"saccade resume {tmp_path / 'run'}" in said
    early = nth == 1 and name != "mean"
    assert ("no checkpoint yet" if early else "is intact") in said
    assert len(said.splitlines()) == 1
    monkeypatch.undo()
    list(resume(tmp_path / "run"))
    assert same_weights(expected, tmp_path / "run")


def test_one_example_that_does_not_fit_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings("lstm", tmp_path)
    ready = prepare(config, tmp_path)

    def forward(*words: Any) -> Any:
        raise MemoryError  # which has no text

    monkeypatch.setattr(Generator, "forward", forward)
    trainer = Trainer(ready.task, ready.task.build(), tmp_path)
    with pytest.raises(TrainingError, match=r"out of memory with one example .* at step 1"):
        trainer.step([collate(ready.train, np.arange(8))], 0.5)


@pytest.mark.faults
def test_training_goes_on_where_memory_really_ends(small: Small, server: Server) -> None:
    """A process with few bytes, and batches of many: the allocator itself fails."""
    folder = small.folder
    config = settings("transformer", folder, steps=6, batch_tokens=20_000, accumulate=1)
    large = {"dim": 256, "ff_dim": 1024, "num_heads": 4, "num_layers": 2}
    raw = config.model_dump(exclude_none=True)
    raw["encoder"] |= large
    raw["decoder"] |= large
    raw["train"] |= {"preflight": "off", "evaluate_every": 100}
    (folder / "large.toml").write_text(write_toml(parse(raw, "x")))
    run = small.new()
    done = server.run("train", folder / "large.toml", "--out", run, memory=[120 << 20])
    assert done.code == 0, done.said
    assert "out of memory; batches like it are now cut" in done.said
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert events[-1]["step"] == 6
