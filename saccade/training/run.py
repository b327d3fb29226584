"""A run: a directory that is enough by itself. Made by `train`, opened by `load`.

config.toml        every choice
model.safetensors  the weights that predict
*.json             the vocabularies
metrics.jsonl      what happened
checkpoints/       from which training goes on
data/              the tokenised corpus
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

from saccade.config import Config, Decode, assign, parse
from saccade.data.batches import Corpus
from saccade.data.lines import Defect, Example, counted
from saccade.data.sources import examples, read, words_of
from saccade.errors import CheckpointError, ConfigError, DataError
from saccade.models.build import Generator, Network, filled, give_storage
from saccade.nn.packed import packed, quantised
from saccade.nn.watch import watched
from saccade.tasks.choose import complete, gather, paths_of
from saccade.tasks.exact import Compared, compare
from saccade.tasks.fast import Fast, export, why_torch
from saccade.tasks.generate import GeneratingTask, check_voices, permitted
from saccade.tasks.labels import LabelTask
from saccade.tasks.prepare import (
    Prepared,
    in_memory,
    load_task,
    prepare,
    refuse_unseen,
    reopen,
)
from saccade.tasks.task import Pair, Prediction, Query, Request, Task, Voice, chunks
from saccade.tasks.translate import Translate, references_of
from saccade.tasks.workers import FEW, Here, Pending, Predictor, Workers, count_workers
from saccade.text.vocab import UNK
from saccade.training import checkpoint as disk
from saccade.training import events
from saccade.training.folder import (
    check_changes,
    config_in,
    first_outline,
    locked,
    outline,
    raised,
    read_config,
    read_settings,
    write_config,
    write_settings,
)
from saccade.training.loop import Trainer
from saccade.training.loop import train as loop
from saccade.training.machine import (
    Device,
    choose_device,
    choose_precision,
    refuse_giant,
    tune_malloc,
)
from saccade.training.preflight import preflight
from saccade.training.report import show
from saccade.training.stop import Interrupted, Stop
from saccade.training.trainer import to_disk

HOW_FAST = {"engine", "int8"}  # settings that change nothing else
OF_BEAMS = {"width", "complete", "length", "alpha", "groups", "diversity", "coverage", "risk"}
OF_BEAMS |= {"candidates", "workers", "batch_tokens", *HOW_FAST}
LINES = 2048  # read, sorted by length and decoded at once
LARGE = 1 << 25  # bytes of training files that are worth a word before they are read


class Run:
    """A trained model with all that it needs to read raw text and write raw text."""

    def __init__(self, folder: Path, config: Config, task: Task, network: Network):
        self.folder = folder
        self.config = config
        self.task = task
        self.network = network
        self._fast: dict[tuple[bool, int], Fast] = {}  # by int8, workers; made when first needed
        self._packed: dict[bool, Any] = {}  # by int8: the network for the torch engine

    def predict(
        self,
        inputs: Iterable[str | Sequence[str]],
        width: int | None = None,
        nbest: int = 1,
        *,
        settings: Mapping[str, Any] | None = None,
        prefixes: Iterable[str] | None = None,
        details: bool = False,
        others: Sequence["Run"] = (),
    ) -> list[Prediction]:
        """A prediction for each input, in order; an input is a text, or a tuple of columns.

        `settings` are keys of the configuration's table `decode`, as in
        {"sample": True, "temperature": 0.7}; `width` is one of them. `prefixes` are how the answers
        have to begin. With `details` each prediction has its tokens, their alternatives and the
        tree of the beam. `others` are runs with the same target vocabulary that decide together
        with this one.
        """
        request = self.request(width, nbest, settings=settings, details=details, others=others)
        return list(self.stream(inputs, request, prefixes))

    def request(
        self,
        width: int | None = None,
        nbest: int = 1,
        *,
        settings: Mapping[str, Any] | None = None,
        scored: bool = True,
        details: bool = False,
        others: Sequence["Run"] = (),
    ) -> Request:
        """What is wanted of predictions, checked: the run's own settings and these."""
        config, settings = self.config, dict(settings or {})
        if width is not None:
            settings["width"] = width
        if settings:
            raw = config.model_dump(mode="json", exclude_none=True)
            for key, value in settings.items():
                assign(raw, f"decode.{key}", value)
            config = parse(raw, "settings")
        decode = config.decode
        if nbest < 1:
            raise ConfigError(f"the {nbest} best: at least 1 must be wanted")
        if not isinstance(self.task, GeneratingTask):
            kind = config.task.kind
            if nbest > 1 and kind == "tag":
                raise ConfigError(f"the {nbest} best: the task 'tag' has one answer")
            changed = _changed(self.config.decode, decode) - {*HOW_FAST, "batch_tokens", "workers"}
            if changed or details or others:
                raise ConfigError(
                    f"the task '{kind}' does not search: it has no beam, samples, tree or ensemble"
                )
            return Request(decode, nbest)
        most = decode.candidates if decode.risk != "off" else decode.width
        if nbest > most and not (decode.sample and decode.risk == "off"):
            raise ConfigError(
                f"{nbest} best of a beam of width {most}: there are at most as many as the beam is "
                f"wide; add --width {nbest}"
            )
        if decode.only:
            permitted(decode.only, self.task.output)
        voices = tuple(Voice(other.task, other.network) for other in others)
        model = load(decode.model) if decode.model else None
        speaker = None if model is None else Voice(model.task, model.network)
        request = Request(decode, nbest, scored, details, voices, speaker)
        check_voices(self.task, request)
        return request

    def stream(
        self,
        inputs: Iterable[str | Sequence[str]],
        request: Request | None = None,
        prefixes: Iterable[str] | None = None,
        at_once: int = LINES,
    ) -> Iterator[Prediction]:
        """The same, as they come, so many at once: for files larger than memory, and for people."""
        request = request or self.request()
        begin = repeat("") if prefixes is None else prefixes
        queries = (
            Query(self._source(item, number), number - 1, prefix)
            for number, (item, prefix) in enumerate(_pairwise(inputs, begin), 1)
        )
        predictor: Predictor | None = None
        waiting: deque[tuple[list[Query], Pending]] = deque()
        try:
            for some in chunks(queries, at_once):
                full = [query for query in some if any(text.strip() for text in query.source)]
                if predictor is None:
                    predictor = self._predictor(request, len(full))
                waiting.append((some, predictor.submit(full)))
                if len(waiting) > 1:  # the next are being made while these are handed over
                    yield from _in_order(*waiting.popleft())
            while waiting:
                yield from _in_order(*waiting.popleft())
        finally:
            if predictor is not None:
                predictor.close()

    def _predictor(self, request: Request, queries: int) -> Predictor:
        """The fastest that can serve the request, for at least so many queries."""
        decode = request.decode
        reason = "" if decode.engine == "torch" else why_torch(self.task, self.network, request)
        if reason and decode.engine == "ctranslate2":
            raise ConfigError(f"decode.engine = 'ctranslate2': {reason}")
        if decode.engine != "torch" and not reason:
            key = decode.int8, decode.workers
            if key not in self._fast:
                self._fast[key] = Fast(self.task, self.network, decode, self.folder)
            return self._fast[key].asked(request)
        network: Any = self.network
        if decode.int8 or (queries >= FEW and not watched()):  # where it is worth the packing
            if decode.int8 not in self._packed:
                pack = quantised if decode.int8 else packed
                self._packed[decode.int8] = pack(self.network)
            network = self._packed[decode.int8]
        count = count_workers(decode, self.network, queries)
        if count > 1:
            return Workers(self.task, network, request, count)
        return Here(self.task, network, request)

    def spell(
        self,
        text: str | Sequence[str],
        settings: Mapping[str, Any] | None = None,
        number: int = 1,
    ) -> Iterator[str]:
        """The answer to one input, piece by piece as it comes: greedy, or drawn if so set.

        `number` is the input's among others, from 1: the same one is drawn as `predict` draws.
        """
        if not isinstance(self.task, GeneratingTask) or not isinstance(self.network, Generator):
            raise ConfigError(f"the task '{self.config.task.kind}' does not write piece by piece")
        if useless := sorted(set(settings or {}) & OF_BEAMS):
            raise ConfigError(f"decode.{useless[0]} has no part in writing piece by piece")
        request = self.request(settings=settings)
        query = Query(self._source(text, number), number - 1)
        if any(column.strip() for column in query.source):  # an empty line in, an empty line out
            yield from self.task.stream(self.network, query, request)

    def compare(
        self,
        data: Sequence[str | os.PathLike[str]],
        settings: Mapping[str, Any] | None = None,
        budget: int = 20_000,
        order: str = "depth",
    ) -> Iterator[Compared]:
        """For each source of these files the best output of all, beside what beams find."""
        if not isinstance(self.task, GeneratingTask) or not isinstance(self.network, Generator):
            raise ConfigError(f"the task '{self.config.task.kind}' does not search")
        if budget < 1:
            raise ConfigError(f"a budget of {budget}: exact search needs at least 1 step")
        if order not in ("depth", "best"):
            raise ConfigError(f"no order '{order}'; choose one of depth, best")
        unlike = {"sample", "risk", "groups", "coverage", "complete"}
        if useless := sorted(set(settings or {}) & unlike):
            raise ConfigError(f"decode.{useless[0]}: exact search is compared with plain beams")
        plain = {key: getattr(Decode(), key) for key in unlike}
        request = self.request(settings=plain | dict(settings or {}))
        pairs = _pairs(list(self._examples(data)))
        yield from compare(
            self.task,
            self.network,
            pairs,
            request,
            budget=budget,
            order="best" if order == "best" else "depth",
        )

    def export(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """Write the model as CTranslate2 reads it; inside the run, predictions use it there."""
        path = self.folder / "ctranslate2" if folder is None else Path(folder)
        export(self.task, self.network, path, disk.digest(self.folder / "model.safetensors"))
        return path

    def check_prefix(self, prefix: str) -> None:
        """Refuse a prefix that no answer can begin with."""
        if not isinstance(self.task, GeneratingTask):
            raise ConfigError(f"the task '{self.config.task.kind}' writes nothing: no prefix")
        if UNK in self.task.output.encode([prefix])[0]:
            raise ConfigError(f"the prefix {prefix!r} holds what the model has no token for")

    def reads(self, path: str | os.PathLike[str]) -> bool:
        """Whether a file is named as the training file was, and that was more than lines."""
        data = self.config.data
        name, known = (os.fspath(one).removesuffix(".gz") for one in (path, data.train[0]))
        same = Path(name).suffix == Path(known).suffix
        return same and data.format in ("jsonl", "conllu", "columns")

    def sources(self, path: str | os.PathLike[str]) -> Iterator[tuple[str, ...]]:
        """The inputs in a file of the training data's format, with or without its targets."""
        data, due = self.config.data, 1
        for row in read([os.fspath(path)], data, self.config.task.kind, labelled=False):
            if isinstance(row, Defect) and row.code != "blank-source":
                raise DataError(str(row))
            line = row.line if isinstance(row, Example) else int(row.where.rpartition(":")[2])
            if data.format == "jsonl":  # an empty line in, an empty line out
                yield from repeat(("",), line - due)
                due = line + 1
            yield row.source if isinstance(row, Example) else ("",)

    def evaluate(
        self,
        *data: str | os.PathLike[str],
        settings: Mapping[str, Any] | None = None,
        others: Sequence["Run"] = (),
    ) -> dict[str, float]:
        """The task's metrics on these files, or on the run's own dev set if none is named.

        `settings` and `others` are those of `predict`; the loss is this run's alone.
        """
        if data:
            rows = list(self._examples(data))
            self._check_labels(rows)
            corpus, pairs = in_memory(self.task, rows), _pairs(rows)
        else:
            found = reopen(self.config, self.folder)
            corpus, pairs = found.dev, list(found.dev_pairs)
            check_ids(self.network, corpus, self.folder)
        request = self.request(settings=settings, others=others)
        if isinstance(self.task, Translate) and isinstance(self.network, Generator):
            said = [one.text for one in self.stream(references_of(pairs), request)]
            loss = self.task.mean_loss(self.network, corpus, len(pairs))
            return {"loss": loss} | self.task.measured(pairs, said)
        changed = _changed(self.config.decode, request.decode) - HOW_FAST
        if others or changed or request.decode.engine == "ctranslate2":
            raise ConfigError(
                f"the task '{self.config.task.kind}' is measured without a search: of the settings "
                "only --int8 has a part in it"
            )
        network = quantised(self.network) if request.decode.int8 else self.network
        return self.task.evaluate(network, corpus, pairs, quick=False)

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
    network = outline(task, folder / "model.safetensors")
    try:
        give_storage(network, torch.device("cpu"))
    except (RuntimeError, MemoryError) as error:
        raise CheckpointError(f"{folder}: {str(error).partition(chr(10))[0]}") from None
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
    folder = _new_folder(paths_of(raw.get("data", {}).get("train", "run"))[0], out)
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
        stop.folder = folder
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
        try:
            with to_disk(folder), stop.interruptible():
                if saves.is_dir():
                    disk.recover(saves)
                path, problems = disk.latest_checkpoint(saves)
        except Interrupted:
            yield events.Finished(0, "stopped", {}, 0.0)
            return
        if problems and path is None:
            raise CheckpointError("\n".join(problems[:5]))
        yield from (events.Noticed(f"{problem}: passed over") for problem in problems)
        then = disk.read_json(path / "state.json").get("config") if path else None
        changes = check_changes(then or old.model_dump(mode="json"), config, folder)
        if config != old:
            with to_disk(folder):
                write_config(folder, config, prepared=True)
        yield from (events.Changed(*change) for change in changes)
        try:
            with stop.interruptible():
                ready = _reopened(config, folder)
        except Interrupted:
            yield events.Finished(disk.step_of(path) if path else 0, "stopped", {}, 0.0)
            return
        device = choose_device(config.train.device)
        try:  # no memory for a network that the checkpoint does not fit
            if path is None:
                network = first_outline(ready.task, device)
            else:
                network = outline(ready.task, path / "model.safetensors")
                refuse_giant(network, config.train, device)
        except ConfigError as error:
            raise CheckpointError(f"{folder / 'config.toml'}: {error}") from None
        yield from _train(ready, network, folder, path, stop)


def _reopened(config: Config, folder: Path) -> Prepared:
    """The data of a run, which is what its manifest says."""
    data = folder / "data"
    if (data / disk.MANIFEST).exists() and (problem := disk.damage(data)):
        raise CheckpointError(f"{data}: {problem}: train anew")
    return reopen(config, folder)


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
            network = first_outline(ready.task, choose_device(config.train.device))
            files = [path for path in sorted((folder / "data").iterdir()) if path.is_file()]
            entries = {path.name: (path.stat().st_size, disk.digest(path)) for path in files}
            for path in (*files, *folder.glob("*.json")):
                disk.sync(path)
            disk.write_manifest(folder / "data", entries)
            disk.sync(folder)  # before it is said that all of this is there
            write_config(folder, config, prepared=True)
    except Interrupted:
        yield events.Finished(0, "stopped", {}, 0.0)
        return
    yield from _train(ready, network, folder, None, stop)


def _train(
    ready: Prepared, network: Network, folder: Path, checkpoint: Path | None, stop: Stop
) -> Iterator[events.Event]:
    """Train a network of which there is only an outline yet."""
    stop.folder = folder
    config = ready.task.config
    device = choose_device(config.train.device)
    network = filled(network, config.seed).to(device)
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


def _changed(old: Decode, new: Decode) -> set[str]:
    return {key for key in Decode.model_fields if getattr(old, key) != getattr(new, key)}


def _in_order(queries: list[Query], pending: Pending) -> Iterator[Prediction]:
    """The predictions of queries; an empty line in is an empty line out."""
    ready = iter(pending.result())
    for query in queries:
        yield next(ready) if any(t.strip() for t in query.source) else Prediction("", 0.0)


def _pairwise(
    inputs: Iterable[str | Sequence[str]], prefixes: Iterable[str]
) -> Iterator[tuple[str | Sequence[str], str]]:
    supply = iter(prefixes)
    for number, item in enumerate(inputs, 1):
        prefix = next(supply, None)
        if prefix is None:
            raise DataError(f"input {number} has no prefix: there are fewer prefixes than inputs")
        yield item, prefix


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
