"""The subject of a plan: a published size, a configuration, or a run; its network without memory.

For a configuration whose data exists, vocabularies are trained as in training, so that the number
of parameters is exact; else they have the maximum size of the tokenizers.
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from saccade import config as c
from saccade.data.batches import Batch
from saccade.data.lines import data_files
from saccade.errors import ConfigError
from saccade.models.build import build_meta
from saccade.models.networks import Generator, Network, TokenPredictor
from saccade.models.presets import PRESETS, SIZES, preset
from saccade.models.vectors import WordVectors
from saccade.nn.padded import UNSCORED_ID
from saccade.plan.costs import Shape
from saccade.plan.published import ALIASES, PUBLICATIONS, Publication
from saccade.runs.folder import read_config
from saccade.runs.start import pretrained_config, pretrained_run
from saccade.setup.choose import gather, paths_of, survey_and_fill
from saccade.setup.prepare import Prepared, prepare, reopen
from saccade.setup.start import vocabularies
from saccade.tasks.registry import load_task
from saccade.tasks.task import NO_VOCABULARIES
from saccade.text.vocab import Inventory, Specials

MAX_DATA_BYTES = 1 << 26  # of training files that are read: more would take a while
SAMPLED_BATCHES = 24  # of an epoch, whose shapes represent all
ASSUMED_POSITIONS = 32  # of a source or a target, without data
ASSUMED_LABELS = 2
PRESET_TRAIN = {"steps", "minutes", "batch_tokens", "optimizer", "average"}  # of a published size
T5_TARGET = 114  # target tokens of a T5 for 512 source tokens


@dataclass(frozen=True)
class Subject:
    """A network on the meta device, and its training data."""

    name: str
    config: c.Config
    network: Network
    shapes: Sequence[Shape]  # of sampled batches
    batches: float = 1.0  # of a step
    steps: float | None = None  # of the run; None where only a time limit ends it
    tokens: float = 0.0  # that a step learns from
    notes: tuple[str, ...] = ()
    publication: Publication | None = None
    ready: Prepared | None = None  # the data, if it exists
    folder: Any = field(default=None, repr=False)  # a temporary one that holds it

    def close(self) -> None:
        """Remove the temporary files; the data cannot be read after that."""
        if self.folder is not None:
            self.folder.cleanup()

    @property
    def largest(self) -> Shape:
        """The batch with the most positions."""
        return max(self.shapes, key=lambda s: s.rows * (sum(s.sources) + s.target) + s.targets)


def subject_of(name: str, settings: Sequence[str] = ()) -> Subject:
    """The subject by its name: a published size, a configuration.toml, or a run's directory."""
    known = ALIASES.get(name, name)
    if known in PRESETS:
        return _of_preset(known, settings)
    path = Path(name)
    if path.is_dir():
        if settings:
            raise ConfigError(f"{name}: --set is not supported for a finished run: leave it out")
        return _of_run(path)
    if path.is_file():
        return _of_config(path, settings)
    if path.suffix[1:].isalpha() or len(path.parts) > 1:
        raise ConfigError(f"{name}: no such file or run; check the path")
    near = get_close_matches(name, [*PRESETS, *ALIASES], n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(PRESETS)}"
    if name in SIZES:
        hint = "a size of any network, which needs a configuration for the rest"
    raise ConfigError(f"{name}: no configuration, run or published size of this name; {hint}")


# --- a published size -----------------------------------------------------------------------------


def _of_preset(name: str, settings: Sequence[str]) -> Subject:
    published, paper = preset(name), PUBLICATIONS[name]
    config = _preset_config(name, paper.context, settings)
    ids = Inventory(published.rows, Specials().ids)
    network = build_meta(config, [] if published.kind == "language" else [ids], ids)
    T, train = _context_of(config), config.train
    match published.kind:
        case "language":
            shape, row = Shape(1, (), T, T), T
        case "translate" if name.startswith("transformer"):
            shape, row = Shape(1, (T,), T, T), 2 * T
        case "translate":
            target = min(T5_TARGET, T) if name.startswith("t5") else T
            shape, row = Shape(1, (T,), target, target), T
        case _:
            targets = T if name == "elmo" else round(0.15 * T)
            shape, row = Shape(1, (T,), T, targets), T
    given = "batch_tokens" in _given_train(settings)
    tokens = float(train.batch_tokens) if given else paper.batch or float(row)
    steps = paper.tokens / tokens if paper.tokens else None
    steps = float(train.steps) if train.steps else steps
    notes = [f"memory is of one sequence of {T:,} positions at a time"]
    if name.startswith("transformer"):
        notes.append(f"sentences of {T} tokens are assumed")
    return Subject(name, config, network, [shape], tokens / row, steps, tokens, tuple(notes), paper)


