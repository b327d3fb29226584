"""Translate: text to text of any kind. Letters to phones, German to English, wrong to right."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from saccade import config as c
from saccade.data.batches import Batch, Corpus, Epoch, epoch_of, in_order
from saccade.metrics import text as metrics
from saccade.models.build import Generator, Network, build_meta
from saccade.nn.dropout import uniform
from saccade.nn.loss import Loss
from saccade.nn.padded import Padded, pad
from saccade.tasks.generate import GeneratingTask, positions_of, shifted, summed
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
from saccade.text.tokenizers import Tokenizer
from saccade.text.vocab import BOS, EOS, SEP


class Translate(GeneratingTask):
    def __init__(self, config: c.Config, source: Tokenizer, target: Tokenizer):
        super().__init__(config)
        assert isinstance(config.task, c.Translate)
        self.settings = config.task
        self.source = source
        self.target = target
        self.source_positions = positions_of(config.encoder)
        self.target_positions = positions_of(config.decoder)

    @property
    def metric(self) -> str:
        return self.settings.metric

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        return self.settings.metric in ("bleu", "chrf")

    @classmethod
    def fit(cls, config: c.Config, pairs: Callable[[], Iterable[Pair]]) -> "Translate":
        settings = config.task
        assert isinstance(settings, c.Translate)
        if settings.joint:
            both = (text for source, target in pairs() for text in (*source, str(target)))
            joint = Tokenizer.train(settings.source, both)
            return cls(config, joint, joint)
        source = Tokenizer.train(settings.source, (text for texts, _ in pairs() for text in texts))
        target = Tokenizer.train(settings.target, (str(text) for _, text in pairs()))
        return cls(config, source, target)

    @classmethod
    def load(cls, config: c.Config, folder: Path) -> "Translate":
        return cls(
            config, Tokenizer.load(folder / "source.json"), Tokenizer.load(folder / "target.json")
        )

    def save(self, folder: Path) -> None:
        self.source.save(folder / "source.json")
        self.target.save(folder / "target.json")

    def encode(self, pairs: Sequence[Pair]) -> Columns:
        targets = self.target.encode([str(target) for _, target in pairs])
        return (
            encode_sources(self.source, [source for source, _ in pairs]),
            [[BOS, *ids, EOS] for ids in targets],
            [],
        )

    def build_meta(self) -> Network:
        return build_meta(self.config, len(self.source), len(self.target))

    def epoch(self, corpus: Corpus, number: int) -> Epoch:
        return epoch_of(corpus, self.config.train.batch_tokens, self.config.seed, number)

    def loss(
        self, network: Generator, batch: Batch, carry: Any, progress: float
    ) -> tuple[Loss, Any]:
        train = self.config.train
        tokens, targets = shifted(batch.target)
        source = batch.source
        assert source is not None
        if network.training:
            tokens = drop_words(tokens, train.word_dropout)
            source = Padded(drop_words(source.values, train.word_dropout), source.lengths)
            tokens = own_guesses(network, source, tokens, train.scheduled_sampling * progress)
        smoothing = train.label_smoothing if network.training else 0.0
        return network(source, tokens, targets, smoothing), None

    def evaluate(
        self, network: Generator, corpus: Corpus, pairs: Sequence[Pair], quick: bool
    ) -> dict[str, float]:
        decode = self.config.decode
        if quick:  # the best model is much the same by any search
            greedy = {"width": 1, "groups": 1} if isinstance(decode, c.Beam) else {}
            decode = decode.model_copy(update=greedy | {"risk": "off"})
        request = Request(decode)
        answer = partial(self.predict, network, request=request)
        return self.evaluate_answers(network, corpus, pairs, answer)

    def evaluate_answers(
        self,
        network: Generator,
        corpus: Corpus,
        pairs: Sequence[Pair],
        answer: Callable[[list[Query]], Iterable[Prediction]],
    ) -> dict[str, float]:
        """The loss, and the metrics of what `answer` says to each different source."""
        queries = [Query(source, number) for number, source in enumerate(references_of(pairs))]
        texts = [found.text for found in answer(queries)]
        return {"loss": self.mean_loss(network, corpus, len(pairs))} | self.measured(pairs, texts)

    def mean_loss(self, network: Generator, corpus: Corpus, rows: int) -> float:
        """The loss of a token under teacher forcing, over the first rows of a corpus."""
        nll, count = 0.0, 0
        with torch.inference_mode():
            for batch in in_order(corpus, self.config.decode.batch_tokens, rows):
                loss, _ = self.loss(network, batch.to(device_of(network)), None, 1.0)
                nll, count = nll + float(loss.nll), count + loss.count
        return nll / max(count, 1)

    def measured(self, pairs: Sequence[Pair], texts: Sequence[str]) -> dict[str, float]:
        """The metrics of a text for each different source."""
        gold = list(references_of(pairs).values())
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
            return self.target.decode(self.target.encode(targets))
        return targets if self.target.lossless else [" ".join(t.split()) for t in targets]

    @property
    def output(self) -> Tokenizer:  # type: ignore[override]
        return self.target

    def rows(self, queries: Sequence[Query]) -> list[list[int]]:
        return encode_sources(self.source, [query.source for query in queries])

    def start(self, network: Generator, rows: list[list[int]]) -> tuple[Any, Tensor]:
        device = device_of(network)
        state = network.decoder.start(network.encode(pad(rows).to(device)), len(rows))
        return state, torch.full((len(rows),), BOS, device=device)

    def positions_left(self, row: Sequence[int]) -> int:
        return -1 if len(row) > self.source_positions else self.target_positions - 1

    def limit(self, row: Sequence[int], decode: c.Limits) -> int:
        longest = min(decode.max_len, 10 + int(len(row) * decode.max_ratio))
        return min(longest, self.positions_left(row))

    def written(self, row: Sequence[int], tokens: Sequence[int]) -> list[int]:
        return list(tokens)

    def score(self, network: Generator, pairs: Sequence[Pair]) -> list[tuple[float, int]]:
        sources, targets, _ = self.encode(pairs)
        rows = list(zip(sources, targets, strict=True))

        def work(some: list[tuple[list[int], list[int]]]) -> list[tuple[float, int]]:
            device = device_of(network)
            source = pad([s for s, _ in some]).to(device)
            tokens, said = shifted(pad([t for _, t in some]).to(device))
            state = network.decoder.start(network.encode(source), len(some))
            return summed(network.decoder, tokens, said, state)

        with torch.inference_mode():
            lengths = [len(s) + len(t) for s, t in rows]
            return in_batches(rows, lengths, self.config.decode.batch_tokens, work)


def references_of(pairs: Sequence[Pair]) -> dict[Source, list[str]]:
    """The targets of each source: one with several may be given any of them."""
    references: dict[Source, list[str]] = {}
    for source, target in pairs:
        references.setdefault(source, []).append(str(target))
    return references


def encode_sources(tokenizer: Tokenizer, sources: Sequence[Source]) -> list[list[int]]:
    """Each source as ids and an end mark; columns are laid end to end with a mark between them."""
    columns = max((len(source) for source in sources), default=1)
    encoded = [
        tokenizer.encode([source[i] if i < len(source) else "" for source in sources])
        for i in range(columns)
    ]
    rows = [list(ids) for ids in encoded[0]]
    for column in encoded[1:]:
        for row, ids in zip(rows, column, strict=True):
            row.append(SEP)
            row.extend(ids)
    return [[*row, EOS] for row in rows]


def own_guesses(network: Generator, source: Padded, tokens: Tensor, share: float) -> Tensor:
    """Scheduled sampling: a share of what the decoder reads replaced by what it would have said.

    Bengio et al. 2015, arxiv.org/abs/1506.03099: step by step, each guess after the guesses before
    it.
    """
    if share == 0.0:
        return tokens
    with torch.no_grad():
        state = network.decoder.start(network.encode(source), tokens.size(0))
        columns = [tokens[:, :1]]
        for t in range(1, tokens.size(1)):
            logits, state = network.decoder(columns[-1], state)
            guess = logits.argmax(-1)
            own = (uniform(guess.shape, guess.device) < share) & (tokens[:, t : t + 1] > EOS)
            columns.append(torch.where(own, guess, tokens[:, t : t + 1]))
    return torch.cat(columns, 1)
