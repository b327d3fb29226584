"""The loop: a generator of events. It reports; others decide what to show.

What a step does is a function of (seed, step), and batch i of epoch e is found by its number, so
that resuming is never having stopped.
"""

from collections.abc import Iterator, Sequence
from time import perf_counter

import torch

from saccade.data.batches import Corpus, Epoch, Stream
from saccade.errors import TrainingError
from saccade.nn.dropout import RowSlice, slice_of
from saccade.runs import checkpoints, files
from saccade.runs.failures import within_memory, writing
from saccade.setup.prepare import whereabouts
from saccade.tasks.task import Pair
from saccade.training.events import Evaluated, Event, Finished, Noticed, Saved, Skipped, StepDone
from saccade.training.loader import Loader
from saccade.training.stop import Interrupted, Stop
from saccade.training.trainer import (
    EVALUATING,
    Position,
    Trainer,
    batch_rows,
)

__all__ = ["Position", "Trainer", "finish", "train"]

REPORT_SECONDS = 0.25
SAVE_SECONDS = 600.0  # no more than this is ever lost, however long an epoch is
BAD_STEPS = 5  # in a row without a finite gradient: go back


def train(
    trainer: Trainer,
    corpus: Corpus,
    dev: Corpus,
    pairs: Sequence[Pair],
    stop: Stop | None = None,
) -> Iterator[Event]:
    """Train to a limit, reporting on the way; the run's model.safetensors gets the best weights."""
    loader = Loader(trainer.task, corpus, trainer.config.workers)
    try:
        yield from _train(trainer, loader, dev, pairs, stop or Stop())
    finally:
        loader.close()


def _train(
    trainer: Trainer, loader: Loader, dev: Corpus, pairs: Sequence[Pair], stop: Stop
) -> Iterator[Event]:
    config = trainer.config
    quick = pairs[: config.evaluate_max]
    began = perf_counter() - trainer.at.seconds
    nll, count, since = torch.zeros((), device=trainer.device), 0, perf_counter()  # since a report
    room: int | None = None

    def progress() -> float:
        at = trainer.at
        done = at.epoch + (at.index / len(loader.epoch(at.epoch)) if at.index else 0.0)
        return max(
            at.step / config.steps if config.steps else 0.0,
            done / config.epochs if config.epochs else 0.0,
            at.seconds / (60 * config.minutes) if config.minutes else 0.0,
        )

    def over() -> str:
        if progress() >= 1.0:
            return f"the limit is reached ({limits(trainer)})"
        if config.patience and trainer.at.since_best >= config.patience:
            return f"no better evaluation in the last {config.patience}"
        return ""

    saved = perf_counter()
    reason = "" if trainer.at.pending else over()  # a run that had ended has nothing more to do
    while not reason:
        at = trainer.at
        due = at.pending  # an evaluation that a signal has put off
        if not due:
            try:
                with stop.interruptible():  # the first of an epoch may have to wait for its order
                    batches = loader.take(at.epoch, at.index, config.accumulate)
                done = trainer.step(batches, progress(), stop)
            except Interrupted:  # all is as it was before the step
                with stop.saving():
                    path = trainer.save(due=False)
                yield Saved(at.step, path)
                reason = "stopped"
                break
            if not done.finite:
                yield Skipped(at.step, at.skipped)
                if at.bad >= BAD_STEPS:
                    if (step := trainer.go_back()) is None:
                        raise TrainingError(
                            f"{trainer.folder}: step {at.step}: the loss or its gradient is not "
                            f"finite, {BAD_STEPS} times in a row, and again at lower rates; "
                            f"{suspects(trainer, loader, at.epoch, at.index)}; "
                            "lower train.rate, or look at these lines"
                        )
                    yield Noticed(
                        f"step {at.step:,}: {BAD_STEPS} steps in a row without a finite gradient, "
                        f"the last with batch {at.index} of epoch {at.epoch}; "
                        f"back to step {step:,}, at {trainer.at.slow:g} of the rate"
                    )
                    continue
            if trainer.room != room:
                room = trainer.room
                yield Noticed(f"step {at.step:,}: out of memory; batches like it are now cut")
            at.index += len(batches)
            at.seconds = perf_counter() - began
            if done.finite:
                nll, count = nll + done.nll, count + done.count
            epoch = loader.epoch(at.epoch)
            new_epoch, end = at.index >= len(epoch), progress() >= 1.0
            passed = perf_counter() - since
            if passed >= REPORT_SECONDS or end or new_epoch:
                loss, speed = float(nll) / max(count, 1), count / max(passed, 1e-9)
                yield StepDone(
                    at.step,
                    at.epoch + at.index / len(epoch),
                    loss,
                    done.rate,
                    speed,
                    float(done.norm),
                    progress(),
                    at.seconds,
                )
                nll, count, since = torch.zeros_like(nll), 0, perf_counter()
            if new_epoch:
                at.epoch, at.index, trainer.carry = at.epoch + 1, 0, None
            every = config.evaluate_every
            due = end or (at.step % every == 0 if every else new_epoch)
            at.pending = due and bool(pairs)

        if at.pending and not stop():
            paused = perf_counter()
            try:
                scores = trainer.evaluate(dev, quick, True, stop)
            except Interrupted:
                pass  # it is still pending, and a checkpoint says so
            else:
                at.pending = False
                best = trainer.note(scores)
                with stop.saving(), writing(trainer.folder):
                    if best:
                        model = trainer.folder / "model.safetensors"
                        files.save_weights(model, trainer.predicting())
                at.seconds = perf_counter() - began
                since += perf_counter() - paused  # the speed is that of training
                yield Evaluated(at.step, scores, best, at.seconds)
        reason = "stopped" if at.pending else over() or ("stopped" if stop() else "")
        saving = at.step % config.save_every == 0 if config.save_every else due
        saving |= due and config.average_of == "best" and config.average_checkpoints > 1
        saving = (saving and not at.bad and not at.pending) or reason not in ("", "stopped")
        if saving or reason or perf_counter() - saved > SAVE_SECONDS:
            paused = perf_counter()
            with stop.saving():
                path = trainer.save(due=saving)
            yield Saved(at.step, path)
            saved = perf_counter()
            since += saved - paused

    if reason != "stopped":
        memory = within_memory(trainer.folder, "the making of the mean", "free memory")
        with stop.saving(), writing(trainer.folder), memory:
            problems = finish(trainer)
        yield from (Noticed(f"{problem}: left out of the mean") for problem in problems)
    try:
        scores = {}
        if pairs and reason != "stopped":
            with stop.interruptible(), within_memory(trainer.folder, *EVALUATING):
                scores = trainer.task.evaluate(trainer.network, dev, pairs, quick=False)
    except Interrupted:
        reason = "stopped"
    yield Finished(trainer.at.step, reason, scores, trainer.at.seconds)


