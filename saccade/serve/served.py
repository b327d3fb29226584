"""A run as it is served: what clients may request, and the format of its answers."""

import base64
import binascii
import os
import re
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any

import torch

from saccade import config as c
from saccade.data.fields import Text
from saccade.data.lines import Example
from saccade.data.media import MediaField
from saccade.data.parallel import cores
from saccade.engines.choose import can_fork
from saccade.engines.local import Engine, LocalEngine
from saccade.engines.processes import ProcessEngine
from saccade.errors import ConfigError, DataError, SaccadeError
from saccade.inspect.view import kinds
from saccade.models.networks import Generator
from saccade.runs.folder import is_locked
from saccade.runs.run import Run
from saccade.serve.refusals import RequestError, problem_with, refusal_of
from saccade.serve.settings import ServeSettings
from saccade.tasks.classify import Classify
from saccade.tasks.forecast import Forecast
from saccade.tasks.generate import (
    EncodedQuery,
    GeneratingTask,
    hypotheses_of,
    length_of,
)
from saccade.tasks.labels import LabelTask
from saccade.tasks.language import LanguageModel
from saccade.tasks.pieces import Piece, pieces
from saccade.tasks.tag import Tag
from saccade.tasks.task import TOO_LONG, Prediction, Query, Request, max_positions
from saccade.tasks.translate import Translate
from saccade.tasks.vectors import WordVectors

# settings that a client may not choose: how the server computes, and names of files
SERVER_SETTINGS = frozenset(c.Compute.model_fields) | {"only", "model"}
BOUNDED = {"width": "max_width", "candidates": "max_width", "max_len": "max_len"}
CACHED_REQUESTS = 128  # validated search settings, the last used
MAX_BANNED = 64
MAX_LABELS = 200  # of a classifier, with their probabilities

SUFFIXES = {  # of temporary files for the content of data: URLs
    "image/png": ".png", "image/jpeg": ".jpg", "image/webp": ".webp", "image/gif": ".gif",
    "image/bmp": ".bmp", "audio/wav": ".wav", "audio/x-wav": ".wav", "audio/wave": ".wav",
    "audio/vnd.wave": ".wav", "audio/flac": ".flac", "audio/x-flac": ".flac", "audio/ogg": ".ogg",
}  # fmt: skip
_DATA_URL = re.compile(r"data:([a-z0-9.+/-]{1,60})(?:;[a-z0-9=._-]{1,60})*;base64,", re.ASCII)

Item = str | Sequence[str]


