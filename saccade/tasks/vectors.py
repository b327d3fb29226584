"""Word vectors: a text, and a vector for each of its words, by word2vec.

For one word a run predicts its neighbours, for three words a, b, c what is to c as b is to a.
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

DEV_EPOCH = 1 << 30  # whose random numbers no epoch of training has
QUESTIONS_AT_ONCE = 512
USAGE = "expected one word, for its neighbours, or three, for an analogy"


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
        """The batches of a text in an epoch; its words are counted once."""
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
        """The loss on a text, with noise words from its own distribution."""
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
        self._read = trained  # the counts of the training text
        chance = (1 + self.objective.negatives) * log(2.0)  # the loss at random
        return {"loss": nll / count if count else chance}

    def score(self, network: VectorNetwork, examples: Sequence[Example]) -> list[tuple[float, int]]:
        """For each line, summed over its pairs in the window, log p that they belong together."""
        column, special = self.encode(examples).tokens, {*self.target.inventory.special}
        results = []
        for i in range(len(column)):
            words = torch.tensor([word for word in column[i] if word not in special])
            with torch.inference_mode():
                log_probs = network.pair_log_probs(
                    words.to(device_of(network), torch.int64), self.objective.window
                )
            results.append((float(log_probs.sum()), log_probs.numel()))
        return results

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
        """All vectors normalised to length 1, and zeros for special tokens: (V, D)."""
        directions = torch.nn.functional.normalize(network.vectors.detach(), dim=-1)
        directions[list(self.target.inventory.special)] = 0.0
        return directions

    def predict(
        self, network: VectorNetwork, queries: Sequence[Query], request: Request
    ) -> list[Prediction]:
        """The nearest words by cosine, the best first, without those of the query."""
        directions = self.directions(network)
        return [self.nearest(directions, query.source[0], request.nbest) for query in queries]

    def nearest(self, directions: Tensor, text: str, nbest: int) -> Prediction:
        query_words = text.split()
        if len(query_words) not in (1, 3):
            return Prediction("", 0.0, problem=f"{USAGE}; found {len(query_words)}")
        ids = [self.index(word) for word in query_words]
        if unknown := [word for word, i in zip(query_words, ids, strict=True) if i is None]:
            return Prediction("", 0.0, problem=f"'{unknown[0]}' is not in the vocabulary")
        hidden = torch.tensor([*(i for i in ids if i is not None), *self.target.inventory.special])
        targets = target_directions(directions[torch.tensor([ids])])
        scores = (targets @ directions.T)[0].index_fill(0, hidden.to(targets.device), -2.0)
        best = scores.topk(min(nbest, int((scores > -2.0).sum())))
        if not len(best.values):
            return Prediction("", 0.0, problem="there is no other word in the vocabulary")
        words = self.tokenizer.tokens(best.indices.tolist())
        ranked = list(zip(words, best.values.tolist(), strict=True))
        return Prediction(*ranked[0], others=tuple(ranked[1:]))

    # --- tests ------------------------------------------------------------------------------------

    def score_tests(
        self, network: VectorNetwork, tests: Iterable[Analogies | Similarities]
    ) -> Evaluation:
        """For each test its score in percent, and what share of it the vocabulary covers."""
        directions, scores = self.directions(network), dict[str, float]()
        for test in tests:
            if isinstance(test, Analogies):
                scores |= yield from self.analogies(directions, test)
            else:
                scores |= self.similarities(directions, test)
        return scores

    def analogies(self, directions: Tensor, test: Analogies) -> Evaluation:
        """The share of questions whose fourth word is the nearest to b - a + c (3CosAdd)."""
        question_ids = [[self.index(word) for word in question] for question in test.questions]
        known = [i for i, ids in enumerate(question_ids) if None not in ids]
        correct = np.zeros(len(question_ids), bool)
        for start in range(0, len(known), QUESTIONS_AT_ONCE):
            chunk = known[start : start + QUESTIONS_AT_ONCE]
            ids = torch.tensor([question_ids[i] for i in chunk], device=directions.device)
            scores = target_directions(directions[ids[:, :3]]) @ directions.T
            scores.scatter_(1, ids[:, :3], -2.0)
            scores[:, list(self.target.inventory.special)] = -2.0
            correct[chunk] = (scores.argmax(-1) == ids[:, 3]).cpu().numpy()
            yield start / len(known)
        metrics = {test.name: 100.0 * float(correct[known].mean()) if known else 0.0}
        metrics[f"{test.name}: covered"] = 100.0 * len(known) / len(question_ids)
        for section in dict.fromkeys(test.sections):
            in_section = [i for i in known if test.sections[i] == section]
            if in_section and section:
                metrics[f"{test.name}: {section}"] = 100.0 * float(correct[in_section].mean())
        return metrics

    def similarities(self, directions: Tensor, test: Similarities) -> dict[str, float]:
        """The rank correlation of cosines with human judgements."""
        pair_ids = [[self.index(word) for word in pair] for pair in test.pairs]
        known = [i for i, ids in enumerate(pair_ids) if None not in ids]
        ids = torch.tensor([pair_ids[i] for i in known], device=directions.device).reshape(-1, 2)
        cosines = (directions[ids[:, 0]] * directions[ids[:, 1]]).sum(-1).double().cpu().numpy()
        gold = np.array([test.scores[i] for i in known])
        return {
            test.name: 100.0 * spearman(cosines, gold),
            f"{test.name}: covered": 100.0 * len(known) / len(pair_ids),
        }


def target_directions(vectors: Tensor) -> Any:
    """The direction of the answer, of length 1: the word's own vector, or b - a + c.     (n, D)"""
    target = vectors[:, 0]
    if vectors.size(1) == 3:
        target = vectors[:, 1] - vectors[:, 0] + vectors[:, 2]
    return torch.nn.functional.normalize(target, dim=-1)
