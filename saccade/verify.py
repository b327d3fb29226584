"""The laws, tried on a user's own run: its network, its vocabularies, its data.

Each law says that two ways to the same thing give the same thing. It is measured by the largest
difference, and holds below a limit that is far above the rounding of single precision and far below
what any mistake makes. All is done on the CPU, in single precision.
"""

import copy
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade import config as c
from saccade.data.batches import Batch
from saccade.data.lines import Example
from saccade.decoding.search import beam_search, greedy
from saccade.decoding.steps import stepper
from saccade.errors import CheckpointError
from saccade.models.forecaster import StepForecaster
from saccade.models.networks import Generator, Network, TokenPredictor, shifted
from saccade.models.vectors import WordVectors
from saccade.nn.distributions import Distribution
from saccade.nn.dropout import RowSlice, slice_of
from saccade.nn.padded import Padded, View
from saccade.runs import checkpoints, files
from saccade.runs.guard import check_ids, own_paths
from saccade.runs.run import load
from saccade.runs.start import START_WEIGHTS, first_weights
from saccade.setup.prepare import reopen
from saccade.tasks.generate import GeneratingTask
from saccade.tasks.task import Task
from saccade.training import loop
from saccade.training.saving import restore
from saccade.training.stop import Stop
from saccade.training.trainer import Trainer

NUM_EXAMPLES = 16  # of the first ones of the dev set:
MAX_EXAMPLES = 2000
MAX_COLUMNS = 64  # of a target that is decoded step by step
REPLAY_STEPS = 6  # of the replay
TOLERANCE = 1e-4  # a difference of log-probabilities, or of gradients next to the largest
NO_DECODER = "the task gives labels or numbers at once: there is no decoder"
NO_SEARCH = "the task does not search"


@dataclass(frozen=True)
class Law:
    """One law, and what became of it."""

    name: str
    passed: bool | None  # None: it does not apply
    difference: float | None = None
    limit: float | None = None
    note: str = ""

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        result = {True: "pass", False: "FAIL", None: "-"}[self.passed]
        shown = "" if self.difference is None else f"{self.difference:.1e}"
        limit = "" if self.limit is None else f"(limit {self.limit:g})"
        return f"{result:5}{self.name:36}{' '.join(filter(None, [shown, limit, self.note]))}"


@dataclass(frozen=True)
class Sample:
    """What the laws are tried on."""

    folder: Path
    config: c.Config
    task: Task
    network: Network
    examples: list[Example]
    batch: Batch


