"""The CTranslate2 engine: the same search in C++, for Transformers and the plain requests.

What it cannot answer as the torch engine would (an output at its limit, a special token, an input
beyond its table of positions) is searched for again, here.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from saccade import config as c
from saccade.decoding.search import Hypothesis, Length
from saccade.engines.export import export_ctranslate2, longest, spec_of, why_not
from saccade.engines.processes import cores
from saccade.errors import ConfigError
from saccade.models.networks import Generator
from saccade.nn.watch import watched
from saccade.tasks.generate import SILENT, Found, GeneratingTask
from saccade.tasks.task import Prediction, Query, Request, Task, cut, device_of
from saccade.tasks.translate import Translate
from saccade.text.tokenizers import Tokenizer

PATIENCE = 3  # times the width: so many have ended when, in practice, no open one can win any more
SENTENCES, HYPOTHESES, HYPOTHESES_INT8 = 128, 320, 160  # at most in a batch: more are slower


def why_torch(task: Task, network: Any, request: Request) -> str:
    """Why the torch engine has to serve a request; nothing if CTranslate2 can."""
    decode, plain = request.decode, c.Decode()
    if not isinstance(task, GeneratingTask):
        return f"the task '{task.config.task.kind}' does not search"
    if reason := why_not(task.config):
        return reason
    if watched():
        return "somebody watches the attention"
    if device_of(network).type != "cpu":
        return "the model is not on a CPU"
    if request.details or request.others or request.model is not None:
        return "details, ensembles and a second model are the torch engine's"
    for key in (
        "sample",
        "risk",
        "groups",
        "coverage",
        "min_len",
        "no_repeat",
        "repetition",
        "banned",
        "only",
    ):
        if getattr(decode, key) != getattr(plain, key):
            return f"decode.{key} is the torch engine's"
    if decode.length == "gnmt" and decode.alpha:
        return "decode.length = 'gnmt' is the torch engine's"
    try:
        import ctranslate2  # noqa: F401
    except ImportError:
        return "ctranslate2 is not installed: pip install 'saccade[fast]'"
    return ""


def names_of(tokenizer: Tokenizer) -> list[str]:
    """A name for every id, no two alike."""
    names = tokenizer.tokens(range(len(tokenizer)))
    seen: set[str] = set()
    for i, name in enumerate(names):
        names[i] = name if name not in seen else f"{name}#{i}"
        seen.add(names[i])
    return names


def export(task: Task, network: Any, folder: Path, stamp: str = "") -> None:
    """Write a run's model as CTranslate2 reads it."""
    if reason := why_not(task.config):
        raise ConfigError(f"export: {reason}")
    assert isinstance(task, GeneratingTask)
    assert isinstance(network, Generator)
    export_ctranslate2(spec_of(task.config, network, *vocabularies(task)), folder, stamp)


def vocabularies(task: GeneratingTask) -> tuple[list[str], list[str]]:
    """The names of all tokens of the source, if there is one, and of the target."""
    source = names_of(task.source.tokenizer) if isinstance(task, Translate) else []
    return source, names_of(task.output)


