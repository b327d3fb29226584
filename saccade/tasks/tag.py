"""Tag: a label for every word, whatever pieces the word was cut into."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from saccade import config as c
from saccade.data.batches import Batch, Corpus, in_order
from saccade.metrics import labels as metrics
from saccade.models.build import Tagger
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


class Tag(LabelTask):
    def encode(self, pairs: Sequence[Pair]) -> Columns:
        cut = self.tokenizer.encode_words([source for source, _ in pairs])
        tags = [[self.labels.index(tag) for tag in target or ()] for _, target in pairs]
        return [ids for ids, _ in cut], tags, [words for _, words in cut]

    def loss(self, network: Tagger, batch: Batch, carry: Any, progress: float) -> tuple[Loss, Any]:
        source, train = batch.source, self.config.train
        assert source is not None
        if network.training:
            source = Padded(drop_words(source.values, train.word_dropout), source.lengths)
        smoothing = train.label_smoothing if network.training else 0.0
        logits = network(source, batch.words)  # (B, words, labels)
        gold = batch.target
        return label_loss(gold.real(logits), gold.real(gold.values), smoothing), None

    def evaluate(
        self, network: Tagger, corpus: Corpus, pairs: Sequence[Pair], quick: bool
    ) -> dict[str, float]:
        nll, count = 0.0, 0
        gold: list[list[str]] = []
        guess: list[list[str]] = []
        name = self.labels.label
        with torch.inference_mode():
            for batch in in_order(corpus, self.config.decode.batch_tokens, len(pairs)):
                batch = batch.to(device_of(network))
                target, logits = batch.target, network(batch.source, batch.words)
                loss = label_loss(target.real(logits), target.real(target.values), 0.0)
                nll, count = nll + float(loss.nll), count + loss.count
                best = logits.argmax(-1)
                for row, right, n in zip(best, target.values, target.lengths.tolist(), strict=True):
                    guess.append([name(i) for i in row[:n].tolist()])
                    gold.append([name(i) for i in right[:n].tolist()])
        flat_gold = [tag for row in gold for tag in row]
        flat_guess = [tag for row in guess for tag in row]
        found = {"loss": nll / count, "accuracy": metrics.accuracy(flat_gold, flat_guess)}
        if metrics.is_bio(self.labels.labels):
            found["span_f1"] = metrics.span_f1(gold, guess)[2]
        return found

    @property
    def metric(self) -> str:
        return "span_f1" if metrics.is_bio(self.labels.labels) else "accuracy"

    def predict(
        self, network: Tagger, queries: Sequence[Query], request: Request
    ) -> list[Prediction]:
        def one(logits: Tensor) -> Prediction:
            log_probs, best = logits.log_softmax(-1).max(-1)
            tags = [self.labels.label(i) for i in best.tolist()]
            return Prediction(" ".join(tags), float(log_probs.sum()))

        sources = [query.source for query in queries]
        return [one(rows) for rows in self._logits(network, sources, request.decode)]

    def score(self, network: Tagger, pairs: Sequence[Pair]) -> list[tuple[float, int]]:
        found = []
        sources = [source for source, _ in pairs]
        for logits, (_, tags) in zip(
            self._logits(network, sources, self.config.decode), pairs, strict=True
        ):
            gold = [self.labels.index(tag) for tag in tags or ()]
            found.append((sum(log_probs_of(logits, gold)), len(gold)))
        return found

    def _logits(
        self, network: Tagger, sources: Sequence[Source], decode: c.Compute
    ) -> list[Tensor]:
        """For each source its (words, labels)."""
        cut = self.tokenizer.encode_words(sources)

        def work(some: list[tuple[list[int], list[int]]]) -> list[Tensor]:
            device = device_of(network)
            words = pad([row for _, row in some], value=-1).to(device)
            logits = network(pad([ids for ids, _ in some]).to(device), words.values).cpu()
            return [row[: index[-1] + 1] for row, (_, index) in zip(logits, some, strict=True)]

        with torch.inference_mode():
            budget = decode.batch_tokens
            return in_batches(cut, [len(ids) for ids, _ in cut], budget, work)