class Served:
    """A run under a name."""

    def __init__(self, name: str, run: Run, settings: ServeSettings):
        self.name, self.run, self.settings = name, run, settings
        self.task = run.task
        # One network for any number of inputs, so that an answer is the same in any batch.
        self.network: Any = run.engines.packed(run.config.decode.int8)
        self._requests: OrderedDict[object, Request] = OrderedDict()
        default = self._request({}, 1, False)  # reads the files that its settings name
        # Searches run in a process of their own, or they would share the GIL with the HTTP thread.
        # A fork has none of its parent's threads, so this is for a single thread only.
        self.engine: Engine = LocalEngine(run.task, self.network)
        if cores() > 1 and torch.get_num_threads() == 1 and can_fork(self.network):
            self.engine = forked = ProcessEngine(run.task, self.network, 1)
            forked.fork(default)  # while no model computes

    def close(self) -> None:
        self.engine.close()
        self.run.close()

    # --- for the worker ---

    def answer(self, queries: list[Query], request: Request) -> list[Prediction]:
        if request.decode.engine == "ctranslate2":
            return self.run.engines.choose(request).submit(queries, request).result()
        return self.engine.submit(queries, request).result()

    def pieces(
        self, queries: list[Query], request: Request, alternatives: int
    ) -> Iterator[list[Piece]]:
        assert isinstance(self.task, GeneratingTask)
        assert isinstance(self.run.network, Generator)
        return pieces(self.task, self.network, queries, request, alternatives)

    def budget(self, request: Request) -> int:
        """The number of tokens that a batch may have."""
        hypotheses = hypotheses_of(request) if isinstance(self.task, GeneratingTask) else 1
        return max(1, request.decode.batch_tokens // hypotheses)

    # --- requests ---

    def request(
        self, settings: Mapping[str, Any], nbest: int = 1, details: bool = False
    ) -> tuple[Request, int | None]:
        """The validated request, and the seed for sampling."""
        self.check_settings(settings)
        if nbest > self.settings.max_width:
            message = f"nbest = {nbest}: at most {self.settings.max_width} are served"
            raise RequestError(422, "settings", message, "nbest")
        settings = dict(settings)
        seed = settings.get("seed")
        if isinstance(self.task, GeneratingTask) and type(seed) is int and 0 <= seed < 2**63:
            # Each query has its own seed, so requests with different seeds can share a batch.
            settings["seed"] = 1
        else:
            seed = None
        try:
            return self._request(settings, nbest, details), seed
        except SaccadeError as error:
            raise refusal_of(error, "settings") from None

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """RequestError for settings that a client may not choose, or above the server's limits."""
        for key, value in settings.items():
            if key in SERVER_SETTINGS:
                raise RequestError(
                    422, "settings", f"settings: {key} is the server's own", "settings"
                )
            bound = getattr(self.settings, BOUNDED[key]) if key in BOUNDED else None
            if bound is not None and isinstance(value, int | float) and value > bound:
                message = f"settings: {key} = {value}: at most {bound} are served"
                raise RequestError(422, "settings", message, "settings")
            if key == "banned" and isinstance(value, list | str) and len(value) > MAX_BANNED:
                message = f"settings: banned: at most {MAX_BANNED} phrases are served"
                raise RequestError(422, "settings", message, "settings")

    def _request(self, settings: dict[str, Any], nbest: int, details: bool) -> Request:
        key = repr((sorted(settings.items(), key=lambda pair: pair[0]), nbest, details))
        if key in self._requests:
            self._requests.move_to_end(key)
            return self._requests[key]
        if isinstance(self.task, GeneratingTask):
            request = self.run.request(nbest=nbest, settings=settings, details=details)
        else:
            labels = len(self.task.labels) if isinstance(self.task, Classify) else 1
            most = max(nbest, min(labels, MAX_LABELS))
            request = self.run.request(nbest=most, settings=settings)
            request = replace(request, details=isinstance(self.task, Tag))
        self._requests[key] = request
        if len(self._requests) > CACHED_REQUESTS:
            self._requests.popitem(last=False)
        return request

    def query(
        self,
        item: Item,
        where: str,
        *,
        number: int = 0,
        prefix: str = "",
        seed: int | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> tuple[Query, int]:
        """An input as a query, and its number of tokens; RequestError if it cannot be read."""
        try:
            source = self.run.source_of(item)
            if not any(text.strip() for text in source):
                raise RequestError(422, "empty", "the input is empty: write something", where)
            self.refuse_files(source, where)
            size = self.size(source)
        except SaccadeError as error:
            raise refusal_of(error, where) from None
        self.require_room(size, where)
        return Query(source, number, prefix, seed=seed, stopped=stopped), size

    def require_room(self, tokens: int, where: str) -> None:
        """RequestError for more tokens than the network's positions, or the server's limit."""
        if tokens > self.positions:
            message = f"{tokens:,} tokens are {TOO_LONG} to {self.positions:,} tokens or fewer"
            raise RequestError(422, "too_long", message, where)
        if tokens > self.settings.max_input_tokens:
            most = self.settings.max_input_tokens
            message = f"{tokens:,} tokens in one input: {most:,} are the most; cut it into parts"
            raise RequestError(413, "too_large", message, where)

    @cached_property
    def positions(self) -> int:
        """How many tokens the network can read."""
        config = self.run.config
        return min(max_positions(config.encoder), self.context)

    @property
    def context(self) -> int:
        """The positions of a language model, which holds prompt and continuation."""
        return max_positions(self.run.config.decoder) if not self.task.sources else 1 << 62

    def size(self, source: tuple[str, ...]) -> int:
        """The number of tokens in an input."""
        if isinstance(self.task, GeneratingTask):
            (reading,) = self.task.encode_sources([Query(source)])
            return length_of(reading)
        if not self.task.sources:
            return int(self.task.encode([Example(source, None)]).lengths[0])
        cells = self.task.read([source])
        pairs = zip(self.task.sources, cells, strict=True)
        return sum(int(field.encode(column).lengths[0]) for field, column in pairs)

    def target_size(self, target: str, where: str) -> int:
        """The number of tokens in a target; RequestError if it exceeds the network's positions."""
        if not isinstance(self.task, GeneratingTask):
            return 1
        size = len(self.task.output.encode([target])[0]) + 1
        if size > self.task.target_positions:
            most = self.task.target_positions - 1
            raise RequestError(422, "too_long", f"the target has more than {most} tokens", where)
        return size

    # --- media ---

    @cached_property
    def media_columns(self) -> dict[int, str]:
        """The columns of an input that are media, with their kind."""
        columns: dict[int, str] = {}
        for i, field in enumerate(self.task.sources):
            if isinstance(field, MediaField):
                (column,) = self.task.columns[i] or (0,)
                columns[column] = field.reader.kind
        return columns

    def refuse_files(self, source: tuple[str, ...], where: str) -> None:
        """RequestError for a media column with a path other than the server's temporary files."""
        for column, kind in self.media_columns.items():
            text = source[column] if column < len(source) else ""
            if text[:1] != "[" and not text.startswith(_temporary_folder()):
                message = f"a {kind} has to come as a data: URL: files and URLs are not read"
                raise RequestError(422, "input", message, where)

    @contextmanager
    def opened(self, item: Item, where: str) -> Iterator[Item]:
        """An input whose data: URLs are temporary files inside the block."""
        if not self.media_columns:
            yield item
            return
        cells = list(item.split("\t") if isinstance(item, str) else item)
        paths: list[str] = []
        try:
            for column, kind in self.media_columns.items():
                text = cells[column] if column < len(cells) else "["
                if text[:1] != "[":
                    paths.append(_written(text, kind, where))
                    cells[column] = paths[-1]
            yield cells if len(cells) > 1 else cells[0]
        except SaccadeError as error:
            raise refusal_of(_without_paths(error, paths), where) from None
        finally:
            for path in paths:
                with suppress(OSError):
                    os.unlink(path)

    # --- answers ---

    def prediction(self, query: Query, prediction: Prediction, nbest: int) -> dict[str, Any]:
        """A prediction as JSON."""
        if prediction.problem:
            return {"text": "", "score": 0.0, "others": [], "problem": prediction.problem}
        ranked = [{"text": text, "score": score} for text, score in prediction.others]
        answer: dict[str, Any] = {"text": prediction.text, "score": prediction.score}
        answer["others"] = ranked[: nbest - 1]
        if unknown := prediction.unknown or self._count_unknown(query):
            answer["unknown"] = unknown
        if isinstance(self.task, Classify):
            answer["labels"] = [
                {"text": label["text"], "p": exp(label["score"])} for label in [answer, *ranked]
            ]
        elif isinstance(self.task, Tag):
            answer["tags"] = [
                {"word": word, "label": token.text, "p": exp(token.log_p)}
                for word, token in zip(query.source, prediction.tokens, strict=False)
            ]
        elif prediction.tokens:
            answer["tokens"] = self._tokens(query, prediction)
        if prediction.tree is not None:
            assert isinstance(self.task, GeneratingTask)
            names = self.task.output.tokens([node.token for node in prediction.tree.nodes])
            answer["tree"] = [
                {"parent": node.parent, "token": name, "score": node.score, "fate": node.fate}
                for node, name in zip(prediction.tree.nodes, names, strict=True)
            ]
        return answer

    def _count_unknown(self, query: Query) -> int:
        """How many tokens of the source the model reads as <unk>."""
        if not isinstance(self.task, GeneratingTask) or self.media_columns:
            return 0
        (rows,) = self.task.encode_sources([query])
        return sum(
            list(row).count(reader.tokenizer.specials.unk)
            for reader, row in zip(self.task.readers, rows, strict=False)  # a prompt has none
            if isinstance(reader, Text)
        )

    def _tokens(self, query: Query, prediction: Prediction) -> list[dict[str, Any]]:
        """The tokens of an answer; `prefix` is the text up to and including each.

        That of a language model is what follows the prompt, with the blank between the two.
        """
        assert isinstance(self.task, GeneratingTask)
        prompt = self.task.prompt(query)
        encoded = EncodedQuery(0, tuple(self.task.encode_sources([query])), [], 0, "", prompt)
        output, tokens = self.task.output, []
        before: list[int] = []
        for token in prediction.tokens:
            names = [token.text, *(text for text, _ in token.alternatives)]
            ids = [self._ids[name] for name in names]
            rows = [self.task.full_output(encoded.sources[0], [*before, i]) for i in ids]
            texts = [
                self.task.display_text(encoded, text)[len(prompt) :] for text in output.decode(rows)
            ]
            prefixes = [
                None if i == output.specials.eos else text
                for i, text in zip(ids, texts, strict=True)
            ]
            alternatives = [
                {"text": text, "log_p": finite(log_p), "prefix": prefix}
                for (text, log_p), prefix in zip(token.alternatives, prefixes[1:], strict=True)
            ]
            chosen = {"text": token.text, "log_p": finite(token.log_p), "prefix": prefixes[0]}
            tokens.append(chosen | {"alternatives": alternatives})
            before = [*before, ids[0]]
        return tokens

    @cached_property
    def _ids(self) -> dict[str, int]:
        assert isinstance(self.task, GeneratingTask)
        names = self.task.output.tokens(range(len(self.task.output)))
        return {name: i for i, name in reversed(list(enumerate(names)))}

    def describe(self) -> dict[str, Any]:
        """The run as listed by /api/v1/runs."""
        config, task = self.run.config, self.task
        columns = [str(column) for column in config.data.source]
        default = "numbers" if config.task.kind == "forecast" else "text"
        tokenizers = [t for field in task.fields if (t := getattr(field, "tokenizer", None))]
        units = [str(tokenizer.config.kind) for tokenizer in tokenizers] or [""]
        sizes = [field.size for field in task.fields if not isinstance(field, MediaField)]
        return {
            "name": self.name,
            "task": config.task.kind,
            "title": config.task.title,
            "sources": [self.media_columns.get(i, default) for i in range(max(1, len(columns)))],
            "columns": columns,
            "tokenizers": {"source": units[0], "target": units[-1]},
            "series": series_of(task) if isinstance(task, Forecast) else None,
            "fills": task.fills,
            "vectors": isinstance(task, WordVectors),
            "searches": isinstance(task, GeneratingTask),
            "labels": list(task.labels.labels) if isinstance(task, LabelTask) else None,
            "parameters": sum(p.numel() for p in self.run.network.parameters()),
            "views": kinds(self.run),
            "training": is_locked(self.run.folder),
            "vocabulary_size": sizes[-1] if sizes else 0,
            "decode": config.decode.model_dump(mode="json", exclude=set(SERVER_SETTINGS)),
        }

    @property
    def translates_text(self) -> bool:
        """Whether it takes one text to another."""
        one_text = len(self.task.sources) == 1 and isinstance(self.task.sources[0], Text)
        return (
            isinstance(self.task, Translate) and one_text and len(self.run.config.data.source) <= 1
        )

    @property
    def completes_text(self) -> bool:
        return isinstance(self.task, LanguageModel)

    def vectors(self, words: Sequence[str], n: int) -> list[dict[str, Any]]:
        """The words nearest to one, or to what is to c as b is to a."""
        try:
            task, network = self.run.require_vectors()
        except ConfigError as error:
            raise refusal_of(error, "run") from None
        nearest = task.nearest(task.directions(network), " ".join(words), n)
        if nearest.problem:
            raise problem_with(nearest.problem, "word")
        ranked = [(nearest.text, nearest.score), *nearest.others]
        return [{"text": text, "similarity": score} for text, score in ranked]


def series_of(task: Forecast) -> dict[str, Any]:
    """The series that a run forecasts, its lookback, and whether it forecasts them jointly."""
    span = task.series.span
    return {
        "names": list(task.series.known.names[:1000]),
        "lookback": span.lookback,
        "joint": span.joint,
    }


def finite(log_p: float) -> float:
    """A log-probability for JSON, which has no infinity."""
    return max(log_p, -1e9)


def names_of(folders: Sequence[Path]) -> list[str]:
    """A name for each run: that of its folder, made unique."""
    names: list[str] = []
    for folder in folders:
        name = base = folder.resolve().name or "run"
        number = 2
        while name in names:
            name, number = f"{base}-{number}", number + 1
        names.append(name)
    return names


_folder: tempfile.TemporaryDirectory[str] | None = None


def _temporary_folder() -> str:
    """The folder for the content of data: URLs, which only this user can read."""
    global _folder
    if _folder is None:
        _folder = tempfile.TemporaryDirectory(prefix="saccade-serve-")
    return os.path.join(_folder.name, "")


def _written(url: str, kind: str, where: str) -> str:
    """The path of a new temporary file with the content of a data: URL."""
    match = _DATA_URL.match(url[:200].lower())
    suffix = SUFFIXES.get(match[1]) if match else None
    if match is None or suffix is None:
        message = (
            f"a {kind} has to come as a data: URL in base64, of one of the types "
            f"{', '.join(sorted(SUFFIXES))}; files and URLs are not read"
        )
        raise RequestError(422, "input", message, where)
    try:
        raw = base64.b64decode(url[match.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(422, "input", "the data: URL is not base64", where) from None
    descriptor, path = tempfile.mkstemp(suffix, dir=_temporary_folder())
    with os.fdopen(descriptor, "wb") as file:
        file.write(raw)
    return path


def _without_paths(error: SaccadeError, paths: Sequence[str]) -> SaccadeError:
    """The same error without the paths of temporary files in its message."""
    text = str(error)
    for path in paths:
        text = text.replace(path, "the file")
    return DataError(text) if isinstance(error, DataError) else type(error)(text)
