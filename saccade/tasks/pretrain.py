"""Pretraining on plain text by an objective, for other tasks to start from.

A text is packed into rows: complete lines, each with its <eos>, as many as fit into the context. An
objective (`objectives`) takes each row to the source and target of the network; its random numbers
are those of (seed, epoch, number of the row), and for the dev set never change.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import nlargest
from itertools import repeat
from math import exp, inf
from typing import Any, NamedTuple, assert_never

import numpy as np
import torch
from torch import Tensor

from saccade import config as c
from saccade.data.batches import Batch
from saccade.data.corpora import Array, Column, Corpus
from saccade.data.fields import Lines
from saccade.data.lines import Example
from saccade.errors import ConfigError, DataError
from saccade.models.build import build_meta
from saccade.models.networks import BidirectionalLM, Generator, Network, TokenPredictor, shifted
from saccade.nn.loss import label_loss
from saccade.nn.padded import UNSCORED_ID, UNSEEN, View, pad
from saccade.tasks.generate import EncodedQuery, EncodedSources, GeneratingTask
from saccade.tasks.objectives import (
    DEV_EPOCH,
    Sample,
    VocabInfo,
    denoising,
    masked,
    pair_of,
    permuted,
    rng_of,
    spans,
    two_streams,
    unilm,
)
from saccade.tasks.plain import PlainText
from saccade.tasks.task import (
    Evaluation,
    Prediction,
    Query,
    Request,
    Source,
    device_of,
    in_batches,
    shared,
)
from saccade.text.tokenizers import Tokenizer
from saccade.text.vocab import MASK, Specials

SORTED_BATCHES = 32  # among whose rows similar lengths are put together
NO_MASK = f"there is nothing to fill: write {MASK} where a word is missing"


@dataclass(frozen=True)
class Rows:
    """The batches of an epoch: rows of a text, under an objective."""

    column: Column
    bounds: Array  # row i is ids[bounds[i]:bounds[i + 1]]
    order: Array  # the rows, batch after batch
    size: int  # rows in a batch
    sample: Callable[["Rows", int], Sample]  # of row n
    collate: Callable[[Sequence[Sample]], Batch]

    def __len__(self) -> int:
        return -(-len(self.order) // self.size)

    def __getitem__(self, i: int) -> Batch:
        return self.collate([self.sample(self, n) for n in self.numbers(i)])

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def row(self, n: int) -> Array:
        return self.column.ids[self.bounds[n] : self.bounds[n + 1]].astype(np.int64)

    def numbers(self, i: int) -> list[int]:
        """The rows of a batch."""
        return [int(n) for n in self.order[i * self.size : (i + 1) * self.size]]

    def examples(self, i: int) -> list[int]:
        """The lines of the text in which the rows of a batch begin."""
        at = self.bounds[self.numbers(i)]
        return [int(n) for n in self.column.starts.searchsorted(at, "right") - 1]


def batch_of(rows: Sequence[Sample], padding: int, target_padding: int = UNSCORED_ID) -> Batch:
    """Samples as a batch."""
    source = pad([row.source.tolist() for row in rows], padding)
    if rows[0].view is not None:
        views = [row.view for row in rows if row.view is not None]
        fills = (UNSEEN, UNSEEN - 1, 0)  # padding sees all, and is seen by none
        columns = zip(fills, zip(*views, strict=True), strict=True)
        parts = [pad([part.tolist() for part in column], fill).values for fill, column in columns]
        source = replace(source, view=View(*parts))
    return Batch((source,), pad([row.target.tolist() for row in rows], target_padding))


def pack(starts: Array, context: int) -> Array:
    """The starts of rows of complete lines that fit into the context, and the end of the last.

    A longer line is cut. `starts` are those of the lines, and the end of the last.
    """
    bounds, at, end = [0], 0, int(starts[-1])
    while at < end:
        stop = min(at + context, end)
        line = int(starts[starts.searchsorted(stop, "right") - 1])
        at = line if line > at else stop
        bounds.append(at)
    return np.array(bounds)


def shuffled(lengths: Array, size: int, rng: np.random.Generator) -> Array:
    """The rows in random order, in batches of `size` of similar lengths, to reduce padding."""
    order = rng.permutation(len(lengths))
    group = np.arange(len(order)) // (size * SORTED_BATCHES)
    order = order[np.lexsort((lengths[order], group))]
    full = len(order) // size * size  # the last batch may be smaller
    batches = rng.permutation(order[:full].reshape(-1, size))
    return np.append(batches.ravel(), order[full:])


class Pretraining(PlainText):
    """What objectives over rows share: batches and evaluation."""

    fills = True

    def __init__(self, config: c.Config, lines: Lines):
        super().__init__(config, lines)
        assert isinstance(config.task, c.Pretrain)
        self.objective = config.task.objective
        self.tokenizer = lines.tokenizer
        self.vocab = VocabInfo.of(self.tokenizer)
        self.paired = isinstance(self.objective, c.Masked) and self.objective.next_sentence
        self._packed: tuple[Column, Array] | None = None
        refuse_vocabulary(config.task, self.tokenizer.specials)

    def build_meta(self) -> Network:
        return build_meta(self.config, [self.target.inventory], self.target.inventory)

    def unknown_in(self, source: Source) -> list[str]:
        return self.tokenizer.unknown(source[0].replace(MASK, " "))

    def sample_row(self, rows: Rows, n: int, epoch: int) -> Sample:
        """The sample of row n in an epoch."""
        objective, ids, row = self.objective, self.vocab, rows.row(n)
        if isinstance(objective, c.Masked) and not objective.dynamic:
            epoch = min(epoch, 1)
        rng = rng_of(self.config.seed, epoch, n)
        match objective:
            case c.Masked(next_sentence=True):
                other = int(rng.integers(max(len(rows.bounds) - 2, 1)))
                other += other >= n and len(rows.bounds) > 2  # never the row itself
                pair, label = pair_of(row, rows.row(other), self.max_tokens, rng, ids)
                sample = masked(pair, rng, objective, ids)
                sample.target[0] = label  # at <bos>, where no token is predicted
                return sample
            case c.Masked():
                return masked(row, rng, objective, ids)
            case c.Bidirectional():
                return Sample(row, row)
            case c.Unilm():
                return unilm(row, rng, objective, ids)
            case c.Permuted():
                return permuted(row, rng, objective, ids)
            case c.Spans():
                return spans(row, rng, objective, ids)
            case c.Denoising():
                return denoising(row, rng, objective, ids)
            case c.Causal() | c.SkipGram() | c.Cbow():
                raise AssertionError("a language model reads a stream, word2vec a neighbourhood")
            case _:
                assert_never(objective)

    def collate(self, samples: Sequence[Sample]) -> Batch:
        return batch_of(samples, self.target.pad)

    @property
    def max_tokens(self) -> int:
        """The most tokens of the text in a row."""
        return self.context - 2 if self.paired else self.context

    def rows(self, column: Column, bounds: Array, order: Array, budget: int, epoch: int) -> Rows:
        width = self.context  # tokens of a row, in source and target
        match self.objective:
            case c.Denoising():
                width = 2 * self.context
            case c.Permuted():
                width = round((1 + self.objective.share) * self.context)
        sample = partial(self.sample_row, epoch=epoch)
        return Rows(column, bounds, order, max(1, budget // width), sample, self.collate)

    def epoch(self, corpus: Corpus, number: int) -> Rows:
        column = corpus.tokens
        if self._packed is None or self._packed[0] is not column:
            self._packed = column, pack(column.starts, self.max_tokens)  # once for all epochs
        bounds, budget = self._packed[1], self.config.train.batch_tokens
        rows = self.rows(column, bounds, np.arange(len(bounds) - 1), budget, number + 1)
        rng = np.random.default_rng([self.config.seed, number])
        return replace(rows, order=shuffled(np.diff(bounds), rows.size, rng))

    def dev_rows(self, column: Column) -> Rows:
        """Rows in order, the same in every epoch: for evaluation."""
        bounds = pack(column.starts, self.max_tokens)
        budget = self.config.decode.batch_tokens
        return self.rows(column, bounds, np.arange(len(bounds) - 1), budget, DEV_EPOCH)

    def sample(self, examples: Sequence[Example]) -> Batch:
        column = self.encode(examples).tokens
        column = Column.of([column[i][: self.max_tokens] for i in range(len(column))])
        rows = self.rows(column, column.starts, np.arange(len(column)), 0, DEV_EPOCH)
        return self.collate([self.sample_row(rows, n, DEV_EPOCH) for n in range(len(column))])

    def evaluating(
        self, network: Any, corpus: Corpus, examples: Sequence[Example], quick: bool
    ) -> Evaluation:
        column, lines = corpus.tokens, max(1, len(examples))
        while lines < len(column) and self.vocab.special[column.ids[: column.starts[lines]]].all():
            lines = min(2 * lines, len(column))  # more, if the first are blank
        batches = self.dev_rows(Column(column.ids, column.starts[: lines + 1]))
        sums: dict[str, float] = {}
        count, pairs = 0, 0

        def score_batch(i: int) -> tuple[BatchScores, int]:
            batch = batches[i]
            with torch.inference_mode():
                return self.score_batch(network, batch.to(device_of(network))), batch.count

        for done, (scored, rows) in enumerate(shared(range(len(batches)), score_batch), 1):
            sums = {name: sums.get(name, 0.0) + value for name, value in scored.sums.items()}
            count, pairs = count + scored.targets, pairs + rows
            yield done / len(batches)
        if not count:
            raise DataError("nothing to measure on: the vocabulary has no token of this text")
        means = {name: value / count for name, value in sums.items()}
        perplexity = exp(min(means["loss"], 100.0))
        accuracy = 100.0 * means["accuracy"]
        scores = {"loss": means["loss"], "perplexity": perplexity, "accuracy": accuracy}
        if self.paired:
            scores["next_sentence"] = 100.0 * sums["next_sentence"] / max(pairs, 1)
        return scores

    def score_batch(self, network: Any, batch: Batch) -> "BatchScores":
        logits, gold = self.target_logits(network, batch)
        correct = float((logits.argmax(-1) == gold).sum())
        nll = float(label_loss(logits, gold).nll)
        return BatchScores({"loss": nll, "accuracy": correct}, gold.numel())

    @abstractmethod
    def target_logits(self, network: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """The logits of all targets in a batch, one after the other, and the targets."""

    def parts(self, examples: Sequence[Example]) -> list[tuple[int, Array]]:
        """The rows of examples, with the number of the example; a long line has several."""
        column = self.encode(examples).tokens
        return [
            (i, np.array(column[i][start : start + self.max_tokens]))
            for i in range(len(column))
            for start in range(0, len(column[i]), self.max_tokens)
        ]

    def encode_masked(self, text: str, masks: Iterable[int]) -> list[int]:
        """The ids of a text, framed, with the next of `masks` for every <mask>."""
        before, _, after, *_ = self.tokenizer.frame
        first, *others = self.tokenizer.encode(self.between_masks(text))
        row = [*before, *first]
        for mask, ids in zip(masks, others, strict=False):
            row += [mask, *ids]
        return [*row, *after]

    def between_masks(self, text: str) -> list[str]:
        """The texts between masks; tokens of published models include the blank before them."""
        parts = text.split(MASK)
        if self.tokenizer.config.kind != "imported":
            return parts
        return [*(part.rstrip(" ") for part in parts[:-1]), parts[-1]]


class BatchScores(NamedTuple):
    """Sums over the targets of a batch, of -log p and of correct ones, and their number."""

    sums: dict[str, float]
    targets: int


def refuse_vocabulary(task: c.Pretrain, special: Specials) -> None:
    """ConfigError if a vocabulary lacks tokens that an objective needs."""
    name, kind = task.vocabulary or "tokenizer.json", task.objective.kind
    fix = "leave out task.vocabulary, or take one that was made with task.tokenizer."
    if task.objective.needs_mask and special.mask is None:
        raise ConfigError(
            f"{name}: this vocabulary has no {MASK}, which the objective '{kind}' needs: "
            f"{fix}mask = true"
        )
    if isinstance(task.objective, c.Spans):
        needed, available = task.objective.most_spans(task.context), len(special.sentinels)
        if available < needed:
            raise ConfigError(
                f"{name}: this vocabulary has {available} sentinels, and a row of {task.context} "
                f"tokens needs {needed}: {fix}sentinels = {needed}"
            )


class Fill(Pretraining):
    """Prediction of masked tokens; for a user it fills in every <mask>."""

    ranks = True

    def target_logits(self, network: TokenPredictor, batch: Batch) -> tuple[Tensor, Tensor]:
        target = network.tokens(batch.target)
        return network.logits(batch.sources, target), target.scored(target.values)

    def score_batch(self, network: TokenPredictor, batch: Batch) -> BatchScores:
        if isinstance(network, BidirectionalLM):
            return self.score_both_ways(network, batch)
        scores = super().score_batch(network, batch)
        if self.paired:
            correct = network.pairs(batch.sources).argmax(-1) == batch.target.values[:, 0]
            scores.sums["next_sentence"] = float(correct.sum())
        return scores

    def score_both_ways(self, network: BidirectionalLM, batch: Batch) -> BatchScores:
        """The same for a forward and a backward language model: the mean of both."""
        gold = batch.target.scored(batch.target.values)
        both = torch.stack(network.directional_logits(batch.sources, batch.target))  # (2, n, V)
        nll = sum(float(label_loss(logits, gold).nll) for logits in both) / 2
        return BatchScores(
            {"loss": nll, "accuracy": float((both.argmax(-1) == gold).sum()) / 2}, len(gold)
        )

    def predict(
        self, network: TokenPredictor, queries: Sequence[Query], request: Request
    ) -> list[Prediction]:
        """Each text with the likeliest token for every <mask>, independently of the others."""
        texts = [query.source[0] for query in queries]
        rows = [np.array(self.encode_masked(text, repeat(self.vocab.mask))) for text in texts]
        problems = [self.problem(row) for row in rows]
        samples = [
            self.sample_at(row, row == self.vocab.mask)
            for row, problem in zip(rows, problems, strict=True)
            if not problem
        ]

        def log_probs(logits: Tensor, gold: Tensor) -> Tensor:
            logits[:, list(self.tokenizer.specials.ids)] = -inf
            return logits.log_softmax(-1)

        results = iter(self.computed(network, samples, request.decode.batch_tokens, log_probs))
        return [
            Prediction("", 0.0, problem=problem)
            if problem
            else self.filled(text, next(results), request.nbest)
            for text, problem in zip(texts, problems, strict=True)
        ]

    def problem(self, row: Array) -> str:
        """Why a row of ids cannot be filled; empty if it can."""
        if not (row == self.vocab.mask).any():
            return NO_MASK
        return (
            f"longer than the context of {self.max_tokens} tokens"
            if len(row) > self.max_tokens
            else ""
        )

    def computed(
        self,
        network: TokenPredictor,
        samples: Sequence[Sample],
        budget: int,
        function: Callable[[Tensor, Tensor], Tensor],
    ) -> list[Tensor]:
        """For each sample `function` of the logits of its targets, and the targets."""

        def compute(part: list[Sample]) -> list[Tensor]:
            batch = batch_of(part, self.target.pad).to(device_of(network))
            logits, gold = self.target_logits(network, batch)
            counts = [int((sample.target != UNSCORED_ID).sum()) for sample in part]
            return list(torch.split(function(logits.float(), gold).cpu(), counts))

        with torch.inference_mode():
            lengths = [len(sample.source) for sample in samples]
            return in_batches(samples, lengths, budget, compute)

    def sample_at(self, row: Array, where: Array) -> Sample:
        """The sample that predicts the tokens of a row at these positions, and hides them."""
        source = np.where(where, self.vocab.mask, row)
        if isinstance(self.objective, c.Permuted):
            ranks = where.astype(np.int64)
            return two_streams(row, source, np.flatnonzero(where), ranks, self.vocab, seen=False)
        target = np.where(where, row, UNSCORED_ID)
        if self.paired:
            source = np.append(self.tokenizer.specials.bos, source)
            target = np.append(UNSCORED_ID, target)
        return Sample(source, target)

    def filled(self, text: str, log_probs: Tensor, nbest: int) -> Prediction:
        """The text with the likeliest tokens, and the n-best."""
        width = min(nbest, log_probs.size(1))
        scores, ids = (part.tolist() for part in log_probs.topk(width))
        # the n-best for the masks so far: score and tokens
        best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for log_ps, tokens in zip(scores, ids, strict=True):
            extended = (
                (score + log_p, (*before, token))
                for score, before in best
                for log_p, token in zip(log_ps, tokens, strict=True)
            )
            best = nlargest(nbest, extended)
        answers = [(self.fill_masks(text, tokens), score) for score, tokens in best]
        return Prediction(*answers[0], others=tuple(answers[1:]))

    def fill_masks(self, text: str, tokens: Sequence[int]) -> str:
        """The text with these tokens in place of its masks."""
        first, *others = text.split(MASK)
        pieces = self.tokenizer.decode([[token] for token in tokens])
        if self.tokenizer.config.kind == "imported":
            pieces = [piece.strip(" ") for piece in pieces]
        return first + "".join(a + b for a, b in zip(pieces, others, strict=True))

    def score(
        self, network: TokenPredictor, examples: Sequence[Example]
    ) -> list[tuple[float, int]]:
        """The pseudo-log-likelihood: log p of each token when it alone is masked, summed.

        Salazar et al. 2020, arxiv.org/abs/1910.14659. A permuted language model predicts from left
        to right, and the sum is log p of the line.
        """
        parts = self.parts(examples)
        samples = [(i, sample) for i, row in parts for sample in self.samples_of_each(row)]

        def of_gold(logits: Tensor, gold: Tensor) -> Tensor:
            return logits.log_softmax(-1).gather(1, gold[:, None]).squeeze(1)

        budget = self.config.decode.batch_tokens
        results = self.computed(network, [sample for _, sample in samples], budget, of_gold)
        sums, counts = [0.0] * len(examples), [0] * len(examples)
        for (i, _), log_probs in zip(samples, results, strict=True):
            sums[i], counts[i] = sums[i] + float(log_probs.sum()), counts[i] + len(log_probs)
        return list(zip(sums, counts, strict=True))

    def samples_of_each(self, row: Array) -> list[Sample]:
        """The samples in which together each token of a row is predicted once."""
        is_text = ~self.vocab.special[row]
        if not is_text.any():
            return []
        positions = np.flatnonzero(is_text)
        if isinstance(self.objective, c.Permuted):
            ranks = np.zeros(len(row), np.int64)
            ranks[positions] = np.arange(1, len(positions) + 1)
            return [two_streams(row, row, positions, ranks, self.vocab)]
        if isinstance(self.objective, c.Bidirectional):  # no position sees its own token
            return [Sample(row, np.where(is_text, row, UNSCORED_ID))]
        return [self.sample_at(row, np.arange(len(row)) == at) for at in positions]


class Restore(Pretraining, GeneratingTask):
    """Restoration of corrupted text by an encoder and a decoder."""

    output: Tokenizer

    def __init__(self, config: c.Config, lines: Lines):
        super().__init__(config, lines)
        self.readers = (lines,)

    def collate(self, samples: Sequence[Sample]) -> Batch:
        return batch_of(samples, self.target.pad, self.target.pad)

    def target_logits(self, network: Generator, batch: Batch) -> tuple[Tensor, Tensor]:
        tokens, gold = shifted(batch.target)
        state = network.decoder.start(network.encode(batch.sources), tokens.size(0))
        logits, _ = network.decoder(tokens, state)
        return gold.real(logits), gold.real(gold.values)

    def encode_sources(self, queries: Sequence[Query]) -> list[EncodedSources]:
        """Each text, with the objective's tokens for every <mask>."""
        special = self.tokenizer.specials
        if isinstance(self.objective, c.Spans):
            return [(self.encode_masked(q.source[0], special.sentinels),) for q in queries]
        return [(self.encode_masked(q.source[0], repeat(self.vocab.mask)),) for q in queries]

    def encode_queries(self, queries: Sequence[Query], request: Request) -> list[EncodedQuery]:
        encoded = super().encode_queries(queries, request)
        if not isinstance(self.objective, c.Spans):
            return encoded
        most, checked = len(self.tokenizer.specials.sentinels), []
        for query, one in zip(queries, encoded, strict=True):
            masks = query.source[0].count(MASK)
            problem = NO_MASK if not masks else f"more than {most} masks" if masks > most else ""
            checked.append(one._replace(problem=one.problem or problem))
        return checked

    def full_output(self, source: EncodedSources, tokens: Sequence[int]) -> list[int]:
        """The output; with spans the source text, in which each has replaced its sentinel."""
        if not isinstance(self.objective, c.Spans):
            return list(tokens)
        sentinels = set(self.tokenizer.specials.sentinels)
        by_sentinel: dict[int, list[int]] = {}
        sentinel = -1
        for token in tokens:
            sentinel = token if token in sentinels else sentinel
            by_sentinel.setdefault(sentinel, []).append(token)
        return [i for token in source[0] for i in by_sentinel.get(token, [token])]

    def require_order(self) -> None:
        if isinstance(self.objective, c.Spans):
            raise ConfigError("what is missing stands inside a text: leave out --stream")

    def score(self, network: Generator, examples: Sequence[Example]) -> list[tuple[float, int]]:
        """log p of the target of each line, under corruption that never changes."""
        parts = self.parts(examples)
        sums, counts = [0.0] * len(examples), [0] * len(examples)
        samples = []
        for _, row in parts:  # each as row 0, so that it does not depend on the others
            rows = self.rows(Column.of([row.tolist()]), np.array([0, len(row)]), row, 0, DEV_EPOCH)
            samples.append(self.sample_row(rows, 0, DEV_EPOCH))
        pad_id = self.target.pad
        source = Column.of([sample.source.tolist() for sample in samples], pad=pad_id)
        target = Column.of([sample.target.tolist() for sample in samples], pad=pad_id)
        scores = self.score_corpus(network, Corpus((source,), target))
        for (i, _), (log_p, count) in zip(parts, scores, strict=True):
            sums[i], counts[i] = sums[i] + log_p, counts[i] + count
        return list(zip(sums, counts, strict=True))
