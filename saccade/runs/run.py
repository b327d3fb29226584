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
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any, cast

import torch

from saccade import config as c
from saccade.data.digest import digest
from saccade.data.lines import Defect, Example, counted
from saccade.data.sources import examples, read, words_of
from saccade.engines.choose import Engines
from saccade.engines.ctranslate2 import export
from saccade.engines.local import Pending
from saccade.errors import CheckpointError, ConfigError, DataError
from saccade.models.build import allocate
from saccade.models.networks import Generator, Network
from saccade.runs import files
from saccade.runs.folder import read_config
from saccade.runs.guard import check_ids, fitting_network, vetted_export
from saccade.runs.machine import Device, choose_device
from saccade.setup.prepare import (
    refuse_unseen,
    reopen,
)
from saccade.tasks.exact import Compared, compare
from saccade.tasks.generate import GeneratingTask, check_members
from saccade.tasks.labels import LabelTask
from saccade.tasks.registry import load_task
from saccade.tasks.task import Member, Prediction, Query, Request, Task, chunks, device_of
from saccade.tasks.translate import Translate

LINES_AT_ONCE = 2048  # read, sorted by length and decoded at once


class Run:
    """A trained model with all that it needs to read raw text and write raw text."""

    def __init__(self, folder: Path, config: c.Config, task: Task, network: Network):
        self.folder = folder
        self.config = config
        self.task = task
        self.network = network
        self.engines = Engines(task, network, partial(vetted_export, task, folder))

    def close(self) -> None:
        """End the processes and threads that predictions have begun; others may begin new ones."""
        self.engines.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        wanted = dict(settings or {}) | ({} if width is None else {"width": width})
        decode = c.change_decode(self.config.decode, wanted) if wanted else self.config.decode
        if nbest < 1:
            raise ConfigError(f"the {nbest} best: at least 1 must be wanted")
        if not isinstance(self.task, GeneratingTask):
            kind = self.config.task.kind
            if nbest > 1 and kind == "tag":
                raise ConfigError(f"the {nbest} best: the task 'tag' has one answer")
            how = set(c.Compute.model_fields)
            same = decode.model_dump(exclude=how) == self.config.decode.model_dump(exclude=how)
            if not same or details or others:
                raise ConfigError(
                    f"the task '{kind}' does not search: it has no beam, samples, tree or ensemble"
                )
            return Request(decode, nbest)
        if decode.risk != "off" and nbest > decode.candidates:
            raise ConfigError(
                f"{nbest} best of {decode.candidates} candidates: there are at most as many; "
                f"add --set decode.candidates={nbest}"
            )
        if isinstance(decode, c.Beam) and decode.risk == "off" and nbest > decode.width:
            raise ConfigError(
                f"{nbest} best of a beam of width {decode.width}: there are at most as many as the "
                f"beam is wide; add --width {nbest}"
            )
        members = tuple(Member(other.task, other.network) for other in others)
        return self._request(Request(decode, nbest, scored, details, members))

    def _request(self, request: Request) -> Request:
        """A request of a search with the language model and the list of outputs that it names."""
        assert isinstance(self.task, GeneratingTask)
        if request.decode.model:
            device = cast(Device, device_of(self.network).type)
            model = load(request.decode.model, device)
            request = replace(request, model=Member(model.task, model.network))
        if request.others or request.model:
            check_members(self.task, request)
        return self.task.with_permitted(request) if request.decode.only else request

    def stream(
        self,
        inputs: Iterable[str | Sequence[str]],
        request: Request | None = None,
        prefixes: Iterable[str] | None = None,
        at_once: int = LINES_AT_ONCE,
    ) -> Iterator[Prediction]:
        """The same, as they come, so many at once: for files larger than memory, and for people."""
        request = request or self.request()
        begin = repeat("") if prefixes is None else prefixes
        queries = (
            Query(self._source(item, number), number - 1, prefix)
            for number, (item, prefix) in enumerate(_pairwise(inputs, begin), 1)
        )
        yield from self._answers(queries, request, at_once)

    def _answers(
        self, queries: Iterable[Query], request: Request, at_once: int = LINES_AT_ONCE
    ) -> Iterator[Prediction]:
        """A prediction for each query, in order; an empty line in is an empty line out."""
        queries = iter(queries)
        waiting: deque[tuple[list[Query], Pending]] = deque()
        try:
            while some := list(islice(queries, at_once)):
                full = [query for query in some if any(text.strip() for text in query.source)]
                waiting.append((some, self.engines.submit(full, request)))
                if len(waiting) > 1 or at_once == 1:  # the next are made while these are read
                    yield from _in_order(*waiting.popleft())
            while waiting:
                yield from _in_order(*waiting.popleft())
        finally:
            for _, pending in waiting:
                pending.cancel()

    def stream_text(
        self,
        text: str | Sequence[str],
        settings: Mapping[str, Any] | None = None,
        number: int = 1,
        *,
        request: Request | None = None,
    ) -> Iterator[str]:
        """The answer to one input, piece by piece as it comes: greedy, or drawn if so set.

        `number` is the input's among others, from 1: the same one is drawn as `predict` draws. For
        many inputs make the `request` once, by `text_request(settings)`.
        """
        request = request or self.text_request(settings)
        assert isinstance(self.task, GeneratingTask)
        assert isinstance(self.network, Generator)
        query = Query(self._source(text, number), number - 1)
        if any(column.strip() for column in query.source):  # an empty line in, an empty line out
            yield from self.task.stream(self.network, query, request)

    def text_request(self, settings: Mapping[str, Any] | None = None) -> Request:
        """What is wanted of texts that come piece by piece, checked."""
        if not isinstance(self.task, GeneratingTask):
            raise ConfigError(f"the task '{self.config.task.kind}' does not write piece by piece")
        of_beams = c.Beam.model_fields.keys() - c.Rules.model_fields.keys() - {"kind"}
        if useless := sorted(set(settings or {}) & of_beams):
            raise ConfigError(f"decode.{useless[0]} has no part in writing piece by piece")
        return self.request(settings=settings)

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
        changes = dict(settings or {}) | {"budget": budget, "order": order}
        request = self._request(Request(c.exact_decode(self.config.decode, changes)))
        yield from compare(self.task, self.network, list(self._examples(data)), request)

    def export(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """Write the model as CTranslate2 reads it; inside the run, predictions use it there."""
        path = self.folder / "ctranslate2" if folder is None else Path(folder)
        export(self.task, self.network, path, digest(self.folder / "model.safetensors"))
        return path

    def check_prefix(self, prefix: str) -> None:
        """Refuse a prefix that no answer can begin with."""
        if not isinstance(self.task, GeneratingTask):
            raise ConfigError(f"the task '{self.config.task.kind}' writes nothing: no prefix")
        output = self.task.output
        if output.specials.unk in output.encode([prefix])[0]:
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
            corpus = self.task.encode(rows)
        else:
            found = reopen(self.config, self.folder)
            corpus, rows = found.dev, list(found.dev_examples)
            check_ids(self.task, corpus, self.folder)
        request = self.request(settings=settings, others=others)
        if isinstance(self.task, Translate) and isinstance(self.network, Generator):
            answer = partial(self._answers, request=request)
            return self.task.evaluate_answers(self.network, corpus, rows, answer)
        own, decode = self.config.decode, request.decode
        same = own.model_copy(update={"int8": decode.int8, "engine": decode.engine})
        if others or decode != same or decode.engine == "ctranslate2":
            raise ConfigError(
                f"the task '{self.config.task.kind}' is measured without a search: of the settings "
                "only --int8 has a part in it"
            )
        network = self.engines.packed(int8=True) if decode.int8 else self.network
        return self.task.evaluate(network, corpus, rows, quick=False)

    def score(self, *data: str | os.PathLike[str]) -> Iterator[tuple[float, int]]:
        """For each example of these files log p(target | source), and of how many tokens."""
        for some in chunks(self._examples(data), LINES_AT_ONCE):
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
    if device == "auto" and config.decode.int8:  # 8-bit weights are for a CPU
        device = "cpu"
    network.to(choose_device(device)).eval()
    return Run(folder, config, task, network)


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
