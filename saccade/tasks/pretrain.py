"""Pretrain: plain text, and whatever an objective makes of it, for other tasks to start from.

A text is read in rows: whole lines one after the other, each with its <eos>, as many as fit into
the context. An objective (`objectives`) takes each row to what the network reads and should say;
its random numbers are those of (seed, epoch, number of the row), and of what is measured on they
never change.
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
from saccade.models.networks import Generator, Network, TokenPredictor, TwoWays, shifted
from saccade.nn.loss import label_loss
from saccade.nn.padded import UNSCORED_ID, UNSEEN, View, pad
from saccade.tasks.generate import EncodedQuery, GeneratingTask, Reading
from saccade.tasks.objectives import (
    DEV_EPOCH,
    Alphabet,
    Made,
    denoising,
    draws_of,
    masked,
    pair_of,
    permuted,
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

BATCHES_SORTED = 32  # of as many, rows are sorted by their lengths
NO_MASK = f"there is nothing to fill: write {MASK} where a word is missing"


@dataclass(frozen=True)
class Rows:
    """The batches of an epoch: rows of a text, as an objective makes them."""

    column: Column
    bounds: Array  # row i is ids[bounds[i]:bounds[i + 1]]
    order: Array  # the rows, batch after batch
    size: int  # rows in a batch
    make: Callable[["Rows", int], Made]  # of the row of a number
    collate: Callable[[Sequence[Made]], Batch]

    def __len__(self) -> int:
        return -(-len(self.order) // self.size)

    def __getitem__(self, i: int) -> Batch:
        return self.collate([self.make(self, n) for n in self.numbers(i)])

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def row(self, n: int) -> Array:
        return self.column.ids[self.bounds[n] : self.bounds[n + 1]].astype(np.int64)

    def numbers(self, i: int) -> list[int]:
        """The rows of a batch."""
        return [int(n) for n in self.order[i * self.size : (i + 1) * self.size]]

    def examples(self, i: int) -> list[int]:
        """Which lines of the text the rows of a batch begin in."""
        at = self.bounds[self.numbers(i)]
        return [int(n) for n in self.column.starts.searchsorted(at, "right") - 1]


def batch_of(rows: Sequence[Made], padding: int, target_padding: int = UNSCORED_ID) -> Batch:
    """Rows side by side."""
    source = pad([row.source.tolist() for row in rows], padding)
    if rows[0].view is not None:
        views = [row.view for row in rows if row.view is not None]
        fills = (UNSEEN, UNSEEN - 1, 0)  # what is no position sees all, and is seen by none
        columns = zip(fills, zip(*views, strict=True), strict=True)
        parts = [pad([one.tolist() for one in some], fill).values for fill, some in columns]
        source = replace(source, view=View(*parts))
    return Batch((source,), pad([row.target.tolist() for row in rows], target_padding))


def pack(starts: Array, context: int) -> Array:
    """Where rows of whole lines begin that fit into the context, and the end of the last.

    A line that is longer is cut. `starts` are those of the lines, and the end of the last.
    """
    bounds, at, end = [0], 0, int(starts[-1])
    while at < end:
        stop = min(at + context, end)
        line = int(starts[starts.searchsorted(stop, "right") - 1])
        at = line if line > at else stop
        bounds.append(at)
    return np.array(bounds)


def shuffled(lengths: Array, size: int, draws: np.random.Generator) -> Array:
    """The rows in an order that is drawn, batches of `size` of like lengths: less is padding."""
    order = draws.permutation(len(lengths))
    group = np.arange(len(order)) // (size * BATCHES_SORTED)
    order = order[np.lexsort((lengths[order], group))]
    whole = len(order) // size * size  # the last batch may be smaller
    batches = draws.permutation(order[:whole].reshape(-1, size))
    return np.append(batches.ravel(), order[whole:])


class Pretraining(PlainText):
    """What all objectives share that read rows: batches, and how well their targets are said."""

    fills = True

    def __init__(self, config: c.Config, lines: Lines):
        super().__init__(config, lines)
        assert isinstance(config.task, c.Pretrain)
        self.objective = config.task.objective
        self.tokenizer = lines.tokenizer
        self.alphabet = Alphabet.of(self.tokenizer)
        self.paired = isinstance(self.objective, c.Masked) and self.objective.next_sentence
        self._packed: tuple[Column, Array] | None = None
        refuse_vocabulary(config.task, self.tokenizer.specials)

    def build_meta(self) -> Network:
        return build_meta(self.config, [self.target.inventory], self.target.inventory)

    def unknown_in(self, source: Source) -> list[str]:
        return self.tokenizer.unknown(source[0].replace(MASK, " "))

    def make(self, rows: Rows, n: int, epoch: int) -> Made:
        """What the network learns from row n in an epoch."""
        objective, ids, row = self.objective, self.alphabet, rows.row(n)
        if isinstance(objective, c.Masked) and not objective.dynamic:
            epoch = min(epoch, 1)
        draws = draws_of(self.config.seed, epoch, n)
        match objective:
            case c.Masked(next_sentence=True):
                other = int(draws.integers(max(len(rows.bounds) - 2, 1)))
                other += other >= n and len(rows.bounds) > 2  # never the row itself
                pair, label = pair_of(row, rows.row(other), self.room, draws, ids)
                made = masked(pair, draws, objective, ids)
                made.target[0] = label  # the place of <bos>, where nothing else is said
                return made
            case c.Masked():
                return masked(row, draws, objective, ids)
            case c.Bidirectional():
                return Made(row, row)
            case c.Unilm():
                return unilm(row, draws, objective, ids)
            case c.Permuted():
                return permuted(row, draws, objective, ids)
            case c.Spans():
                return spans(row, draws, objective, ids)
            case c.Denoising():
                return denoising(row, draws, objective, ids)
            case c.Causal() | c.SkipGram() | c.Cbow():
                raise AssertionError("a language model reads a stream, word2vec a neighbourhood")
            case _:
                assert_never(objective)

    def collate(self, made: Sequence[Made]) -> Batch:
        return batch_of(made, self.target.pad)

    @property
    def room(self) -> int:
        """How many tokens of the text a row has, at most."""
        return self.context - 2 if self.paired else self.context

    def rows(self, column: Column, bounds: Array, order: Array, budget: int, epoch: int) -> Rows:
        width = self.context  # of a row, with all that is read and said
        match self.objective:
            case c.Denoising():
                width = 2 * self.context
            case c.Permuted():
                width = round((1 + self.objective.share) * self.context)
        make = partial(self.make, epoch=epoch)
        return Rows(column, bounds, order, max(1, budget // width), make, self.collate)

    def epoch(self, corpus: Corpus, number: int) -> Rows:
        column = corpus.tokens
        if self._packed is None or self._packed[0] is not column:
            self._packed = column, pack(column.starts, self.room)  # once for all epochs
        bounds, budget = self._packed[1], self.config.train.batch_tokens
        rows = self.rows(column, bounds, np.arange(len(bounds) - 1), budget, number + 1)
        draws = np.random.default_rng([self.config.seed, number])
        return replace(rows, order=shuffled(np.diff(bounds), rows.size, draws))

    def measured_rows(self, column: Column) -> Rows:
        """Rows that are always the same, in order: for evaluation."""
        bounds = pack(column.starts, self.room)
        budget = self.config.decode.batch_tokens
        return self.rows(column, bounds, np.arange(len(bounds) - 1), budget, DEV_EPOCH)

    def sample(self, examples: Sequence[Example]) -> Batch:
        column = self.encode(examples).tokens
        column = Column.of([column[i][: self.room] for i in range(len(column))])
        rows = self.rows(column, column.starts, np.arange(len(column)), 0, DEV_EPOCH)
        return self.collate([self.make(rows, n, DEV_EPOCH) for n in range(len(column))])

    def evaluating(
        self, network: Any, corpus: Corpus, examples: Sequence[Example], quick: bool
    ) -> Evaluation:
        column, lines = corpus.tokens, max(1, len(examples))
        while (
            lines < len(column) and self.alphabet.special[column.ids[: column.starts[lines]]].all()
        ):
            lines = min(2 * lines, len(column))  # where the first are blank, a few more
        batches = self.measured_rows(Column(column.ids, column.starts[: lines + 1]))
        sums: dict[str, float] = {}
        count, pairs = 0, 0

        def judged(i: int) -> tuple[Judged, int]:
            batch = batches[i]
            with torch.inference_mode():
                return self.judged(network, batch.to(device_of(network))), batch.count

        for done, (found, rows) in enumerate(shared(range(len(batches)), judged), 1):
            sums = {name: sums.get(name, 0.0) + value for name, value in found.sums.items()}
            count, pairs = count + found.targets, pairs + rows
            yield done / len(batches)
        if not count:
            raise DataError("nothing to measure on: the vocabulary has no token of this text")
        means = {name: value / count for name, value in sums.items()}
        perplexity = exp(min(means["loss"], 100.0))
        right = 100.0 * means["accuracy"]
        scores = {"loss": means["loss"], "perplexity": perplexity, "accuracy": right}
        if self.paired:
            scores["next_sentence"] = 100.0 * sums["next_sentence"] / max(pairs, 1)
        return scores

    def judged(self, network: Any, batch: Batch) -> "Judged":
        """How well the targets of a batch are said."""
        logits, gold = self.answers(network, batch)
        right = float((logits.argmax(-1) == gold).sum())
        nll = float(label_loss(logits, gold).nll)
        return Judged({"loss": nll, "accuracy": right}, gold.numel())

    @abstractmethod
    def answers(self, network: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """The logits of all targets in a batch, one after the other, and the targets."""

    def parts(self, examples: Sequence[Example]) -> list[tuple[int, Array]]:
        """The rows of examples, each with the example's number; a long line has several."""
        column = self.encode(examples).tokens
        return [
            (i, np.array(column[i][start : start + self.room]))
            for i in range(len(column))
            for start in range(0, len(column[i]), self.room)
        ]

    def read_masks(self, text: str, marks: Iterable[int]) -> list[int]:
        """The ids of a text, with a mark in place of every <mask>, and one at its end."""
        before, _, after, *_ = self.tokenizer.frame
        first, *others = self.tokenizer.encode(self.between_masks(text))
        read = [*before, *first]
        for mark, ids in zip(marks, others, strict=False):
            read += [mark, *ids]
        return [*read, *after]

    def between_masks(self, text: str) -> list[str]:
        """What stands between the masks; a published model's pieces begin with their blank."""
        parts = text.split(MASK)
        if self.tokenizer.config.kind != "imported":
            return parts
        return [*(part.rstrip(" ") for part in parts[:-1]), parts[-1]]


