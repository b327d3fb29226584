"""Bodies: three ways to relate the positions of a source, side by side. They know only vectors."""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.nn.convolution import GatedConvolution
from saccade.nn.dropout import Dropout
from saccade.nn.padded import Memory, masked_mean
from saccade.nn.recurrent import Recurrent
from saccade.nn.transformer import Stack

Keep = Bool[Tensor, "B S"] | None


class RecurrentBody(nn.Module):
    """Reads step by step; the summary is the top layer's last state in each direction."""

    def __init__(self, layers: Recurrent, dropout: float):
        super().__init__()
        self.layers = layers
        self.drop = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B S D"], keep: Keep, lengths: Int[Tensor, "B"]) -> Memory:
        values, states = self.layers(self.drop(x), lengths=None if keep is None else lengths)
        return Memory(self.drop(values), keep, states[-1][0])


class TransformerBody(Stack):
    """Every position looks at every other, layer after layer."""

    def forward(  # type: ignore[override]
        self, x: Float[Tensor, "B S D"], keep: Keep, lengths: Int[Tensor, "B"]
    ) -> Memory:
        x = super().forward(x, keep)
        return Memory(x, keep, masked_mean(x, keep))


class ConvolutionBody(nn.Module):
    """Every position looks at its neighbours; the view widens with each layer."""

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


Body = RecurrentBody | TransformerBody | ConvolutionBody
