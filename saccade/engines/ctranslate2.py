"""The CTranslate2 engine: the same search in C++, for Transformers and the plain requests.

Where its result would differ from the torch engine's (an output at its limit, a special token, an
input beyond its table of positions), torch searches again.
"""

import os
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from saccade import config as c
from saccade.data.fields import Text
from saccade.decoding.search import Hypothesis
from saccade.engines.export import export_ctranslate2, max_positions, spec_of, unsupported
from saccade.engines.local import Pending
from saccade.errors import ConfigError
from saccade.models.networks import Generator
from saccade.tasks.generate import EncodedQuery, GeneratingTask, SearchResult, length_of
from saccade.tasks.task import Prediction, Query, Request, Task, cut
from saccade.text.tokenizers import Tokenizer

STOP_AFTER_WIDTHS = 3  # times the width of ended hypotheses: in practice no open one can win then
MAX_SENTENCES = 128  # in a batch: more are slower
MAX_HYPOTHESES = {False: 320, True: 160}  # in a batch, by int8


def unique_names(tokenizer: Tokenizer) -> list[str]:
    """A unique name for every id."""
    names = tokenizer.tokens(range(len(tokenizer)))
    seen: set[str] = set()
    for i, name in enumerate(names):
        names[i] = name if name not in seen else f"{name}#{i}"
        seen.add(names[i])
    return names


def export(task: Task, network: Any, folder: Path, stamp: str = "") -> None:
    """Write a run's model in CTranslate2's format."""
    if reason := unsupported(task.config):
        raise ConfigError(f"export: {reason}")
    assert isinstance(task, GeneratingTask)
    assert isinstance(network, Generator)
    output = task.output
    spec = spec_of(task.config, network, *vocabularies(task), output.specials, output.frame)
    export_ctranslate2(spec, folder, stamp)


def vocabularies(task: GeneratingTask) -> tuple[list[str], list[str]]:
    """The names of all tokens of the source, if there is one, and of the target."""
    source = _source_names(task) if task.readers else []
    return source, unique_names(task.output)


def _source_names(task: GeneratingTask) -> list[str]:
    (reader,) = task.readers
    assert isinstance(reader, Text)
    return unique_names(reader.tokenizer)


