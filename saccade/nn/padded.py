"""Rows of unequal length in one tensor, and what an encoder makes of them."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Padded:
    """Sequences padded at the end: ids (B, S), or real vectors (B, S, F)."""

    values: Tensor
    lengths: Int[Tensor, "B"]  # on the CPU, whatever the device of the values

    @property
    def keep(self) -> Bool[Tensor, "B S"] | None:
        """True where a position is real; None where all are, so that kernels may skip the mask."""
        S = self.values.size(1)
        if int(self.lengths.min()) == S:
            return None
        lengths = self.lengths.to(self.values.device)
        return torch.arange(S, device=self.values.device) < lengths[:, None]

    @property
    def count(self) -> int:
        """How many positions are real."""
        return int(self.lengths.sum())

    def to(self, device: torch.device) -> "Padded":
        return replace(self, values=self.values.to(device, non_blocking=True))

    def real(self, tensor: Tensor) -> Tensor:
        """The rows of (B, S, ...) at real positions, one after the other: (n, ...)."""
        keep = self.keep
        return tensor.flatten(0, 1) if keep is None else tensor[keep]


def pad(rows: list[list[int]], value: int = 0) -> Padded:
    """The rows as one tensor, filled up with `value`."""
    lengths = torch.tensor([len(row) for row in rows])
    longest = int(lengths.max())
    filled = [row + [value] * (longest - len(row)) for row in rows]
    return Padded(torch.tensor(filled, dtype=torch.int64), lengths)


@dataclass(frozen=True, slots=True)
class Memory:
    """What an encoder leaves for a decoder or a head, whatever the source was."""

    values: Float[Tensor, "B S D"]
    keep: Bool[Tensor, "B S"] | None
    summary: Float[Tensor, "B D"]  # one vector: a recurrent network's last state, else the mean


def masked_mean(
    values: Float[Tensor, "B S D"], keep: Bool[Tensor, "B S"] | None
) -> Float[Tensor, "B D"]:
    """The mean over the positions in `keep`."""
    if keep is None:
        return values.mean(1)
    return (values * keep.unsqueeze(-1)).sum(1) / keep.sum(1, keepdim=True)
