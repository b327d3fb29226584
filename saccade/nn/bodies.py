"""Bodies: networks that relate the positions of a source. They know only vectors."""

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.nn.convolution import GatedConvolution
from saccade.nn.dropout import Dropout
from saccade.nn.padded import Memory, Padded, View, masked_mean
from saccade.nn.recurrent import LayerMix, Recurrent, Separate, run_layer
from saccade.nn.transformer import Stack

Keep = Bool[Tensor, "B S"] | None


class RecurrentBody(nn.Module):
    """Reads step by step; the summary is the top layer's last state in each direction.

    With a `mix` the memory is one of the embeddings and all layers, else it is the top layer.
    """

    def __init__(self, layers: Recurrent | Separate, dropout: float, mix: LayerMix | None = None):
        super().__init__()
        self.layers = layers
        self.drop = Dropout(dropout)
        self.mix = mix

    def forward(self, x: Float[Tensor, "B S D"], keep: Keep, lengths: Int[Tensor, "B"]) -> Memory:
        ends = None if keep is None else lengths
        if self.mix is None:
            values, states = self.layers(self.drop(x), lengths=ends)
        else:
            layers, states = self.layers.every(self.drop(x), None, ends)
            values = self.mix([x, *layers])
        return Memory(self.drop(values), keep, states[-1][0])


class TransformerBody(Stack):
    """Every position attends to every other in each layer."""

    def forward(  # type: ignore[override]
        self,
        x: Float[Tensor, "B S D"],
        keep: Keep,
        lengths: Int[Tensor, "B"],
        view: View | None = None,
    ) -> Memory:
        x = super().forward(x, keep, view)
        return Memory(x, keep, masked_mean(x, keep))


class ConvolutionBody(nn.Module):
    """Every position sees its neighbours; the receptive field grows with each layer."""

    def __init__(self, positions: nn.Module, layers: list[GatedConvolution], dropout: float):
        super().__init__()
        self.positions = positions
        self.layers = nn.ModuleList(layers)
        self.drop = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B S D"], keep: Keep, lengths: Int[Tensor, "B"]) -> Memory:
        x = self.drop(self.positions(x))
        for layer in self.layers:
            x = layer(x, keep)
        return Memory(x, keep, masked_mean(x, keep))


class PyramidBody(nn.Module):
    """Recurrent layers, each of which but the first halves the length: it reads pairs of steps.

    Chan et al. 2016, arxiv.org/abs/1508.01211
    """

    def __init__(self, layers: list[nn.RNNBase], dropout: float):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.drop = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B S D"], keep: Keep, lengths: Int[Tensor, "B"]) -> Memory:
        summary = x[:, 0]
        for i, layer in enumerate(self.layers):
            if i:  # padding, and the missing half of a last pair, is zeros
                x = x if keep is None else x * keep.unsqueeze(-1)
                x = F.pad(x, (0, 0, 0, x.size(1) % 2))
                x = x.reshape(x.size(0), x.size(1) // 2, -1)  # (B, S / 2, 2 D)
                lengths = (lengths + 1) // 2
            keep = Padded(x, lengths).keep
            x, states = run_layer(layer, self.drop(x), None, None if keep is None else lengths)
            summary = states[0]
        return Memory(self.drop(x), keep, summary)


class NoBody(nn.Module):
    """The vectors of the stem are the memory."""

    def __init__(self, dropout: float):
        super().__init__()
        self.drop = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B S D"], keep: Keep, lengths: Int[Tensor, "B"]) -> Memory:
        x = self.drop(x)
        return Memory(x, keep, masked_mean(x, keep))


Body = RecurrentBody | TransformerBody | ConvolutionBody | PyramidBody | NoBody
