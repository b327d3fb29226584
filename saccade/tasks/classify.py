"""Classify: text to a label."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from saccade import config as c
from saccade.data.batches import Batch, Corpus, in_order
from saccade.metrics import labels as metrics
from saccade.models.build import Classifier
from saccade.nn.loss import Loss
from saccade.nn.padded import Padded, pad
from saccade.tasks.labels import LabelTask, label_loss, log_probs_of
from saccade.tasks.task import (
    Columns,
    Pair,
    Prediction,
    Query,
    Request,
    Source,
    device_of,
    drop_words,
    in_batches,
)
from saccade.tasks.translate import encode_sources


class Classify(LabelTask):
    def encode(self, pairs: Sequence[Pair]) -> Columns:
        sources = encode_sources(self.tokenizer, [source for source, _ in pairs])
        return sources, [[self.labels.index(str(target))] for _, target in pairs], []

    def loss(
        self, network: Classifier, batch: Batch, carry: Any, progress: float
    ) -> tuple[Loss, Any]:
        source, train = batch.source, self.config.train
        assert source is not None
        if network.training:
            source = Padded(drop_words(source.values, train.word_dropout), source.lengths)
        smoothing = train.label_smoothing if network.training else 0.0
        return label_loss(network(source), batch.target.values[:, 0], smoothing), None

    def evaluate(
        self, network: Classifier, corpus: Corpus, pairs: Sequence[Pair], quick: bool
    ) -> dict[str, float]:
        nll, gold, guess = 0.0, [], []
        with torch.inference_mode():
            for batch in in_order(corpus, self.config.decode.batch_tokens, len(pairs)):
                batch = batch.to(device_of(network))
                assert batch.source is not None
                logits, right = network(batch.source), batch.target.values[:, 0]
                nll += float(label_loss(logits, right, 0.0).nll)
                gold += [self.labels.label(i) for i in right.tolist()]
                guess += [self.labels.label(i) for i in logits.argmax(-1).tolist()]
        return {
            "loss": nll / len(gold),
            "accuracy": metrics.accuracy(gold, guess),
            "macro_f1": metrics.macro_f1(gold, guess),
        }

    def predict(
        self, network: Classifier, queries: Sequence[Query], request: Request
    ) -> list[Prediction]:
        def one(logits: Tensor) -> Prediction:
            best = logits.log_softmax(-1).topk(min(request.nbest, len(self.labels)))
            ranked = [
                (self.labels.label(i), score)
                for i, score in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
            return Prediction(*ranked[0], others=tuple(ranked[1:]))

        sources = [query.source for query in queries]
        return [one(row) for row in self._logits(network, sources, request.decode)]

    def score(self, network: Classifier, pairs: Sequence[Pair]) -> list[tuple[float, int]]:
        logits = self._logits(network, [source for source, _ in pairs], self.config.decode)
        gold = [self.labels.index(str(target)) for _, target in pairs]
        return [(log_p, 1) for log_p in log_probs_of(torch.stack(logits), gold)] if pairs else []

    def _logits(
        self, network: Classifier, sources: Sequence[Source], decode: c.Compute
    ) -> list[Tensor]:
        rows = encode_sources(self.tokenizer, sources)

        def work(some: list[list[int]]) -> list[Tensor]:
            return list(network(pad(some).to(device_of(network))).cpu())

        with torch.inference_mode():
            budget = decode.batch_tokens
            return in_batches(rows, [len(row) for row in rows], budget, work)
