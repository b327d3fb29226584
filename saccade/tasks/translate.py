"""Translate: any source to text. Graphemes to phonemes, German to English, pictures to captions."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import exp
from pathlib import Path
from typing import Any, Literal

import torch

from saccade import config as c
from saccade.data.batches import Batches, in_order
from saccade.data.corpora import Corpus
from saccade.data.fields import TargetText, Text
from saccade.data.hallucinate import hallucinated
from saccade.data.kinds import (
    FixedVocabulary,
    Readable,
    Vocabularies,
    counting,
    fitted,
    load_field,
)
from saccade.data.lines import Example
from saccade.metrics import captions, summaries, trees
from saccade.metrics import text as metrics
from saccade.models.networks import Generator
from saccade.nn.packed import packed
from saccade.nn.watch import watched
from saccade.tasks.generate import GeneratingTask, hypotheses_of
from saccade.tasks.task import (
    NO_VOCABULARIES,
    Evaluation,
    Prediction,
    Query,
    Request,
    Source,
    chunks,
    count_columns,
    device_of,
    shared,
    sharers,
)
from saccade.text.tokenizers import Counts, Tokenizer

MIN_EXAMPLES_TO_PACK = 32  # below, packing the weights takes longer than it saves
EVALUATED_AT_ONCE = 512  # hypotheses between two reports of progress


class Translate(GeneratingTask):
    def __init__(self, config: c.Config, sources: tuple[Readable, ...], target: TargetText):
        super().__init__(config, sources, target)
        assert isinstance(config.task, c.Translate)
        self.settings = config.task

    @property
    def metric(self) -> str:
        return "rougeL" if self.settings.metric == "rouge" else self.settings.metric

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        return not self.settings.metric.endswith(("_error", "perplexity"))

    @classmethod
    def fit(
        cls,
        config: c.Config,
        examples: Callable[[], Iterable[Example]],
        given: Vocabularies = NO_VOCABULARIES,
    ) -> "Translate":
        settings = config.task
        assert isinstance(settings, c.Translate)
        sources = settings.sources(config.data.source)
        counts = [
            counting(source.reader, config.data, given.of_source(i))
            for i, source in enumerate(sources)
        ]
        target_counts = (
            Counts(settings.target) if given.target is None else FixedVocabulary(given.target)
        )
        if settings.joint and isinstance(own := counts[0], Counts | FixedVocabulary):
            target_counts = own
        for row in examples():
            count_columns(sources, counts, row, config.data.root)
            for target in row.references:
                target_counts.add(str(target))
        output = (
            target_counts.tokenizer
            if isinstance(target_counts, FixedVocabulary)
            else Tokenizer.from_counts(target_counts)
        )
        fields = tuple(fitted(some, Text, config.data) for some in counts[int(settings.joint) :])
        if settings.joint:
            fields = (Text(output), *fields)
        return cls(config, fields, TargetText(output))

    @classmethod
    def load(cls, config: c.Config, folder: Path) -> "Translate":
        sources = config.task.sources(config.data.source)
        *names, target = cls.files(len(sources))
        fields = tuple(
            load_field(source.reader, folder / name, Text, config.data)
            for source, name in zip(sources, names, strict=True)
        )
        return cls(config, fields, TargetText.load(folder / target))

    def epoch(self, corpus: Corpus, number: int) -> Batches:
        share, seed = self.settings.hallucinate, self.config.seed
        if share:
            letters = self.output.letters
            corpus = hallucinated(corpus, letters, share, seed, number)
        return super().epoch(corpus, number)

    def evaluating(
        self, network: Generator, corpus: Corpus, examples: Sequence[Example], quick: bool
    ) -> Evaluation:
        decode = self.config.decode
        if quick:  # the best model is much the same by any search
            greedy = {"width": 1, "groups": 1} if isinstance(decode, c.Beam) else {}
            decode = decode.model_copy(update=greedy | {"risk": "off"})
        request = Request(decode)
        many = len(examples) >= MIN_EXAMPLES_TO_PACK
        searching: Any = packed(network) if many and not watched(network) else network

        def answer(queries: Iterable[Query]) -> Iterator[Prediction]:
            most = min(EVALUATED_AT_ONCE // hypotheses_of(request), -(-len(examples) // sharers()))
            parts = chunks(queries, max(1, most))
            for predictions in shared(parts, lambda some: self.predict(searching, some, request)):
                yield from predictions

        return (yield from self.evaluate_answers(network, corpus, examples, answer))

    def evaluate_answers(
        self,
        network: Generator,
        corpus: Corpus,
        examples: Sequence[Example],
        answer: Callable[[Iterable[Query]], Iterable[Prediction]],
    ) -> Evaluation:
        """The loss, and the metrics of the outputs of `answer` for each distinct source."""
        queries = [Query(source, number) for number, source in enumerate(references_of(examples))]
        order = sorted(queries, key=lambda query: sum(map(len, query.source)))  # good batches
        texts = [""] * len(queries)
        for done, (query, prediction) in enumerate(zip(order, answer(order), strict=True), 1):
            texts[query.number] = prediction.text
            yield 0.9 * done / len(queries)  # the loss takes little time
        nll, count = 0.0, 0  # of tokens under teacher forcing
        rows = sum(len(row.references) for row in examples)
        batches = in_order(corpus, self.config.decode.batch_tokens, rows)

        def evaluate_batch(i: int) -> tuple[float, int]:
            with torch.inference_mode():
                loss, _ = network(batches[i].to(device_of(network)))
            return float(loss.nll), loss.count

        for loss, tokens in shared(range(len(batches)), evaluate_batch):
            nll, count = nll + loss, count + tokens
            yield 0.95
        scores = {"loss": nll / max(count, 1)}
        if self.metric == "perplexity":
            scores["perplexity"] = exp(min(scores["loss"], 100.0))
        return scores | self.measured(examples, texts)

    def measured(self, examples: Sequence[Example], texts: Sequence[str]) -> dict[str, float]:
        """The metrics of a text for each distinct source."""
        references = references_of(examples)
        gold = list(references.values())
        scores: dict[str, float] = {}
        match self.settings.metric:
            case "rouge":
                scores |= summaries.rouge(texts, gold)
            case "bracket_f1":
                scores |= trees.bracket_scores(texts, gold)
            case "token_f1":
                scores["token_f1"] = summaries.token_f1(texts, gold)
            case "perplexity":  # one reference of many possible: also the diversity of outputs
                distinct = {f"distinct_{n}": metrics.distinct(texts, n) for n in (1, 2)}
                return scores | distinct | {"bleu": metrics.bleu(texts, gold)}
        if self.settings.metric in ("rouge", "token_f1"):
            sources = [" ".join(source) for source in references]
            scores["compression"] = summaries.compression(sources, texts)
        if self.metric in ("bleu", "chrf", "cider", "exact_match"):
            scores["bleu"] = metrics.bleu(texts, gold)
            scores["chrf"] = metrics.chrf(texts, gold)
            if self.metric == "cider" or self.are_captions(gold):
                scores |= captions.scores(texts, gold)
        gold = [self.as_written(targets) for targets in gold]
        if self.settings.metric in ("rouge", "token_f1", "exact_match", "bracket_f1"):
            return scores | {"exact_match": metrics.exact_match(texts, gold)}
        if self.metric in ("word_error", "char_error"):  # speech recognition
            scores["word_error"] = metrics.token_error_rate(texts, gold, unit="token")
            scores["char_error"] = metrics.token_error_rate(texts, gold, unit="char")
            return scores | {"sequence_error": metrics.sequence_error_rate(texts, gold)}
        unit: Literal["char", "token"] = "char" if self.settings.target.kind == "char" else "token"
        scores["sequence_error"] = metrics.sequence_error_rate(texts, gold)
        scores["token_error"] = metrics.token_error_rate(texts, gold, unit=unit)
        return scores

    def are_captions(self, gold: Sequence[Sequence[str]]) -> bool:
        """Whether texts are of pictures, or most have several references."""
        several = sum(len(references) > 1 for references in gold) > len(gold) / 2
        return several or any(isinstance(one, c.Picture) for one in self.settings.own.values())

    def as_written(self, targets: list[str]) -> list[str]:
        """Targets as the tokenizer can write them at best, so that a perfect score is possible."""
        target = self.settings.target
        if target.lowercase or target.split_punctuation or target.decompose:
            return self.output.decode(self.output.encode(targets))
        return targets if self.output.lossless else [" ".join(t.split()) for t in targets]


def references_of(examples: Sequence[Example]) -> dict[Source, list[str]]:
    """The targets of each source, which may have several references."""
    references: dict[Source, list[str]] = {}
    for row in examples:
        references.setdefault(row.source, []).extend(map(str, row.references))
    return references
