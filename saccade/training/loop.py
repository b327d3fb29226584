"""The training loop: a generator of events. It reports; others decide what to show.

What a step does is a function of (seed, step), and batch i of epoch e is found by its number, so
that resuming is never having stopped.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from time import perf_counter
from typing import TypeVar, cast

import torch

from saccade.data.batches import Loader
from saccade.data.corpora import Corpus
from saccade.data.lines import Example
from saccade.errors import TrainingError
from saccade.nn.dropout import RowSlice, slice_of
from saccade.runs import files
from saccade.runs.failures import within_memory, writing
from saccade.setup.prepare import locate_examples
from saccade.tasks.task import Evaluation
from saccade.training import launched, saving
from saccade.training.budget import USUAL_EXAMPLES, Budget, affordable, reported
from saccade.training.events import (
    Evaluated,
    Evaluating,
    Event,
    Finished,
    Noticed,
    Saved,
    Skipped,
    StepDone,
)
from saccade.training.stop import Interrupted, Stop
from saccade.training.trainer import AVERAGING, EVALUATING, StepResult, Trainer

REPORT_SECONDS = 0.25
SAVE_SECONDS = 600.0  # no more than this is ever lost, however long an epoch is
BAD_STEPS = 5  # in a row without a finite gradient cause a rollback
RISE = 0.1  # relative to the lowest dev loss (negative for densities): above it counts as rising
RISING_EVALUATIONS = 3  # in a row are reported as overfitting
Result = TypeVar("Result")


class Ending(Enum):
    """Why a run has ended."""

    LIMIT = "the limit is reached"
    PATIENCE = "no improvement"
    STOPPED = "stopped"


def train(
    trainer: Trainer,
    corpus: Corpus,
    dev: Corpus,
    examples: Sequence[Example],
    stop: Stop | None = None,
) -> Iterator[Event]:
    """Train to a limit, reporting on the way; the run's model.safetensors gets the best weights."""
    row_range = trainer.ranks.row_range if trainer.ranks.launched else None
    loader = Loader(partial(trainer.task.epoch, corpus), trainer.config.workers, row_range)
    stop = stop or Stop()
    budget = Budget(trainer.task.config, trainer.at.seconds, len(examples))
    try:
        with within_memory(trainer.folder, lambda: trainer.doing):
            ending = yield from steps(trainer, loader, dev, examples, budget, stop)
            yield from finish(trainer, ending, dev, examples, budget, stop)
    finally:
        loader.close()


