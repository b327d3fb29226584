"""Word vectors: a text, and a vector for each of its words, by word2vec.

A run answers a word with its neighbours, and three words a, b, c with what is to c as b is to a.
"""

from collections.abc import Iterable, Sequence
from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade import config as c
from saccade.data.batches import Batch
from saccade.data.corpora import Array, Column, Corpus
from saccade.data.fields import Lines
from saccade.data.lines import Example
from saccade.data.neighbourhoods import (
    Neighbourhoods,
    Noise,
    count_words,
    kept_shares,
)
from saccade.data.vectors import Analogies, Similarities
from saccade.errors import ConfigError, DataError
from saccade.metrics.numbers import spearman
from saccade.models.build import build_meta
from saccade.models.networks import Network
from saccade.models.vectors import WordVectors as VectorNetwork
from saccade.tasks.plain import PlainText
from saccade.tasks.task import Evaluation, Prediction, Query, Request, device_of

DEV_EPOCH = 1 << 30  # no epoch of training draws the numbers of what is measured on
QUESTIONS_AT_ONCE = 512
ASKED = "expected one word, for its neighbours, or three, for an analogy"


class WordVectors(PlainText):
    ranks = True

    def __init__(self, config: c.Config, lines: Lines):
        super().__init__(config, lines)
        assert isinstance(config.task, c.Pretrain)
        assert isinstance(config.task.objective, c.Word2Vec)
        self.objective = config.task.objective
        self.tokenizer = lines.tokenizer
        if self.tokenizer.config.kind not in ("word", "char"):
            kind = self.tokenizer.config.kind
            raise ConfigError(
                f"task.tokenizer.kind '{kind}': a word has one vector: set it to 'word'"
            )
        self._read: tuple[Column, Array, Noise] | None = None

    @property
    def metric(self) -> str:
        return "loss"

    def build_meta(self) -> Network:
        return build_meta(self.config, [self.target.inventory], self.target.inventory)

    # --- text -------------------------------------------------------------------------------------

    def neighbourhoods(self, column: Column, number: int) -> Neighbourhoods:
        """A text as it is read in an epoch; how often its words come is found once."""
        if self._read is None or self._read[0] is not column:
            counts = count_words(column, self.target.size, self.target.inventory.special)
            kept = kept_shares(counts, self.objective.sample)
            if not counts.any():
                raise DataError("no word of the text is in the vocabulary")
            self._read = column, kept, Noise(counts, self.objective.power)
        _, kept, noise = self._read
        words = self.config.train.batch_tokens
        end, window = self.tokenizer.specials.eos, self.objective.window
        return Neighbourhoods(column, end, kept, noise, window, words, self.config.seed, number)

    def epoch(self, corpus: Corpus, number: int) -> Neighbourhoods:
        return self.neighbourhoods(corpus.tokens, number)

    def sample(self, examples: Sequence[Example]) -> Batch:
        return self.neighbourhoods(self.encode(examples).tokens, DEV_EPOCH)[0]

    def evaluating(
        self, network: VectorNetwork, corpus: Corpus, examples: Sequence[Example], quick: bool
    ) -> Evaluation:
        """The loss of a text, whose own words are the noise."""
        starts = corpus.tokens.starts[: len(examples) + 1]
        column, trained = Column(corpus.tokens.ids[: int(starts[-1])], starts), self._read
        nll, count = 0.0, 0
        if count_words(column, self.target.size, self.target.inventory.special).any():
            batches = self.neighbourhoods(column, DEV_EPOCH)
            for done, batch in enumerate(batches, 1):
                with torch.inference_mode():
                    loss, _ = network(batch.to(device_of(network)))
                nll, count = nll + float(loss.nll), count + loss.count
                yield done / len(batches)
        self._read = trained  # that of training, which goes on
        blind = (1 + self.objective.negatives) * log(2.0)  # of vectors that know nothing
        return {"loss": nll / count if count else blind}

    def score(self, network: VectorNetwork, examples: Sequence[Example]) -> list[tuple[float, int]]:
        """For each line, summed over its pairs of near words, log p that they belong together."""
        column, special = self.encode(examples).tokens, {*self.target.inventory.special}
        found = []
        for i in range(len(column)):
            words = torch.tensor([word for word in column[i] if word not in special])
            with torch.inference_mode():
                log_probs = network.pair_log_probs(
                    words.to(device_of(network), torch.int64), self.objective.window
                )
            found.append((float(log_probs.sum()), log_probs.numel()))
        return found

    # --- words ------------------------------------------------------------------------------------

    @property
    def words(self) -> list[int]:
        """The ids that are words."""
        special = {*self.target.inventory.special}
        return [i for i in range(self.target.size) if i not in special]

    def index(self, word: str) -> int | None:
        """The id of a word, or else of it in lower case; None if it is not in the vocabulary."""
        for ids in self.tokenizer.encode([word, word.lower()]):
            if len(ids) == 1 and ids[0] != self.tokenizer.specials.unk:
                return ids[0]
        return None

    def directions(self, network: VectorNetwork) -> Tensor:
        """All vectors with length 1, and nothing where there is no word: (V, D)."""
        found = torch.nn.functional.normalize(network.vectors.detach(), dim=-1)
        found[list(self.target.inventory.special)] = 0.0
        return found

    def predict(
        self, network: VectorNetwork, queries: Sequence[Query], request: Request
    ) -> list[Prediction]:
        """The nearest words by cosine, the best first; none of those that were asked about."""
        directions = self.directions(network)
        return [self.nearest(directions, query.source[0], request.nbest) for query in queries]

    def nearest(self, directions: Tensor, text: str, nbest: int) -> Prediction:
        asked = text.split()
        if len(asked) not in (1, 3):
            return Prediction("", 0.0, problem=f"{ASKED}; found {len(asked)}")
        ids = [self.index(word) for word in asked]
        if strangers := [word for word, i in zip(asked, ids, strict=True) if i is None]:
            return Prediction("", 0.0, problem=f"'{strangers[0]}' is not in the vocabulary")
        hidden = torch.tensor([*(i for i in ids if i is not None), *self.target.inventory.special])
        wanted = wanted_of(directions[torch.tensor([ids])])
        scores = (wanted @ directions.T)[0].index_fill(0, hidden.to(wanted.device), -2.0)
        best = scores.topk(min(nbest, int((scores > -2.0).sum())))
        if not len(best.values):
            return Prediction("", 0.0, problem="there is no other word in the vocabulary")
        words = self.tokenizer.tokens(best.indices.tolist())
        ranked = list(zip(words, best.values.tolist(), strict=True))
        return Prediction(*ranked[0], others=tuple(ranked[1:]))

    # --- tests ------------------------------------------------------------------------------------

    def tested(
        self, network: VectorNetwork, tests: Iterable[Analogies | Similarities]
    ) -> Evaluation:
        """For each test its score in percent, and what share of it the vocabulary covers."""
        directions, found = self.directions(network), dict[str, float]()
        for test in tests:
            if isinstance(test, Analogies):
                found |= yield from self.analogies(directions, test)
            else:
                found |= self.similarities(directions, test)
        return found

    def analogies(self, directions: Tensor, test: Analogies) -> Evaluation:
        """The share of questions whose fourth word is the nearest to b - a + c (3CosAdd)."""
        asked = [[self.index(word) for word in question] for question in test.questions]
        known = [i for i, ids in enumerate(asked) if None not in ids]
        right = np.zeros(len(asked), bool)
        for start in range(0, len(known), QUESTIONS_AT_ONCE):
            some = known[start : start + QUESTIONS_AT_ONCE]
            ids = torch.tensor([asked[i] for i in some], device=directions.device)
            scores = wanted_of(directions[ids[:, :3]]) @ directions.T
            scores.scatter_(1, ids[:, :3], -2.0)
            right[some] = (scores.argmax(-1) == ids[:, 3]).cpu().numpy()
            yield start / len(known)
        found = {test.name: 100.0 * float(right[known].mean()) if known else 0.0}
        found[f"{test.name}: covered"] = 100.0 * len(known) / len(asked)
        for section in dict.fromkeys(test.sections):
            of_it = [i for i in known if test.sections[i] == section]
            if of_it and section:
                found[f"{test.name}: {section}"] = 100.0 * float(right[of_it].mean())
        return found

    def similarities(self, directions: Tensor, test: Similarities) -> dict[str, float]:
        """The rank correlation of cosines with what people say."""
        asked = [[self.index(word) for word in pair] for pair in test.pairs]
        known = [i for i, ids in enumerate(asked) if None not in ids]
        ids = torch.tensor([asked[i] for i in known], device=directions.device).reshape(-1, 2)
        cosines = (directions[ids[:, 0]] * directions[ids[:, 1]]).sum(-1).double().cpu().numpy()
        gold = np.array([test.scores[i] for i in known])
        return {
            test.name: 100.0 * spearman(cosines, gold),
            f"{test.name}: covered": 100.0 * len(known) / len(asked),
        }


def wanted_of(asked: Tensor) -> Any:
    """Where an answer is to be, of length 1: a word's own place, or b - a + c.     (n, D)"""
    place = asked[:, 0] if asked.size(1) == 1 else asked[:, 1] - asked[:, 0] + asked[:, 2]
    return torch.nn.functional.normalize(place, dim=-1)
