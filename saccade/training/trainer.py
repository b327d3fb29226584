"""A network in training: one step, one evaluation, and all of it on disk and back.

What a step does is a function of (seed, step): the generator is seeded anew at every step. A step
that does not fit into memory is done again in parts, with the same random numbers; one whose
numbers are not finite never reaches the weights.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf, isfinite
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from saccade import config as c
from saccade.data.batches import Batch, Corpus
from saccade.errors import CheckpointError, TrainingError
from saccade.models.build import Network
from saccade.nn.dropout import RowSlice, slice_of
from saccade.nn.padded import Padded
from saccade.nn.state import leaves, select, with_leaves
from saccade.runs import checkpoints, files, guard
from saccade.runs.failures import within_memory, writing
from saccade.runs.machine import autocast, choose_precision, out_of_memory, seed_all
from saccade.tasks.task import Pair, Task, device_of
from saccade.training.optim import MovingAverage, build_optimizer, rate_at, scale_gradients
from saccade.training.stop import Interrupted, Stop

EVALUATING = ("an evaluation", "lower decode.batch_tokens in config.toml")
UPDATING = ("an update", "free memory (or train anew with a smaller train.batch_tokens)")
SLOWER = 0.5  # of the rate, after going back
TIMES = 3  # that a run goes back

Count = Annotated[int, Field(ge=0, lt=2**53)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass
class Position:
    """Where training stands, apart from tensors."""

    step: Count = 0
    epoch: Count = 0
    index: Count = 0  # of the next batch in the epoch
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    best: tuple[float, float] = (-inf, -inf)  # the metric, turned so that higher is better; -loss
    since_best: Count = 0  # evaluations
    plateau: Share = 1.0
    ranked: list[tuple[float, Count]] = field(default_factory=list)  # (metric, step)
    pending: bool = False  # an evaluation after this step is still to be done
    saved: list[Count] = field(default_factory=list)  # steps whose checkpoint was due
    bad: Count = 0  # steps in a row that were skipped
    skipped: Count = 0  # ... and in all
    slow: Share = 1.0  # what going back has left of the rate


POSITION = TypeAdapter(Position)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step has found."""

    nll: Tensor
    count: int
    norm: Tensor  # of the gradient, before clipping
    rate: float
    finite: bool


