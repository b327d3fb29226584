"""Language model: plain text, the next token.

A line's end is the token EOS, so a corpus is one stream: line EOS line EOS. A line's probability is
that of its tokens and the EOS after it, given the EOS before it.
"""

from collections.abc import Callable, Iterable, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saccade import config as c
from saccade.data.batches import Array, Batch, Corpus, Stream
from saccade.errors import ConfigError
from saccade.models.build import Generator, Network, build_meta
from saccade.nn.loss import Loss
from saccade.nn.padded import pad
from saccade.nn.state import detach
from saccade.tasks.generate import GeneratingTask, positions_of, shifted, summed
from saccade.tasks.task import (
    Columns,
    Pair,
    Query,
    device_of,
    drop_words,
    in_batches,
)
from saccade.text.tokenizers import Tokenizer
from saccade.text.vocab import EOS


class LanguageModel(GeneratingTask):
    higher_is_better = False
    equal = True  # a state has no padding before its first token

    def __init__(self, config: c.Config, tokenizer: Tokenizer):
        super().__init__(config)
        assert isinstance(config.task, c.LanguageModel)
        self.context = config.task.context
        self.carried = isinstance(config.decoder, c.RecurrentDecoder)
        self.tokenizer = tokenizer

    @property
    def metric(self) -> str:
        return "perplexity"

    @classmethod
    def fit(cls, config: c.Config, pairs: Callable[[], Iterable[Pair]]) -> "LanguageModel":
        assert isinstance(config.task, c.LanguageModel)
        if config.task.vocabulary:
            return cls(config, Tokenizer.load(config.task.vocabulary))
        lines = (source[0] for source, _ in pairs())
        return cls(config, Tokenizer.train(config.task.tokenizer, lines))

    @classmethod
    def load(cls, config: c.Config, folder: Path) -> "LanguageModel":
        return cls(config, Tokenizer.load(folder / "tokenizer.json"))

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder / "tokenizer.json")

    def encode(self, pairs: Sequence[Pair]) -> Columns:
        rows = self.tokenizer.encode([source[0] for source, _ in pairs])
        return [], [[*ids, EOS] for ids in rows], []

    def build_meta(self) -> Network:
        return build_meta(self.config, 0, len(self.tokenizer))

    def epoch(self, corpus: Corpus, number: int) -> Stream:
        ids = corpus.target.ids
        streams = max(1, min(self.config.train.batch_tokens // self.context, len(ids) // 64))
        return Stream(ids, streams, self.context, self.carried, self.config.seed, number)

    def loss(
        self, network: Generator, batch: Batch, carry: Any, progress: float
    ) -> tuple[Loss, Any]:
        train = self.config.train
        tokens, targets = shifted(batch.target)
        smoothing = train.label_smoothing if network.training else 0.0
        if network.training:
            tokens = drop_words(tokens, train.word_dropout)
        if not self.carried:
            return network(None, tokens, targets, smoothing), None
        state = network.decoder.start(None, tokens.size(0)) if carry is None else carry
        loss, state = network.decoder.loss(tokens, targets, state, smoothing)
        return loss, detach(state)  # truncated back-propagation: values go on, gradients stop

    def carry(self, network: Generator, rows: int) -> Any:
        return network.decoder.start(None, rows) if self.carried else None

    def evaluate(
        self, network: Generator, corpus: Corpus, pairs: Sequence[Pair], quick: bool
    ) -> dict[str, float]:
        lines = corpus.target.lengths[: len(pairs)]
        ids = corpus.target.ids[: int(lines.sum())]
        characters = sum(len(source[0]) + 1 for source, _ in pairs)
        with torch.inference_mode():
            nll, count = (self._carried if self.carried else self._windows)(network, ids)
        count = max(count, 1)
        return {  # the first token has nothing before it, and is left out of both counts
            "loss": nll / count,
            "perplexity": exp(min(nll / count, 100.0)),
            "bits_per_character": nll / log(2) / max(characters - 1, 1),
        }

    def _carried(self, network: Generator, ids: Array) -> tuple[float, int]:
        streams = max(1, min(16, len(ids) // (4 * self.context)))
        nll, count, state = 0.0, 0, None
        for batch in Stream(ids, streams, self.context, carried=True):
            loss, state = self.loss(network, batch.to(device_of(network)), state, 1.0)
            nll, count = nll + float(loss.nll), count + loss.count
        return nll, count

    def _windows(self, network: Generator, ids: Array) -> tuple[float, int]:
        """Windows overlap by half: each token is predicted once, after at least half a window."""
        device, half = device_of(network), max(1, self.context // 2)
        starts = list(range(0, max(len(ids) - 1 - half, 1), half))
        nll, count = 0.0, 0
        rows = max(1, self.config.decode.batch_tokens // (2 * half))
        for i in range(0, len(starts), rows):
            windows = [ids[s : s + 2 * half + 1].tolist() for s in starts[i : i + rows]]
            tokens, said = shifted(pad(windows).to(device))
            hidden, _ = network.decoder.hidden(tokens, network.decoder.start(None, len(windows)))
            skip = torch.tensor([0 if s == 0 else half for s in starts[i : i + rows]])
            columns = torch.arange(tokens.size(1))
            new = (columns >= skip[:, None]) & (columns < said.lengths[:, None])
            logits = network.decoder.output(hidden[new.to(device)])
            gold = said.values[new.to(device)]
            nll += float(torch.nn.functional.cross_entropy(logits, gold, reduction="sum"))
            count += gold.numel()
        return nll, count

    @property
    def output(self) -> Tokenizer:  # type: ignore[override]
        return self.tokenizer

    def rows(self, queries: Sequence[Query]) -> list[list[int]]:
        """Each prefix, to be completed to the end of its line."""
        if any(query.prefix for query in queries):
            raise ConfigError("a language model completes its input: put the prefix there")
        return [[EOS, *ids] for ids in self.tokenizer.encode([q.source[0] for q in queries])]

    def start(self, network: Generator, rows: list[list[int]]) -> tuple[Any, Tensor]:
        tokens = pad(rows).to(device_of(network)).values
        state = network.decoder.start(None, len(rows))
        if tokens.size(1) > 1:
            _, state = network.decoder.hidden(tokens[:, :-1], state)
        return state, tokens[:, -1]

    def positions_left(self, row: Sequence[int]) -> int:
        return positions_of(self.config.decoder) - len(row)

    def written(self, row: Sequence[int], tokens: Sequence[int]) -> list[int]:
        return [*row, *tokens]

    def score(self, network: Generator, pairs: Sequence[Pair]) -> list[tuple[float, int]]:
        rows = [[EOS, *ids] for ids in self.encode(pairs)[1]]

        def work(some: list[list[int]]) -> list[tuple[float, int]]:
            tokens, said = shifted(pad(some).to(device_of(network)))
            state = network.decoder.start(None, len(some))
            return summed(network.decoder, tokens, said, state)

        with torch.inference_mode():
            return in_batches(
                rows, [len(row) for row in rows], self.config.decode.batch_tokens, work
            )
