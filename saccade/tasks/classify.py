"""Classify: text to a label."""

from collections.abc import Sequence

import torch
from torch import Tensor

from saccade.data.batches import in_order
from saccade.data.corpora import Corpus
from saccade.data.lines import Example
from saccade.metrics import labels as metrics
from saccade.models.networks import Classifier
from saccade.nn.loss import label_loss
from saccade.tasks.labels import LabelTask, log_probs_of
from saccade.tasks.task import Evaluation, Prediction, Query, Request, device_of, shared


class Classify(LabelTask):
    ranks = True

    def evaluating(
        self, network: Classifier, corpus: Corpus, examples: Sequence[Example], quick: bool
    ) -> Evaluation:
        nll, name = 0.0, self.labels.label
        gold: list[str] = []
        guess: list[str] = []
        batches = in_order(corpus, self.config.decode.batch_tokens, len(examples))

        def evaluate_batch(i: int) -> tuple[float, list[str], list[str]]:
            batch = batches[i].to(device_of(network))
            with torch.inference_mode():
                logits, right = network.logits(batch.sources), batch.target.values[:, 0]
            loss, best = label_loss(logits, right), logits.argmax(-1)
            labels, guesses = ([name(i) for i in ids.tolist()] for ids in (right, best))
            return float(loss.nll), labels, guesses

        for loss, right, predicted in shared(range(len(batches)), evaluate_batch):
            nll += loss
            gold += right
            guess += predicted
            yield len(gold) / len(examples)
        return {
            "loss": nll / len(gold),
            "accuracy": metrics.accuracy(gold, guess),
            "macro_f1": metrics.macro_f1(gold, guess),
            "matthews": metrics.matthews(gold, guess),
            **metrics.f1_of_two(self.labels.labels, gold, guess),
        }

    def predict(
        self, network: Classifier, queries: Sequence[Query], request: Request
    ) -> list[Prediction]:
        def prediction(logits: Tensor) -> Prediction:
            best = logits.log_softmax(-1).topk(min(request.nbest, len(self.labels)))
            ranked = [
                (self.labels.label(i), score)
                for i, score in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
            return Prediction(*ranked[0], others=tuple(ranked[1:]))

        sources = [query.source for query in queries]
        return [
            prediction(row) for row in self.logits(network, sources, request.decode.batch_tokens)
        ]

    def score(self, network: Classifier, examples: Sequence[Example]) -> list[tuple[float, int]]:
        sources = [row.source for row in examples]
        logits = self.logits(network, sources, self.config.decode.batch_tokens)
        gold = [self.labels.index(str(row.target)) for row in examples]
        return [(log_p, 1) for log_p in log_probs_of(torch.stack(logits), gold)] if gold else []