def steps(
    trainer: Trainer,
    loader: Loader,
    dev: Corpus,
    examples: Sequence[Example],
    budget: Budget,
    stop: Stop,
) -> Generator[Event, None, Ending]:
    """The steps, with evaluations and checkpoints when they are due; returns the Ending."""
    config = trainer.config
    meter, watch = Meter(trainer), LossWatch(trainer)
    trained = saved = perf_counter()
    too_large, warned = trainer.gradients.too_large, False
    size = len(loader.epoch(trainer.at.epoch)) if trainer.at.index else 1  # batches of the epoch
    # None if the run has not ended before.
    ending = None if trainer.at.pending else reached(trainer, size, budget)
    while ending is None:
        at = trainer.at
        evaluation_due = at.pending  # postponed by a signal
        if not at.pending:
            try:
                with stop.interruptible():  # the order of a new epoch may take a while
                    size = len(loader.epoch(at.epoch))
                    batches = loader.take(at.epoch, at.index, config.accumulate)
                began = perf_counter()
                result = trainer.step(batches, progress(trainer, size, budget), stop)
                budget.step = perf_counter() - began
            except Interrupted:  # the state is that before the step
                with stop.saving():
                    path = saving.save(trainer, due=False)
                yield Saved(at.step, path)
                return Ending.STOPPED
            if not result.finite:
                yield Skipped(at.step, at.skipped)
            if at.bad_streak >= BAD_STEPS:
                yield roll_back(trainer, loader)
                continue
            if trainer.gradients.too_large != too_large:
                too_large = trainer.gradients.too_large
                yield Noticed(f"step {at.step:,}: out of memory; batches like it are now cut")
            at.index += len(batches)
            at.seconds = perf_counter() - budget.began
            epoch_ends, done = at.index >= size, progress(trainer, size, budget)
            meter.add(result)
            watch.add(result)
            if meter.is_due() or epoch_ends or done >= 1.0:
                yield meter.report(result, at.epoch + at.index / size, done)
            if epoch_ends:
                at.epoch, at.index, trainer.carry = at.epoch + 1, 0, None
            every = config.evaluate_every
            evaluation_due = done >= 1.0 or (at.step % every == 0 if every else epoch_ends)
            skipped = evaluation_due and done < 1.0 and not budget.allows_another()
            at.pending = evaluation_due and bool(examples) and not skipped
            if skipped and not warned:
                warned = True
                yield Noticed(
                    f"step {at.step:,}: evaluations take more than a tenth of the time: some "
                    "are left out (raise train.evaluate_every, or lower train.evaluate_max)"
                )

        if at.pending and not stop.requested:
            began = perf_counter()
            with meter.paused():
                subset = examples[: config.evaluate_max or at.evaluated or USUAL_EXAMPLES]
                evaluated = yield from evaluate(trainer, dev, subset, budget, stop)
            if evaluated is not None:
                at.seconds = budget.seconds()
                yield evaluated
                yield from watch.check(evaluated)
                if not (at.evaluated or config.evaluate_max or config.minutes):
                    at.evaluated = affordable(len(subset), perf_counter() - began, began - trained)
                    if at.evaluated < len(subset):
                        yield Noticed(
                            f"step {at.step:,}: evaluations would take more than a tenth of the "
                            f"time: they look at {at.evaluated:,} dev examples from now on (to "
                            "choose, set train.evaluate_max or train.evaluate_every)"
                        )
        ending = Ending.STOPPED if at.pending else reached(trainer, size, budget)
        ending = Ending.STOPPED if ending is None and stop.requested else ending
        due = is_checkpoint_due(trainer, evaluation_due, ending)
        if due or ending is not None or perf_counter() - saved > SAVE_SECONDS:
            with meter.paused(), stop.saving():
                path = saving.save(trainer, due)
            yield Saved(at.step, path)
            saved = perf_counter()
    return ending


def evaluate(
    trainer: Trainer, dev: Corpus, examples: Sequence[Example], budget: Budget, stop: Stop
) -> Generator[Event, None, Evaluated | None]:
    """An evaluation; None if it was interrupted (it is then still pending), or there is no time."""
    at, wanted = trainer.at, len(examples)
    try:
        with trainer.ranks.all_threads():
            measured = yield from with_events(
                budget.intermediate_evaluation(
                    wanted, lambda n: trainer.evaluating(dev, examples[:n], stop)
                ),
                lambda share: Evaluating(at.step, share, False, budget.seconds()),
            )
    except Interrupted:
        return None
    at.pending = False
    if measured is None:
        return None
    best = trainer.record(measured.scores)
    with stop.saving(), writing(trainer.folder):
        if best:
            weights = trainer.full_prediction_weights()
            files.save_weights(trainer.folder / "model.safetensors", weights)
    seconds = budget.seconds()
    return Evaluated(at.step, measured.scores, best, seconds, measured.examples, wanted)


def with_events(
    work: Generator[float, None, Result], event: Callable[[float], Event]
) -> Generator[Event, None, Result]:
    """Some work whose progress, from 0 to 1, is reported as events."""
    while True:
        try:
            share = next(work)
        except StopIteration as end:
            return cast(Result, end.value)
        yield event(share)