class CTranslate2Engine:
    """A CTranslate2 model, with workers of one thread each.

    `exported` is a checked export of these weights; without one, the model is exported now.
    """

    def __init__(
        self, task: Task, network: Any, exported: Path | None, *, int8: bool, workers: int
    ):
        if torch.cpu._is_avx512_supported():  # its default only on Intel's processors
            os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")
        import ctranslate2

        assert isinstance(task, GeneratingTask)
        self.task, self.network, self.workers = task, network, workers
        self.source = _source_names(task) if task.readers else None
        self.target = unique_names(task.output)
        self.never_generated = task.output.specials.never_generated
        self.ids = {name: i for i, name in enumerate(self.target)}
        self.max_positions = max_positions(task.config)
        make = ctranslate2.Translator if self.source else ctranslate2.Generator
        with tempfile.TemporaryDirectory(prefix="saccade-") as temporary:
            if exported is None:
                export(task, network, Path(temporary))
            self.model = make(
                str(exported or temporary),
                device="cpu",
                compute_type="int8" if int8 else "float32",
                inter_threads=workers,
                intra_threads=1,
            )

    def submit(self, queries: Sequence[Query], request: Request) -> Pending:
        """Start a search in the background."""
        decode = request.decode
        assert isinstance(decode, c.Beam)
        width = max(decode.width, request.nbest)
        largest = min(MAX_SENTENCES, max(1, MAX_HYPOTHESES[decode.int8] // width))
        encoded = self.task.encode_queries(queries, request)
        suitable, lengths = [], []
        for i, query in enumerate(encoded):
            length = length_of(query.sources[0])
            if 0 < query.limit < self.max_positions - length and not (
                query.prefix or query.problem
            ):
                suitable.append(i)
                lengths.append(length)
        rounds = max(1, -(-len(suitable) // (self.workers * largest)))
        batches = cut(
            lengths,
            decode.batch_tokens,
            -(-len(suitable) // (self.workers * rounds)) or 1,  # as many for each worker
            equal=self.source is None,  # of different ones, it would search for the longer's ends
        )
        results: dict[int, Any] = {}
        for batch in reversed(list(batches)):  # the longest first, so that none waits at the end
            some = [encoded[suitable[j]] for j in batch]
            results_of = self._search(some, decode, width, request)
            results.update(zip([suitable[j] for j in batch], results_of, strict=True))
        return Pending(partial(self._finish, encoded, results, request))

    def close(self) -> None:
        self.model.unload_model()

    def _search(
        self, encoded: Sequence[EncodedQuery], decode: c.Beam, width: int, request: Request
    ) -> list[Any]:
        """CTranslate2's future result for each query of a batch."""
        patience = STOP_AFTER_WIDTHS if decode.stop_after is None else decode.stop_after / width
        options: dict[str, Any] = {
            "asynchronous": True,
            "beam_size": width,
            "num_hypotheses": request.nbest,
            "length_penalty": _exponent(decode),
            "patience": patience if width > 1 else 1,
            "return_scores": width > 1 or request.scored,
        }
        limit = max(query.limit for query in encoded)
        if self.source is not None:
            search, names = self.model.translate_batch, self.source
            options |= {"max_input_length": 0, "min_decoding_length": 0}
            options["max_decoding_length"] = limit
            if marks := [self.target[i] for i in self.task.output.frame.start[1:]]:
                options["target_prefix"] = [marks] * len(encoded)
                options["max_decoding_length"] = limit + len(marks)
        else:
            search, names = self.model.generate_batch, self.target
            options |= {"include_prompt_in_result": False, "max_length": limit}
        rows = [query.sources[0][0] for query in encoded]
        return list(search([[names[i] for i in row] for row in rows], **options))

    def _finish(
        self, encoded: Sequence[EncodedQuery], results: dict[int, Any], request: Request
    ) -> list[Prediction]:
        """The results of CTranslate2, and of the torch engine for the rest."""
        results_of = {}
        for i, result in results.items():
            while not result.done():  # CTranslate2's own waiting cannot be interrupted by Ctrl-C
                time.sleep(0.001)
            hypotheses = self._hypotheses(result.result(), request)
            if all(_matches_torch(one, encoded[i], self.never_generated) for one in hypotheses):
                results_of[i] = SearchResult(hypotheses)
        rest = [i for i in range(len(encoded)) if i not in results_of]
        if rest:
            rest_results = self.task.search(self.network, [encoded[i] for i in rest], request)
            results_of.update(zip(rest, rest_results, strict=True))
        return self.task.to_text(encoded, [results_of[i] for i in range(len(encoded))], request)

    def _hypotheses(self, result: Any, request: Request) -> list[Hypothesis]:
        sequences = result.hypotheses if self.source is not None else result.sequences
        values = result.scores or [0.0] * len(sequences)
        hypotheses = []
        for names, value in zip(sequences, values, strict=True):
            marks = self.task.output.frame.start[1:] if self.source is not None else ()
            tokens = [self.ids[name] for name in names][len(marks) :]
            score = value * (len(tokens) + 1) ** _exponent(request.decode)
            hypotheses.append(Hypothesis(tokens, score, value))
        return hypotheses


def _exponent(decode: Any) -> float:
    """The exponent of the length by which log p is divided."""
    return 0.0 if decode.length == "none" else float(decode.alpha)


def _matches_torch(one: Hypothesis, query: EncodedQuery, never_generated: Sequence[int]) -> bool:
    """Whether the torch engine would give the same hypothesis."""
    return len(one.tokens) < query.limit and not set(never_generated) & set(one.tokens)
