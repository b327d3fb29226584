"""The loop: a generator of events. It reports; others decide what to show.

What a step does is a function of (seed, step): the generator is seeded anew at every step, and
batch i of epoch e is found by its number, so that resuming is never having stopped.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import inf, isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from saccade.config import Train
from saccade.data.batches import Corpus
from saccade.models.build import Network
from saccade.nn.state import leaves, with_leaves
from saccade.tasks.task import Pair, Task, device_of
from saccade.training import checkpoint as disk
from saccade.training.events import Evaluated, Event, Finished, Saved, Skipped, StepDone
from saccade.training.machine import autocast, choose_precision, seed_all
from saccade.training.optim import MovingAverage, build_optimizer, rate_at, scale_gradients

REPORT_SECONDS = 0.25
SAVE_SECONDS = 600.0  # no more than this is ever lost, however long an epoch is


@dataclass
class Position:
    """Where training stands, apart from tensors."""

    step: int = 0
    epoch: int = 0
    index: int = 0  # of the next batch in the epoch
    seconds: float = 0.0
    best: tuple[float, float] = (-inf, -inf)  # the metric, turned so that higher is better; -loss
    since_best: int = 0  # evaluations
    plateau: float = 1.0
    ranked: list[tuple[float, int]] = field(default_factory=list)  # (metric, step) of checkpoints


class Trainer:
    """A network in training: its optimiser, its averages, its position."""

    def __init__(self, task: Task, network: Network, folder: Path):
        self.task, self.network, self.folder = task, network, folder
        self.config: Train = task.config.train
        self.device = device_of(network)
        self.dtype = choose_precision(self.config, self.device)
        self.optimizer = build_optimizer(network, self.config)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.average = MovingAverage(network, self.config.average) if self.config.average else None
        self.parameters = list(network.parameters())
        self.at = Position()
        self.carry: Any = None

    # --- one step ---------------------------------------------------------------------------------

    def step(self, batches: list[Any], progress: float) -> tuple[Tensor, int, Tensor, float]:
        """One update from some batches' summed gradients: (nll, tokens, gradient norm, rate)."""
        at = self.at
        seed_all((self.task.config.seed * 1_000_003 + at.step) % 2**63, self.device)
        if not self.network.training:
            self.network.train()
        rate = rate_at(self.config, at.step + 1, progress, at.plateau)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        nll, count = torch.zeros((), device=self.device), 0
        for batch in batches:
            with autocast(self.device, self.dtype):
                loss, self.carry = self.task.loss(
                    self.network, batch.to(self.device), self.carry, progress
                )
            self.scaler.scale(loss.sum).backward()  # type: ignore[no-untyped-call]
            nll += loss.nll.detach()
            count += loss.count
        self.scaler.unscale_(self.optimizer)
        norm = scale_gradients(self.parameters, max(count, 1), self.config.clip)
        if isfinite(float(norm)):
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        at.step += 1
        if self.average is not None:
            self.average.update(self.network, at.step)
        return nll, count, norm, rate

    # --- evaluation -------------------------------------------------------------------------------

    def evaluate(self, corpus: Corpus, pairs: Sequence[Pair], quick: bool) -> dict[str, float]:
        """The metrics of the weights that would predict: the moving average's, if there is one."""
        self.network.eval()
        if self.average is not None:
            self.average.swap(self.network)
        try:
            return self.task.evaluate(self.network, corpus, pairs, quick)
        finally:
            if self.average is not None:
                self.average.swap(self.network)

    def predicting(self) -> dict[str, Tensor]:
        """The weights that would predict."""
        weights = disk.weights_of(self.network)
        if self.average is None:
            return weights
        return dict(zip(weights, self.average.weights, strict=True))

    def note(self, scores: dict[str, float]) -> bool:
        """Remember an evaluation; whether it is the best so far."""
        at, value = self.at, scores[self.task.metric]
        value = value if self.task.higher_is_better else -value
        at.ranked = sorted([*at.ranked, (value, at.step)], reverse=True)
        standing = (value, -scores["loss"])  # where the metric is the same, the loss decides
        if standing > at.best:
            at.best, at.since_best = standing, 0
            return True
        at.since_best += 1
        if self.config.schedule == "plateau":
            at.plateau *= 0.5
        return False

    # --- disk -------------------------------------------------------------------------------------

    def save(self) -> Path:
        """Write a checkpoint from which `restore` goes on as if nothing had happened."""
        tensors = {f"carry.{i}": tensor for i, tensor in enumerate(leaves(self.carry))}
        for i, slots in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{name}": tensor for name, tensor in slots.items()}
        files = {"model": self.predicting(), "training": tensors}
        if self.average is not None:
            files["raw"] = disk.weights_of(self.network)
        state = asdict(self.at) | {"scaler": self.scaler.state_dict()}
        path = disk.save_checkpoint(self.folder / "checkpoints", self.at.step, files, state)
        disk.remove_checkpoints(path.parent, self._kept())
        return path

    def _kept(self) -> list[Path]:
        folder, train = self.folder / "checkpoints", self.config
        newest = disk.checkpoints(folder)[-max(train.keep, train.average_checkpoints) :]
        if train.average_of == "last" or train.average_checkpoints == 1:
            return newest
        best = [
            folder / f"step-{step:08d}" for _, step in self.at.ranked[: train.average_checkpoints]
        ]
        return newest + best

    def restore(self, path: Path) -> None:
        """Stand where a checkpoint stood."""
        raw = path / "raw.safetensors"
        disk.load_weights(raw if self.average else path / "model.safetensors", self.network)
        if self.average is not None:
            stored = disk.read_tensors(path / "model.safetensors")
            self.average.weights = [
                stored[name].to(self.device) for name in disk.weights_of(self.network)
            ]
        state = disk.read_state(path)
        self.scaler.load_state_dict(state.pop("scaler"))
        state["ranked"] = [tuple(pair) for pair in state["ranked"]]
        state["best"] = tuple(state["best"])
        self.at = Position(**state)
        tensors = disk.read_tensors(path / "training.safetensors")
        slots: dict[int, dict[str, Tensor]] = {}
        carried: dict[int, Tensor] = {}
        for key, tensor in tensors.items():
            kind, number, *name = key.split(".")
            if kind == "carry":
                carried[int(number)] = tensor.to(self.device)
            else:
                slots.setdefault(int(number), {})[name[0]] = tensor
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": slots, "param_groups": groups})
        if carried:
            form = self.task.carry(self.network, carried[0].size(0))
            self.carry = with_leaves(form, [carried[i] for i in range(len(carried))])


