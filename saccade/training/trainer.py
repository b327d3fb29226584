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
from saccade.distributed.ranks import Ranks, spread, whole
from saccade.models.networks import Network
from saccade.runs import files
from saccade.runs.machine import choose_precision
from saccade.runs.start import taken_names
from saccade.tasks.task import Evaluation, Task, device_of
from saccade.training import saving, together
from saccade.training.budget import reported
from saccade.training.gradients import Gradients
from saccade.training.optim import MovingAverage, build_optimizer, rate_at, scale_gradients
from saccade.training.saving import Position
from saccade.training.stop import Interrupted, Stop
from saccade.training.tune import groups_of, thaw

# Where memory may end, and what to do then.
EVALUATING = ("an evaluation", "lower decode.batch_tokens in config.toml")
UPDATING = ("an update", "free memory (or train anew with a smaller train.batch_tokens)")
AVERAGING = ("checkpoint averaging", "free memory")


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step found and decided, as one record: with several ranks they agree on it."""

    nll: Tensor
    count: int
    norm: Tensor  # of the gradient, before clipping
    rate: float
    finite: bool
    progress: float  # at its beginning
    stop: bool  # whether somebody asked to stop meanwhile


class Order(NamedTuple):
    """The step that all ranks are to take."""

    step: int
    epoch: int
    batch: int  # the first of them in the epoch
    batches: int
    progress: float
    plateau: float
    rate_scale: float
    carried: bool  # whether something is carried on from the step before

    @classmethod
    def of(cls, trainer: "Trainer", batches: int, progress: float) -> "Order":
        at, carried = trainer.at, trainer.carry is not None
        where = at.step, at.epoch, at.index, batches
        return cls(*where, progress, at.plateau, at.rate_scale, carried)


class Trainer:
    """A network in training: its optimiser, its averages, its position."""

    def __init__(self, task: Task, network: Network, folder: Path, ranks: Ranks | None = None):
        self.task, self.network, self.folder = task, network, folder
        self.config: c.Train = task.config.train
        self.device = device_of(network)
        self.dtype = choose_precision(self.config, self.device)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        start = task.config.start
        self.groups = groups_of(network, start, taken_names(task.config, folder))
        learning = {id(p) for group in self.groups for p in group.parameters}
        self.parameters: list[Tensor] = [p for p in network.parameters() if id(p) in learning]
        seed = task.config.seed
        self.gradients = Gradients(
            network, self.parameters, self.device, self.dtype, self.scaler, seed
        )
        self.ranks = ranks or Ranks()
        self.replica: Network | None = None  # of whole weights, where those in training are parts
        self.doing: tuple[str, str] | None = None  # for the wording of an error
        self.begin()

    def begin(self) -> None:
        """Stand at the first step, with the weights that the network has."""
        self.optimizer = build_optimizer(self.groups, self.config)
        average = self.config.average
        self.average = MovingAverage(self.parameters, average) if average else None
        self.at = Position()
        self.carry: Any = None

    def step(
        self, batches: Sequence[Batch], progress: float, stop: Stop | None = None
    ) -> StepResult:
        """One update from some batches' summed gradients; Interrupted leaves no trace of it."""
        at, stop = self.at, stop or Stop()
        inside = Stop() if self.ranks.together else stop  # nobody leaves a step that all take
        rate = rate_at(self.config, at.step + 1, progress, at.plateau) * at.rate_scale
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        if len(self.groups) > 1:
            thaw(self.groups, progress)
        if (ranks := self.gradients.ranks).size > 1:
            ranks.order("step", Order.of(self, len(batches), progress))
        if not self.network.training:
            self.network.train()
        with inside.unchanged(lambda: saving.save(self, due=False)):
            sums = self.gradients.sum(batches, self.carry, progress, at.step, inside)
            self.scaler.unscale_(self.optimizer)
            count, clip = max(sums.count, 1), self.config.clip
            norm = scale_gradients(self.parameters, count, clip, self.ranks)
            finite = isfinite(float(norm) + float(sums.nll))
        stop.asked |= self.ranks.stopping
        result = StepResult(sums.nll, sums.count, norm, rate, finite, progress, stop.asked)
        self.update(result, sums.carry)
        return result

    def update(self, result: StepResult, carry: Any) -> None:
        """Let the gradients reach the weights if all is finite, and count the step."""
        at = self.at
        searching = self.scaler.is_enabled() and self.scaler.get_scale() > 1.0  # for a scale
        if result.finite:
            self.doing = UPDATING
            self.scaler.step(self.optimizer)
            self.doing = None
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        at.step += 1
        self.carry = carry if result.finite else None  # it may be as bad as the loss
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
        """The processes that share each batch; the first of them alone evaluates and writes."""
        return self.gradients.ranks

    @ranks.setter
    def ranks(self, ranks: Ranks) -> None:
        self.gradients.ranks = ranks
        ranks.parameters = self.parameters

    def follow(self, order: "Order", batches: Sequence[Batch]) -> None:
        """The step that the first rank takes, taken here with other rows."""
        at = self.at
        at.step, at.plateau, at.rate_scale = order.step, order.plateau, order.rate_scale
        if not order.carried:
            self.carry = None
        self.step(batches, order.progress)

    # --- evaluation -------------------------------------------------------------------------------

    def evaluating(self, corpus: Corpus, examples: Sequence[Example], stop: Stop) -> Evaluation:
        """The metrics of the weights that would predict: the moving average's, if there is one."""

        if self.ranks.together:
            return (yield from together.evaluating(self, corpus, examples, True, stop))

        def swap() -> None:
            if self.average is not None:
                self.average.swap()

        def save() -> None:  # and nobody evaluates any more
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
        except (Interrupted, GeneratorExit):  # asked to stop, or out of time
            self.doing = None
            raise
        finally:
            swap()

    def predicting(self) -> dict[str, Tensor]:
        """The weights that would predict; in parts where those in training are."""
        weights = files.weights_of(self.network)
        if self.average is None:
            return weights
        pairs = zip(self.parameters, self.average.weights, strict=True)
        averages = {id(parameter): spread(average, parameter) for parameter, average in pairs}
        named = self.network.named_parameters()
        return weights | {name: averages[id(p)] for name, p in named if id(p) in averages}

    def gathered(self) -> dict[str, Tensor]:
        """The same, whole, for the first rank, which tells the others to give their parts."""
        if not self.ranks.lockstep:
            return self.predicting()
        self.ranks.order("gather")
        found = {name: whole(tensor) for name, tensor in self.predicting().items()}
        return {name: tensor.cpu() for name, tensor in found.items()}

    @contextmanager
    def network_that_predicts(self, quick: bool) -> Iterator[Network]:
        """The network with the weights that predict, for all ranks: those of now, or of the end."""
        self.network.eval()
        network, average = self.network, self.average if quick else None
        if self.ranks.lockstep:
            if self.replica is None:
                self.replica = self.task.build().to(self.device)
            network = self.replica.eval()
            if quick:
                into = files.weights_of(network)
                for name, tensor in self.predicting().items():
                    into[name].copy_(whole(tensor))
        elif average is not None:
            average.swap()
        if not quick and (self.ranks.lockstep or self.ranks.rank):
            files.load_weights(self.folder / "model.safetensors", network)
        try:
            yield network
        finally:
            if average is not None and not self.ranks.lockstep:
                average.swap()

    def note(self, scores: dict[str, float]) -> bool:
        """Remember an evaluation; whether it is the best so far."""
        at, value = self.at, scores[self.task.metric]
        value = value if self.task.higher_is_better else -value
        if not at.bad_streak:  # else there is no checkpoint of this step
            ranked = sorted([*at.ranked, (value, at.step)], reverse=True)
            at.ranked = ranked[: self.config.average_checkpoints]
        standing = (value, -scores["loss"])  # where the metric is the same, the loss decides
        if standing > at.best:
            at.best, at.since_best = standing, 0
            return True
        at.since_best += 1
        if self.config.schedule == "plateau":
            at.plateau *= 0.5
        return False
