"""Series: any source to a series of vectors of numbers: samples or means, step by step."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from saccade import config as c
from saccade.data.batches import collate, in_order, padded
from saccade.data.corpora import Corpus
from saccade.data.fields import Text
from saccade.data.lines import Example
from saccade.data.targets import SeriesNumbers, TargetNumbers
from saccade.decoding.series import drawn, expected, number_stepper, unroll
from saccade.models.networks import Batch, Generator, missing, shifted
from saccade.nn.distributions import Distribution
from saccade.nn.state import select
from saccade.tasks.generate import MAX_DRAWS
from saccade.tasks.numbers import NumberTask, Tally
from saccade.tasks.task import (
    Evaluation,
    Prediction,
    Query,
    Request,
    device_of,
    in_batches,
    max_positions,
    shared,
)


class Series(NumberTask):
    decode_keys = frozenset({"kind", "seed", "temperature", "max_len"})

    @classmethod
    def field_types(cls, config: c.Config) -> tuple[type[Text], type[TargetNumbers]]:
        return Text, SeriesNumbers

    def evaluating(
        self, network: Generator, corpus: Corpus, examples: Sequence[Example], quick: bool
    ) -> Evaluation:
        tally, done = Tally(self, distribution_of(network)), 0
        batches = in_order(corpus, self.config.decode.batch_tokens, len(examples))

        def evaluate_batch(i: int) -> tuple[Tensor, Tensor, int]:
            batch = batches[i].to(device_of(network))
            with torch.inference_mode():
                raw, values = self.forced(network, batch)
                return batch.target.real(raw), batch.target.real(values), batch.count

        for raw, values, rows in shared(range(len(batches)), evaluate_batch):
            tally.add(raw, values)
            done += rows
            yield done / len(examples)
        return tally.metrics()

    def predict(
        self, network: Generator, queries: Sequence[Query], request: Request
    ) -> list[Prediction]:
        cells = self.read([query.source for query in queries])
        columns = [f.encode(some) for f, some in zip(self.sources, cells, strict=True)]
        decode, end = request.decode, self.target.numbers
        step, distribution = number_stepper(network.decoder), distribution_of(network)
        longest = min(decode.max_len, self.target.longest * 2, self._positions - 1)

        nbest = request.nbest

        def work(rows: list[int]) -> list[Prediction]:
            device = device_of(network)
            sources = tuple(padded(column, np.array(rows)).to(device) for column in columns)
            state = network.decoder.start(network.encode(sources), len(rows))
            index = torch.arange(len(rows), device=device).repeat_interleave(nbest)
            choose = expected(distribution)
            if isinstance(decode, c.Sample):
                keys = [queries[i].number * MAX_DRAWS + n for i in rows for n in range(nbest)]
                choose = drawn(distribution, decode.seed, keys, decode.temperature)
            first = missing(torch.zeros(len(index), 1, end + 1, device=device))[:, 0]
            limits = [longest] * len(index)
            found = unroll(
                step, select(state, index), first, distribution, choose=choose, limits=limits,
                end=end,
            )  # fmt: skip
            answers = []
            for series in found:
                shift = -float(self.log_scale[:end].sum()) * len(series.values)
                text = self.target.written(self.own_units(series.values))
                answers.append((text, series.score + shift))
            ranked_lists = [answers[i : i + nbest] for i in range(0, len(answers), nbest)]
            return [Prediction(*ranked[0], others=tuple(ranked[1:])) for ranked in ranked_lists]

        generated = nbest * self.target.longest
        lengths = (generated + np.sum([column.lengths for column in columns], 0)).tolist()
        with torch.inference_mode():
            return in_batches(range(len(queries)), lengths, decode.batch_tokens, work)

    def score(self, network: Generator, examples: Sequence[Example]) -> list[tuple[float, int]]:
        corpus = self.encode(examples)

        def work(rows: list[int]) -> list[tuple[float, int]]:
            batch = collate(corpus, np.array(rows)).to(device_of(network))
            raw, values = self.forced(network, batch)
            log_p = self.log_p(distribution_of(network).nll(raw, values), values)
            lengths = batch.target.lengths.tolist()
            return [(float(log_p[b, :n].sum()), n) for b, n in enumerate(lengths)]

        budget = self.config.decode.batch_tokens
        with torch.inference_mode():
            return in_batches(range(len(corpus)), corpus.lengths.tolist(), budget, work)

    def forced(self, network: Generator, batch: Batch) -> tuple[Tensor, Tensor]:
        """Teacher forcing: the parameters for every row given those before it, and the rows."""
        inputs, gold = shifted(batch.target)
        state = network.decoder.start(network.encode(batch.sources), inputs.size(0))
        raw, _ = network.decoder(inputs, state)
        return raw, gold.values

    @property
    def _positions(self) -> int:
        return max_positions(self.config.decoder)


def distribution_of(network: Generator) -> Distribution:
    output = network.decoder.output
    assert isinstance(output, Distribution)
    return output
