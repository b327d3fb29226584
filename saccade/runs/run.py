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

from saccade import config as c
from saccade.data.digest import digest
from saccade.data.lines import Defect, Example, counted
from saccade.data.sources import examples, read, words_of
from saccade.engines.ctranslate2 import CTranslate2Engine, export, why_torch
from saccade.engines.processes import FEW, Here, Pending, Predictor, Workers, count_workers
from saccade.errors import CheckpointError, ConfigError, DataError
from saccade.models.build import allocate
from saccade.models.networks import Generator, Network
from saccade.nn.packed import packed, quantised
from saccade.nn.watch import watched
from saccade.runs import files
from saccade.runs.folder import read_config
from saccade.runs.guard import check_ids, fitting_network, vetted_export
from saccade.runs.machine import Device, choose_device
from saccade.setup.prepare import (
    refuse_unseen,
    reopen,
)
from saccade.tasks.exact import Compared, compare
from saccade.tasks.generate import GeneratingTask, check_members, permitted
from saccade.tasks.labels import LabelTask
from saccade.tasks.registry import load_task
from saccade.tasks.task import Member, Prediction, Query, Request, Task, chunks
from saccade.tasks.translate import Translate, references_of
from saccade.text.vocab import UNK

HOW_FAST = {"engine", "int8"}  # settings that change nothing else
OF_BEAMS = {"width", "complete", "length", "alpha", "groups", "diversity", "coverage", "risk"}
OF_BEAMS |= {"candidates", "workers", "batch_tokens", *HOW_FAST}
LINES = 2048  # read, sorted by length and decoded at once
LARGE = 1 << 25  # bytes of training files that are worth a word before they are read


class Run:
    """A trained model with all that it needs to read raw text and write raw text."""

    def __init__(self, folder: Path, config: c.Config, task: Task, network: Network):
        self.folder = folder
        self.config = config
        self.task = task
        self.network = network
        self._fast: dict[
            tuple[bool, int], CTranslate2Engine
        ] = {}  # by int8, workers; made when first needed
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
                c.assign(raw, f"decode.{key}", value)
            config = c.parse(raw, "settings")
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
        members = tuple(Member(other.task, other.network) for other in others)
        model = load(decode.model) if decode.model else None
        fusion_model = None if model is None else Member(model.task, model.network)
        request = Request(decode, nbest, scored, details, members, fusion_model)
        check_members(self.task, request)
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
                exported = vetted_export(self.task, self.folder)
                self._fast[key] = CTranslate2Engine(self.task, self.network, decode, exported)
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

    def stream_text(
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
        plain = {key: getattr(c.Decode(), key) for key in unlike}
        request = self.request(settings=plain | dict(settings or {}))
        rows = list(self._examples(data))
        yield from compare(
            self.task,
            self.network,
            rows,
            request,
            budget=budget,
            order="best" if order == "best" else "depth",
        )

    def export(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """Write the model as CTranslate2 reads it; inside the run, predictions use it there."""
        path = self.folder / "ctranslate2" if folder is None else Path(folder)
        export(self.task, self.network, path, digest(self.folder / "model.safetensors"))
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
            corpus, examples_ = self.task.encode(rows), rows
        else:
            found = reopen(self.config, self.folder)
            corpus, examples_ = found.dev, list(found.dev_examples)
            check_ids(self.task, corpus, self.folder)
        request = self.request(settings=settings, others=others)
        if isinstance(self.task, Translate) and isinstance(self.network, Generator):
            said = [one.text for one in self.stream(references_of(examples_), request)]
            loss = self.task.mean_loss(self.network, corpus, len(examples_))
            return {"loss": loss} | self.task.measured(examples_, said)
        changed = _changed(self.config.decode, request.decode) - HOW_FAST
        if others or changed or request.decode.engine == "ctranslate2":
            raise ConfigError(
                f"the task '{self.config.task.kind}' is measured without a search: of the settings "
                "only --int8 has a part in it"
            )
        network = quantised(self.network) if request.decode.int8 else self.network
        return self.task.evaluate(network, corpus, examples_, quick=False)

    def score(self, *data: str | os.PathLike[str]) -> Iterator[tuple[float, int]]:
        """For each example of these files log p(target | source), and of how many tokens."""
        for some in chunks(self._examples(data), LINES):
            self._check_labels(some)
            yield from self.task.score(self.network, some)

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
    task = load_task(config, folder)
    network = fitting_network(task, folder / "model.safetensors")
    try:
        allocate(network, torch.device("cpu"))
    except (RuntimeError, MemoryError) as error:
        raise CheckpointError(f"{folder}: {str(error).partition(chr(10))[0]}") from None
    files.load_weights(folder / "model.safetensors", network)
    network.to(choose_device(device)).eval()
    return Run(folder, config, task, network)


def _changed(old: c.Decode, new: c.Decode) -> set[str]:
    return {key for key in c.Decode.model_fields if getattr(old, key) != getattr(new, key)}


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
