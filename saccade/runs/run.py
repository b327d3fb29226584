"""A run: a self-contained directory, written by `train` and opened by `load`.

config.toml        all settings
model.safetensors  the weights for prediction
*.json             the vocabularies
metrics.jsonl      the events of training
checkpoints/       the states that training resumes from
data/              the tokenised corpus
"""

import os
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any, cast, overload

import torch

from saccade import config as c
from saccade.data.cells import CellError, vector_input, words_of
from saccade.data.detect import is_media
from saccade.data.digest import digest
from saccade.data.lines import Defect, Example, without_compression
from saccade.data.media import Cell, MediaField, required
from saccade.data.memory import given
from saccade.data.sources import columns_expected, examples, read
from saccade.engines.choose import Engines
from saccade.engines.ctranslate2 import export
from saccade.engines.local import Pending
from saccade.errors import CheckpointError, ConfigError, DataError
from saccade.models.build import allocate
from saccade.models.ensembles import build_ensemble
from saccade.models.forecaster import AnyForecaster
from saccade.models.networks import Generator, Network
from saccade.models.vectors import WordVectors as VectorNetwork
from saccade.nn.lora import merge
from saccade.runs import files, measuring
from saccade.runs.folder import read_config
from saccade.runs.guard import fitting_network, own_decode, vetted_export, with_root
from saccade.runs.machine import Device, choose_device, require_search_memory
from saccade.runs.members import member_weights, without_members
from saccade.setup.prepare import refuse_unseen
from saccade.tasks.exact import Comparison
from saccade.tasks.forecast import Continuation, Forecast
from saccade.tasks.generate import GeneratingTask, check_members
from saccade.tasks.labels import LabelTask
from saccade.tasks.pieces import stream
from saccade.tasks.registry import load_task
from saccade.tasks.task import (
    Evaluation,
    Member,
    Prediction,
    Query,
    Request,
    Task,
    chunks,
    device_of,
    result_of,
)
from saccade.tasks.vectors import WordVectors

NO_TEXT = ("utf8", "nul")  # defects of a line without a prediction
LINES_AT_ONCE = 2048  # read, sorted by length and decoded at once


