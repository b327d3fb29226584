"""Convolution over a sequence: every position sees its neighbours, and more in higher layers."""

from math import sqrt

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.nn.dropout import Dropout


class GatedConvolution(nn.Module):
    """x + (A x) * sigmoid(B x), with A, B convolutions.

    Gehring et al. 2017, arxiv.org/abs/1705.03122
    """

    def __init__(self, dim: int, kernel: int, dropout: float = 0.0):
        super().__init__()
        if kernel % 2 == 0:
            raise ValueError(f"kernel ({kernel}) must be odd: as many neighbours on either side")
        self.convolution = nn.Conv1d(dim, 2 * dim, kernel, padding=kernel // 2)
        self.drop = Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "B T D"], keep: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """The same length; neighbours see positions not in `keep` as zeros, as beyond the edge."""
        inner = self.drop(x)
        if keep is not None:
            inner = inner * keep.unsqueeze(-1)
        inner = F.glu(self.convolution(inner.mT), dim=1).mT
        return (x + inner) * sqrt(0.5)  # halves the sum's variance
