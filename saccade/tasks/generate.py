"""What the text-generating tasks share: a search with a decoder, and its results as text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from saccade import config as c
from saccade.data.batches import collate
from saccade.data.corpora import Corpus
from saccade.data.fields import Text
from saccade.data.kinds import Readable
from saccade.data.lines import Defect, Example, FileError, lines_of
from saccade.data.media import MediaField
from saccade.decoding import ctc, steps
from saccade.decoding.risk import least_risk
from saccade.decoding.sample import sample
from saccade.decoding.search import (
    Hypothesis,
    Length,
    Step,
    beam_search,
    greedy,
    token_log_probs,
    top_alternatives,
)
from saccade.decoding.tree import Tree
from saccade.errors import ConfigError, DataError
from saccade.metrics.text import similarity
from saccade.models.decoders import Decoder, RecurrentDecoder, TransformerDecoder
from saccade.models.networks import Generator, shifted
from saccade.nn.padded import Memory, Padded, pad
from saccade.nn.state import repeat, select
from saccade.tasks.task import (
    TOO_LONG,
    Member,
    Prediction,
    Query,
    Request,
    Task,
    Token,
    device_of,
    in_batches,
    max_positions,
)
from saccade.text.tokenizers import Tokenizer

ALTERNATIVES = 5  # shown beside a token
MAX_DRAWS = 1 << 20  # samples of one input: each has a random key of its own
UNKNOWN_PREFIX = "the prefix contains characters outside the vocabulary"
NO_OUTPUT = "no output satisfies the decoding constraints"


EncodedSources: TypeAlias = tuple[Any, ...]  # the ids, or the vectors, of each source of a query


class EncodedQuery(NamedTuple):
    """A query as ids: tokenised once, for all that is done with it."""

    number: int  # among the inputs
    sources: tuple[EncodedSources, ...]  # of the network, then of each ensemble member
    prefix: list[int]  # with which the output has to begin
    limit: int  # the most tokens of an output
    problem: str  # why there can be no output
    prompt: str = ""  # the user's text, where the output continues it
    words: int = 0  # of the source
    seed: int | None = None  # of sampling; None is that of the request
    stopped: Callable[[], bool] | None = None  # whether the request was cancelled


class SearchResult(NamedTuple):
    """The hypotheses for one query, the best first, or why there are none."""

    hypotheses: list[Hypothesis]
    problem: str = ""
    tokens: tuple[Token, ...] = ()
    tree: Tree | None = None


class DecoderStart(NamedTuple):
    """A decoder's state after the sources."""

    state: Any
    first: Tensor  # (B,): its next input
    memory: Memory | None  # of the encoder


class PreparedSearch(NamedTuple):
    """The step of a search, and the states from which it starts."""

    step: Step  # with all constraints, filters and fusion
    state: Any
    plain: Step  # of the models alone
    plain_state: Any
    first: Tensor  # (B,)
    reweighted: bool  # whether the step's scores are not the models' own log-probabilities