def verify(folder: Path) -> Iterator[Law]:
    """Every law, as soon as it is tried."""
    run = load(folder, "cpu", ensemble=False)
    if not any((folder / "data").glob("dev.*")):
        yield from (Law(name, None, note="the run's data/ is gone") for name in LAWS)
        return
    ready = reopen(run.config, folder)
    if run.task.reads_media:
        run.task.remember(ready.dev, ready.dev_examples)
    rows = sorted(ready.dev_examples[:MAX_EXAMPLES], key=lambda row: len(row.source[0]))
    rows = [row for row in rows if all(part.strip() for part in row.source)]
    rows = rows[:: max(1, len(rows) // NUM_EXAMPLES)][:NUM_EXAMPLES]  # short ones and long ones
    if not rows:
        raise CheckpointError(f"{folder / 'data'}: holds no example to measure on: train anew")
    batch = run.task.sample(rows)
    sample = Sample(folder, run.config, run.task, run.network, rows, batch)
    for name, law in LAWS.items():
        yield replace(law(sample), name=name)


def cached_is_uncached(sample: Sample) -> Law:
    """Step by step, with what a decoder keeps, gives the log-probabilities of all at once."""
    network = sample.network
    if not isinstance(network, Generator | StepForecaster):
        return Law("", None, note=NO_DECODER)
    target = sample.batch.target
    cut = Padded(target.values[:, :MAX_COLUMNS], target.lengths.clamp(max=MAX_COLUMNS))
    tokens, said = shifted(cut)
    with torch.inference_mode():
        if isinstance(network, StepForecaster):
            _, state = network.start(sample.batch.sources)
        else:
            state = network.decoder.start(network.encode(sample.batch.sources), tokens.size(0))
        whole, _ = network.decoder(tokens, state)
        columns = []
        for t in range(tokens.size(1)):
            logits, state = network.decoder(tokens[:, t : t + 1], state)
            columns.append(logits)
    output = network.decoder.output
    both = [
        said.real(
            output.nll(raw, said.values)
            if isinstance(output, Distribution)
            else raw.log_softmax(-1)
        )
        for raw in (whole, torch.cat(columns, 1))
    ]
    return measured(both[0], both[1], TOLERANCE)


def batch_is_single(sample: Sample) -> Law:
    """An example has the same score beside others as alone; a token's, on the average."""
    together = sample.task.score(sample.network, sample.examples)
    alone = [sample.task.score(sample.network, [row])[0] for row in sample.examples]
    scores = [
        torch.tensor([log_p / max(count, 1) for log_p, count in found])
        for found in (together, alone)
    ]
    return measured(scores[0], scores[1], TOLERANCE)


def padding_is_invisible(sample: Sample) -> Law:
    """Columns of padding behind a batch change no loss."""
    batch, network = sample.batch, sample.network
    if isinstance(network, WordVectors):
        return Law("", None, note="the task reads blocks that are full")
    per_position = isinstance(network, Generator | TokenPredictor)
    target = widened(batch.target) if per_position else batch.target
    wide = Batch(tuple(map(widened, batch.sources)), target)
    with torch.inference_mode():
        losses = [network(some)[0] for some in (batch, wide)]
    means = [(loss.nll / max(loss.count, 1)).reshape(1) for loss in losses]
    return measured(means[0], means[1], TOLERANCE)


def widened(padded: Padded) -> Padded:
    words = None if padded.words is None else F.pad(padded.words, (0, 7), value=-1)
    beside = (0, 0) * (padded.values.dim() - 2)  # the numbers of a vector
    view = padded.view
    if view is not None:
        view = View(
            *(F.pad(part, (0, 7)) for part in (view.key_order, view.query_order, view.position_ids))
        )
    return Padded(F.pad(padded.values, (*beside, 0, 7)), padded.lengths, words, view)


def beam_of_one_is_greedy(sample: Sample) -> Law:
    """Both searches say the same, with the same score."""
    network, task = sample.network, sample.task
    if not isinstance(network, Generator) or not isinstance(task, GeneratingTask):
        return Law("", None, note=NO_SEARCH)
    special = task.output.specials
    rows = sample.batch.target.values.size(0)
    step = stepper(network.decoder, special.never_generated)
    with torch.inference_mode():
        state = network.decoder.start(network.encode(sample.batch.sources), rows)
    first = torch.full((rows,), special.bos if network.encoder is not None else special.eos)
    limits = [min(MAX_COLUMNS, task.config.decode.max_len)] * rows
    one = greedy(step, state, first, end=special.eos, limits=limits)
    other = beam_search(step, state, first, end=special.eos, width=1, limits=limits)
    differ = sum(a.tokens != b[0].tokens for a, b in zip(one, other, strict=True))
    law = measured(
        torch.tensor([a.score for a in one]), torch.tensor([b[0].score for b in other]), 1e-3
    )
    note = f"{differ} of {rows} outputs differ" if differ else ""
    return replace(law, passed=law.passed and not differ, note=note)


def accumulation_is_a_big_batch(sample: Sample) -> Law:
    """The gradients of two unequal parts, added, are the gradient of the whole."""
    rows = sample.batch.target.values.size(0)
    cut = max(1, rows // 3)
    if rows < 2:
        return Law("", None, note="one example cannot be cut")
    whole = gradient(sample, [torch.arange(rows)])
    parts = gradient(sample, [torch.arange(cut), torch.arange(cut, rows)])
    largest = max(float(whole.abs().max()), 1e-12)
    return measured(whole / largest, parts / largest, TOLERANCE)


def gradient(sample: Sample, parts: list[Tensor]) -> Tensor:
    """The summed gradient over the count, as one vector; without dropout."""
    sample.network.zero_grad(set_to_none=True)
    batch, count = sample.batch, 0
    for rows in parts:
        with slice_of(RowSlice(int(rows[0]), int(rows[-1]) + 1, batch.count, batch.words)):
            loss, _ = sample.network(batch.rows(rows))
        loss.sum.backward()
        count += loss.count
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in sample.network.parameters()]
    sample.network.zero_grad(set_to_none=True)
    return torch.cat([g.to_dense().flatten() for g in found]) / max(count, 1)


def resuming_is_never_having_stopped(sample: Sample) -> Law:
    """A short replay, straight through, and stopped half-way: the same to the last bit."""
    train = sample.config.train.model_copy(
        update={
            "steps": REPLAY_STEPS,
            "epochs": None,
            "minutes": None,
            "patience": None,
            "evaluate_every": 2,
            "save_every": None,
            "average_checkpoints": 1,
            "keep": 2,
            "device": "cpu",
            "precision": "fp32",
        }
    )
    config = own_paths(sample.config, sample.folder).model_copy(update={"train": train})
    ready = reopen(config, sample.folder)
    task = ready.task
    check_ids(task, ready.train, sample.folder)
    few = sample.examples[:2]
    dev = task.encode(few)

    def replay(folder: Path, last: int) -> None:
        folder.mkdir(exist_ok=True)
        trainer, stop = Trainer(task, _in_training(sample, task, folder), folder), Stop()
        path, _ = checkpoints.latest(folder / "checkpoints")
        if path is not None:
            restore(trainer, path)
        for event in loop.train(trainer, ready.train, dev, few, stop):
            stop.requested |= getattr(event, "step", 0) >= last

    with tempfile.TemporaryDirectory(prefix="saccade-verify-") as name:
        straight, halted = Path(name) / "straight", Path(name) / "halted"
        replay(straight, REPLAY_STEPS + 1)
        replay(halted, REPLAY_STEPS // 2)
        replay(halted, REPLAY_STEPS + 1)
        ends = [checkpoints.paths(folder / "checkpoints")[-1] for folder in (straight, halted)]
        found = [
            {f"{file} {key}": tensor.clone() for file in ("model", "training")
             for key, tensor in files.read_tensors(end / f"{file}.safetensors").items()}
            for end in ends
        ]  # fmt: skip
    if ends[0].name != ends[1].name or found[0].keys() != found[1].keys():
        return Law("", False, note=f"one ended at {ends[0].name}, the other at {ends[1].name}")
    both = [torch.cat([t.flatten().double() for t in tensors.values()]) for tensors in found]
    return replace(
        measured(both[0], both[1], 0.0), note=f"{REPLAY_STEPS} steps, stopped after 2 or 3"
    )


def _in_training(sample: Sample, task: Task, folder: Path) -> Network:
    """The network as it is in training, for a run in another folder."""
    if sample.config.start is None:
        return copy.deepcopy(sample.network)
    shutil.copyfile(sample.folder / START_WEIGHTS, folder / START_WEIGHTS)
    network = first_weights(task.build_meta(), task.config, folder)  # with adapters
    files.load_weights(sample.folder / "model.safetensors", network)
    return network


def measured(one: Tensor, other: Tensor, limit: float) -> Law:
    """The law that two tensors are the same, within a limit."""
    if one.shape != other.shape:
        return Law("", False, note=f"{tuple(one.shape)} is not {tuple(other.shape)}")
    same = (one == other) | (one.isnan() & other.isnan())
    difference = float((one - other).abs().masked_fill(same, 0.0).max()) if one.numel() else 0.0
    return Law("", difference <= limit, difference, limit)


LAWS: dict[str, Callable[[Sample], Law]] = {
    "cached = uncached": cached_is_uncached,
    "batch = single": batch_is_single,
    "padding is invisible": padding_is_invisible,
    "beam of 1 = greedy": beam_of_one_is_greedy,
    "accumulation = a big batch": accumulation_is_a_big_batch,
    "stop and resume = straight through": resuming_is_never_having_stopped,
}
