"""Regress: any source to a vector of numbers, or to one for each of its words or steps."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade import config as c
from saccade.data.batches import collate, in_order, padded
from saccade.data.cells import words_of
from saccade.data.corpora import Column, Corpus
from saccade.data.fields import Text, Words
from saccade.data.kinds import Readable
from saccade.data.lines import Example, counted
from saccade.data.media import MediaField
from saccade.data.numbers import NumbersField
from saccade.data.targets import PositionNumbers, TargetNumbers
from saccade.errors import DataError
from saccade.models.networks import Regressor
from saccade.tasks.numbers import NumberTask, Tally
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


class Regress(NumberTask):
    def __init__(self, config: c.Config, sources: tuple[Readable, ...], target: TargetNumbers):
        super().__init__(config, sources, target)
        assert isinstance(config.task, c.Regress)
        self.per_position = config.task.per_position
        self.letters = config.task.tokenizer.kind == "char"  # are the positions of a text
        for field in sources if self.per_position else ():
            if isinstance(field, NumbersField):
                field.per_position = True

    @classmethod
    def field_types(cls, config: c.Config) -> tuple[type[Text], type[TargetNumbers]]:
        assert isinstance(config.task, c.Regress)
        return (Words, PositionNumbers) if config.task.per_position else (Text, TargetNumbers)

    def read(
        self, examples: Sequence[Source], rows: Sequence[Example] | None = None
    ) -> list[Sequence[Any]]:
        if self.per_position and not isinstance(self.sources[0], MediaField):
            cut = letters_of if self.letters else words_of
            return [[cut(text) for (text,) in examples]]
        return super().read(examples, rows)

    def encode(self, examples: Sequence[Example]) -> Corpus:
        if self.per_position and any(len(row.source) != 1 for row in examples):
            raise DataError(f"{examples[0].where}: task.per_position has one source column")
        corpus = super().encode(examples)
        if self.per_position:
            for row, lengths in zip(examples, self._lengths(corpus), strict=True):
                if lengths[0] != lengths[1]:
                    raise DataError(
                        f"{row.where}: {counted(lengths[0], 'position')}, but numbers for "
                        f"{lengths[1]}; write some for every one, null where they are missing"
                    )
        return corpus

    def _lengths(self, corpus: Corpus) -> list[tuple[int, int]]:
        """The number of positions of each example, and of those with numbers."""
        source, targets = corpus.sources[0], corpus.target.lengths.tolist()
        positions = source.lengths.tolist()
        if isinstance(source, Column) and source.words is not None:
            words = source.words
            positions = [int(words[a:b].max(initial=-1)) + 1 for a, b in pairwise(source.starts)]
        return list(zip(positions, targets, strict=True))

    def evaluating(
        self, network: Regressor, corpus: Corpus, examples: Sequence[Example], quick: bool
    ) -> Evaluation:
        tally, done = Tally(self, network.distribution), 0
        batches = in_order(corpus, self.config.decode.batch_tokens, len(examples))

        def evaluate_batch(i: int) -> tuple[Tensor, Tensor, int]:
            batch = batches[i].to(device_of(network))
            with torch.inference_mode():
                target, raw = batch.target, network.raw(batch.sources)
                raw = raw if self.per_position else raw[:, None]
                return target.real(raw), target.real(target.values), batch.count

        for raw, values, rows in shared(range(len(batches)), evaluate_batch):
            tally.add(raw, values)
            done += rows
            yield done / len(examples)
        return tally.metrics()

    def problems(self, queries: Sequence[Query]) -> dict[int, str]:
        return super().problems(queries) | self.too_long(queries)

    def predict(
        self, network: Regressor, queries: Sequence[Query], request: Request
    ) -> list[Prediction]:
        def one(raw: Tensor) -> Prediction:
            mean = network.distribution.mean(raw)  # (n, F)
            log_p = self.log_p(network.distribution.nll(raw, mean), mean)
            return Prediction(self.target.written(self.own_units(mean)), float(log_p.sum()))

        cells = self.read([query.source for query in queries])
        columns = [f.encode(some) for f, some in zip(self.sources, cells, strict=True)]

        def work(rows: list[int]) -> list[Prediction]:
            device = device_of(network)
            sources = tuple(padded(column, np.array(rows)).to(device) for column in columns)
            raw = network.raw(sources)
            if not self.per_position:
                return [one(row) for row in raw[:, None]]
            words = sources[0].words
            assert words is not None
            counts = (words.amax(1) + 1).tolist()
            return [one(row[:n]) for row, n in zip(raw, counts, strict=True)]

        lengths = np.sum([column.lengths for column in columns], 0).tolist()
        budget = request.decode.batch_tokens
        with torch.inference_mode():
            return in_batches(range(len(queries)), lengths, budget, work)

    def score(self, network: Regressor, examples: Sequence[Example]) -> list[tuple[float, int]]:
        corpus = self.encode(examples)

        def work(rows: list[int]) -> list[tuple[float, int]]:
            batch = collate(corpus, np.array(rows)).to(device_of(network))
            raw, values = network.raw(batch.sources), batch.target.values
            raw = raw if self.per_position else raw[:, None]
            log_p = self.log_p(network.distribution.nll(raw, values), values)
            lengths = batch.target.lengths.tolist()
            present = (~values.isnan()).any(-1)
            return [
                (float(log_p[b, :n].sum()), int(present[b, :n].sum()))
                for b, n in enumerate(lengths)
            ]

        budget = self.config.decode.batch_tokens
        with torch.inference_mode():
            return in_batches(range(len(corpus)), corpus.lengths.tolist(), budget, work)


def letters_of(text: str) -> tuple[str, ...]:
    """The characters of a text, without its blanks."""
    return tuple("".join(text.split()))
