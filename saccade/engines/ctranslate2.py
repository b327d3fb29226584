"""The CTranslate2 engine: the same search in C++, for Transformers and the plain requests.

What it cannot answer as the torch engine would (an output at its limit, a special token, an input
beyond its table of positions) is searched for again, here.
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
from saccade.engines.export import export_ctranslate2, longest, spec_of, why_not
from saccade.engines.local import Pending
from saccade.errors import ConfigError
from saccade.models.networks import Generator
from saccade.tasks.generate import EncodedQuery, GeneratingTask, SearchResult, length_of
from saccade.tasks.task import Prediction, Query, Request, Task, cut
from saccade.text.tokenizers import Tokenizer

STOP_AFTER_WIDTHS = 3  # so many widths have ended when, in practice, no open one can win any more
MAX_SENTENCES = 128  # in a batch: more are slower
MAX_HYPOTHESES = {False: 320, True: 160}  # in a batch, by int8


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
    output = task.output
    spec = spec_of(task.config, network, *vocabularies(task), output.specials, output.frame)
    export_ctranslate2(spec, folder, stamp)


def vocabularies(task: GeneratingTask) -> tuple[list[str], list[str]]:
    """The names of all tokens of the source, if there is one, and of the target."""
    source = _source_names(task) if task.readers else []
    return source, names_of(task.output)


def _source_names(task: GeneratingTask) -> list[str]:
    (reader,) = task.readers
    assert isinstance(reader, Text)
    return names_of(reader.tokenizer)


class CTranslate2Engine:
    """A CTranslate2 model, with workers of one thread each.

    `exported` is a vetted export of these weights; without one, the model is exported now.
    """

    def __init__(
        self, task: Task, network: Any, exported: Path | None, *, int8: bool, workers: int
    ):
        if torch.cpu._is_avx512_supported():  # by itself it uses it on Intel's processors alone
            os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")
        import ctranslate2

        assert isinstance(task, GeneratingTask)
        self.task, self.network, self.workers = task, network, workers
        self.source = _source_names(task) if task.readers else None
        self.target = names_of(task.output)
        self.silent = task.output.specials.never_generated
        self.ids = {name: i for i, name in enumerate(self.target)}
        self.longest = longest(task.config)
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
        """Begin to search, in the background."""
        decode = request.decode
        assert isinstance(decode, c.Beam)
        width = max(decode.width, request.nbest)
        largest = min(MAX_SENTENCES, max(1, MAX_HYPOTHESES[decode.int8] // width))
        encoded = self.task.encode_queries(queries, request)
        fit, lengths = [], []
        for i, query in enumerate(encoded):
            length = length_of(query.sources[0])
            if 0 < query.limit < self.longest - length and not (query.prefix or query.problem):
                fit.append(i)
                lengths.append(length)
        turns = max(1, -(-len(fit) // (self.workers * largest)))
        batches = cut(
            lengths,
            decode.batch_tokens,
            -(-len(fit) // (self.workers * turns)) or 1,  # as many for each worker
            equal=self.source is None,  # of different ones, it would search for the longer's ends
        )
        results: dict[int, Any] = {}
        for batch in reversed(list(batches)):  # the longest first, so that none waits at the end
            some = [encoded[fit[j]] for j in batch]
            found = self._search(some, decode, width, request)
            results.update(zip([fit[j] for j in batch], found, strict=True))
        return Pending(partial(self._finish, encoded, results, request))

    def close(self) -> None:
        self.model.unload_model()

    def _search(
        self, encoded: Sequence[EncodedQuery], decode: c.Beam, width: int, request: Request
    ) -> list[Any]:
        """What CTranslate2 will have found about each query of a batch."""
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
        """What CTranslate2 has found, and what the torch engine finds about the rest."""
        found = {}
        for i, result in results.items():
            while not result.done():  # CTranslate2's own waiting would not hear Ctrl-C
                time.sleep(0.001)
            hypotheses = self._hypotheses(result.result(), request)
            if all(_is_sound(one, encoded[i], self.silent) for one in hypotheses):
                found[i] = SearchResult(hypotheses)
        rest = [i for i in range(len(encoded)) if i not in found]
        if rest:
            again = self.task.search(self.network, [encoded[i] for i in rest], request)
            found.update(zip(rest, again, strict=True))
        return self.task.to_text(encoded, [found[i] for i in range(len(encoded))], request)

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
    """Of the length by which log p is divided."""
    return 0.0 if decode.length == "none" else float(decode.alpha)


def _is_sound(one: Hypothesis, query: EncodedQuery, silent: Sequence[int]) -> bool:
    """Whether the torch engine would have found the same."""
    return len(one.tokens) < query.limit and not set(silent) & set(one.tokens)