class Judged(NamedTuple):
    """What is counted of the targets of a batch: sums of -log p and of hits, and their number."""

    sums: dict[str, float]
    targets: int


def refuse_vocabulary(task: c.Pretrain, special: Specials) -> None:
    """ConfigError where a vocabulary lacks what an objective needs."""
    name, kind = task.vocabulary or "tokenizer.json", task.objective.kind
    way = "leave out task.vocabulary, or take one that was made with task.tokenizer."
    if task.objective.needs_mask and special.mask is None:
        raise ConfigError(
            f"{name}: this vocabulary has no {MASK}, which the objective '{kind}' needs: "
            f"{way}mask = true"
        )
    if isinstance(task.objective, c.Spans):
        needed, found = task.objective.most_spans(task.context), len(special.sentinels)
        if found < needed:
            raise ConfigError(
                f"{name}: this vocabulary has {found} sentinels, and a row of {task.context} "
                f"tokens needs {needed}: {way}sentinels = {needed}"
            )


class Fill(Pretraining):
    """Tokens that are hidden in a row: filled in, where a user writes <mask>."""

    ranks = True

    def answers(self, network: TokenPredictor, batch: Batch) -> tuple[Tensor, Tensor]:
        target = network.tokens(batch.target)
        return network.logits(batch.sources, target), target.scored(target.values)

    def judged(self, network: TokenPredictor, batch: Batch) -> Judged:
        if isinstance(network, TwoWays):
            return self.each_judged(network, batch)
        found = super().judged(network, batch)
        if self.paired:
            right = network.pairs(batch.sources).argmax(-1) == batch.target.values[:, 0]
            found.sums["next_sentence"] = float(right.sum())
        return found

    def each_judged(self, network: TwoWays, batch: Batch) -> Judged:
        """The same of two language models: the mean of both."""
        gold = batch.target.scored(batch.target.values)
        both = torch.stack(network.each(batch.sources, batch.target))  # (2, n, V)
        nll = sum(float(label_loss(logits, gold).nll) for logits in both) / 2
        return Judged(
            {"loss": nll, "accuracy": float((both.argmax(-1) == gold).sum()) / 2}, len(gold)
        )

    def predict(
        self, network: TokenPredictor, queries: Sequence[Query], request: Request
    ) -> list[Prediction]:
        """Each text with what is likeliest in place of every <mask>, each by itself."""
        texts = [query.source[0] for query in queries]
        rows = [np.array(self.read_masks(text, repeat(self.alphabet.mask))) for text in texts]
        problems = [self.problem(row) for row in rows]
        made = [
            self.asked(row, row == self.alphabet.mask)
            for row, problem in zip(rows, problems, strict=True)
            if not problem
        ]

        def at_masks(logits: Tensor, gold: Tensor) -> Tensor:
            logits[:, list(self.tokenizer.specials.ids)] = -inf
            return logits.log_softmax(-1)

        found = iter(self.worked(network, made, request.decode.batch_tokens, at_masks))
        return [
            Prediction("", 0.0, problem=problem)
            if problem
            else self.filled(text, next(found), request.nbest)
            for text, problem in zip(texts, problems, strict=True)
        ]

    def problem(self, row: Array) -> str:
        """Why a row of ids cannot be filled; nothing if it can."""
        if not (row == self.alphabet.mask).any():
            return NO_MASK
        return f"longer than the context of {self.room} tokens" if len(row) > self.room else ""

    def worked(
        self,
        network: TokenPredictor,
        made: Sequence[Made],
        budget: int,
        work: Callable[[Tensor, Tensor], Tensor],
    ) -> list[Tensor]:
        """For each row what `work` makes of the logits of its targets, and the targets."""

        def some(rows: list[Made]) -> list[Tensor]:
            batch = batch_of(rows, self.target.pad).to(device_of(network))
            logits, gold = self.answers(network, batch)
            counts = [int((row.target != UNSCORED_ID).sum()) for row in rows]
            return list(torch.split(work(logits.float(), gold).cpu(), counts))

        with torch.inference_mode():
            return in_batches(made, [len(row.source) for row in made], budget, some)

    def asked(self, row: Array, where: Array) -> Made:
        """A row as the network reads it when these positions are asked for, which it cannot see."""
        source = np.where(where, self.alphabet.mask, row)
        if isinstance(self.objective, c.Permuted):
            ranks = where.astype(np.int64)
            return two_streams(row, source, np.flatnonzero(where), ranks, self.alphabet, seen=False)
        target = np.where(where, row, UNSCORED_ID)
        if self.paired:
            source = np.append(self.tokenizer.specials.bos, source)
            target = np.append(UNSCORED_ID, target)
        return Made(source, target)

    def filled(self, text: str, log_probs: Tensor, nbest: int) -> Prediction:
        """The text with the likeliest tokens, and the next likeliest ones."""
        width = min(nbest, log_probs.size(1))
        scores, ids = (part.tolist() for part in log_probs.topk(width))
        # of the masks up to each, the best: a score, and the tokens
        ways: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for some, tokens in zip(scores, ids, strict=True):
            more = (
                (score + new, (*before, token))
                for score, before in ways
                for new, token in zip(some, tokens, strict=True)
            )
            ways = nlargest(nbest, more)
        answers = [(self.shown(text, tokens), score) for score, tokens in ways]
        return Prediction(*answers[0], others=tuple(answers[1:]))

    def shown(self, text: str, tokens: Sequence[int]) -> str:
        """The text with these tokens in place of its masks."""
        first, *others = text.split(MASK)
        pieces = self.tokenizer.decode([[token] for token in tokens])
        if self.tokenizer.config.kind == "imported":
            pieces = [piece.strip(" ") for piece in pieces]
        return first + "".join(a + b for a, b in zip(pieces, others, strict=True))

    def score(
        self, network: TokenPredictor, examples: Sequence[Example]
    ) -> list[tuple[float, int]]:
        """log p of each token when it alone is hidden, summed: the pseudo-log-likelihood.

        Salazar et al. 2020, arxiv.org/abs/1910.14659. Where tokens have an order that is drawn, it
        is from left to right, and the sum is log p of the line.
        """
        parts = self.parts(examples)
        made = [(i, one) for i, row in parts for one in self.each_asked(row)]

        def of_gold(logits: Tensor, gold: Tensor) -> Tensor:
            return logits.log_softmax(-1).gather(1, gold[:, None]).squeeze(1)

        budget = self.config.decode.batch_tokens
        found = self.worked(network, [one for _, one in made], budget, of_gold)
        sums, counts = [0.0] * len(examples), [0] * len(examples)
        for (i, _), log_probs in zip(made, found, strict=True):
            sums[i], counts[i] = sums[i] + float(log_probs.sum()), counts[i] + len(log_probs)
        return list(zip(sums, counts, strict=True))

    def each_asked(self, row: Array) -> list[Made]:
        """A row as often as it takes to ask for all of its tokens."""
        able = np.flatnonzero(~self.alphabet.special[row])
        if isinstance(self.objective, c.Permuted):
            ranks = np.zeros(len(row), np.int64)
            ranks[able] = np.arange(1, len(able) + 1)
            return [two_streams(row, row, able, ranks, self.alphabet)] if len(able) else []
        if isinstance(self.objective, c.Bidirectional):  # which never see what they say
            where = ~self.alphabet.special[row]
            return [Made(row, np.where(where, row, UNSCORED_ID))] if len(able) else []
        return [self.asked(row, np.arange(len(row)) == at) for at in able]


