"""Language model: plain text, the next token.

Each line ends with <eos>, so a corpus is one stream: line <eos> line <eos>. A line's probability
is that of its tokens and the <eos> after it, given the <eos> before it.
"""

from collections.abc import Iterator, Sequence
from math import exp, log

import torch

from saccade import config as c
from saccade.data.batches import Stream
from saccade.data.corpora import Array, Column, Corpus
from saccade.data.fields import Lines
from saccade.data.lines import Example
from saccade.errors import ConfigError
from saccade.models.networks import Generator, shifted
from saccade.nn.padded import pad
from saccade.tasks.generate import DecoderStart, EncodedQuery, EncodedSources, GeneratingTask
from saccade.tasks.plain import PlainText
from saccade.tasks.task import Evaluation, Query, Source, device_of, shared


class LanguageModel(PlainText, GeneratingTask):
    equal_lengths = True  # a state has no padding before its first token

    def __init__(self, config: c.Config, lines: Lines):
        super().__init__(config, lines)
        self.carried = isinstance(config.decoder, c.RecurrentDecoder)

    def epoch(self, corpus: Corpus, number: int) -> Stream:
        ids = corpus.tokens.ids
        streams = max(1, min(self.config.train.batch_tokens // self.context, len(ids) // 64))
        return self._stream(corpus.tokens, streams, self.carried, number)

    def _stream(self, column: Column, streams: int, carried: bool, number: int = 0) -> Stream:
        seed, pad = self.config.seed, self.target.pad
        return Stream(column.ids, column.starts, streams, self.context, carried, seed, number, pad)

    def evaluating(
        self, network: Generator, corpus: Corpus, examples: Sequence[Example], quick: bool
    ) -> Evaluation:
        end = int(corpus.tokens.starts[len(examples)])
        ids = corpus.tokens.ids[:end]
        characters = sum(len(row.source[0]) + 1 for row in examples)
        nll, count = 0.0, 0
        for more, tokens in (self.in_one_piece if self.carried else self.in_windows)(network, ids):
            nll, count = nll + more, count + tokens
            yield count / max(len(ids), 1)
        count = max(count, 1)
        unknown = int((ids == self.output.specials.unk).sum())
        return {  # the first token has no context, and is left out of both counts
            "loss": nll / count,
            "perplexity": exp(min(nll / count, 100.0)),
            "bits_per_character": nll / log(2) / max(characters - 1, 1),
            **({"unknown": 100 * unknown / len(ids)} if unknown else {}),
        }

    def in_one_piece(self, network: Generator, ids: Array) -> Iterator[tuple[float, int]]:
        """-log p of the parts of a text and their tokens, with the state carried through all."""
        streams = max(1, min(16, len(ids) // (4 * self.context)))
        column = Column(ids, ids[:0])
        state = None
        for batch in self._stream(column, streams, carried=True):
            with torch.inference_mode():
                loss, state = network(batch.to(device_of(network)), state)
            yield float(loss.nll), loss.count

    def in_windows(self, network: Generator, ids: Array) -> Iterator[tuple[float, int]]:
        """The same in windows that overlap by half; each token is predicted once.

        So each has at least half a window before it, but for those of the first window.
        """
        device, half = device_of(network), max(1, self.context // 2)
        starts = list(range(0, max(len(ids) - 1 - half, 1), half))
        rows = max(1, self.config.decode.batch_tokens // (2 * half))

        def judged(i: int) -> tuple[float, int]:
            windows = [ids[s : s + 2 * half + 1].tolist() for s in starts[i : i + rows]]
            tokens, outputs = shifted(pad(windows, self.target.pad).to(device))
            with torch.inference_mode():
                logits, _ = network.decoder(tokens, network.decoder.start(None, len(windows)))
            skip = torch.tensor([0 if s == 0 else half for s in starts[i : i + rows]])
            columns = torch.arange(tokens.size(1))
            new = ((columns >= skip[:, None]) & (columns < outputs.lengths[:, None])).to(device)
            gold = outputs.values[new]
            nll = torch.nn.functional.cross_entropy(logits[new], gold, reduction="sum")
            return float(nll), gold.numel()

        yield from shared(range(0, len(starts), rows), judged)

    def encode_sources(self, queries: Sequence[Query]) -> list[EncodedSources]:
        """Each prefix, to be completed to the end of its line."""
        if any(query.prefix for query in queries):
            raise ConfigError("a language model completes its input: put the prefix there")
        first = self.output.frame.line
        return [([*first, *ids],) for ids in self.output.encode([q.source[0] for q in queries])]

    def start(self, network: Generator, sources: Sequence[EncodedSources]) -> DecoderStart:
        rows = [row for (row,) in sources]
        tokens = pad(rows, self.target.pad).to(device_of(network)).values
        state = network.decoder.start(None, len(rows))
        if tokens.size(1) > 1:
            _, state = network.decoder(tokens[:, :-1], state)
        return DecoderStart(state, tokens[:, -1], None)

    def positions_left(self, source: EncodedSources) -> int:
        return self.target_positions - len(source[0])

    def limit(self, source: EncodedSources, decode: c.Limits) -> int:
        return min(decode.max_len, self.positions_left(source))

    def full_output(self, source: EncodedSources, tokens: Sequence[int]) -> list[int]:
        return [*source[0], *tokens]

    def prompt(self, query: Query) -> str:
        return query.source[0]

    def display_text(self, query: EncodedQuery, text: str) -> str:
        """The user's prompt, unchanged, and its continuation."""
        (row,) = query.sources[0]
        read = self.output.decode([row])[0]  # as the model sees it: "<unk>", lower case
        more = text[len(read) :]
        spaced = self.output.config.kind not in ("char", "bytes")  # blanks are not tokens
        return query.prompt + (more.lstrip(" ") if spaced and query.prompt[-1:].isspace() else more)

    def unknown(self, text: str) -> int:
        return len(self.output.unknown(text))

    def unknown_in(self, source: Source) -> list[str]:
        return self.output.unknown(source[0])

    def scoring_corpus(self, examples: Sequence[Example]) -> Corpus:
        first, lines = self.output.frame.line, self.encode(examples).tokens
        rows = [[*first, *lines[i]] for i in range(len(lines))]
        return Corpus((), Column.of(rows, pad=self.target.pad))
