"""Encoders: `Padded -> Memory`. Three ways to process a sequence, side by side."""

from math import sqrt

from jaxtyping import Float
from torch import Tensor, nn

from saccade.nn.attention import additive_mask
from saccade.nn.convolution import GatedConvolution
from saccade.nn.dropout import Dropout
from saccade.nn.padded import Memory, Padded, masked_mean
from saccade.nn.recurrent import Recurrent
from saccade.nn.transformer import Block


class Embedding(nn.Embedding):
    """A table of vectors, multiplied by sqrt(dim) where the Transformer wants it.     (V, D)"""

    def __init__(self, vocab_size: int, dim: int, scaled: bool = False):
        super().__init__(vocab_size, dim)
        self.scale = sqrt(dim) if scaled else 1.0

    def forward(self, tokens: Tensor) -> Float[Tensor, "*shape D"]:
        vectors = super().forward(tokens)
        return vectors if self.scale == 1.0 else vectors * self.scale


class RecurrentEncoder(nn.Module):
    """Reads step by step; the summary is the top layer's last state in each direction."""

    def __init__(self, embedding: Embedding, layers: Recurrent, dropout: float):
        super().__init__()
        self.dim = layers.dim
        self.embedding = embedding
        self.layers = layers
        self.drop = Dropout(dropout)

    def forward(self, source: Padded) -> Memory:
        keep = source.keep
        x = self.drop(self.embedding(source.values))
        values, states = self.layers(x, lengths=None if keep is None else source.lengths)
        return Memory(self.drop(values), keep, states[-1][0])


class TransformerEncoder(nn.Module):
    """Every position looks at every other, layer after layer."""

    def __init__(
        self,
        embedding: Embedding,
        positions: nn.Module,
        blocks: list[Block],
        norm: nn.Module,
        dropout: float,
    ):
        super().__init__()
        self.dim = embedding.embedding_dim
        self.embedding = embedding
        self.positions = positions
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.drop = Dropout(dropout)

    def forward(self, source: Padded) -> Memory:
        keep = source.keep
        x = self.drop(self.positions(self.embedding(source.values)))
        mask = additive_mask(keep, x.dtype)
        for block in self.blocks:
            x, _ = block(x, mask)
        x = self.norm(x)
        return Memory(x, keep, masked_mean(x, keep))


class ConvolutionEncoder(nn.Module):
    """Every position looks at its neighbours; the view widens with each layer."""

    def __init__(
        self,
        embedding: Embedding,
        positions: nn.Module,
        layers: list[GatedConvolution],
        dropout: float,
    ):
        super().__init__()
        self.dim = embedding.embedding_dim
        self.embedding = embedding
        self.positions = positions
        self.layers = nn.ModuleList(layers)
        self.drop = Dropout(dropout)

    def forward(self, source: Padded) -> Memory:
        keep = source.keep
        x = self.drop(self.positions(self.embedding(source.values)))
        for layer in self.layers:
            x = layer(x, keep)
        return Memory(x, keep, masked_mean(x, keep))


Encoder = RecurrentEncoder | TransformerEncoder | ConvolutionEncoder
