"""Word vectors: an input and an output table, and word2vec's loss."""

from typing import Any

import torch
from torch import Tensor, nn

from saccade.models.encoders import Encoder
from saccade.nn.loss import Loss
from saccade.nn.stems import TextStem
from saccade.nn.word2vec import Blocks, cbow_loss, skipgram_loss

MIN_SHARE = 1e-3  # of the initial rate, by which gradients are divided


class WordVectors(nn.Module):
    """An input and an output vector for each word.     (V, D), (V, D)

    The input vectors are an encoder's, without a body: other networks can start from it.
    """

    carries = False

    def __init__(self, encoder: Encoder, cbow: bool, negatives: int, rate: float):
        super().__init__()
        assert isinstance(encoder.stem, TextStem)
        self.encoder = encoder
        self.output = nn.Embedding(*encoder.stem.embedding.weight.shape)
        self.cbow, self.negatives = cbow, negatives
        self.rate = rate  # of training, at its beginning

    @property
    def vectors(self) -> Tensor:
        """(V, D)"""
        stem = self.encoder.stem
        assert isinstance(stem, TextStem)
        return stem.embedding.weight

    def reset_parameters(self) -> None:
        """As word2vec does: small input vectors, output vectors 0."""
        reach = 0.5 / self.vectors.size(1)
        nn.init.uniform_(self.vectors, -reach, reach)
        nn.init.zeros_(self.output.weight)

    def forward(self, batch: Any, carry: Any = None, progress: float = 1.0) -> tuple[Loss, None]:
        """The loss of blocks of text; its count is of pairs of words, or of words with a context.

        Within a step the vectors move at a rate that falls linearly to 0 with `progress`.
        """
        noise, left, right = (source.values for source in batch.sources)
        blocks = Blocks(batch.target.values, left, right, noise, self.negatives)
        loss = cbow_loss if self.cbow else skipgram_loss
        near = left + right
        count = int((near > 0).sum() if self.cbow else near.sum())
        rate = self.rate * max(1.0 - progress, MIN_SHARE)
        total = loss(self.vectors, self.output.weight, blocks, rate)
        return Loss(total, total.detach(), count), None

    def pair_log_probs(self, words: Tensor, window: int) -> Tensor:
        """log p of each pair of these words within the window."""
        positions = torch.arange(len(words), device=words.device)
        distance = (positions - positions[:, None]).abs()
        near = (distance > 0) & (distance <= window)
        scores = self.vectors[words] @ self.output.weight[words].T
        return nn.functional.logsigmoid(scores[near])
