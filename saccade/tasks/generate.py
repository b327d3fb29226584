"""What `translate` and `model` share: teacher forcing, search with a decoder, and its results."""

import sys
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from saccade import config as c
from saccade.data.batches import collate
from saccade.data.corpora import Corpus
from saccade.data.lines import Defect, Example, FileError, lines_of
from saccade.decoding import steps
from saccade.decoding.risk import least_risk
from saccade.decoding.sample import draw, sample
from saccade.decoding.search import (
    Hypothesis,
    Length,
    Step,
    beam_search,
    greedy,
    likeliest,
    preferred,
    token_log_probs,
    walk,
)
from saccade.decoding.tree import Tree
from saccade.errors import ConfigError, DataError
from saccade.metrics.text import similarity
from saccade.models.decoders import Decoder, RecurrentDecoder, TransformerDecoder
from saccade.models.networks import Generator, shifted
from saccade.nn.padded import Padded
from saccade.nn.state import repeat, select
from saccade.tasks.task import (
    Member,
    Prediction,
    Query,
    Request,
    Task,
    Token,
    device_of,
    in_batches,
)
from saccade.text.tokenizers import Tokenizer
from saccade.text.vocab import BOS, EOS, PAD, SEP, UNK

SILENT = (PAD, UNK, BOS, SEP)  # what is no text is never said
ALTERNATIVES = 5  # shown beside a token
TOO_LONG = "longer than the model's positions: shorten it"
UNKNOWN = "its prefix holds what the model has no token for"


class Found(NamedTuple):
    """The hypotheses about one query, the best first, or why there are none."""

    hypotheses: list[Hypothesis]
    problem: str = ""
    tokens: tuple[Token, ...] = ()
    tree: Tree | None = None


class Begun(NamedTuple):
    """A search about to begin: what was read, and a step that says how it may go on."""

    step: Step  # under all that was asked for
    state: Any
    plain: Step  # the models' own
    plain_state: Any
    first: Tensor  # (B,)
    attention: nn.Module | None  # to the source