class Run:
    """A trained model from raw input to raw output."""

    def __init__(self, folder: Path, config: c.Config, task: Task, network: Network):
        self.folder = folder
        self.config = config
        self.task = task
        self.network = network
        self._checked_size: object = None  # of the last search, which fits into memory
        self.engines = Engines(task, network, partial(vetted_export, task, folder))
        # the root of media paths in data files; "" is the folder of each file
        self.root = ""

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.network.parameters())
        where = device_of(self.network)
        return f"<Run {self.folder}: {self.config.task.kind}, {size:,} parameters, {where}>"

    def close(self) -> None:
        """End the processes and threads of predictions; later ones start them again."""
        self.engines.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def predict(  # type: ignore[overload-overlap]  # a text is a sequence of texts, too
        self,
        inputs: str,
        width: int | None = None,
        nbest: int = 1,
        *,
        settings: Mapping[str, Any] | None = None,
        prefixes: str | Iterable[str] | None = None,
        details: bool = False,
        others: Sequence["Run"] = (),
    ) -> Prediction: ...

    @overload
    def predict(
        self,
        inputs: Iterable[str | Sequence[str]],
        width: int | None = None,
        nbest: int = 1,
        *,
        settings: Mapping[str, Any] | None = None,
        prefixes: str | Iterable[str] | None = None,
        details: bool = False,
        others: Sequence["Run"] = (),
    ) -> list[Prediction]: ...

    def predict(
        self,
        inputs: str | Iterable[str | Sequence[str]],
        width: int | None = None,
        nbest: int = 1,
        *,
        settings: Mapping[str, Any] | None = None,
        prefixes: str | Iterable[str] | None = None,
        details: bool = False,
        others: Sequence["Run"] = (),
    ) -> Prediction | list[Prediction]:
        """A prediction for each input, in order; an input is a text, or a tuple of columns.

        One text, not in a list, gives one prediction, not in a list.

        `settings` are keys of the configuration's table `decode`, as in
        {"sample": True, "temperature": 0.7}; `width` is one of them. `prefixes` are prefixes of the
        outputs: a text for each, or one for all. With `details` each prediction has its tokens,
        their alternatives and the tree of the beam. `others` are runs with the same target
        vocabulary, which form an ensemble with this one.
        """
        request = self.request(width, nbest, settings=settings, details=details, others=others)
        found = list(self.stream(inputs, request, prefixes))
        return found[0] if isinstance(inputs, str) else found

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
        """A checked request for predictions: the run's own settings, updated with these."""
        wanted = dict(settings or {}) | ({} if width is None else {"width": width})
        own = self._own_decode(wanted)
        decode = c.change_decode(own, wanted) if wanted else own
        if nbest < 1:
            raise ConfigError(f"nbest = {nbest}: must be at least 1")
        if nbest > c.MAX_HYPOTHESES:
            raise ConfigError(f"nbest = {nbest}: must be at most {c.MAX_HYPOTHESES:,}")
        if not isinstance(self.task, GeneratingTask):
            kind = self.config.task.kind
            decode_keys = self.task.decode_keys
            drawn = isinstance(decode, c.Sample) and "kind" in decode_keys
            if nbest > 1 and not self.task.ranks and not drawn:
                raise ConfigError(f"nbest = {nbest}: the task '{kind}' gives one answer")
            how = set(c.Compute.model_fields) | decode_keys
            base = c.change_decode(own, {"kind": decode.kind}) if drawn else own
            same = decode.model_dump(exclude=how) == base.model_dump(exclude=how)
            if not same or details or others:
                has = "it has no beam, samples, tree or ensemble"
                has = f"of decode it obeys {', '.join(sorted(decode_keys))}" if decode_keys else has
                raise ConfigError(f"the task '{kind}' does not search: {has}")
            return Request(decode, nbest)
        if decode.risk != "off" and nbest > decode.candidates:
            raise ConfigError(
                f"nbest = {nbest}: there are only {decode.candidates} candidates; ask for fewer, "
                f"or set decode.candidates to {nbest}"
            )
        if isinstance(decode, c.Beam) and decode.risk == "off" and nbest > decode.width:
            raise ConfigError(
                f"nbest = {nbest}: a beam of width {decode.width} finds at most {decode.width}; "
                f"ask for fewer, or set the width to {nbest}"
            )
        members = tuple(Member(other.task, other.network) for other in others)
        return self._request(Request(decode, nbest, scored, details, members))

    def exact_request(self, settings: Mapping[str, Any]) -> Request:
        """A checked request for an exact search."""
        return self._request(Request(c.exact_decode(self._own_decode(settings), settings)))

    def _own_decode(self, chosen: Container[str]) -> c.Decode:
        """The run's own settings of a search, with full paths; `chosen` are the user's keys."""
        decode = self.config.decode
        if not decode.only and not decode.model:
            return decode
        return own_decode(decode, self.folder, chosen)

    def _request(self, request: Request) -> Request:
        """A request with the language model and the list of outputs that it names, loaded."""
        assert isinstance(self.task, GeneratingTask)
        if (size := (request.decode, request.nbest)) != self._checked_size:
            require_search_memory(self.task, request, device_of(self.network))
            self._checked_size = size
        if request.decode.model:
            device = cast(Device, device_of(self.network).type)
            model = load(request.decode.model, device)
            request = replace(request, model=Member(model.task, model.network))
        if request.others or request.model:
            check_members(self.task, request)
        return self.task.with_permitted(request) if request.decode.only else request

    def stream(
        self,
        inputs: str | Iterable[str | Sequence[str] | Defect],
        request: Request | None = None,
        prefixes: str | Iterable[str] | None = None,
        at_once: int = LINES_AT_ONCE,
        file: str | None = None,
        first: int = 1,
    ) -> Iterator[Prediction]:
        """The same lazily, `at_once` inputs at a time: for files larger than memory.

        `file` is where the inputs are from, for messages, and `first` the number of the first.
        """
        request = request or self.request()
        inputs = [inputs] if isinstance(inputs, str) else inputs
        if not isinstance(inputs, Iterable):
            raise DataError(f"expected a text, or a list of them, found {inputs!r:.80}")
        begin = repeat(prefixes or "") if isinstance(prefixes, str | None) else prefixes
        place = partial(self.location, file=file)
        queries = (
            self._query(item, number, prefix, file, place(number))
            for number, (item, prefix) in enumerate(_with_prefixes(inputs, begin, place), first)
        )
        yield from self.answers(queries, request, at_once)

    def answers(
        self, queries: Iterable[Query], request: Request, at_once: int = LINES_AT_ONCE
    ) -> Iterator[Prediction]:
        """A prediction for each query, in order; an empty line in is an empty line out."""
        queries = iter(queries)
        pending_chunks: deque[tuple[list[Query], Pending]] = deque()
        try:
            while chunk := list(islice(queries, at_once)):
                nonempty = [query for query in chunk if not _is_empty(query)]
                pending_chunks.append((chunk, self.engines.submit(nonempty, request)))
                if len(pending_chunks) > 1 or at_once == 1:  # compute the next meanwhile
                    yield from self._in_order(*pending_chunks.popleft())
            while pending_chunks:
                yield from self._in_order(*pending_chunks.popleft())
        finally:
            for _, pending in pending_chunks:
                pending.cancel()

    def _in_order(self, queries: list[Query], pending: Pending) -> Iterator[Prediction]:
        """The predictions of queries; an empty line in is an empty line out."""
        ready = iter(pending.result())
        for query in queries:
            if _is_empty(query):
                yield Prediction("", 0.0, problem=query.problem)
                continue
            one, units = next(ready), self.task.unknown_in(query.source)
            if units and not one.problem:
                one = replace(one, unknown=len(units), unknown_units=tuple(dict.fromkeys(units)))
            yield one

    def stream_text(
        self,
        text: str | Sequence[str],
        settings: Mapping[str, Any] | None = None,
        number: int = 1,
        *,
        request: Request | None = None,
        file: str | None = None,
    ) -> Iterator[str]:
        """The answer to one input, streamed: greedy, or sampled if so set.

        `number` is that of the input, from 1, and gives the same sample as in `predict`. For many
        inputs make the `request` once, by `text_request(settings)`. `file` is where they are from,
        for messages.
        """
        request = request or self.text_request(settings)
        assert isinstance(self.task, GeneratingTask)
        assert isinstance(self.network, Generator)
        place = self.location(number, file)
        query = self._query(text, number, "", file, place)
        if query.problem:
            raise DataError(f"{place}: {query.problem}")
        if _is_empty(query):
            return  # an empty line in, an empty line out
        try:
            yield from stream(self.task, self.network, query, request)
        except DataError as error:
            raise DataError(f"{place}: {error}") from None

    def text_request(self, settings: Mapping[str, Any] | None = None) -> Request:
        """The request for streaming, checked."""
        if not isinstance(self.task, GeneratingTask):
            kind = self.config.task.kind
            raise ConfigError(f"the task '{kind}' does not support streaming")
        of_beams = c.Beam.model_fields.keys() - c.Rules.model_fields.keys() - {"kind"}
        if useless := sorted(set(settings or {}) & of_beams):
            raise ConfigError(
                f"decode.{useless[0]} has no effect on streaming, which is "
                "greedy or sampled: leave it out"
            )
        return self.request(settings=settings)

    def compare(
        self,
        data: Any,
        settings: Mapping[str, Any] | None = None,
        budget: int = 20_000,
        order: str = "depth",
    ) -> Iterator[Comparison]:
        """For each source the optimum of exact search, beside the results of beam search."""
        return measuring.compare(self, data, settings, budget, order)

    def export(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """Write the model as CTranslate2 reads it; inside the run, predictions use it there."""
        path = self.folder / "ctranslate2" if folder is None else Path(folder)
        export(self.task, self.network, path, digest(self.folder / "model.safetensors"))
        return path

    def require_vectors(self) -> tuple[WordVectors, VectorNetwork]:
        """The task and the network of a run of word vectors; ConfigError of any other."""
        if not isinstance(self.task, WordVectors) or not isinstance(self.network, VectorNetwork):
            raise ConfigError(
                f"the task '{self.config.task.kind}' has no word vectors: train some with --task "
                "pretrain --set task.objective=skipgram, or import a file of them"
            )
        return self.task, self.network

    def location(self, number: int, file: str | None = None) -> str:
        """The location of an input for messages: its file and line, where there is a file."""
        if file is None:
            return f"input {number}"
        if self.config.data.format in ("conllu", "columns") and self.has_data_format(file):
            return f"{file}, sentence {number}"
        return f"{file}:{number}"

    def unknown(self, item: str | Sequence[str]) -> list[str]:
        """The characters (or words) of an input that the model has no token for."""
        return self.task.unknown_in(self._source(item, "the input"))

    def check_prefix(self, prefix: str) -> None:
        """Refuse a prefix that no answer can begin with."""
        if not isinstance(self.task, GeneratingTask):
            kind = self.config.task.kind
            raise ConfigError(f"prefixes are not supported for the task '{kind}': leave it out")
        output = self.task.output
        if output.specials.unk in output.encode([prefix])[0]:
            raise ConfigError(f"the prefix {prefix!r} contains characters outside the vocabulary")

    def require_fill(self, file: object = None) -> None:
        """ConfigError for a run that cannot fill in what is missing in a text."""
        if file is not None:
            raise ConfigError("--fill is one text: leave out the file, or put <mask> into it")
        if not self.task.fills:
            raise ConfigError(
                f"--fill: a run of {self.config.task.title} has not learned to fill in <mask>: "
                "train one with --task pretrain, whose objective is not 'causal'"
            )

    def is_input(self, path: str | os.PathLike[str]) -> bool:
        """Whether a file is itself an input, such as a picture, and not a list of inputs."""
        return bool(self.task.fallible) and is_media(os.fspath(path))

    def has_data_format(self, path: str | os.PathLike[str]) -> bool:
        """Whether a file has the suffix of the training file, and that was not plain lines.

        Nor is a file with a header plain lines.
        """
        data = self.config.data
        first = data.train[0] if data.train else ""  # an untrusted run may name none
        name, known = (without_compression(os.fspath(one)) for one in (path, first))
        same = Path(name).suffix == Path(known).suffix
        headed = data.format == "tsv" and bool(data.header)
        return same and (headed or data.format in ("csv", "jsonl", "conllu", "columns"))

    def sources(self, path: str | os.PathLike[str]) -> Iterator[tuple[str, ...] | Defect]:
        """The inputs in a file of the training data's format, with or without its targets.

        A line that is not valid text is its Defect.
        """
        data, due = self.config.data, 1
        for row in read([os.fspath(path)], data, self.config.task.kind, labelled=False):
            empty = isinstance(row, Defect) and (
                row.code == "blank-source" or (row.code == "columns" and not row.text)
            )
            if isinstance(row, Defect) and not empty and row.code not in NO_TEXT:
                raise DataError(str(row))
            line = row.line if isinstance(row, Example) else int(row.where.rpartition(":")[2])
            if data.format == "jsonl":  # an empty line in, an empty line out
                yield from repeat(("",), line - due)
                due = line + 1
            if isinstance(row, Example):
                yield row.source
            else:
                yield row if row.code in NO_TEXT else ("",)

    def source_of(self, item: str | Sequence[str]) -> tuple[str, ...]:
        """The columns of one input, with the absolute path of each that is media."""
        query = self._query(item, 1, "", None, "the input")
        if query.problem:
            raise DataError(query.problem)
        return query.source

    def evaluate(
        self,
        *data: Any,
        settings: Mapping[str, Any] | None = None,
        others: Sequence["Run"] = (),
    ) -> dict[str, float]:
        """The task's metrics on these files, or on the run's own dev set if none is named.

        In place of files, examples from memory: a list of pairs or dicts, or a table.
        `settings` and `others` are those of `predict`; the loss is this run's alone.
        """
        return result_of(self.evaluating(*data, settings=settings, others=others))

    def evaluating(
        self,
        *data: str | os.PathLike[str],
        settings: Mapping[str, Any] | None = None,
        others: Sequence["Run"] = (),
    ) -> Evaluation:
        """The same as a generator that yields the share done and returns the metrics."""
        return measuring.evaluate(self, data, settings, others)

    def score(self, *data: Any) -> Iterator[tuple[float, int]]:
        """For each example of these files log p(target | source), and its number of tokens.

        In place of files, examples from memory, as for `evaluate`.
        """
        return measuring.score(self, data)

    def rows(self, *data: Any) -> Iterator[Example]:
        """The examples of files or from memory, with media located and labels checked."""
        given_data = given(data[0] if len(data) == 1 else data)
        found = examples(given_data, self.config.data, self.config.task.kind)
        for some in chunks(found, LINES_AT_ONCE):
            if isinstance(self.task, LabelTask):
                refuse_unseen(self.task, some)
            yield from map(self._located_row, some)

    def forecast(
        self,
        path: str | os.PathLike[str],
        quantiles: Sequence[float] = (),
        samples: int = 0,
        seed: int = 1,
    ) -> Continuation:
        """The forecast of the series of a table: means, quantiles, and samples of all steps."""
        if not isinstance(self.task, Forecast) or not isinstance(self.network, AnyForecaster):
            raise ConfigError(f"the task '{self.config.task.kind}' does not forecast")
        table = self.task.table_in(os.fspath(path))
        return self.task.forecast(self.network, table, quantiles, samples, seed)

    def _query(
        self,
        item: str | Sequence[str] | Defect,
        number: int,
        prefix: str,
        file: str | None,
        place: str,
    ) -> Query:
        """One input. Media paths in a file are relative to it; those of a program are free."""
        if isinstance(item, Defect):  # a line of a file that is not valid text
            return Query(("",), number - 1, prefix, item.message)
        try:
            source, problem = self._source(item, place), ""
        except CellError as error:
            return Query(("",), number - 1, prefix, str(error))
        if self.task.fallible and any(source):
            try:
                source = self._located(source, file or "", None if file is None else self.root)
            except DataError as error:
                problem = str(error)
        return Query(source, number - 1, prefix, problem)

    def _located_row(self, row: Example) -> Example:
        """An example with absolute paths of its media; DataError if one is missing."""
        if not self.task.reads_media:
            return row
        root, target = self.root if row.file else None, row.target
        try:
            source = self._located(row.source, row.file, root)
            if isinstance(self.task.target, MediaField) and is_media(str(target)):
                cell = Cell(str(target), os.path.dirname(row.file), root)
                required(cell)
                target = os.path.abspath(cell.path)
        except DataError as error:
            raise DataError(f"{row.where}: {error}") from None
        return replace(row, source=source, target=target, file="")

    def _located(self, source: tuple[str, ...], file: str, root: str | None) -> tuple[str, ...]:
        """The columns of an input, with the absolute path of each that is media."""
        found = list(source)
        for number in self.task.fallible:
            (column,) = self.task.columns[number] or (0,)
            cell = Cell(found[column], os.path.dirname(file), root)
            if isinstance(self.task.sources[number], MediaField) and not cell.inline:
                required(cell)
                found[column] = os.path.abspath(cell.path)
        return tuple(found)

    def _source(self, item: Any, place: str) -> tuple[str, ...]:
        """The columns of one input, as training read them; `place` is where it is, for messages."""
        data = self.config.data
        if data.vector and isinstance(item, list | tuple):
            item = [str(one) if isinstance(one, int | float) else one for one in item]
        if not isinstance(item, Sequence) or not all(isinstance(text, str) for text in item):
            raise DataError(f"{place}: expected a text, or a tuple of texts, found {item!r:.80}")
        if self.config.task.kind == "tag":
            return words_of(item, data.units) if isinstance(item, str) else tuple(item)
        tabs = data.format == "tsv" or len(data.source) > 1
        columns = item.split("\t") if isinstance(item, str) and tabs else item
        source = (columns,) if isinstance(columns, str) else tuple(columns)
        wanted = max(len(data.source), 1)
        if data.vector:
            source, wanted = vector_input(item, data)
        count = len(source)
        if any(source) and count != wanted:
            advice = "put a tab between two columns"
            if count > wanted:
                advice = f"leave out the {'target' if count == data.columns else 'others'}"
            what = columns_expected(data, labelled=False)
            raise DataError(f"{place}: expected {what}, found {count}; {advice}")
        return source


def load(folder: str | os.PathLike[str], device: Device = "auto", *, ensemble: bool = True) -> Run:
    """The run in a directory, ready to predict on a device, by default the best there is.

    One with several seeds is an ensemble; without `ensemble` only its first member is loaded.
    """
    folder = Path(folder)
    config = with_root(read_config(folder), "")
    config = config if ensemble else without_members(config)
    task = load_task(config, folder)
    weights = [folder / "model.safetensors", *member_weights(folder, config)]
    networks = [_load_network(task, path) for path in weights]
    network = networks[0] if len(networks) == 1 else build_ensemble(networks)
    if device == "auto" and config.decode.int8:  # 8-bit weights are for a CPU
        device = "cpu"
    network.to(choose_device(device)).eval()
    return Run(folder, config, task, network)


def _load_network(task: Task, weights: Path) -> Network:
    """The network of a task with the weights in a file."""
    network = fitting_network(task, weights)
    try:
        allocate(network, torch.device("cpu"))
    except (RuntimeError, MemoryError) as error:
        raise CheckpointError(f"{weights.parent}: {str(error).partition(chr(10))[0]}") from None
    files.load_weights(weights, network)
    merge(network)
    return network


def _is_empty(query: Query) -> bool:
    """Whether there is nothing to predict."""
    return bool(query.problem) or not any(text.strip() for text in query.source)


def _with_prefixes(
    inputs: Iterable[str | Sequence[str] | Defect],
    prefixes: Iterable[str],
    place: Callable[[int], str],
) -> Iterator[tuple[str | Sequence[str] | Defect, str]]:
    supply = iter(prefixes)
    for number, item in enumerate(inputs, 1):
        prefix = next(supply, None)
        if prefix is None:
            raise DataError(
                f"{place(number)} has no prefix: there are fewer prefixes than inputs; "
                "give one for each, or an empty one"
            )
        yield item, prefix