class GeneratingTask(Task):
    """A task whose output is text, found by a search with a decoder."""

    equal_lengths = False  # whether a batch must hold inputs of one length

    def __init__(self, config: c.Config, sources: tuple[Readable, ...], target: Text):
        super().__init__(config, sources, target)
        self.readers = sources
        self.output = target.tokenizer
        self.early = config.task.early
        self.source_positions = max_positions(config.encoder)
        self.target_positions = max_positions(config.decoder)

    def encode_sources(self, queries: Sequence[Query]) -> list[EncodedSources]:
        """The input of a network for each query."""
        cells = self.read([query.source for query in queries])
        rows = (reader.rows(some) for reader, some in zip(self.readers, cells, strict=True))
        return list(zip(*rows, strict=True))

    def start(self, network: Generator, sources: Sequence[EncodedSources]) -> DecoderStart:
        """The decoder after these sources."""
        device, columns = device_of(network), zip(*sources, strict=True)
        inputs = [
            (
                reader.padded(rows) if isinstance(reader, MediaField) else pad([*rows], reader.pad)
            ).to(device)
            for reader, rows in zip(self.readers, columns, strict=True)
        ]
        memory = network.encode(inputs)
        assert memory is not None
        state = network.decoder.start(memory, len(sources))
        marks = torch.tensor([self.output.frame.start] * len(sources), device=device)
        if marks.size(1) > 1:
            _, state = network.decoder(marks[:, :-1], state)
        first = marks[:, -1]
        return DecoderStart(state, first, memory)

    def positions_left(self, source: EncodedSources) -> int:
        """The number of positions for output after this source; below 0 if it is too long."""
        longest = length_of(source) if self.early else max(map(len, source))
        left = self.target_positions - len(self.output.frame.start)
        return -1 if longest > self.source_positions else left

    def limit(self, source: EncodedSources, decode: c.Limits) -> int:
        """The most tokens of an output; less than 0 if the source is too long to read."""
        longest = min(decode.max_len, 10 + int(length_of(source) * decode.max_ratio))
        return min(longest, self.positions_left(source))

    def full_output(self, source: EncodedSources, tokens: Sequence[int]) -> list[int]:
        """The tokens of the whole text: those generated, and the source where it is part of it."""
        return list(tokens)

    def prompt(self, query: Query) -> str:
        """The user's text that the output continues."""
        return ""

    def display_text(self, query: EncodedQuery, text: str) -> str:
        """The output as it is shown, where `text` is that of its `full_output`."""
        return text

    def unknown(self, text: str) -> int:
        """How many characters (or words) of a prompt the model has no token for."""
        return 0

    def scoring_corpus(self, examples: Sequence[Example]) -> Corpus:
        """The corpus that `score` reads: the first target of each example."""
        return self.encode([replace(row, others=()) for row in examples])

    def score(self, network: Generator, examples: Sequence[Example]) -> list[tuple[float, int]]:
        return self.score_corpus(network, self.scoring_corpus(examples))

    def score_corpus(self, network: Generator, corpus: Corpus) -> list[tuple[float, int]]:
        """For each row log p(target | source), and of how many tokens."""

        def work(rows: list[int]) -> list[tuple[float, int]]:
            batch = collate(corpus, np.array(rows)).to(device_of(network))
            tokens, gold = shifted(batch.target)
            state = network.decoder.start(network.encode(batch.sources), len(rows))
            return sum_log_probs(network.decoder, tokens, gold, state)

        with torch.inference_mode():
            budget = self.config.decode.batch_tokens
            return in_batches(range(len(corpus)), corpus.lengths.tolist(), budget, work)

    def predict(
        self, network: Generator, queries: Sequence[Query], request: Request
    ) -> list[Prediction]:
        request = self.with_permitted(request)
        encoded = self.encode_queries(queries, request)
        return self.to_text(encoded, self.search(network, encoded, request), request)

    def with_permitted(self, request: Request) -> Request:
        """The request with the permitted outputs of `decode.only`, if they are not read yet."""
        if not request.decode.only or request.permitted is not None:
            return request
        return replace(request, permitted=permitted(request.decode.only, self.output))

    def encode_queries(self, queries: Sequence[Query], request: Request) -> list[EncodedQuery]:
        """The queries as ids, for this task's network and those of the ensemble."""
        check_members(self, request)
        own = self.encode_sources(queries)
        limits = [self.limit(source, request.decode) for source in own]
        read: list[tuple[EncodedSources, ...]] = [(source,) for source in own]
        for member in request.others:
            theirs = member.task.encode_sources(queries)
            limits = [
                min(limit, member.task.positions_left(source))
                for limit, source in zip(limits, theirs, strict=True)
            ]
            read = [(*some, source) for some, source in zip(read, theirs, strict=True)]
        if request.model is not None:
            most = max_positions(request.model.task.config.decoder) - 1
            limits = [min(limit, most) for limit in limits]
        prefixes: list[list[int]] = [[] for _ in queries]
        if any(query.prefix for query in queries):
            prefixes = self.output.encode([query.prefix for query in queries])
        problems = [
            UNKNOWN_PREFIX if self.output.specials.unk in prefix else TOO_LONG if limit < 0 else ""
            for prefix, limit in zip(prefixes, limits, strict=True)
        ]
        numbers = [query.number for query in queries]
        prompts = map(self.prompt, queries)
        words = [sum(len(text.split()) for text in query.source) for query in queries]
        seeds, stops = [query.seed for query in queries], [query.stopped for query in queries]
        columns = zip(
            numbers, read, prefixes, limits, problems, prompts, words, seeds, stops, strict=True
        )
        return [EncodedQuery(*column) for column in columns]

    def to_text(
        self, encoded: Sequence[EncodedQuery], results: Sequence[SearchResult], request: Request
    ) -> list[Prediction]:
        """The results of each query as text."""
        outputs = []
        for query, result in zip(encoded, results, strict=True):
            for hypothesis in result.hypotheses:
                outputs.append(self.full_output(query.sources[0], hypothesis.tokens))
        supply, predictions = iter(self.output.decode(outputs)), []
        for query, result in zip(encoded, results, strict=True):
            ranked = [
                (self.display_text(query, next(supply)), hypothesis.score)
                for hypothesis in result.hypotheses
            ]
            if not ranked:
                predictions.append(Prediction("", 0.0, problem=result.problem))
                continue
            if isinstance(request.decode, c.Risk) and request.decode.risk != "off":
                ranked = self._least_risk(ranked, request.decode)
            ranked = ranked[: request.nbest]
            (text, score), *others = ranked
            unknown = self.unknown(query.prompt)
            predictions.append(
                Prediction(text, score, tuple(others), "", result.tokens, result.tree, unknown)
            )
        return predictions

    def _least_risk(
        self, ranked: list[tuple[str, float]], decode: c.Risk
    ) -> list[tuple[str, float]]:
        """The candidates by their expected utility (minimum Bayes risk), the best first."""
        name = getattr(self.config.task, "metric", "chrf") if decode.risk == "metric" else ""
        unit: Literal["char", "token"] = "char" if self.output.config.kind == "char" else "token"
        utility = similarity(name or decode.risk, unit)
        # samples are already distributed by their probability: each counts the same
        weights = [0.0 if isinstance(decode, c.Sample) else score for _, score in ranked]
        order = least_risk([text for text, _ in ranked], weights, utility)
        return [ranked[i] for i in order]

    def search(
        self, network: Generator, encoded: Sequence[EncodedQuery], request: Request
    ) -> list[SearchResult]:
        """For each query its hypotheses, the best first."""
        valid = [i for i, query in enumerate(encoded) if not query.problem]

        def work(some: list[int]) -> list[SearchResult]:
            batch = [encoded[i] for i in some]
            return run_search(
                self.prepare_search(network, batch, request), batch, request, self.output
            )

        budget = max(1, request.decode.batch_tokens // hypotheses_of(request))
        lengths = [length_of(encoded[i].sources[0]) + len(encoded[i].prefix) for i in valid]
        results = in_batches(valid, lengths, budget, work, equal=self.equal_lengths)
        results_of = dict(zip(valid, results, strict=True))
        return [
            results_of.get(i) or SearchResult([], query.problem) for i, query in enumerate(encoded)
        ]

    def prepare_search(
        self,
        network: Generator,
        encoded: Sequence[EncodedQuery],
        request: Request,
        record: list[Tensor] | None = None,
    ) -> PreparedSearch:
        """The start of a search: the states after the sources, and the step with its constraints.

        The models' own log-probabilities of the last step are stored in `record`.
        """
        request = self.with_permitted(request)
        decode, special = request.decode, self.output.specials
        members = (Member(self, network), *request.others)
        with torch.inference_mode():
            started: list[DecoderStart] = [
                member.task.start(member.network, [query.sources[i] for query in encoded])
                for i, member in enumerate(members)
            ]
            parts = [
                steps.stepper(member.network.decoder, special.never_generated) for member in members
            ]
            plain, plain_state, first = parts[0], started[0].state, started[0].first
            if len(parts) > 1:
                plain, plain_state = steps.ensemble(parts), tuple(one.state for one in started)
            plain = plain if record is None else steps.recording(plain, record)
            step, state = plain, plain_state
            if share := ctc_share(self.config, decode):
                heads = [
                    head
                    for member, one in zip(members, started, strict=True)
                    for head in member.network.ctc_heads(one.memory)
                ]
                scorer = steps.ensemble([ctc.ctc_step(h.blank, special.eos) for h, _ in heads])
                ctc_states = [ctc.start(head(read), read.keep, head.blank) for head, read in heads]
                step, state = ctc.joint(step, scorer, share), (state, tuple(ctc_states))
            if request.model is not None:
                fusion_model = request.model.network.decoder
                other = steps.stepper(fusion_model)
                step = steps.fuse(step, other, decode.model_weight, special.bos, special.eos)
                state = (state, fusion_model.start(None, len(encoded)))
        if isinstance(decode, c.Beam) and decode.coverage:
            attention = attention_of(network.decoder)
            memory = started[0].memory
            assert memory is not None
            step = steps.with_attention_sum(step, attention, memory.keep)
        prefixes = [query.prefix for query in encoded]
        step = steps.prompted(step, prefixes) if any(prefixes) else step
        if decode.tree:
            words = [query.words for query in encoded] if decode.tree == "words" else None
            step = steps.tree(step, self.brackets, [query.limit for query in encoded], words)
        constrained = self._constrained(step, request)
        drawn = filtered(constrained, decode) if isinstance(decode, c.Sample) else constrained
        added = bool(share) or request.model is not None
        reweighted = drawn is not constrained or added or request.decode.repetition > 1.0
        stops = [query.stopped or _never for query in encoded]
        if any(stop is not _never for stop in stops):
            drawn = steps.stoppable(drawn, special.eos, stops)
        return PreparedSearch(drawn, state, plain, plain_state, first, reweighted)

    def _constrained(self, step: Step, request: Request) -> Step:
        decode, end = request.decode, self.output.specials.eos
        if decode.repetition > 1.0:
            step = steps.repetition(step, decode.repetition)
        if decode.no_repeat:
            step = steps.no_repeat(step, decode.no_repeat)
        if decode.min_len:
            step = steps.at_least(step, end, decode.min_len)
        if decode.banned:
            step = steps.avoid(step, self._phrases(decode.banned))
        if request.permitted is not None:
            step = steps.only(step, end, request.permitted)
        return step

    @cached_property
    def brackets(self) -> steps.Brackets:
        """The effect of each token on a bracketed tree."""
        texts, special = self.output.written(), self.output.specials
        brackets = steps.Brackets(texts, special.eos, [i for i in special.ids if i != special.eos])
        if not brackets.closable:
            raise ConfigError(
                "decode.tree: no token of the target's vocabulary closes a single bracket: cut "
                "trees into pieces or characters, or put blanks around their brackets"
            )
        return brackets

    def _phrases(self, banned: Sequence[str]) -> list[list[int]]:
        phrases = self.output.encode(banned)
        for text, ids in zip(banned, phrases, strict=True):
            if not ids or self.output.specials.unk in ids:
                raise ConfigError(f"decode.banned: {text!r} is not in the vocabulary")
        return phrases

    def require_order(self) -> None:
        """ConfigError unless the output is generated from left to right."""


def _never() -> bool:
    return False


def seed_of(query: EncodedQuery, decode: c.Sample) -> int:
    """The sampling seed of a query: its own, or else that of the request."""
    return decode.seed if query.seed is None else query.seed


def length_of(source: EncodedSources) -> int:
    """The number of tokens in the sources of a query."""
    return sum(map(len, source))


def candidates_of(request: Request) -> int:
    """The number of hypotheses that the search of a query returns."""
    decode = request.decode
    if isinstance(decode, c.Risk) and decode.risk != "off":
        return decode.candidates
    return request.nbest


def hypotheses_of(request: Request) -> int:
    """The number of hypotheses of a query that a search extends at once."""
    width = request.decode.width if isinstance(request.decode, c.Beam) else 1
    return max(width, candidates_of(request))


def run_search(
    prepared: PreparedSearch, encoded: Sequence[EncodedQuery], request: Request, output: Tokenizer
) -> list[SearchResult]:
    """The search of the request for each query of a batch."""
    step, state, plain, plain_state, first, _ = prepared
    end = output.specials.eos
    candidates, limits = candidates_of(request), [query.limit for query in encoded]
    trees: list[Tree] | None = [] if request.details else None
    match request.decode:
        case c.Sample() as decode:
            keys = [query.number * MAX_DRAWS + i for query in encoded for i in range(candidates)]
            seeds = [seed_of(query, decode) for query in encoded for _ in range(candidates)]
            flat = sample(
                step,
                repeat(state, candidates),
                first.repeat_interleave(candidates),
                end=end,
                limits=[limit for limit in limits for _ in range(candidates)],
                seed=seeds,
                keys=keys,
            )
            hypotheses = [flat[i : i + candidates] for i in range(0, len(flat), candidates)]
        case c.Beam() if hypotheses_of(request) == 1 and trees is None:
            hypotheses = [[one] for one in greedy(step, state, first, end=end, limits=limits)]
        case c.Beam() as decode:
            hypotheses = beam_search(
                step,
                state,
                first,
                end=end,
                width=hypotheses_of(request),
                limits=limits,
                length=Length(decode.length, decode.alpha),
                nbest=candidates,
                stop_after=decode.stop_after,
                groups=decode.groups,
                diversity=decode.diversity,
                bonus=steps.coverage(decode.coverage) if decode.coverage else None,
                trees=trees,
            )
        case c.Exact():
            raise AssertionError("exact search is for `compare`")
    hypotheses = [
        [one for one in some if one.score > float("-inf")][:candidates] for some in hypotheses
    ]
    if prepared.reweighted:
        hypotheses = rescored(plain, plain_state, first, hypotheses, end)
    tokens: list[tuple[Token, ...]] = [()] * len(hypotheses)
    if request.details:
        tokens = [
            token_details(plain, plain_state, first, b, some[0], output) if some else ()
            for b, some in enumerate(hypotheses)
        ]
    return [
        SearchResult(some, "" if some else NO_OUTPUT, tokens[b], trees[b] if trees else None)
        for b, some in enumerate(hypotheses)
    ]


def rescored(
    step: Step, state: Any, first: Tensor, hypotheses: list[list[Hypothesis]], end: int
) -> list[list[Hypothesis]]:
    """The same hypotheses with their log-probabilities under another step, by forced decoding."""
    rows = [b for b, some in enumerate(hypotheses) for _ in some]
    if not rows:
        return hypotheses
    texts = [torch.tensor([*one.tokens, end]) for some in hypotheses for one in some]
    lengths = torch.tensor([len(text) for text in texts])
    padded = nn.utils.rnn.pad_sequence(texts, batch_first=True).to(first.device)
    index = torch.tensor(rows, device=first.device)
    log_probs = token_log_probs(step, select(state, index), padded, first[index]).cpu()
    real = torch.arange(padded.size(1)) < lengths[:, None]
    scores = iter(log_probs.masked_fill(~real, 0.0).sum(1).tolist())
    return [
        [Hypothesis(one.tokens, next(scores), one.value) for one in some] for some in hypotheses
    ]


def token_details(
    step: Step, state: Any, first: Tensor, b: int, best: Hypothesis, output: Tokenizer
) -> tuple[Token, ...]:
    """Each token of a hypothesis, with its log-probability and the likeliest in its place."""
    row = torch.tensor([b], device=first.device)
    ids = [*best.tokens, output.specials.eos]
    tokens = torch.tensor([ids], device=first.device)
    log_probs, values, places = top_alternatives(
        step, select(state, row), tokens, first[row], ALTERNATIVES
    )
    names = output.tokens(ids)
    return tuple(
        Token(name, log_p, tuple(zip(output.tokens(some), scores, strict=True)))
        for name, log_p, some, scores in zip(
            names, log_probs[0].tolist(), places[0].tolist(), values[0].tolist(), strict=True
        )
    )


def filtered(step: Step, decode: c.Sample) -> Step:
    """The step to sample from: a temperature first, then the filters; itself with none."""
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
    raise ConfigError(
        "decode.coverage requires attention to a source, and this model has none: set it to 0"
    )


def ctc_share(config: c.Config, decode: c.Rules) -> float:
    """The share of CTC in the score of a search, by default that of the loss."""
    return config.train.ctc if decode.ctc is None else decode.ctc


def check_members(task: GeneratingTask, request: Request) -> None:
    """ConfigError for members of another vocabulary or task, and for CTC where there is none."""
    if request.decode.ctc and not task.config.train.ctc:
        raise ConfigError(
            "decode.ctc: this run was trained without a CTC head; leave it out, or set train.ctc"
        )
    if request.model is not None and task.config.task.family == "language":
        raise ConfigError(
            "decode.model cannot be combined with a language model; use an ensemble (--with)"
        )
    members = [("the ensemble", task.config.task.family, other) for other in request.others]
    members += [("decode.model", "language", request.model)] if request.model else []
    for where, kind, member in members:
        if (found := member.task.config.task.family) != kind:
            raise ConfigError(f"{where}: a run of the task '{kind}' is needed, not '{found}'")
        if not task.output.agrees(member.task.output):
            raise ConfigError(
                f"{where}: the vocabularies differ; train the other run with the same tokenizer, "
                "a language model with task.vocabulary = this run's target.json"
            )


def permitted_lines(path: str) -> Iterator[str]:
    """The permitted outputs in a file."""
    try:
        for row in lines_of(path):
            if isinstance(row, Defect):
                raise DataError(str(row))
            if row.strip():
                yield row
    except FileError as error:
        raise DataError(str(error.defect)) from None


def permitted(path: str, output: Tokenizer) -> list[list[int]]:
    """The permitted outputs of a file as ids, without those outside the vocabulary."""
    unk, encoded = output.specials.unk, output.encode(list(permitted_lines(path)))
    ids = [row for row in encoded if unk not in row]
    if not ids:
        raise ConfigError(f"decode.only: {Path(path)}: the model can write none of its lines")
    return ids


def sum_log_probs(
    decoder: Decoder, tokens: Tensor, gold: Padded, state: Any
) -> list[tuple[float, int]]:
    """For each row log p of the gold tokens after the inputs `tokens`, and their number."""
    logits, _ = decoder(tokens, state)
    log_probs = logits.log_softmax(-1).gather(-1, gold.values.unsqueeze(-1)).squeeze(-1)
    if (keep := gold.keep) is not None:
        log_probs = log_probs.masked_fill(~keep, 0.0)
    return list(zip(log_probs.sum(1).tolist(), gold.lengths.tolist(), strict=True))