class Trainer:
    """A network in training: its optimiser, its averages, its position."""

    def __init__(self, task: Task, network: Network, folder: Path):
        self.task, self.network, self.folder = task, network, folder
        self.config: c.Train = task.config.train
        self.device = device_of(network)
        self.dtype = choose_precision(self.config, self.device)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.parameters = list(network.parameters())
        self.room: int | None = None  # batches of this size or more do not fit into memory
        self.begin()

    def begin(self) -> None:
        """Stand at the first step, with the weights that the network has."""
        self.optimizer = build_optimizer(self.network, self.config)
        average = self.config.average
        self.average = MovingAverage(self.network, average) if average else None
        self.at = Position()
        self.carry: Any = None

    # --- one step ---------------------------------------------------------------------------------

    def step(
        self, batches: Sequence[Batch], progress: float, stop: Stop | None = None
    ) -> StepResult:
        """One update from some batches' summed gradients; Interrupted leaves no trace of it."""
        at, stop = self.at, stop or Stop()
        rate = rate_at(self.config, at.step + 1, progress, at.plateau) * at.slow
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with stop.unchanged(lambda: self.save(due=False)):
            nll, count, carry = self.gradients(batches, progress, stop)
            self.scaler.unscale_(self.optimizer)
            norm = scale_gradients(self.parameters, max(count, 1), self.config.clip)
            finite = isfinite(float(norm + nll))
        searching = self.scaler.is_enabled() and self.scaler.get_scale() > 1.0  # for a scale
        if finite:
            with within_memory(self.folder, *UPDATING):
                self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        at.step += 1
        self.carry = carry if finite else None  # it may be as bad as the loss
        if finite:
            at.bad = 0
            if self.average is not None:
                self.average.update(self.network, at.step)
        else:
            at.bad += not searching
            at.skipped += 1
        return StepResult(nll, count, norm, rate, finite)

    def gradients(
        self, batches: Sequence[Batch], progress: float, stop: Stop | None = None
    ) -> tuple[Tensor, int, Any]:
        """Leave the summed gradients of the batches on the weights: (nll, tokens, what is carried).

        What does not fit into memory is cut and tried again, as often as there are rows to cut.
        A request to stop is answered between any two parts of the work.
        """
        if not self.network.training:
            self.network.train()
        while True:
            self._rows = self._size = 0  # of the piece that is being tried
            try:
                return self._gradients(batches, progress, stop or Stop())
            except Interrupted:
                self.optimizer.zero_grad(set_to_none=True)
                raise
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or not self._size:
                    raise
                message = str(error).splitlines()[0]
            # Here the error is gone, and with it the frames that held on to the memory.
            self.optimizer.zero_grad(set_to_none=True)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            if self._rows == 1:
                raise TrainingError(
                    f"out of memory with one example of {self._size} tokens, at step "
                    f"{self.at.step + 1}: lower data.max_len, or take a smaller network ({message})"
                )
            self.room = self._size

    def _gradients(
        self, batches: Sequence[Batch], progress: float, stop: Stop
    ) -> tuple[Tensor, int, Any]:
        seed_all((self.task.config.seed * 1_000_003 + self.at.step) % 2**63, self.device)
        nll, count, carried = torch.zeros((), device=self.device), 0, self.carry
        for batch in batches:
            pieces = self._pieces(batch)
            before = random_state(self.device) if len(pieces) > 1 else None
            carries = []
            for piece in pieces:
                stop.answer()
                self._rows, self._size = piece.last - piece.first, size_of(batch, piece)
                rows = torch.arange(piece.first, piece.last)
                some = batch if len(pieces) == 1 else batch_rows(batch, rows)
                carry = carried
                if before is not None:
                    set_random_state(before, self.device)
                    carry = None if carried is None else select(carried, rows.to(self.device))
                with slice_of(piece if len(pieces) > 1 else None):
                    with autocast(self.device, self.dtype):
                        loss, carry = self.task.loss(
                            self.network, some.to(self.device), carry, progress
                        )
                    stop.answer()
                    self.scaler.scale(loss.sum).backward()  # type: ignore[no-untyped-call]
                carries.append(carry)
                nll += loss.nll.detach()
                count += loss.count
            carried = joined(carries)
        return nll, count, carried

    def _pieces(self, batch: Batch) -> list[RowSlice]:
        """The batch whole, or cut so that no piece is as large as what did not fit."""
        rows, cuts = batch.target.values.size(0), 1
        words = 0 if batch.words is None else int(batch.words.max()) + 1
        if self.room is not None:
            while cuts < rows and size_of(batch, RowSlice(0, -(-rows // cuts), rows)) >= self.room:
                cuts *= 2
        length = -(-rows // min(cuts, rows))
        return [RowSlice(i, min(i + length, rows), rows, words) for i in range(0, rows, length)]

    # --- evaluation -------------------------------------------------------------------------------

    def evaluate(
        self, corpus: Corpus, pairs: Sequence[Pair], quick: bool, stop: Stop | None = None
    ) -> dict[str, float]:
        """The metrics of the weights that would predict: the moving average's, if there is one."""

        def swap() -> None:
            if self.average is not None:
                self.average.swap(self.network)

        def save() -> None:  # and nobody evaluates any more
            swap()
            self.save(due=False)

        stop, memory = stop or Stop(), within_memory(self.folder, *EVALUATING)
        self.network.eval()
        swap()
        try:
            with stop.unchanged(save), stop.interruptible(), memory:
                return self.task.evaluate(self.network, corpus, pairs, quick)
        finally:
            swap()

    def predicting(self) -> dict[str, Tensor]:
        """The weights that would predict."""
        weights = files.weights_of(self.network)
        if self.average is None:
            return weights
        return dict(zip(weights, self.average.weights, strict=True))

    def note(self, scores: dict[str, float]) -> bool:
        """Remember an evaluation; whether it is the best so far."""
        at, value = self.at, scores[self.task.metric]
        value = value if self.task.higher_is_better else -value
        if not at.bad:  # else there is no checkpoint of this step
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

    def save(self, due: bool) -> Path:
        """Write a checkpoint from which `restore` goes on as if nothing had happened.

        What is `due` is a function of the step. Only such checkpoints are averaged and gone back
        to: one that a signal or the clock has caused leaves no trace in the weights.
        """
        at, most = self.at, max(self.config.keep, self.config.average_checkpoints)
        if due:
            at.saved = [*(step for step in at.saved if step < at.step), at.step][-most:]
        state = asdict(at) | {"scaler": self.scaler.state_dict()}
        state["config"] = self.task.config.model_dump(mode="json", exclude_none=True)
        with writing(self.folder):
            folder = self.folder / "checkpoints"
            path = checkpoints.save(folder, at.step, self.tensors(), state)
        checkpoints.remove(folder, [path, *map(self._checkpoint, self._kept())])
        return path

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """The tensors of a checkpoint, by file."""
        tensors = {f"carry.{i}": tensor for i, tensor in enumerate(leaves(self.carry))}
        for i, slots in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{name}": tensor for name, tensor in slots.items()}
        parts = {"model": self.predicting(), "training": tensors}
        if self.average is not None:
            parts["raw"] = files.weights_of(self.network)
        return parts

    def _kept(self) -> list[int]:
        train, at = self.config, self.at
        if train.average_of == "last" or train.average_checkpoints == 1:
            return at.saved
        return at.saved + [step for _, step in at.ranked[: train.average_checkpoints]]

    def averaged(self) -> list[Path]:
        """The checkpoints whose mean is the result of the run."""
        many, steps = self.config.average_checkpoints, self.at.saved
        best = [step for _, step in self.at.ranked[:many]]
        steps = best if best and self.config.average_of == "best" else steps[-many:]
        return [self._checkpoint(step) for step in sorted(steps)]

    def _checkpoint(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"step-{step:08d}"

    def go_back(self) -> int | None:
        """Stand at the last good checkpoint with a lower rate; its step, or None at the limit."""
        then = self.at
        slow = then.slow * SLOWER
        if slow < SLOWER**TIMES:
            return None
        saved = map(self._checkpoint, then.saved)
        sound = [path for path in saved if checkpoints.defect(path) is None]
        if sound:
            self.restore(sound[-1])
        else:
            files.copy_weights(files.weights_of(self.task.build()), self.network, self.folder)
            self.begin()
        at, folder = self.at, self.folder / "checkpoints"
        paths = checkpoints.paths(folder)
        earlier = [path for path in paths if checkpoints.step_of(path) <= at.step]
        checkpoints.remove(folder, earlier if sound else [])  # what is later is no more
        at.slow, at.skipped, at.seconds = slow, then.skipped, then.seconds
        at.best = max(at.best, then.best)  # model.safetensors still holds it
        return at.step

    def restore(self, path: Path) -> None:
        """Stand where a checkpoint stood."""
        state = files.read_json(path / "state.json")
        self.begin()
        raw = path / "raw.safetensors"
        files.load_weights(raw if self.average else path / "model.safetensors", self.network)
        try:
            if self.average is not None:
                files.load_into(path / "model.safetensors", self.predicting())
            self.scaler.load_state_dict(dict(state["scaler"]))
            self.at = POSITION.validate_python(state)
            self._restore_tensors(path / "training.safetensors")
        except (KeyError, ValueError, TypeError, RuntimeError, AttributeError) as error:
            shown = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise CheckpointError(f"{path}: does not fit this run: {shown}") from None

    def _restore_tensors(self, path: Path) -> None:
        """Take over the optimiser's state and what is carried, tensor by tensor."""
        order = [p for group in self.optimizer.param_groups for p in group["params"]]
        form = leaves(self.task.carry(self.network, 1))
        for key, entry in guard.read_header(path).tensors.items():  # all of them before any is read
            kind, number, *name = key.split(".")
            known = order if kind == "optimizer" else form
            if kind not in ("optimizer", "carry") or not 0 <= int(number) < len(known):
                raise ValueError(f"a tensor '{key[:200]}'")
            own, shape = known[int(number)], tuple(entry["shape"])
            if kind == "carry":  # of as many rows as the batches had
                fits = not name and shape[1:] == own.shape[1:] and shape[:1] > (0,)
            else:
                fits = len(name) == 1 and shape == (() if name == ["step"] else own.shape)
                fits = fits and entry["dtype"] == files.DTYPES[own.dtype]
            if not fits:
                raise ValueError(f"'{key[:200]}' is {entry['dtype']} {str(shape)[:200]}")
        slots: dict[int, dict[str, Tensor]] = {}
        carried: dict[int, Tensor] = {}
        for key, tensor in files.tensors_in(path):
            kind, number, *name = key.split(".")
            if kind == "carry":
                carried[int(number)] = tensor.to(self.device)
            else:
                slots.setdefault(int(number), {})[name[0]] = tensor.to(order[int(number)].device)
        expected = self.optimizer.state_dict()
        names = {"exp_avg", "exp_avg_sq", "step"} if self.config.optimizer == "adamw" else set()
        if any(names - found.keys() for found in slots.values()):
            raise ValueError("a part of the optimiser's state is missing")
        self.optimizer.load_state_dict({"state": slots, "param_groups": expected["param_groups"]})
        if carried:
            parts = [carried[i] for i in range(len(form))]
            if len({part.size(0) for part in parts}) != 1:
                raise ValueError("the carried state is that of another network")
            self.carry = with_leaves(self.task.carry(self.network, 1), parts)


# --- parts of batches -----------------------------------------------------------------------------


def size_of(batch: Batch, part: RowSlice) -> int:
    """How many positions some rows of a batch have, padding included."""
    width = batch.target.values.size(1)
    width += 0 if batch.source is None else batch.source.values.size(1)
    return width * (part.last - part.first)


def batch_rows(batch: Batch, rows: Tensor) -> Batch:
    """Some rows of a batch, as wide as the whole."""

    def some(padded: Padded) -> Padded:
        return Padded(padded.values[rows], padded.lengths[rows])

    return replace(
        batch,
        source=None if batch.source is None else some(batch.source),
        target=some(batch.target),
        words=None if batch.words is None else batch.words[rows],
    )


def joined(carries: list[Any]) -> Any:
    """What the pieces of a batch carry, as one."""
    if len(carries) == 1 or carries[0] is None:
        return carries[0]
    columns = zip(*map(leaves, carries), strict=True)
    return with_leaves(carries[0], [torch.cat(column) for column in columns])


def random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state() if device.type == "cuda" else torch.get_rng_state()


def set_random_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state)
    else:
        torch.set_rng_state(state)
