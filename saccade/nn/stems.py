"""Stems: what a source is made of, as vectors. `Padded -> (B, S, D)`; bodies know only vectors."""

from math import sqrt

from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.nn.dropout import WordDropout
from saccade.nn.padded import Padded
from saccade.nn.precision import computed


class Embedding(nn.Embedding):
    """A table of vectors, multiplied by sqrt(dim) where the Transformer wants it.     (V, D)"""

    def __init__(self, vocab_size: int, dim: int, scaled: bool = False):
        super().__init__(vocab_size, dim)
        self.scale = sqrt(dim) if scaled else 1.0

    def forward(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape D"]:
        vectors = computed(super().forward(tokens))
        return vectors if self.scale == 1.0 else vectors * self.scale


class TextStem(nn.Module):
    """Ids to vectors; in training some words are left out."""

    def __init__(self, embedding: Embedding, words: WordDropout):
        super().__init__()
        self.embedding = embedding
        self.words = words

    def forward(self, source: Padded) -> Float[Tensor, "B S D"]:
        return self.embedding(self.words(source.values))  # type: ignore[no-any-return]