def _context_of(config: c.Config) -> int:
    """The positions of a sequence."""
    match config.task:
        case c.LanguageModel() | c.Pretrain():
            return config.task.context
        case _:
            return config.data.max_len


def _given_train(settings: Sequence[str]) -> set[str]:
    raw: dict[str, Any] = {}
    for setting in settings:
        c.assign_text(raw, setting)
    return set(raw.get("train", {}))


def _preset_config(name: str, context: int, settings: Sequence[str]) -> c.Config:
    published = preset(name)
    task: dict[str, Any] = {"kind": published.kind, "context": context}
    if published.kind == "translate":
        task = {"kind": "translate", "joint": True}
    if published.kind == "masked":
        kind = {"elmo": "bidirectional", "xlnet-large": "permuted"}.get(name, "masked")
        task |= {"kind": "pretrain", "objective": {"kind": kind}}
    raw: dict[str, Any] = {"task": task, "data": {"max_len": context}, **published.tables}
    for setting in settings:
        c.assign_text(raw, setting)
    config = c.parse(raw, name)
    if useless := _given_train(settings) - PRESET_TRAIN:
        raise ConfigError(
            f"--set train.{min(useless)}: has no effect on the plan of a published size: leave it "
            f"out; of train there are {', '.join(sorted(PRESET_TRAIN))}"
        )
    return config


# --- a configuration ------------------------------------------------------------------------------


def _of_config(path: Path, settings: Sequence[str]) -> Subject:
    raw, where = gather([str(path)])
    for setting in settings:
        c.assign_text(raw, setting)
    named = raw.get("data", {}).get("train", ()) if isinstance(raw.get("data"), dict) else ()
    files = [Path(file) for file in data_files(paths_of(named))]
    there = bool(files) and all(file.is_file() for file in files)
    size = sum(os.stat(file).st_size for file in files) if there else 0
    if there and size <= MAX_DATA_BYTES:
        return _of_data(raw, where, path)
    why = f"{size >> 20:,} MB of data are not read" if there else "its data is not there"
    config, _, _ = survey_and_fill(raw, where) if there else (c.parse(raw, where), "", None)
    network, note = _assumed(config, where, why)
    shape = _assumed_shape(config)
    steps = float(config.train.steps) if config.train.steps else None
    tokens = float(shape.targets * config.train.accumulate)
    return Subject(
        str(path), config, network, [shape], config.train.accumulate, steps, tokens, note
    )


def _of_data(raw: dict[str, Any], where: str, path: Path) -> Subject:
    """A configuration with its data, prepared in a temporary folder as in training."""
    config, _, seen = survey_and_fill(raw, where, pretrained_config(raw, where))
    given = NO_VOCABULARIES
    if config.start is not None:
        given = vocabularies(config, pretrained_run(config.start)[0].task)
    folder = tempfile.TemporaryDirectory(prefix="saccade-plan-")
    try:
        ready = prepare(config, Path(folder.name), seen, given)
        return _of_ready(str(path), ready, folder)
    except BaseException:
        folder.cleanup()
        raise


def _of_run(folder: Path) -> Subject:
    config = read_config(folder)
    if (folder / "data").is_dir():
        return _of_ready(str(folder), reopen(config, folder), None)
    network, shape = load_task(config, folder).build_meta(), _assumed_shape(config)
    note = f"the run has no data: batches of {_in_words(shape)} are assumed"
    steps = float(config.train.steps) if config.train.steps else None
    tokens = float(shape.targets * config.train.accumulate)
    more = config.train.accumulate, steps, tokens, (note,)
    return Subject(str(folder), config, network, [shape], *more)