class GeneratingTask(Task):
    """A task whose answers are searched for."""

    output: Tokenizer
    equal = False  # whether a batch must hold inputs of one length

    @abstractmethod
    def rows(self, queries: Sequence[Query]) -> list[list[int]]:
        """The ids that a network reads of each query."""

    @abstractmethod
    def start(self, network: Generator, rows: list[list[int]]) -> tuple[Any, Tensor]:
        """The decoder's state after reading these rows, and the token it goes on from."""

    @abstractmethod
    def room(self, row: Sequence[int]) -> int:
        """For how many tokens there are positions after this row; below 0: it is too long."""

    def limit(self, row: Sequence[int], decode: c.Decode) -> int:
        """How many tokens an answer to this row may have; less than 0 if it is too long to read."""
        return min(decode.max_len, self.room(row))

    @abstractmethod
    def written(self, row: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """The tokens of the whole text when these were said after reading this row."""

    def scored(self, examples: Sequence[Example]) -> Corpus:
        """What `score` reads of examples: the first target of each."""
        return self.encode([replace(row, others=()) for row in examples])

    def score(self, network: Generator, examples: Sequence[Example]) -> list[tuple[float, int]]:
        corpus = self.scored(examples)

        def work(rows: list[int]) -> list[tuple[float, int]]:
            batch = collate(corpus, np.array(rows)).to(device_of(network))
            tokens, said = shifted(batch.target)
            state = network.decoder.start(network.encode(batch.sources), len(rows))
            return summed(network.decoder, tokens, said, state)

        with torch.inference_mode():
            budget = self.config.decode.batch_tokens
            return in_batches(range(len(corpus)), corpus.lengths.tolist(), budget, work)

    def predict(
        self, network: Generator, queries: Sequence[Query], request: Request
    ) -> list[Prediction]:
        return self.to_text(self.rows(queries), self.search(network, queries, request), request)

    def to_text(
        self, rows: Sequence[list[int]], found: Sequence[Found], request: Request
    ) -> list[Prediction]:
        """What was found about each row as text."""
        texts = self.output.decode(
            [
                self.written(row, hypothesis.tokens)
                for row, answer in zip(rows, found, strict=True)
                for hypothesis in answer.hypotheses
            ]
        )
        supply, predictions = iter(texts), []
        for answer in found:
            ranked = [(next(supply), hypothesis.score) for hypothesis in answer.hypotheses]
            if not ranked:
                predictions.append(Prediction("", 0.0, problem=answer.problem))
                continue
            if request.decode.risk != "off":
                ranked = self._least_risk(ranked, request.decode)
            ranked = ranked[: request.nbest]
            (text, score), *others = ranked
            predictions.append(
                Prediction(text, score, tuple(others), tokens=answer.tokens, tree=answer.tree)
            )
        return predictions

    def _least_risk(
        self, ranked: list[tuple[str, float]], decode: c.Decode
    ) -> list[tuple[str, float]]:
        """The candidates again, the one nearest to all others first."""
        name = getattr(self.config.task, "metric", "chrf") if decode.risk == "metric" else ""
        unit: Literal["char", "token"] = "char" if self.output.config.kind == "char" else "token"
        utility = similarity(name or decode.risk, unit)
        weights = [0.0 if decode.sample else score for _, score in ranked]
        order = least_risk([text for text, _ in ranked], weights, utility)
        return [ranked[i] for i in order]

    def search(self, network: Generator, queries: Sequence[Query], request: Request) -> list[Found]:
        """For each query its hypotheses, the best first."""
        decode = request.decode
        check_members(self, request)
        rows, prefixes = self.rows(queries), self._prefixes(queries)
        limits = [self.limit(row, decode) for row in rows]
        for task, _ in request.others:
            rooms = map(task.room, task.rows(queries))
            limits = [min(pair) for pair in zip(limits, rooms, strict=True)]
        if request.model is not None:
            room = positions_of(request.model.task.config.decoder) - 1
            limits = [min(limit, room) for limit in limits]
        problems = {i: TOO_LONG for i, limit in enumerate(limits) if limit < 0}
        problems |= {i: UNKNOWN for i, prefix in enumerate(prefixes) if UNK in prefix}
        fine = [i for i in range(len(queries)) if i not in problems]

        def work(some: list[int]) -> list[Found]:
            begun = self.begin(network, [queries[i] for i in some], request)
            few = [limits[i] for i in some]
            return answer(begun, few, request, [queries[i].number for i in some], self.output)

        each = decode.candidates if decode.risk != "off" else decode.width
        budget = max(1, decode.batch_tokens // max(request.nbest, each))
        lengths = [len(rows[i]) + len(prefixes[i]) for i in fine]
        answers = in_batches(fine, lengths, budget, work, equal=self.equal)
        ready = dict(zip(fine, answers, strict=True))
        return [ready.get(i) or Found([], problems[i]) for i in range(len(queries))]

    def begin(self, network: Generator, queries: Sequence[Query], request: Request) -> Begun:
        """What the network, and those that speak with it, make of these queries before a token."""
        decode = request.decode
        parts = []
        with torch.inference_mode():
            for member in (Member(self, network), *request.others):
                state, first = member.task.start(member.network, member.task.rows(queries))
                parts.append((steps.stepper(member.network.decoder, SILENT), state))
            plain, plain_state = parts[0]
            if len(parts) > 1:
                plain = steps.ensemble([step for step, _ in parts])
                plain_state = tuple(state for _, state in parts)
            step, state = plain, plain_state
            if request.model is not None:
                fusion_model = request.model.network.decoder
                step = steps.fuse(step, steps.stepper(fusion_model), decode.model_weight, BOS, EOS)
                state = (state, fusion_model.start(None, len(queries)))
        attention = None
        if decode.coverage:
            attention = attention_of(network.decoder)
            step = steps.listening(step, attention)
        prefixes = self._prefixes(queries)
        step = steps.prompted(step, prefixes) if any(prefixes) else step
        return Begun(self._ruled(step, decode), state, plain, plain_state, first, attention)

    def _ruled(self, step: Step, decode: c.Decode) -> Step:
        if decode.repetition > 1.0:
            step = steps.repetition(step, decode.repetition)
        if decode.no_repeat:
            step = steps.no_repeat(step, decode.no_repeat)
        if decode.min_len:
            step = steps.at_least(step, EOS, decode.min_len)
        if decode.banned:
            step = steps.avoid(step, self._phrases(decode.banned))
        if decode.only:
            step = steps.only(step, EOS, permitted(decode.only, self.output))
        if decode.sample:
            step = filtered(step, decode)
        return step

    def _phrases(self, banned: Sequence[str]) -> list[list[int]]:
        phrases = self.output.encode(banned)
        for text, ids in zip(banned, phrases, strict=True):
            if not ids or UNK in ids:
                raise ConfigError(f"decode.banned: {text!r}: the model has no words for it")
        return phrases

    def _prefixes(self, queries: Sequence[Query]) -> list[list[int]]:
        """The tokens with which each answer has to begin."""
        if not any(query.prefix for query in queries):
            return [[] for _ in queries]
        return self.output.encode([query.prefix for query in queries])

    def stream(self, network: Generator, query: Query, request: Request) -> Iterator[str]:
        """The text of one answer, piece by piece as it comes; greedy, or drawn."""
        decode = request.decode
        (row,) = self.rows([query])
        limit = self.limit(row, decode)
        if limit < 0:
            raise DataError(f"input {query.number + 1}: longer than the model's positions")
        begun = self.begin(network, [query], request)
        pick = draw(decode.seed, [query.number << 20]) if decode.sample else likeliest
        tokens: list[int] = []
        shown = ""
        for ((_, token, score),) in walk(
            begun.step, begun.state, begun.first, end=EOS, limits=[limit], pick=pick
        ):
            if score == float("-inf"):
                raise DataError(f"input {query.number + 1}: the constraints allow no way on")
            tokens += [token] if token != EOS else []
            text = self.output.decode([self.written(row, tokens)])[0]
            if text.startswith(shown) and (token == EOS or not text.endswith("\ufffd")):
                yield text[len(shown) :]
                shown = text


def answer(
    begun: Begun,
    limits: Sequence[int],
    request: Request,
    numbers: Sequence[int],
    output: Tokenizer,
) -> list[Found]:
    """The search that was asked for, from where it begins, for each source of a batch."""
    decode, (step, state, plain, plain_state, first, attention) = request.decode, begun
    candidates = decode.candidates if decode.risk != "off" else request.nbest
    trees: list[Tree] | None = [] if request.details else None
    if decode.sample:
        keys = [(number << 20) + i for number in numbers for i in range(candidates)]
        flat = sample(
            step,
            repeat(state, candidates),
            first.repeat_interleave(candidates),
            end=EOS,
            limits=[limit for limit in limits for _ in range(candidates)],
            seed=decode.seed,
            keys=keys,
        )
        found = [flat[i : i + candidates] for i in range(0, len(flat), candidates)]
    elif max(decode.width, candidates) == 1 and trees is None:
        found = [[one] for one in greedy(step, state, first, end=EOS, limits=limits)]
    else:
        found = beam_search(
            step,
            state,
            first,
            end=EOS,
            width=max(decode.width, candidates),
            limits=limits,
            length=Length(decode.length, decode.alpha),
            nbest=candidates,
            complete=decode.complete,
            groups=decode.groups,
            diversity=decode.diversity,
            bonus=None if attention is None else steps.coverage(decode.coverage),
            trees=trees,
        )
    found = [[one for one in some if one.score > float("-inf")][:candidates] for some in found]
    if _weighed(request):
        found = rescored(plain, plain_state, first, found)
    tokens: list[tuple[Token, ...]] = [()] * len(found)
    if request.details:
        tokens = [
            told(plain, plain_state, first, b, some[0], output) if some else ()
            for b, some in enumerate(found)
        ]
    nothing = "nothing can be said under the constraints"
    return [
        Found(some, "" if some else nothing, tokens[b], trees[b] if trees else None)
        for b, some in enumerate(found)
    ]


def _weighed(request: Request) -> bool:
    """Whether the search's scores are not the models' own log-probabilities."""
    decode = request.decode
    filters = (decode.temperature, decode.top_k, decode.top_p, decode.min_p, decode.typical)
    drawn = decode.sample and filters != (1.0, None, 1.0, 0.0, 1.0)
    return decode.repetition > 1.0 or request.model is not None or drawn


def rescored(
    step: Step, state: Any, first: Tensor, found: list[list[Hypothesis]]
) -> list[list[Hypothesis]]:
    """The same hypotheses with their log-probabilities under another step, by forced decoding."""
    rows = [b for b, some in enumerate(found) for _ in some]
    if not rows:
        return found
    texts = [torch.tensor([*one.tokens, EOS]) for some in found for one in some]
    lengths = torch.tensor([len(text) for text in texts])
    padded = nn.utils.rnn.pad_sequence(texts, batch_first=True).to(first.device)
    index = torch.tensor(rows, device=first.device)
    log_probs = token_log_probs(step, select(state, index), padded, first[index]).cpu()
    real = torch.arange(padded.size(1)) < lengths[:, None]
    scores = iter(log_probs.masked_fill(~real, 0.0).sum(1).tolist())
    return [[Hypothesis(one.tokens, next(scores), one.value) for one in some] for some in found]


def told(
    step: Step, state: Any, first: Tensor, b: int, best: Hypothesis, output: Tokenizer
) -> tuple[Token, ...]:
    """Each token of a hypothesis, with its log-probability and the likeliest in its place."""
    row = torch.tensor([b], device=first.device)
    ids = [*best.tokens, EOS]
    tokens = torch.tensor([ids], device=first.device)
    log_probs, values, places = preferred(
        step, select(state, row), tokens, first[row], ALTERNATIVES
    )
    names = output.tokens(ids)
    return tuple(
        Token(name, log_p, tuple(zip(output.tokens(some), scores, strict=True)))
        for name, log_p, some, scores in zip(
            names, log_probs[0].tolist(), places[0].tolist(), values[0].tolist(), strict=True
        )
    )


def filtered(step: Step, decode: c.Decode) -> Step:
    """The step from which is drawn: a temperature first, then the filters."""
    if decode.temperature != 1.0:
        step = steps.tempered(step, decode.temperature)
    if decode.top_k is not None:
        step = steps.top_k(step, decode.top_k)
    if decode.typical < 1.0:
        step = steps.typical(step, decode.typical)
    if decode.top_p < 1.0:
        step = steps.top_p(step, decode.top_p)
    if decode.min_p > 0.0:
        step = steps.min_p(step, decode.min_p)
    return step


def attention_of(decoder: Decoder) -> nn.Module:
    """The attention to the source: a recurrent decoder's, or the last layer's of a Transformer."""
    if isinstance(decoder, TransformerDecoder) and hasattr(decoder.stack.blocks[-1], "cross"):
        return decoder.stack.blocks[-1].cross
    if isinstance(decoder, RecurrentDecoder) and decoder.attention is not None:
        return decoder.attention
    raise ConfigError("decode.coverage: this model has no attention to a source; set it to 0")


def check_members(task: GeneratingTask, request: Request) -> None:
    """Refuse others that do not speak the same vocabulary."""
    if request.model is not None and task.config.task.kind == "language":
        raise ConfigError("decode.model: it is for other tasks; join language models by --with")
    members = [("the ensemble", task.config.task.kind, other) for other in request.others]
    members += [("decode.model", "language", request.model)] if request.model else []
    for where, kind, member in members:
        if member.task.config.task.kind != kind:
            found = member.task.config.task.kind
            raise ConfigError(f"{where}: a run of the task '{kind}' is needed, not '{found}'")
        if not task.output.agrees(member.task.output):
            raise ConfigError(
                f"{where}: the vocabularies differ; train the other run with the same tokenizer, "
                "a language model with task.vocabulary = this run's target.json"
            )


@lru_cache(maxsize=4)
def permitted(path: str, output: Tokenizer) -> list[list[int]]:
    """The permitted outputs of a file as ids; those that the model cannot write are left out."""
    texts = []
    try:
        for row in lines_of(path):
            if isinstance(row, Defect):
                raise DataError(str(row))
            texts.append(row)
    except FileError as error:
        raise DataError(str(error.defect)) from None
    ids = [row for row in output.encode([t for t in texts if t.strip()]) if UNK not in row]
    if not ids:
        raise ConfigError(f"decode.only: {Path(path)}: the model can write none of its lines")
    return ids


def summed(decoder: Decoder, tokens: Tensor, said: Padded, state: Any) -> list[tuple[float, int]]:
    """For each row log p of what was said after `tokens`, and of how many tokens."""
    logits, _ = decoder(tokens, state)
    log_probs = logits.log_softmax(-1).gather(-1, said.values.unsqueeze(-1)).squeeze(-1)
    if (keep := said.keep) is not None:
        log_probs = log_probs.masked_fill(~keep, 0.0)
    return list(zip(log_probs.sum(1).tolist(), said.lengths.tolist(), strict=True))


def positions_of(part: Any) -> int:
    """How many positions a part of a network has: all of them, unless they are learned."""
    learned = getattr(part, "positions", "") == "learned"
    return int(part.max_positions) if learned else sys.maxsize
