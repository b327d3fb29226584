"""Tag: a label for every word, however it was split into tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from saccade import config as c
from saccade.data.batches import in_order
from saccade.data.corpora import Corpus
from saccade.data.fields import Labels, Words
from saccade.data.kinds import Readable
from saccade.data.lines import Example, counted, labels_of
from saccade.data.numbers import NumbersField
from saccade.decoding.spans import likeliest
from saccade.errors import ConfigError, DataError
from saccade.metrics import labels as metrics
from saccade.models.networks import Tagger
from saccade.nn.loss import label_loss
from saccade.nn.padded import UNSCORED_ID, Padded
from saccade.tasks.labels import LabelTask, log_probs_of
from saccade.tasks.task import Evaluation, Prediction, Query, Request, Token, device_of, shared

ALTERNATIVES = 5  # labels of a word, with `details`


class Tag(LabelTask):
    source_field = Words

    def __init__(self, config: c.Config, sources: tuple[Readable, ...], target: Labels):
        super().__init__(config, sources, target)
        for field in sources:
            if isinstance(field, NumbersField):
                field.per_position = True
        assert isinstance(config.task, c.Tag)
        self.following: Tensor | None = None  # which label may follow which
        if config.task.spans:
            if not metrics.is_bio(self.labels.labels):
                odd = next((x for x in self.labels.labels if x[0] not in "OBI"), "O")
                message = f"labels are O, B-x and I-x; there is {odd!r}: set it to false"
                raise ConfigError(f"task.spans: {message}")
            names = self.labels.labels
            rows = [[metrics.may_follow(before, label) for label in names] for before in names]
            self.following = torch.tensor(rows)
            self.first = torch.tensor([metrics.may_follow("O", label) for label in names])

    def likeliest(self, logits: Tensor) -> list[int]:
        """The labels (n,) of a sentence with these logits (n, labels)."""
        if self.following is None:
            return logits.argmax(-1).tolist()
        log_probs = logits.float().log_softmax(-1).cpu()
        return likeliest(log_probs, self.following, self.first).tolist()

    def encode(self, examples: Sequence[Example]) -> Corpus:
        corpus = super().encode(examples)
        if self.fallible:
            pairs = zip(corpus.sources[0].lengths, corpus.target.lengths, examples, strict=True)
            for steps, labels, row in pairs:
                if steps != labels:
                    raise DataError(
                        f"{row.where}: {counted(int(steps), 'step')}, but "
                        f"{counted(int(labels), 'label')}; write one label for every step"
                    )
        return corpus

    @property
    def metric(self) -> str:
        return "span_f1" if metrics.is_bio(self.labels.labels) else "accuracy"

    def evaluating(
        self, network: Tagger, corpus: Corpus, examples: Sequence[Example], quick: bool
    ) -> Evaluation:
        nll, count = 0.0, 0
        gold: list[list[str]] = []
        guess: list[list[str]] = []
        name = self.labels.label
        batches = in_order(corpus, self.config.decode.batch_tokens, len(examples))

        def evaluate_batch(i: int) -> tuple[float, int, list[list[str]], list[list[str]]]:
            batch = batches[i].to(device_of(network))
            with torch.inference_mode():
                target, logits = batch.target, network.logits(batch.sources)
                loss = label_loss(target.scored(logits), target.scored(target.values))
            right_rows, guess_rows = [], []
            rows = zip(logits, target.values.tolist(), target.lengths.tolist(), strict=True)
            for row, labels, n in rows:
                scored = [i for i in range(n) if labels[i] != UNSCORED_ID]
                best = self.likeliest(row[:n])
                guess_rows.append([name(best[i]) for i in scored])
                right_rows.append([name(labels[i]) for i in scored])
            return float(loss.nll), loss.count, right_rows, guess_rows

        for loss, tokens, right_rows, guess_rows in shared(range(len(batches)), evaluate_batch):
            nll, count = nll + loss, count + tokens
            gold += right_rows
            guess += guess_rows
            yield len(gold) / len(examples)
        if not count:
            raise DataError("nothing to score: data.mask or data.ignore leaves out every label")
        flat_gold = [tag for row in gold for tag in row]
        flat_guess = [tag for row in guess for tag in row]
        scores = {"loss": nll / count, "accuracy": metrics.accuracy(flat_gold, flat_guess)}
        scores |= metrics.f1_of_two(self.labels.labels, flat_gold, flat_guess)
        if metrics.is_bio(self.labels.labels):
            scores["span_f1"] = metrics.span_f1(gold, guess)[2]
        return scores

    def predict(
        self, network: Tagger, queries: Sequence[Query], request: Request
    ) -> list[Prediction]:
        letters = all(len(label) == 1 for label in self.labels.labels)
        between = "" if letters and self.config.data.units == "characters" else " "

        def predicted_tags(logits: Tensor) -> Prediction:
            log_probs, best = logits.log_softmax(-1), self.likeliest(logits)
            tags = [self.labels.label(i) for i in best]
            tokens: tuple[Token, ...] = ()
            if request.details:
                tokens = tuple(map(self._token, log_probs, best))
            score = float(log_probs[range(len(best)), best].sum())
            return Prediction(between.join(tags), score, tokens=tokens)

        sources = [query.source for query in queries]
        each = self.logits(network, sources, request.decode.batch_tokens)
        return [predicted_tags(logits) for logits in each]

    def _token(self, log_probs: Tensor, label: int) -> Token:
        """A word's label, its log-probability, and the likeliest labels with theirs."""
        best = log_probs.topk(min(ALTERNATIVES, len(log_probs)))
        names = [self.labels.label(i) for i in best.indices.tolist()]
        ranked = tuple(zip(names, best.values.tolist(), strict=True))
        return Token(self.labels.label(label), float(log_probs[label]), ranked)

    def score(self, network: Tagger, examples: Sequence[Example]) -> list[tuple[float, int]]:
        results = []
        sources = [row.source for row in examples]
        each = self.logits(network, sources, self.config.decode.batch_tokens)
        for logits, row in zip(each, examples, strict=True):
            gold = [self.target.index(tag) for tag in labels_of(row.target)]
            scored = [i for i, n in enumerate(gold) if n != UNSCORED_ID]
            log_probs = log_probs_of(logits[scored], [gold[i] for i in scored]) if scored else []
            results.append((sum(log_probs), len(log_probs)))
        return results

    def _rows(self, logits: Tensor, sources: tuple[Padded, ...]) -> list[Tensor]:
        (source,) = sources
        assert source.words is not None
        counts = (source.words.amax(1) + 1).tolist()
        return [row[:n] for row, n in zip(logits, counts, strict=True)]
