"""A network in training: one step, one evaluation.

What a step does is a function of (seed, step): the generator is seeded anew at every step. A step
whose numbers are not finite never reaches the weights.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade import config as c
from saccade.data.batches import Batch
from saccade.data.corpora import Corpus
from saccade.data.lines import Example
from saccade.distributed.ranks import Ranks, as_sharded, full_tensor
from saccade.models.networks import Network
from saccade.runs import files
from saccade.runs.machine import choose_precision
from saccade.runs.start import transferred_names
from saccade.tasks.task import Evaluation, Task, device_of
from saccade.training import launched, saving
from saccade.training.budget import reported
from saccade.training.gradients import Gradients
from saccade.training.optim import MovingAverage, build_optimizer, rate_at, scale_gradients
from saccade.training.saving import Position
from saccade.training.stop import Interrupted, Stop
from saccade.training.tune import groups_of, thaw

# What may run out of memory, and the advice in the error.
EVALUATING = ("an evaluation", "lower decode.batch_tokens in config.toml")
UPDATING = ("an update", "free memory (or train anew with a smaller train.batch_tokens)")
AVERAGING = ("checkpoint averaging", "free memory")


@dataclass(frozen=True, slots=True)
class StepResult:
    """The outcome of a step, the same in all ranks."""

    nll: Tensor
    count: int
    norm: Tensor  # of the gradient, before clipping
    rate: float
    finite: bool
    progress: float  # at its beginning
    stop: bool  # whether a stop was requested meanwhile


class StepCommand(NamedTuple):
    """The step that all ranks are to compute."""

    step: int
    epoch: int
    batch: int  # the first, in the epoch
    batches: int  # how many
    progress: float
    plateau: float
    rate_scale: float
    carried: bool  # whether the state of the step before is carried on

    @classmethod
    def of(cls, trainer: "Trainer", batches: int, progress: float) -> "StepCommand":
        at, carried = trainer.at, trainer.carry is not None
        position = at.step, at.epoch, at.index, batches
        return cls(*position, progress, at.plateau, at.rate_scale, carried)


class Trainer:
    """A network in training: its optimiser, its averages, its position."""

    def __init__(self, task: Task, network: Network, folder: Path, ranks: Ranks | None = None):
        self.task, self.network, self.folder = task, network, folder
        self.config: c.Train = task.config.train
        self.device = device_of(network)
        self.dtype = choose_precision(self.config, self.device)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        start = task.config.start
        self.groups = groups_of(network, start, transferred_names(task.config, folder))
        trainable = {id(p) for group in self.groups for p in group.parameters}
        self.parameters: list[Tensor] = [p for p in network.parameters() if id(p) in trainable]
        seed = task.config.seed
        self.gradients = Gradients(
            network, self.parameters, self.device, self.dtype, self.scaler, seed
        )
        self.ranks = ranks or Ranks()
        self.replica: Network | None = None  # with full weights, if those in training are sharded
        self.doing: tuple[str, str] | None = None  # for an out-of-memory error
        self.reset()

    def reset(self) -> None:
        """Begin at the first step, with the network's present weights."""
        self.optimizer = build_optimizer(self.groups, self.config)
        average = self.config.average
        self.average = MovingAverage(self.parameters, average) if average else None
        self.at = Position()
        self.carry: Any = None

    def step(
        self, batches: Sequence[Batch], progress: float, stop: Stop | None = None
    ) -> StepResult:
        """One update from the summed gradients of batches; Interrupted leaves all as it was."""
        at, stop = self.at, stop or Stop()
        inner_stop = Stop() if self.ranks.launched else stop  # a joint step cannot be interrupted
        rate = rate_at(self.config, at.step + 1, progress, at.plateau) * at.rate_scale
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        if len(self.groups) > 1:
            thaw(self.groups, progress)
        if (ranks := self.gradients.ranks).size > 1:
            ranks.command("step", StepCommand.of(self, len(batches), progress))
        if not self.network.training:
            self.network.train()
        with inner_stop.unchanged(lambda: saving.save(self, due=False)):
            sums = self.gradients.sum(batches, self.carry, progress, at.step, inner_stop)
            self.scaler.unscale_(self.optimizer)
            count, clip = max(sums.count, 1), self.config.clip
            norm = scale_gradients(self.parameters, count, clip, self.ranks)
            finite = isfinite(float(norm) + float(sums.nll))
        stop.requested |= self.ranks.stopping
        result = StepResult(sums.nll, sums.count, norm, rate, finite, progress, stop.requested)
        self.update(result, sums.carry)
        return result

    def update(self, result: StepResult, carry: Any) -> None:
        """Update the weights if all is finite, and count the step."""
        at = self.at
        # overflow is expected while the scaler lowers its scale
        searching = self.scaler.is_enabled() and self.scaler.get_scale() > 1.0
        if result.finite:
            self.doing = UPDATING
            self.scaler.step(self.optimizer)
            self.doing = None
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        at.step += 1
        self.carry = carry if result.finite else None  # it may not be finite either
        if result.finite:
            at.bad_streak = 0
            if self.average is not None and (self.ranks.rank == 0 or self.ranks.evaluates):
                self.average.update(at.step)
        else:
            at.bad_streak += not searching
            at.skipped += 1

    # --- other ranks ------------------------------------------------------------------------------

    @property
    def ranks(self) -> Ranks:
        """The processes that share each batch."""
        return self.gradients.ranks

    @ranks.setter
    def ranks(self, ranks: Ranks) -> None:
        self.gradients.ranks = ranks
        ranks.parameters = self.parameters

    def follow(self, order: "StepCommand", batches: Sequence[Batch]) -> None:
        """Take the step that rank 0 takes, with this rank's rows."""
        at = self.at
        at.step, at.plateau, at.rate_scale = order.step, order.plateau, order.rate_scale
        if not order.carried:
            self.carry = None
        self.step(batches, order.progress)

    # --- evaluation -------------------------------------------------------------------------------

    def evaluating(self, corpus: Corpus, examples: Sequence[Example], stop: Stop) -> Evaluation:
        """The metrics with the prediction weights: the moving average, if there is one."""

        if self.ranks.launched:
            return (yield from launched.evaluating(self, corpus, examples, True, stop))

        def swap() -> None:
            if self.average is not None:
                self.average.swap()

        def save() -> None:  # the process ends after it
            swap()
            saving.save(self, due=False)

        @contextmanager
        def guard() -> Iterator[None]:
            with stop.unchanged(save), stop.interruptible():
                yield

        self.doing = EVALUATING
        self.network.eval()
        swap()
        try:
            evaluation = self.task.evaluating(self.network, corpus, examples, quick=True)
            scores = yield from reported(evaluation, guard)
            self.doing = None
            return scores
        except (Interrupted, GeneratorExit):  # stopped, or out of time
            self.doing = None
            raise
        finally:
            swap()

    def prediction_weights(self) -> dict[str, Tensor]:
        """The weights used for prediction; sharded if those in training are."""
        weights = files.weights_of(self.network)
        if self.average is None:
            return weights
        pairs = zip(self.parameters, self.average.weights, strict=True)
        averages = {id(parameter): as_sharded(average, parameter) for parameter, average in pairs}
        named = self.network.named_parameters()
        return weights | {name: averages[id(p)] for name, p in named if id(p) in averages}

    def full_prediction_weights(self) -> dict[str, Tensor]:
        """The same, gathered from all ranks; for rank 0."""
        if not self.ranks.lockstep:
            return self.prediction_weights()
        self.ranks.command("gather")
        weights = {name: full_tensor(tensor) for name, tensor in self.prediction_weights().items()}
        return {name: tensor.cpu() for name, tensor in weights.items()}

    @contextmanager
    def prediction_network(self, quick: bool) -> Iterator[Network]:
        """The network with the prediction weights, in all ranks: the present or the final ones."""
        self.network.eval()
        network, average = self.network, self.average if quick else None
        if self.ranks.lockstep:
            if self.replica is None:
                self.replica = self.task.build().to(self.device)
            network = self.replica.eval()
            if quick:
                into = files.weights_of(network)
                for name, tensor in self.prediction_weights().items():
                    into[name].copy_(full_tensor(tensor))
        elif average is not None:
            average.swap()
        if not quick and (self.ranks.lockstep or self.ranks.rank):
            files.load_weights(self.folder / "model.safetensors", network)
        try:
            yield network
        finally:
            if average is not None and not self.ranks.lockstep:
                average.swap()

    def record(self, scores: dict[str, float]) -> bool:
        """Record an evaluation; whether it is the best so far."""
        at, value = self.at, scores[self.task.metric]
        value = value if self.task.higher_is_better else -value
        if not at.bad_streak:  # else there is no checkpoint of this step
            ranked = sorted([*at.ranked, (value, at.step)], reverse=True)
            at.ranked = ranked[: self.config.average_checkpoints]
        standing = (value, -scores["loss"])  # the loss breaks ties
        if standing > at.best:
            at.best, at.since_best = standing, 0
            return True
        at.since_best += 1
        if self.config.schedule == "plateau":
            at.plateau *= 0.5
        return False
