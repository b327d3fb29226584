"""Low-rank adapters (LoRA): a product of two small matrices beside a frozen linear layer.

Hu et al. 2022, arxiv.org/abs/2106.09685
"""

from collections.abc import Collection
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.nn.attention import CrossAttention, SelfAttention
from saccade.nn.dropout import Dropout
from saccade.nn.products import Linear, linear
from saccade.nn.transformer import FeedForward

ADAPTERS = ("shrink", "widen")  # the names of their weights


class AdaptedLinear(Linear):
    """y = x W^T + b + (alpha / rank) x A^T B^T     (out, in), (out), (rank, in), (out, rank)

    B is initialised with zeros, so that at first the layer computes what it did before.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float, dropout: float):
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.scale = alpha / rank
        self.shrink = nn.Parameter(self.weight.new_empty(rank, self.in_features))  # A
        self.widen = nn.Parameter(self.weight.new_empty(self.out_features, rank))  # B
        self.drop = Dropout(dropout)

    def init_adapter(self) -> None:
        nn.init.kaiming_uniform_(self.shrink, a=sqrt(5))
        nn.init.zeros_(self.widen)

    def forward(self, x: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape F"]:
        y, low = super().forward(x), self.scale * linear(self.drop(x), self.shrink)
        # fused with the addition: one pass over y less
        return torch.addmm(y.flatten(0, -2), low.flatten(0, -2), self.widen.t()).view_as(y)

    def merged(self) -> Linear:
        """The same as a plain linear layer."""
        layer = Linear(1, 1)
        layer.in_features, layer.out_features = self.in_features, self.out_features
        with torch.no_grad():
            weight = torch.addmm(self.weight, self.widen, self.shrink, alpha=self.scale)
        layer.weight, layer.bias = nn.Parameter(weight), self.bias
        return layer


def adapt(
    network: nn.Module, products: Collection[str], rank: int, alpha: float, dropout: float
) -> None:
    """Give an adapter to the linear layers of these names in a Transformer's blocks."""
    for parent in list(network.modules()):
        if not isinstance(parent, SelfAttention | CrossAttention | FeedForward):
            continue
        for name, child in list(parent.named_children()):
            if name in products and isinstance(child, nn.Linear):
                setattr(parent, name, AdaptedLinear(child, rank, alpha, dropout))


def merge(network: nn.Module) -> None:
    """Merge every adapter into its layer."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, AdaptedLinear):
                setattr(parent, name, child.merged().train(child.training))
