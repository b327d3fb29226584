"""A run: a directory that is enough by itself. Made by `train`, opened by `load`.

config.toml        every choice
model.safetensors  the weights that predict
*.json             the vocabularies
metrics.jsonl      what happened
checkpoints/       from which training goes on
data/              the tokenised corpus
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from saccade.config import Config, assign, read_toml
from saccade.data.batches import Corpus
from saccade.data.lines import Defect, Example, counted
from saccade.data.sources import examples, read, words_of
from saccade.errors import CheckpointError, ConfigError, DataError
from saccade.models.build import Generator, Network
from saccade.tasks.choose import complete
from saccade.tasks.labels import LabelTask
from saccade.tasks.prepare import (
    Prepared,
    in_memory,
    load_task,
    prepare,
    refuse_unseen,
    reopen,
)
from saccade.tasks.task import Pair, Prediction, Task, chunks
from saccade.training import checkpoint as disk
from saccade.training import events
from saccade.training.folder import (
    check_changes,
    config_in,
    locked,
    raised,
    read_config,
    read_settings,
    refuse_giants,
    write_config,
    write_settings,
)
from saccade.training.loop import Trainer
from saccade.training.loop import train as loop
from saccade.training.machine import Device, choose_device, choose_precision, tune_malloc
from saccade.training.preflight import preflight
from saccade.training.report import show
from saccade.training.stop import Interrupted, Stop
from saccade.training.trainer import to_disk

LINES = 2048  # read, sorted by length and decoded at once
LARGE = 1 << 25  # bytes of training files that are worth a word before they are read


class Run:
    """A trained model with all that it needs to read raw text and write raw text."""

    def __init__(self, folder: Path, config: Config, task: Task, network: Network):
        self.folder = folder
        self.config = config
        self.task = task
        self.network = network

    def predict(
        self, inputs: Iterable[str | Sequence[str]], width: int | None = None, nbest: int = 1
    ) -> list[Prediction]:
        """A prediction for each input, in order; an input is a text, or a tuple of columns."""
        return list(self.stream(inputs, width, nbest))

    def stream(
        self,
        inputs: Iterable[str | Sequence[str]],
        width: int | None = None,
        nbest: int = 1,
        at_once: int = LINES,
    ) -> Iterator[Prediction]:
        """The same, as they come, so many at once: for files larger than memory, and for people."""
        if width is not None and width < 1:
            raise ConfigError(f"a beam of width {width}: the width must be at least 1")
        if nbest < 1:
            raise ConfigError(f"the {nbest} best: at least 1 must be wanted")
        kind = self.config.task.kind
        if width is not None and kind in ("classify", "tag"):
            raise ConfigError(f"a beam of width {width}: the task '{kind}' does not search")
        if nbest > 1 and kind == "tag":
            raise ConfigError(f"the {nbest} best: the task 'tag' has one answer")
        if nbest > (width or self.config.decode.width) and self.config.task.kind in (
            "translate",
            "model",
        ):
            raise ConfigError(
                f"{nbest} best of a beam of width {width or self.config.decode.width}: "
                f"there are at most as many as the beam is wide; add --width {nbest}"
            )
        count = 0
        for some in chunks(inputs, at_once):
            sources = [self._source(item, count + i) for i, item in enumerate(some, 1)]
            count += len(some)
            full = [i for i, source in enumerate(sources) if any(text.strip() for text in source)]
            found = self.task.predict(self.network, [sources[i] for i in full], width, nbest)
            ready = dict(zip(full, found, strict=True))
            for i in range(len(sources)):  # an empty line in is an empty line out
                yield ready.get(i, Prediction("", 0.0))

    def reads(self, path: str | os.PathLike[str]) -> bool:
        """Whether a file is named as the training file was, and that was more than lines."""
        data = self.config.data
        same = Path(path).suffix == Path(data.train[0].removesuffix(".gz")).suffix
        return same and data.format in ("jsonl", "conllu", "columns")

    def sources(self, path: str | os.PathLike[str]) -> Iterator[tuple[str, ...]]:
        """The inputs in a file of the training data's format, with or without its targets."""
        for row in read([os.fspath(path)], self.config.data, self.config.task.kind, labelled=False):
            if isinstance(row, Defect):
                raise DataError(str(row))
            yield row.source

    def evaluate(self, *data: str | os.PathLike[str]) -> dict[str, float]:
        """The task's metrics on these files, or on the run's own dev set if none is named."""
        if not data:
            found = reopen(self.config, self.folder)
            return self.task.evaluate(self.network, found.dev, found.dev_pairs, quick=False)
        rows = list(self._examples(data))
        self._check_labels(rows)
        return self.task.evaluate(
            self.network, in_memory(self.task, rows), _pairs(rows), quick=False
        )

    def score(self, *data: str | os.PathLike[str]) -> Iterator[tuple[float, int]]:
        """For each example of these files log p(target | source), and of how many tokens."""
        for some in chunks(self._examples(data), LINES):
            self._check_labels(some)
            yield from self.task.score(self.network, _pairs(some))

    def _check_labels(self, rows: Sequence[Example]) -> None:
        if isinstance(self.task, LabelTask):
            refuse_unseen(self.task, rows)

    def _examples(self, data: Sequence[str | os.PathLike[str]]) -> Iterator[Example]:
        return examples([os.fspath(path) for path in data], self.config.data, self.config.task.kind)

    def _source(self, item: str | Sequence[str], number: int) -> tuple[str, ...]:
        """The columns of one input, as training read them."""
        data = self.config.data
        if self.config.task.kind == "tag":
            return words_of(item) if isinstance(item, str) else tuple(item)
        tabs = data.format == "tsv" or len(data.source) > 1
        columns = item.split("\t") if isinstance(item, str) and tabs else item
        source = (columns,) if isinstance(columns, str) else tuple(columns)
        if data.source and any(source) and len(source) != len(data.source):
            raise DataError(
                f"input {number}: expected {counted(len(data.source), 'column')}, "
                f"found {len(source)}; give the sources alone"
            )
        return source