def train(
    trainer: Trainer,
    corpus: Corpus,
    dev: Corpus,
    pairs: Sequence[Pair],
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Train to a limit, reporting on the way; the run's model.safetensors gets the best weights."""
    task, config, at = trainer.task, trainer.config, trainer.at
    quick = pairs[: config.evaluate_max]
    began = perf_counter() - at.seconds
    epoch = task.epoch(corpus, at.epoch)
    nll, count, since = torch.zeros((), device=trainer.device), 0, perf_counter()  # since a report

    def progress() -> float:
        done = at.epoch + at.index / len(epoch)
        return max(
            at.step / config.steps if config.steps else 0.0,
            done / config.epochs if config.epochs else 0.0,
            at.seconds / (60 * config.minutes) if config.minutes else 0.0,
        )

    def over() -> str:
        if progress() >= 1.0:
            return "the limit is reached"
        if config.patience and at.since_best >= config.patience:
            return f"no better evaluation in the last {config.patience}"
        return ""

    saved = perf_counter()
    reason = over()  # a run that had ended has nothing more to do
    while not reason:
        batches = [epoch[i] for i in range(at.index, min(at.index + config.accumulate, len(epoch)))]
        more, tokens, norm, rate = trainer.step(batches, progress())
        at.index += len(batches)
        at.seconds = perf_counter() - began
        if not isfinite(float(norm)):
            yield Skipped(at.step)
        nll, count = nll + more, count + tokens
        new_epoch = at.index >= len(epoch)
        done = progress() >= 1.0
        passed = perf_counter() - since
        if passed >= REPORT_SECONDS or done or new_epoch:
            done_epochs = at.epoch + at.index / len(epoch)
            loss, speed = float(nll) / max(count, 1), count / max(passed, 1e-9)
            yield StepDone(
                at.step, done_epochs, loss, rate, speed, float(norm), progress(), at.seconds
            )
            nll, count, since = torch.zeros_like(nll), 0, perf_counter()
        if new_epoch:
            at.epoch, at.index, trainer.carry = at.epoch + 1, 0, None
            epoch = task.epoch(corpus, at.epoch)

        every = config.evaluate_every
        due = done or (at.step % every == 0 if every else new_epoch)
        if due and pairs:
            paused = perf_counter()
            scores = trainer.evaluate(dev, quick, quick=True)
            best = trainer.note(scores)
            if best:
                disk.save_weights(trainer.folder / "model.safetensors", trainer.predicting())
            at.seconds = perf_counter() - began
            since += perf_counter() - paused  # the speed is that of training
            yield Evaluated(at.step, scores, best, at.seconds)
        reason = over() or ("stopped" if stop() else "")
        saving = at.step % config.save_every == 0 if config.save_every else due
        saving |= due and config.average_of == "best" and config.average_checkpoints > 1
        saving |= perf_counter() - saved > SAVE_SECONDS
        if saving or reason:
            paused = perf_counter()
            yield Saved(at.step, trainer.save())
            saved = perf_counter()
            since += saved - paused

    if reason == "stopped":
        yield Finished(at.step, reason, {}, at.seconds)
        return
    finish(trainer)
    scores = trainer.task.evaluate(trainer.network, dev, pairs, quick=False) if pairs else {}
    yield Finished(at.step, reason, scores, at.seconds)


def finish(trainer: Trainer) -> None:
    """Leave in the run and the network the weights that predict: the best, or a mean of several."""
    config, folder, model = trainer.config, trainer.folder, trainer.folder / "model.safetensors"
    if config.average_checkpoints > 1:
        paths = disk.checkpoints(folder / "checkpoints")
        if config.average_of == "best":
            rank = {f"step-{step:08d}": -value for value, step in trainer.at.ranked}
            paths.sort(key=lambda path: rank.get(path.name, inf), reverse=True)
        disk.save_weights(model, disk.mean_of(paths[-config.average_checkpoints :]))
    elif not model.exists():  # nothing was ever evaluated
        disk.save_weights(model, trainer.predicting())
    disk.load_weights(model, trainer.network)
    trainer.network.eval()