def _of_ready(name: str, ready: Prepared, folder: Any) -> Subject:
    config, network = ready.task.config, ready.task.build_meta()
    batches, train = ready.task.epoch(ready.train, 0), config.train
    some = sampled(len(batches))
    shapes = [shape_of(batches[i], network) for i in some]
    limits = [float(train.steps)] if train.steps else []
    limits += [train.epochs * len(batches) / train.accumulate] if train.epochs else []
    tokens = train.accumulate * sum(shape.targets for shape in shapes) / len(shapes)
    notes = []
    if isinstance(config.start, c.Frozen | c.LowRank):
        notes.append("all weights are counted as learning; what is frozen takes less")
    steps = min(limits, default=None)
    return Subject(
        *(name, config, network, shapes, train.accumulate, steps, tokens, tuple(notes)),
        ready=ready,
        folder=folder,
    )


def sampled(count: int) -> list[int]:
    """Some batches of an epoch, evenly spread."""
    many = min(count, SAMPLED_BATCHES)
    return [i * count // many for i in range(many)]


def shape_of(batch: Batch, network: Network) -> Shape:
    """The sizes of a batch, as a network reads it."""
    target, sources = batch.target, tuple(source.values.size(1) for source in batch.sources)
    T, targets = target.values.size(1), target.count
    if isinstance(network, Generator) and not target.values.is_floating_point():
        T, targets = T - 1, int((target.lengths - 1).clamp(min=0).sum())  # the first is only read
    elif isinstance(network, TokenPredictor):
        targets = int((target.values != UNSCORED_ID).sum())
    elif isinstance(network, WordVectors):
        targets = int((batch.sources[1].values + batch.sources[2].values > 0).sum())
    return Shape(batch.count, sources, T, max(1, targets))


# --- without data ---------------------------------------------------------------------------------


def _assumed(config: c.Config, where: str, why: str) -> tuple[Network, tuple[str, ...]]:
    """The network with vocabularies as large as tokenizers may make them."""
    task, ids, sources = config.task, Specials().ids, []
    note = f"{why}: vocabularies are as large as their tokenizers may make them, and batches of "
    for source in task.sources(config.data.source or (1,)):
        if not isinstance(source.reader, c.Tokenizer):
            raise ConfigError(f"{where}: {why}, and a source other than text depends on it")
        reader = source.reader
        sources.append(Inventory(reader.size, ids, 1, reader.ordered, reader.spelled))
    match task:
        case c.Translate():
            target = Inventory(task.target.size, ids)
        case c.LanguageModel() | c.Pretrain():
            target = Inventory(task.tokenizer.size, ids)
        case c.Classify() | c.Tag():
            target = Inventory(ASSUMED_LABELS)
        case _:
            raise ConfigError(f"{where}: {why}, and the network depends on it")
    sources = [] if "encoder" not in task.parts else sources
    return build_meta(config, sources, target), (note + f"{_in_words(_assumed_shape(config))}",)


def _assumed_shape(config: c.Config) -> Shape:
    task, budget = config.task, config.train.batch_tokens
    S = min(ASSUMED_POSITIONS, config.data.max_len)
    match task:
        case c.LanguageModel() | c.Pretrain():
            T = task.context
            rows = max(1, budget // T)
            if config.decoder is None:
                return Shape(rows, (T,), T, max(1, round(0.15 * rows * T)))
            return Shape(rows, (T,) if config.encoder else (), T, rows * T)
        case c.Translate():
            rows = max(1, budget // (2 * S))
            return Shape(rows, (S,) * max(1, len(config.data.source)), S, rows * S)
        case _:
            rows = max(1, budget // S)
            T = S if config.task.target_type == "labels" else 1
            return Shape(rows, (S,) * max(1, len(config.data.source)), T, rows * T)


def _in_words(shape: Shape) -> str:
    sizes = " and ".join(map(str, (*shape.sources[:1], shape.target)))
    return f"{shape.rows:,} rows of {sizes} positions"