class Restore(Pretraining, GeneratingTask):
    """Text of which something is missing: an encoder reads it, a decoder says what."""

    output: Tokenizer

    def __init__(self, config: c.Config, lines: Lines):
        super().__init__(config, lines)
        self.readers = (lines,)

    def collate(self, made: Sequence[Made]) -> Batch:
        return batch_of(made, self.target.pad, self.target.pad)

    def answers(self, network: Generator, batch: Batch) -> tuple[Tensor, Tensor]:
        tokens, said = shifted(batch.target)
        state = network.decoder.start(network.encode(batch.sources), tokens.size(0))
        logits, _ = network.decoder(tokens, state)
        return said.real(logits), said.real(said.values)

    def readings(self, queries: Sequence[Query]) -> list[Reading]:
        """Each text, with a mark in place of every <mask>."""
        special = self.tokenizer.specials
        if isinstance(self.objective, c.Spans):
            return [(self.read_masks(q.source[0], special.sentinels),) for q in queries]
        return [(self.read_masks(q.source[0], repeat(self.alphabet.mask)),) for q in queries]

    def encode_queries(self, queries: Sequence[Query], request: Request) -> list[EncodedQuery]:
        encoded = super().encode_queries(queries, request)
        if not isinstance(self.objective, c.Spans):
            return encoded
        most, found = len(self.tokenizer.specials.sentinels), []
        for query, one in zip(queries, encoded, strict=True):
            masks = query.source[0].count(MASK)
            problem = NO_MASK if not masks else f"more than {most} masks" if masks > most else ""
            found.append(one._replace(problem=one.problem or problem))
        return found

    def written(self, reading: Reading, tokens: Sequence[int]) -> list[int]:
        """What was said; of spans the text that was read, with each in its place."""
        if not isinstance(self.objective, c.Spans):
            return list(tokens)
        sentinels = set(self.tokenizer.specials.sentinels)
        said: dict[int, list[int]] = {}
        mark = -1
        for token in tokens:
            mark = token if token in sentinels else mark
            said.setdefault(mark, []).append(token)
        return [i for token in reading[0] for i in (said.get(token, [token]))]

    def require_order(self) -> None:
        if isinstance(self.objective, c.Spans):
            raise ConfigError("what is missing stands inside a text: leave out --stream")

    def score(self, network: Generator, examples: Sequence[Example]) -> list[tuple[float, int]]:
        """log p of what is missing in each line, when it is spoilt in a way that never changes."""
        parts = self.parts(examples)
        sums, counts = [0.0] * len(examples), [0] * len(examples)
        made = []
        for _, row in parts:  # by the row alone, whatever stands beside it
            rows = self.rows(Column.of([row.tolist()]), np.array([0, len(row)]), row, 0, DEV_EPOCH)
            made.append(self.make(rows, 0, DEV_EPOCH))
        pad_id = self.target.pad
        source = Column.of([one.source.tolist() for one in made], pad=pad_id)
        target = Column.of([one.target.tolist() for one in made], pad=pad_id)
        found = self.score_corpus(network, Corpus((source,), target))
        for (i, _), (log_p, count) in zip(parts, found, strict=True):
            sums[i], counts[i] = sums[i] + log_p, counts[i] + count
        return list(zip(sums, counts, strict=True))