def limits(trainer: Trainer) -> str:
    """The limits of a run, as they are written in its configuration."""
    names = ("steps", "epochs", "minutes")
    found = {name: getattr(trainer.config, name) for name in names}
    return ", ".join(f"train.{name} = {value:g}" for name, value in found.items() if value)


def suspects(trainer: Trainer, loader: Loader, epoch: int, index: int) -> str:
    """What is known of a step whose loss is not finite: its batch, and the lines it was made of."""
    rows: list[int] = []
    guilty: list[int] = []
    trainer.network.eval()
    for number, batch in enumerate(loader.take(epoch, index, trainer.config.accumulate), index):
        own = examples_of(loader, epoch, number)
        words = 0 if batch.words is None else int(batch.words.max()) + 1
        for i, row in enumerate(own):
            one = batch_rows(batch, torch.tensor([i])).to(trainer.device)
            with torch.no_grad(), slice_of(RowSlice(i, i + 1, len(own), words)):
                loss, _ = trainer.task.loss(trainer.network, one, None, 1.0)
            guilty += [] if bool(loss.nll.isfinite()) else [row]
        rows += own
    trainer.network.train()
    shown = (guilty or rows)[:5]
    names = [place.get(row, f"example {row + 1}") for place in [whereabouts(trainer.task, shown)]
             for row in shown]  # fmt: skip
    more = len(guilty or rows) - len(shown)
    which = "by" if 0 < len(guilty) < len(rows) else "of"
    return f"batch {index} of epoch {epoch}, {which} {', '.join(names)}" + (
        f" and {more} more" if more else ""
    )


def examples_of(loader: Loader, epoch: int, index: int) -> list[int]:
    """Which examples of the training data a batch is made of; of a text, its lines."""
    batches = loader.epoch(epoch)
    if isinstance(batches, Epoch):
        return [int(row) for row in batches.plan[index]]
    assert isinstance(batches, Stream)
    starts = loader.corpus.target.starts
    return [int(starts.searchsorted(place, "right")) - 1 for place in batches.spans(index)[0]]


def finish(trainer: Trainer) -> list[str]:
    """What is wrong with checkpoints that were to be averaged.

    Leaves in the run and the network the weights that predict: the best, or a mean of several.
    """
    config, model = trainer.config, trainer.folder / "model.safetensors"
    problems: list[str] = []
    if config.average_checkpoints > 1:
        mean, problems = checkpoints.mean(trainer.averaged())
        files.save_weights(model, mean)
    elif not model.exists():  # nothing was ever evaluated
        files.save_weights(model, trainer.predicting())
    files.load_weights(model, trainer.network)
    trainer.network.eval()
    return problems
