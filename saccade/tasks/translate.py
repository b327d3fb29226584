"""Translate: text to text of any kind. Letters to phones, German to English, wrong to right."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from saccade import config as c
from saccade.data.batches import in_order
from saccade.data.corpora import Corpus
from saccade.data.fields import TargetText, Text
from saccade.data.lines import Example
from saccade.metrics import text as metrics
from saccade.models.networks import Generator
from saccade.tasks.generate import GeneratingTask
from saccade.tasks.task import Prediction, Query, Request, Source, device_of
from saccade.text.tokenizers import Tokenizer


class Translate(GeneratingTask):
    files = ("source.json", "target.json")

    def __init__(self, config: c.Config, source: Text, target: TargetText):
        super().__init__(config, (source,), target)
        assert isinstance(config.task, c.Translate)
        self.settings = config.task
        self.source = source

    @property
    def metric(self) -> str:
        return self.settings.metric

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        return self.settings.metric in ("bleu", "chrf")

    @classmethod
    def fit(cls, config: c.Config, examples: Callable[[], Iterable[Example]]) -> "Translate":
        settings = config.task
        assert isinstance(settings, c.Translate)
        if settings.joint:
            both = (str(t) for row in examples() for t in (*row.source, *row.references))
            joint = Tokenizer.train(settings.source, both)
            return cls(config, Text(joint), TargetText(joint))
        sources = (text for row in examples() for text in row.source)
        targets = (str(target) for row in examples() for target in row.references)
        source = Text.fit(settings.source, sources)
        return cls(config, source, TargetText.fit(settings.target, targets))

    @classmethod
    def load(cls, config: c.Config, folder: Path) -> "Translate":
        source, target = (folder / name for name in cls.files)
        return cls(config, Text.load(source), TargetText.load(target))

    def evaluate(
        self, network: Generator, corpus: Corpus, examples: Sequence[Example], quick: bool
    ) -> dict[str, float]:
        decode = self.config.decode
        if quick:  # the best model is much the same by any search
            greedy = {"width": 1, "groups": 1} if isinstance(decode, c.Beam) else {}
            decode = decode.model_copy(update=greedy | {"risk": "off"})
        answer = partial(self.predict, network, request=Request(decode))
        return self.evaluate_answers(network, corpus, examples, answer)

    def evaluate_answers(
        self,
        network: Generator,
        corpus: Corpus,
        examples: Sequence[Example],
        answer: Callable[[list[Query]], Iterable[Prediction]],
    ) -> dict[str, float]:
        """The loss, and the metrics of what `answer` says to each different source."""
        queries = [Query(source, number) for number, source in enumerate(references_of(examples))]
        texts = [found.text for found in answer(queries)]
        rows = sum(len(row.references) for row in examples)
        loss = self.mean_loss(network, corpus, rows)
        return {"loss": loss} | self.measured(examples, texts)

    def mean_loss(self, network: Generator, corpus: Corpus, rows: int) -> float:
        """The loss of a token under teacher forcing, over the first rows of a corpus."""
        nll, count = 0.0, 0
        with torch.inference_mode():
            for batch in in_order(corpus, self.config.decode.batch_tokens, rows):
                loss, _ = network(batch.to(device_of(network)))
                nll, count = nll + float(loss.nll), count + loss.count
        return nll / max(count, 1)

    def measured(self, examples: Sequence[Example], texts: Sequence[str]) -> dict[str, float]:
        """The metrics of a text for each different source."""
        gold = list(references_of(examples).values())
        found = {}
        if self.metric in ("bleu", "chrf"):
            found["bleu"] = metrics.bleu(texts, gold)
            found["chrf"] = metrics.chrf(texts, gold)
        unit: Literal["char", "token"] = "char" if self.settings.target.kind == "char" else "token"
        gold = [self._as_written(targets) for targets in gold]
        found["sequence_error"] = metrics.sequence_error_rate(texts, gold)
        found["token_error"] = metrics.token_error_rate(texts, gold, unit=unit)
        return found

    def _as_written(self, targets: list[str]) -> list[str]:
        """Targets as the tokenizer can write them at best: right is what cannot be better."""
        if self.settings.target.lowercase or self.settings.target.split_punctuation:
            return self.output.decode(self.output.encode(targets))
        return targets if self.output.lossless else [" ".join(t.split()) for t in targets]


def references_of(examples: Sequence[Example]) -> dict[Source, list[str]]:
    """The targets of each source: one with several may be given any of them."""
    references: dict[Source, list[str]] = {}
    for row in examples:
        references.setdefault(row.source, []).extend(map(str, row.references))
    return references