def is_checkpoint_due(trainer: Trainer, evaluation_due: bool, ending: Ending | None) -> bool:
    """Whether a checkpoint is due by the step, regardless of signals and the clock."""
    config, at = trainer.config, trainer.at
    if ending is not None and ending is not Ending.STOPPED:
        return True
    due = at.step % config.save_every == 0 if config.save_every else evaluation_due
    due |= evaluation_due and config.average_of == "best" and config.average_checkpoints > 1
    return due and not at.bad_streak and not at.pending


def roll_back(trainer: Trainer, loader: Loader) -> Noticed:
    """Restore the last good checkpoint with a lower rate; TrainingError if that did not help."""
    then = trainer.at
    step = saving.roll_back(trainer)
    if step is None:
        raise TrainingError(
            f"{trainer.folder}: step {then.step}: the loss or its gradient is not "
            f"finite, {BAD_STEPS} times in a row, and again at lower rates; "
            f"{describe_bad_batch(trainer, loader, then.epoch, then.index)}; "
            "lower train.rate, or look at these lines"
        )
    return Noticed(
        f"step {then.step:,}: {BAD_STEPS} steps in a row without a finite gradient, "
        f"the last with batch {then.index} of epoch {then.epoch}; "
        f"back to step {step:,}, at {trainer.at.rate_scale:g} of the rate"
    )


def finish(
    trainer: Trainer,
    ending: Ending,
    dev: Corpus,
    examples: Sequence[Example],
    budget: Budget,
    stop: Stop,
) -> Iterator[Event]:
    """Write the final weights, evaluate them on all dev examples, and report why it ended."""
    at, measured = trainer.at, None

    def evaluate_first(n: int) -> Evaluation:
        if trainer.ranks.launched:
            return launched.evaluating(trainer, dev, examples[:n], False, stop)
        evaluation = trainer.task.evaluating(trainer.network, dev, examples[:n], quick=False)
        return reported(evaluation, stop.interruptible)

    if ending is not Ending.STOPPED:
        trainer.doing = AVERAGING
        with stop.saving(), writing(trainer.folder):
            problems = saving.finish(trainer)
        trainer.doing = EVALUATING
        yield from (Noticed(f"{problem}: left out of the average") for problem in problems)
        try:
            if examples:
                with trainer.ranks.all_threads():
                    measured = yield from with_events(
                        budget.final_evaluation(evaluate_first),
                        lambda share: Evaluating(at.step, share, True, budget.seconds()),
                    )
            trainer.doing = None
        except Interrupted:
            ending = Ending.STOPPED
        at.seconds = budget.seconds()
    counts = (measured.examples, len(examples)) if measured else (0, 0)
    stopped, scores = ending is Ending.STOPPED, measured.scores if measured else {}
    yield Finished(at.step, reason(trainer, ending), scores, at.seconds, stopped, *counts)


def progress(trainer: Trainer, size: int, budget: Budget) -> float:
    """From 0 to 1, towards the limit that ends training first; an epoch has `size` batches."""
    at, config = trainer.at, trainer.config
    done = at.epoch + at.index / size
    return max(
        at.step / config.steps if config.steps else 0.0,
        done / config.epochs if config.epochs else 0.0,
        budget.progress(at.seconds) if config.minutes else 0.0,
    )


def reached(trainer: Trainer, size: int, budget: Budget) -> Ending | None:
    """The limit that is reached, if one is."""
    if progress(trainer, size, budget) >= 1.0:
        return Ending.LIMIT
    patience = trainer.config.patience
    return Ending.PATIENCE if patience and trainer.at.since_best >= patience else None


def reason(trainer: Trainer, ending: Ending) -> str:
    """The reason of an ending for users, with the limits as written in the configuration."""
    if ending is Ending.PATIENCE:
        return f"{ending.value} in the last {trainer.config.patience}"
    if ending is Ending.STOPPED:
        return str(ending.value)
    values = {name: getattr(trainer.config, name) for name in ("steps", "epochs", "minutes")}
    limits = ", ".join(f"train.{name} = {value:g}" for name, value in values.items() if value)
    return f"{ending.value} ({limits})"


