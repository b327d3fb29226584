"""Language model: plain text, the next token.

A line's end is a token, <eos>, so a corpus is one stream: line <eos> line <eos>. A line's
probability is that of its tokens and the <eos> after it, given the <eos> before it.
"""

from collections.abc import Callable, Iterable, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saccade import config as c
from saccade.data.batches import Stream
from saccade.data.corpora import Array, Column, Corpus
from saccade.data.fields import Lines
from saccade.data.lines import Example
from saccade.errors import ConfigError
from saccade.models.networks import Generator, shifted
from saccade.nn.padded import pad
from saccade.tasks.generate import GeneratingTask
from saccade.tasks.task import Query, device_of


class LanguageModel(GeneratingTask):
    files = ("tokenizer.json",)
    higher_is_better = False
    equal = True  # a state has no padding before its first token

    def __init__(self, config: c.Config, lines: Lines):
        super().__init__(config, (), lines)
        assert isinstance(config.task, c.LanguageModel)
        self.context = config.task.context
        self.carried = isinstance(config.decoder, c.RecurrentDecoder)

    @property
    def metric(self) -> str:
        return "perplexity"

    @classmethod
    def fit(cls, config: c.Config, examples: Callable[[], Iterable[Example]]) -> "LanguageModel":
        assert isinstance(config.task, c.LanguageModel)
        if config.task.vocabulary:
            return cls(config, Lines.load(Path(config.task.vocabulary)))
        texts = (row.source[0] for row in examples())
        return cls(config, Lines.fit(config.task.tokenizer, texts))

    @classmethod
    def load(cls, config: c.Config, folder: Path) -> "LanguageModel":
        return cls(config, Lines.load(folder / cls.files[0]))

    def encode(self, examples: Sequence[Example]) -> Corpus:
        return Corpus((), self.target.encode([row.source for row in examples]))

    def epoch(self, corpus: Corpus, number: int) -> Stream:
        ids = corpus.target.ids
        streams = max(1, min(self.config.train.batch_tokens // self.context, len(ids) // 64))
        return self._stream(corpus.target, streams, self.carried, number)

    def _stream(self, column: Column, streams: int, carried: bool, number: int = 0) -> Stream:
        seed, pad = self.config.seed, self.target.pad
        return Stream(column.ids, column.starts, streams, self.context, carried, seed, number, pad)

    def evaluate(
        self, network: Generator, corpus: Corpus, examples: Sequence[Example], quick: bool
    ) -> dict[str, float]:
        end = int(corpus.target.starts[len(examples)])
        ids = corpus.target.ids[:end]
        characters = sum(len(row.source[0]) + 1 for row in examples)
        with torch.inference_mode():
            nll, count = (self.in_one_piece if self.carried else self.in_windows)(network, ids)
        count = max(count, 1)
        return {  # the first token has nothing before it, and is left out of both counts
            "loss": nll / count,
            "perplexity": exp(min(nll / count, 100.0)),
            "bits_per_character": nll / log(2) / max(characters - 1, 1),
        }

    def in_one_piece(self, network: Generator, ids: Array) -> tuple[float, int]:
        """-log p of a text and its tokens, with the state carried on through all of it."""
        streams = max(1, min(16, len(ids) // (4 * self.context)))
        column = Column(ids, ids[:0])
        nll, count, state = 0.0, 0, None
        for batch in self._stream(column, streams, carried=True):
            loss, state = network(batch.to(device_of(network)), state)
            nll, count = nll + float(loss.nll), count + loss.count
        return nll, count

    def in_windows(self, network: Generator, ids: Array) -> tuple[float, int]:
        """The same in windows that overlap by half: each token comes after at least half a window.

        Each is predicted once.
        """
        device, half = device_of(network), max(1, self.context // 2)
        starts = list(range(0, max(len(ids) - 1 - half, 1), half))
        nll, count = 0.0, 0
        rows = max(1, self.config.decode.batch_tokens // (2 * half))
        for i in range(0, len(starts), rows):
            windows = [ids[s : s + 2 * half + 1].tolist() for s in starts[i : i + rows]]
            tokens, said = shifted(pad(windows, self.target.pad).to(device))
            logits, _ = network.decoder(tokens, network.decoder.start(None, len(windows)))
            skip = torch.tensor([0 if s == 0 else half for s in starts[i : i + rows]])
            columns = torch.arange(tokens.size(1))
            new = ((columns >= skip[:, None]) & (columns < said.lengths[:, None])).to(device)
            gold = said.values[new]
            nll += float(torch.nn.functional.cross_entropy(logits[new], gold, reduction="sum"))
            count += gold.numel()
        return nll, count

    def rows(self, queries: Sequence[Query]) -> list[list[int]]:
        """Each prefix, to be completed to the end of its line."""
        if any(query.prefix for query in queries):
            raise ConfigError("a language model completes its input: put the prefix there")
        eos = self.output.specials.eos
        return [[eos, *ids] for ids in self.output.encode([q.source[0] for q in queries])]

    def start(self, network: Generator, rows: list[list[int]]) -> tuple[Any, Tensor]:
        tokens = pad(rows, self.target.pad).to(device_of(network)).values
        state = network.decoder.start(None, len(rows))
        if tokens.size(1) > 1:
            _, state = network.decoder(tokens[:, :-1], state)
        return state, tokens[:, -1]

    def positions_left(self, row: Sequence[int]) -> int:
        return self.target_positions - len(row)

    def limit(self, row: Sequence[int], decode: c.Limits) -> int:
        return min(decode.max_len, self.positions_left(row))

    def written(self, row: Sequence[int], tokens: Sequence[int]) -> list[int]:
        return [*row, *tokens]

    def scored(self, examples: Sequence[Example]) -> Corpus:
        eos, lines = self.output.specials.eos, self.encode(examples).target
        rows = [[eos, *lines[i]] for i in range(len(lines))]
        return Corpus((), Column.of(rows, pad=self.target.pad))
