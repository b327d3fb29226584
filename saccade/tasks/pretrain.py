"""Pretrain: plain text, and whatever an objective makes of it, for other tasks to start from.

A text is read in rows: whole lines one after the other, each with its <eos>, as many as fit into
the context. An objective (`objectives`) takes each row to what the network reads and should say;
its random numbers are those of (seed, epoch, number of the row), and of what is measured on they
never change.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import product
from math import exp, inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade import config as c
from saccade.data.batches import Batch
from saccade.data.corpora import Array, Column, Corpus
from saccade.data.fields import Lines
from saccade.data.lines import Example
from saccade.errors import ConfigError
from saccade.models.build import build_meta
from saccade.models.networks import Network, TokenPredictor
from saccade.nn.loss import label_loss
from saccade.nn.padded import UNSCORED_ID, pad
from saccade.tasks.objectives import DEV_EPOCH, Alphabet, Made, draws_of, masked
from saccade.tasks.plain import PlainText
from saccade.tasks.task import (
    Evaluation,
    Prediction,
    Query,
    Request,
    device_of,
    in_batches,
)
from saccade.text.vocab import MASK

NO_MASK = f"there is nothing to fill: write {MASK} where a word is missing"
MAX_FILLINGS = 1000  # of several masks together, that are ranked


@dataclass(frozen=True)
class Rows:
    """The batches of an epoch: rows of a text, as an objective makes them."""

    column: Column
    bounds: Array  # row i is ids[bounds[i]:bounds[i + 1]]
    order: Array  # the rows, batch after batch
    size: int  # rows in a batch
    make: Callable[[Array, int], Made]  # of a row and its number

    def __len__(self) -> int:
        return -(-len(self.order) // self.size)

    def __getitem__(self, i: int) -> Batch:
        return batch_of([self.make(self.row(n), n) for n in self.examples_of(i)], self.column.pad)

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def row(self, n: int) -> Array:
        return self.column.ids[self.bounds[n] : self.bounds[n + 1]].astype(np.int64)

    def examples_of(self, i: int) -> list[int]:
        """The rows of a batch."""
        return [int(n) for n in self.order[i * self.size : (i + 1) * self.size]]

    def examples(self, i: int) -> list[int]:
        """Which lines of the text the rows of a batch begin in."""
        at = self.bounds[self.examples_of(i)]
        return [int(n) for n in self.column.starts.searchsorted(at, "right") - 1]


def batch_of(rows: Sequence[Made], padding: int) -> Batch:
    """Rows side by side."""
    source = pad([row.source.tolist() for row in rows], padding)
    return Batch((source,), pad([row.target.tolist() for row in rows], UNSCORED_ID))


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


class Pretraining(PlainText):
    """What all objectives share that read rows: batches, and how well their targets are said."""

    def __init__(self, config: c.Config, lines: Lines):
        super().__init__(config, lines)
        assert isinstance(config.task, c.Pretrain)
        self.objective = config.task.objective
        self.tokenizer = lines.tokenizer
        if self.objective.needs_mask and self.tokenizer.specials.mask is None:
            raise ConfigError(
                f"{config.task.vocabulary or 'tokenizer.json'}: this vocabulary has no {MASK}, "
                f"which the objective '{self.objective.kind}' needs: leave out task.vocabulary, or "
                "make it with task.tokenizer.mask = true"
            )
        self.alphabet = Alphabet.of(self.tokenizer)
        self._packed: tuple[Column, Array] | None = None

    def build_meta(self) -> Network:
        return build_meta(self.config, [self.target.inventory], self.target.inventory)

    def make(self, row: Array, epoch: int, index: int) -> Made:
        """What the network learns from a row in an epoch."""
        objective = self.objective
        assert isinstance(objective, c.Masked)
        drawn = epoch if objective.dynamic else min(epoch, 1)
        draws = draws_of(self.config.seed, drawn, index)
        return masked(row, draws, objective, self.alphabet)

    def bounds(self, column: Column) -> Array:
        """Where the rows of a text begin: found once."""
        if self._packed is None or self._packed[0] is not column:
            self._packed = column, pack(column.starts, self.context)
        return self._packed[1]

    def rows(self, column: Column, bounds: Array, order: Array, budget: int, epoch: int) -> Rows:
        def make(row: Array, index: int) -> Made:
            return self.make(row, epoch, index)

        return Rows(column, bounds, order, max(1, budget // self.context), make)

    def epoch(self, corpus: Corpus, number: int) -> Rows:
        bounds = self.bounds(corpus.tokens)
        order = np.random.default_rng([self.config.seed, number]).permutation(len(bounds) - 1)
        return self.rows(corpus.tokens, bounds, order, self.config.train.batch_tokens, number + 1)

    def measured_rows(self, column: Column) -> Rows:
        """Rows that are always the same, in order: for evaluation."""
        bounds = pack(column.starts, self.context)
        budget = self.config.decode.batch_tokens
        return self.rows(column, bounds, np.arange(len(bounds) - 1), budget, DEV_EPOCH)

    def sample(self, examples: Sequence[Example]) -> Batch:
        column = self.encode(examples).tokens
        made = [
            self.make(np.array(column[i][: self.context]), DEV_EPOCH, i) for i in range(len(column))
        ]
        return batch_of(made, self.target.pad)

    def evaluating(
        self, network: Any, corpus: Corpus, examples: Sequence[Example], quick: bool
    ) -> Evaluation:
        column = corpus.tokens
        batches = self.measured_rows(Column(column.ids, column.starts[: len(examples) + 1]))
        nll, count, right = 0.0, 0, 0
        for done, batch in enumerate(batches, 1):
            with torch.inference_mode():
                logits, gold = self.answers(network, batch.to(device_of(network)))
                nll += float(label_loss(logits, gold).nll)
            count, right = count + gold.numel(), right + int((logits.argmax(-1) == gold).sum())
            yield done / len(batches)
        count = max(count, 1)
        return {
            "loss": nll / count,
            "perplexity": exp(min(nll / count, 100.0)),
            "accuracy": right / count,
        }

    @abstractmethod
    def answers(self, network: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """The logits of all targets in a batch, one after the other, and the targets."""


class Fill(Pretraining):
    """Tokens that are hidden in a row: filled in, where a user writes <mask>."""

    ranks = True

    def answers(self, network: TokenPredictor, batch: Batch) -> tuple[Tensor, Tensor]:
        gold = batch.target.scored(batch.target.values)
        return network.logits(batch.sources, batch.target), gold

    def predict(
        self, network: TokenPredictor, queries: Sequence[Query], request: Request
    ) -> list[Prediction]:
        """Each text with what is likeliest in place of every <mask>, each by itself."""
        texts = [query.source[0] for query in queries]
        rows = [self.read_masks(text) for text in texts]
        problems = [self.problem(row) for row in rows]
        fine = [i for i, problem in enumerate(problems) if not problem]
        found = iter(self.hidden_log_probs(network, [rows[i] for i in fine], request.decode))
        return [
            Prediction("", 0.0, problem=problem)
            if problem
            else self.filled(text, next(found), request.nbest)
            for text, problem in zip(texts, problems, strict=True)
        ]

    def read_masks(self, text: str) -> list[int]:
        """The ids of a text in which <mask> stands for a token."""
        mask = self.tokenizer.specials.mask
        assert mask is not None
        before, _, after, *_ = self.tokenizer.frame
        first, *others = self.tokenizer.encode(self.parts(text))
        return [*before, *first, *(i for part in others for i in (mask, *part)), *after]

    def parts(self, text: str) -> list[str]:
        """What stands between the masks; a published model's pieces begin with their blank."""
        parts = text.split(MASK)
        if self.tokenizer.config.kind != "imported":
            return parts
        return [*(part.rstrip(" ") for part in parts[:-1]), parts[-1]]

    def problem(self, row: Sequence[int]) -> str:
        """Why a row of ids cannot be filled; nothing if it can."""
        if self.tokenizer.specials.mask not in row:
            return NO_MASK
        return f"longer than the context of {self.context}" if len(row) > self.context else ""

    def hidden_log_probs(
        self, network: TokenPredictor, rows: Sequence[list[int]], decode: c.Compute
    ) -> list[Tensor]:
        """For each row log p of every token at each <mask>: (masks, V)."""
        mask = self.tokenizer.specials.mask

        def work(some: list[list[int]]) -> list[Tensor]:
            made = [self.asked(np.array(row), np.array(row) == mask) for row in some]
            batch = batch_of(made, self.target.pad).to(device_of(network))
            logits = network.logits(batch.sources, batch.target).float().cpu()
            logits[:, list(self.tokenizer.specials.ids)] = -inf
            counts = [int((made_row.target != UNSCORED_ID).sum()) for made_row in made]
            return list(torch.split(logits.log_softmax(-1), counts))

        with torch.inference_mode():
            return in_batches(rows, [len(row) for row in rows], decode.batch_tokens, work)

    def asked(self, row: Array, where: Array) -> Made:
        """A row as the network reads it when these positions are asked for: their ids are not."""
        assert self.alphabet.mask is not None
        source = np.where(where, self.alphabet.mask, row)
        return Made(source, np.where(where, row, UNSCORED_ID))

    def filled(self, text: str, log_probs: Tensor, nbest: int) -> Prediction:
        """The text with the likeliest tokens, and the next likeliest ones."""
        width = min(nbest, log_probs.size(1))
        scores, ids = (part.tolist() for part in log_probs.topk(width))
        places = list(product(*(range(width) for _ in scores)))[:MAX_FILLINGS]
        ranked = nsmallest(
            nbest, places, key=lambda picks: -sum(s[i] for s, i in zip(scores, picks, strict=True))
        )
        answers = [
            (
                self.shown(text, [some[i] for some, i in zip(ids, picks, strict=True)]),
                sum(s[i] for s, i in zip(scores, picks, strict=True)),
            )
            for picks in ranked
        ]
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
        """The pseudo-log-likelihood: log p of each token when it alone is hidden, summed.

        Salazar et al. 2020, arxiv.org/abs/1910.14659
        """
        column = self.encode(examples).tokens
        parts = [  # a line beyond the context is read in parts
            (i, np.array(column[i][start : start + self.context]))
            for i in range(len(column))
            for start in range(0, len(column[i]), self.context)
        ]
        hidden = [
            (number, at)
            for number, (_, row) in enumerate(parts)
            for at in np.flatnonzero(~self.alphabet.special[row]).tolist()
        ]

        def work(some: list[tuple[int, int]]) -> list[float]:
            rows = [parts[number][1] for number, _ in some]
            made = [
                self.asked(row, np.arange(len(row)) == at)
                for row, (_, at) in zip(rows, some, strict=True)
            ]
            batch = batch_of(made, self.target.pad).to(device_of(network))
            gold = batch.target.scored(batch.target.values)
            logits = network.logits(batch.sources, batch.target).float()
            found: list[float] = logits.log_softmax(-1).gather(1, gold[:, None])[:, 0].tolist()
            return found

        with torch.inference_mode():
            lengths = [len(parts[number][1]) for number, _ in hidden]
            log_probs = in_batches(hidden, lengths, self.config.decode.batch_tokens, work)
        sums, counts = [0.0] * len(column), [0] * len(column)
        for (number, _), log_p in zip(hidden, log_probs, strict=True):
            line = parts[number][0]
            sums[line], counts[line] = sums[line] + log_p, counts[line] + 1
        return list(zip(sums, counts, strict=True))