class TrainingLoss:
    """The mean loss since `start`."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.start()

    def start(self) -> None:
        self.nll, self.count = torch.zeros((), device=self.trainer.device), 0
        self.since = perf_counter()

    def add(self, result: StepResult) -> None:
        if result.finite:
            self.nll, self.count = self.nll + result.nll, self.count + result.count

    @property
    def mean(self) -> float:
        """Per token."""
        return float(self.nll) / max(self.count, 1)


class Meter(TrainingLoss):
    """The loss and the speed since the last report."""

    def is_due(self) -> bool:
        return perf_counter() - self.since >= REPORT_SECONDS

    def report(self, result: StepResult, epoch: float, progress: float) -> StepDone:
        at, elapsed = self.trainer.at, perf_counter() - self.since
        loss, speed, norm = self.mean, self.count / max(elapsed, 1e-9), float(result.norm)
        self.start()
        return StepDone(at.step, epoch, loss, result.rate, speed, norm, progress, at.seconds)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, time does not count towards the speed of training."""
        paused = perf_counter()
        yield
        self.since += perf_counter() - paused


class LossWatch(TrainingLoss):
    """Reports once that training diverged, or that the dev loss rises while training's falls."""

    first: float | None = None  # the loss of the first step, before anything was learned

    def add(self, result: StepResult) -> None:
        super().add(result)
        if self.trainer.at.step == 1 and result.finite:
            self.first = self.mean

    def check(self, evaluated: Evaluated) -> Iterator[Noticed]:
        at, dev = self.trainer.at, evaluated.scores["loss"]
        if self.first is not None and dev > self.first + 2 * max(1.0, abs(self.first)):
            yield Noticed(
                f"step {at.step:,}: the loss on the dev set is {dev:.4g}, and was {self.first:.3f} "
                f"before training: it diverges; lower train.rate ({self.trainer.config.rate:g})"
            )
            self.first = None
        if not self.count or at.rising >= RISING_EVALUATIONS:  # reported before
            return
        train = self.mean
        self.start()
        lowest, train_then = at.lowest
        if dev <= lowest:
            at.lowest, at.rising = (dev, train), 0
            return
        risen = dev > lowest + RISE * abs(lowest)
        at.rising = at.rising + 1 if risen and train < train_then else 0
        if at.rising == RISING_EVALUATIONS:
            yield Noticed(
                f"step {at.step:,}: the loss on the dev set has risen from {lowest:.3f} to "
                f"{dev:.3f}, and in training it fell from {train_then:.3f} to {train:.3f}: the "
                "model is overfitting; more examples, more dropout or a smaller network "
                f"would help. The best weights by {self.trainer.task.metric} are kept"
            )


# --- the cause of a loss that is not finite -------------------------------------------------------


def describe_bad_batch(trainer: Trainer, loader: Loader, epoch: int, index: int) -> str:
    """The batch of a step whose loss is not finite, and the lines that cause it, if known."""
    rows: list[int] = []
    bad: list[int] = []
    trainer.network.eval()
    batches = loader.epoch(epoch)
    for number in range(index, min(index + trainer.config.accumulate, len(batches))):
        examples = batches.examples(number)
        rows += examples
        if trainer.ranks.lockstep:  # a forward pass would need the others
            continue
        batch = batches[number]
        for i, row in enumerate(examples):
            single = batch.rows(torch.tensor([i])).to(trainer.device)
            with torch.no_grad(), slice_of(RowSlice(i, i + 1, len(examples), batch.words)):
                loss, _ = trainer.network(single)
            bad += [] if bool(loss.nll.isfinite()) else [row]
    trainer.network.train()
    shown = (bad or rows)[:5]
    places = locate_examples(trainer.task, shown)
    names = [places.get(row, f"example {row + 1}") for row in shown]
    more = len(bad or rows) - len(shown)
    which = "by" if 0 < len(bad) < len(rows) else "of"
    return f"batch {index} of epoch {epoch}, {which} {', '.join(names)}" + (
        f" and {more} more" if more else ""
    )