class CTranslate2Engine:
    """A CTranslate2 model, with a worker of one thread for each core.

    `exported` is a vetted export of these weights; without one, the model is exported now.
    """

    def __init__(self, task: Task, network: Any, decode: c.Decode, exported: Path | None):
        if torch.cpu._is_avx512_supported():  # by itself it uses it on Intel's processors alone
            os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")
        import ctranslate2

        assert isinstance(task, GeneratingTask)
        self.task, self.network = task, network
        self.source = names_of(task.source.tokenizer) if isinstance(task, Translate) else None
        self.target = names_of(task.output)
        self.ids = {name: i for i, name in enumerate(self.target)}
        self.longest = longest(task.config)
        self.workers = decode.workers or cores()
        make = ctranslate2.Translator if self.source else ctranslate2.Generator
        with tempfile.TemporaryDirectory(prefix="saccade-") as temporary:
            if exported is None:
                export(task, network, Path(temporary))
            self.model = make(
                str(exported or temporary),
                device="cpu",
                compute_type="int8" if decode.int8 else "float32",
                inter_threads=self.workers,
                intra_threads=1,
            )

    def asked(self, request: Request) -> "Asked":
        """The engine for one request."""
        return Asked(self, request)

    def answer(self, queries: Sequence[Query], request: Request) -> "Answers":
        """Begin to answer; the answers are there when they are asked for."""
        decode, task = request.decode, self.task
        rows = task.rows(queries)
        limits = [task.limit(row, decode) for row in rows]
        fit = [
            i
            for i, row in enumerate(rows)
            if limits[i] > 0 and len(row) + limits[i] < self.longest and not queries[i].prefix
        ]
        width = max(decode.width, request.nbest)
        options: dict[str, Any] = {
            "asynchronous": True,
            "beam_size": width,
            "num_hypotheses": request.nbest,
            "length_penalty": 0.0 if decode.length == "none" else decode.alpha,
            "patience": PATIENCE if decode.complete is None else decode.complete / width,
            "return_scores": width > 1 or request.scored,
        }
        if width == 1:
            options["patience"] = 1
        if self.source is not None:
            begin, names, limit = self.model.translate_batch, self.source, "max_decoding_length"
            options |= {"max_input_length": 0, "min_decoding_length": 0}
        else:
            begin, names, limit = self.model.generate_batch, self.target, "max_length"
            options |= {"include_prompt_in_result": False}
        most = HYPOTHESES_INT8 if decode.int8 else HYPOTHESES
        turns = -(-len(fit) // (self.workers * min(SENTENCES, max(1, most // width))))
        batches = cut(
            [len(rows[i]) for i in fit],
            decode.batch_tokens,
            -(-len(fit) // (self.workers * max(1, turns))) or 1,  # as many for each worker
            equal=self.source is None,  # of different ones, it would search for the longer's ends
        )
        pending: dict[int, Any] = {}
        for batch in reversed(list(batches)):  # the longest first, so that none waits at the end
            some = [fit[j] for j in batch]
            pieces = [[names[token] for token in rows[i]] for i in some]
            options[limit] = max(limits[i] for i in some)
            pending.update(zip(some, begin(pieces, **options), strict=True))
        return Answers(self, queries, rows, limits, pending, request)


class Asked:
    """The engine and what is wanted of it."""

    def __init__(self, engine: CTranslate2Engine, request: Request):
        self.engine, self.request = engine, request

    def submit(self, queries: Sequence[Query]) -> "Answers":
        return self.engine.answer(queries, self.request)

    def close(self) -> None:
        pass


class Answers:
    """What CTranslate2 is finding, and the torch engine for the rest."""

    def __init__(
        self,
        engine: CTranslate2Engine,
        queries: Sequence[Query],
        rows: list[list[int]],
        limits: list[int],
        pending: dict[int, Any],
        request: Request,
    ):
        self.engine, self.queries, self.rows, self.limits = engine, queries, rows, limits
        self.pending, self.request = pending, request

    def result(self) -> list[Prediction]:
        engine, task = self.engine, self.engine.task
        found = {i: self._found(result.result()) for i, result in self.pending.items()}
        odd = [i for i in range(len(self.queries)) if not self._sound(i, found.get(i))]
        again = task.search(engine.network, [self.queries[i] for i in odd], self.request)
        found.update(zip(odd, again, strict=True))
        return task.to_text(self.rows, [found[i] for i in range(len(found))], self.request)

    def _found(self, result: Any) -> Found:
        translated = self.engine.source is not None
        sequences = result.hypotheses if translated else result.sequences
        decode, hypotheses = self.request.decode, []
        length = Length(decode.length, decode.alpha)
        scores = result.scores or [0.0] * len(sequences)
        for names, value in zip(sequences, scores, strict=True):
            tokens = [self.engine.ids[name] for name in names]
            score = value / length(1.0, len(tokens) + 1)
            hypotheses.append(Hypothesis(tokens, score, value))
        return Found(hypotheses)

    def _sound(self, i: int, found: Found | None) -> bool:
        """Whether the torch engine would have found the same."""
        if found is None:
            return False
        return all(
            len(one.tokens) < self.limits[i] and not set(SILENT) & set(one.tokens)
            for one in found.hypotheses
        )