def load(folder: str | os.PathLike[str], device: Device = "auto") -> Run:
    """The run in a directory, ready to predict on the device asked for, or on the best there is."""
    folder = Path(folder)
    config = read_config(folder)
    tune_malloc()
    task = load_task(config, folder)
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they were
        network = task.build()
    disk.load_weights(folder / "model.safetensors", network)
    network.to(choose_device(device)).eval()
    return Run(folder, config, task, network)


def train(
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    out: str | os.PathLike[str] | None = None,
    task: str | None = None,
    dev: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Run:
    """Train on raw files (or as a configuration file says) and return the finished run.

    `settings` are keys of the configuration, as in
    {"train.minutes": 3, "encoder.kind": "transformer"}.
    """
    raw, where = gather(data, task=task, dev=dev)
    for key, value in (settings or {}).items():
        assign(raw, key, value)
    config, _ = complete(raw, where)
    folder = new_folder(config, out)
    for _ in show(start(config, folder), folder, quiet):
        pass
    return load(folder)


def gather(
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    task: str | None = None,
    dev: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
) -> tuple[dict[str, Any], str]:
    """The settings that data files or a configuration file give, and their name in messages."""
    paths = _paths(data)
    if len(paths) == 1 and paths[0].endswith(".toml"):
        raw, where = read_toml(paths[0]), paths[0]
        raw.pop("run", None)  # of a run's own config.toml, used as a recipe
    else:
        raw, where = {"data": {"train": paths}}, "settings"
    if task is not None:
        assign(raw, "task.kind", task)
    if dev is not None:
        assign(raw, "data.dev", _paths(dev))
    return raw, where


def new_folder(config: Config, out: str | os.PathLike[str] | None) -> Path:
    """The run's directory, made; one that holds a run already is refused."""
    return _new_folder(config.data.train[0], out)


def _new_folder(first: str, out: str | os.PathLike[str] | None) -> Path:
    name = Path(first).name.strip(".").split(".")[0] or "run"
    folder = Path(out) if out is not None else Path("runs") / name
    if os.path.lexists(folder / "config.toml"):
        raise ConfigError(f"{folder}: holds a run already; choose another --out, or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made: {error.strerror}") from None
    return folder


def put_off(raw: dict[str, Any], out: str | os.PathLike[str] | None) -> Path:
    """A run of which nothing is known but what the user said; `resume` makes the rest."""
    folder = _new_folder(_paths(raw.get("data", {}).get("train", "run"))[0], out)
    with to_disk(folder):
        write_settings(folder, raw, prepared=False)
    return folder


def start(config: Config, folder: Path, stop: Stop | None = None) -> Iterator[events.Event]:
    """Prepare the data, build the network and train it, in a new run."""
    choose_precision(config.train, choose_device(config.train.device))  # before any work is done
    with locked(folder):
        if (folder / "config.toml").exists():
            raise ConfigError(f"{folder}: holds a run already; choose another --out, or remove it")
        with to_disk(folder):
            write_config(folder, config, prepared=False)
            disk.sync(folder.parent)
        try:
            yield from _prepare(config, folder, stop or Stop())
        except (ConfigError, DataError):
            if not read_settings(folder)[1].prepared:  # no run has come of it: the name is free
                (folder / "config.toml").unlink()
            raise


def resume(
    folder: Path, stop: Stop | None = None, settings: Mapping[str, Any] | None = None
) -> Iterator[events.Event]:
    """Go on from a run's newest sound checkpoint as if training had never stopped.

    `settings` are limits that are to be raised, as in {"train.steps": 2000}.
    """
    stop = stop or Stop()
    read_settings(folder)
    with locked(folder):
        raw, mark = read_settings(folder)
        if not mark.prepared:
            try:
                with stop.interruptible():
                    config, _ = complete(raw, str(folder / "config.toml"))
            except Interrupted:
                yield events.Finished(0, "stopped", {}, 0.0)
                return
            config = raised(config, settings or {}, folder)
            with to_disk(folder):
                write_config(folder, config, prepared=False)
            yield from _prepare(config, folder, stop)
            return
        tune_malloc()
        old = config_in(raw, folder)
        config = raised(old, settings or {}, folder)
        saves = folder / "checkpoints"
        if saves.is_dir():
            disk.recover(saves)
        path, problems = disk.latest_checkpoint(saves)
        if problems and path is None:
            raise CheckpointError("\n".join(problems[:5]))
        yield from (events.Noticed(f"{problem}: passed over") for problem in problems)
        if path is not None:
            refuse_giants(config, path / "model.safetensors")
        then = disk.read_json(path / "state.json").get("config") if path else None
        changes = check_changes(then or old.model_dump(mode="json"), config, folder)
        if config != old:
            with to_disk(folder):
                write_config(folder, config, prepared=True)
        yield from (events.Changed(*change) for change in changes)
        if (folder / "data" / disk.MANIFEST).exists() and (problem := disk.damage(folder / "data")):
            raise CheckpointError(f"{folder / 'data'}: {problem}: train anew")
        yield from _train(config, folder, reopen(config, folder), path, stop)


def _prepare(config: Config, folder: Path, stop: Stop) -> Iterator[events.Event]:
    """Make the data of a run, mark it as prepared, and train."""
    tune_malloc()
    stop.folder = folder
    size = sum(os.stat(path).st_size for path in config.data.train if os.path.exists(path))
    if size > LARGE:
        yield events.Noticed(f"reading {size >> 20:,} MB, which takes a while")
    try:
        with to_disk(folder), stop.interruptible():
            ready = prepare(config, folder)
            files = [path for path in sorted((folder / "data").iterdir()) if path.is_file()]
            entries = {path.name: (path.stat().st_size, disk.digest(path)) for path in files}
            for path in (*files, *folder.glob("*.json")):
                disk.sync(path)
            disk.write_manifest(folder / "data", entries)
            write_config(folder, config, prepared=True)
    except Interrupted:
        yield events.Finished(0, "stopped", {}, 0.0)
        return
    yield from _train(config, folder, ready, None, stop)


def _train(
    config: Config, folder: Path, ready: Prepared, checkpoint: Path | None, stop: Stop
) -> Iterator[events.Event]:
    stop.folder = folder
    device = choose_device(config.train.device)
    network = ready.task.build().to(device)
    for corpus in (ready.train, ready.dev):
        check_ids(network, corpus, folder)
    trainer = Trainer(ready.task, network, folder)
    if checkpoint is not None:
        trainer.restore(checkpoint)
    count = sum(p.numel() for p in network.parameters())
    yield events.Prepared(
        len(ready.train), len(ready.dev), ready.left_out, count, str(device), trainer.at.step
    )
    try:
        yield from preflight(trainer, ready, stop)
    except Interrupted:
        yield events.Finished(trainer.at.step, "stopped", {}, trainer.at.seconds)
        return
    yield from loop(trainer, ready.train, ready.dev, ready.dev_pairs, stop)


def check_ids(network: Network, corpus: Corpus, folder: Path) -> None:
    """CheckpointError if tokenised data holds what the network has no embedding or label for."""
    encoder = network.encoder
    reads = 0 if encoder is None else encoder.embedding.num_embeddings
    says = network.decoder if isinstance(network, Generator) else network.head
    writes = says.output.out_features
    for rows, size in ((corpus.source, reads), (corpus.target, writes)):
        if rows is None:
            continue
        odd = len(rows) != len(corpus) or (
            len(rows.ids) and not 0 <= int(rows.ids.min()) <= int(rows.ids.max()) < size
        )
        if odd or not len(rows):
            raise CheckpointError(f"{folder / 'data'}: does not fit this run: train anew")


def _pairs(rows: Sequence[Example]) -> list[Pair]:
    return [(row.source, row.target) for row in rows]


def _paths(data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    if isinstance(data, str | os.PathLike):
        return [os.fspath(data)]
    return [os.fspath(path) for path in data]
