"""Padded batches, and the memory that an encoder makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

UNSEEN = 1 << 30  # the key_order of a position that no other sees
UNSCORED_ID = -1  # in a target: a position that is ignored by loss and metrics


@dataclass(frozen=True, slots=True)
class View:
    """An attention mask and position ids: i attends to j if key_order[j] <= query_order[i].

    From left to right both are 0, 1, 2 ...; in both directions both are 0.
    """

    key_order: Int[Tensor, "B S"]
    query_order: Int[Tensor, "B S"]
    position_ids: Int[Tensor, "B S"]  # from 0; several positions may have the same

    @property
    def seen(self) -> Bool[Tensor, "B S S"]:
        """True where a position (a row) attends to another (a column)."""
        return self.key_order[:, None, :] <= self.query_order[:, :, None]

    def to(self, device: torch.device) -> "View":
        return View(*(part.to(device, non_blocking=True) for part in self._parts))

    def rows(self, index: Int[Tensor, "n"]) -> "View":
        return View(*(part[index] for part in self._parts))

    @property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.key_order, self.query_order, self.position_ids


@dataclass(frozen=True, slots=True)
class Padded:
    """Sequences padded at the end: ids (B, S), or real vectors (B, S, F)."""

    values: Tensor
    lengths: Int[Tensor, "B"]  # on the CPU, whatever the device of the values
    words: Int[Tensor, "B S"] | None = None  # the word of each position, -1 for none
    view: View | None = None  # None: every position sees every other that is real

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
        """The number of real positions."""
        return int(self.lengths.sum())

    def to(self, device: torch.device) -> "Padded":
        words = None if self.words is None else self.words.to(device, non_blocking=True)
        view = None if self.view is None else self.view.to(device)
        return Padded(self.values.to(device, non_blocking=True), self.lengths, words, view)

    def rows(self, index: Int[Tensor, "n"]) -> "Padded":
        """Some rows, of the same width."""
        words = None if self.words is None else self.words[index]
        view = None if self.view is None else self.view.rows(index)
        return Padded(self.values[index], self.lengths[index], words, view)

    def real(self, tensor: Tensor) -> Tensor:
        """The real positions of a tensor (B, S, ...), flattened: (n, ...)."""
        keep = self.keep
        return tensor.flatten(0, 1) if keep is None else tensor[keep]

    def scored(self, tensor: Tensor) -> Tensor:
        """The scored positions of a tensor (B, S, ...), flattened, for a target."""
        marked, keep = self.values != UNSCORED_ID, self.keep
        return tensor[marked if keep is None else marked & keep]


def pad(rows: list[list[int]], value: int = 0) -> Padded:
    """The rows as one tensor, padded with `value`."""
    lengths = torch.tensor([len(row) for row in rows])
    longest = int(lengths.max())
    filled = [row + [value] * (longest - len(row)) for row in rows]
    return Padded(torch.tensor(filled, dtype=torch.int64), lengths)


class Memory(NamedTuple):
    """An encoder's output, for a decoder or a head."""

    values: Float[Tensor, "B S D"]
    keep: Bool[Tensor, "B S"] | None
    summary: Float[Tensor, "B D"]  # one vector: a recurrent network's last state, else the mean
    tokens: Int[Tensor, "B S"] | None = None  # that a decoder may copy; -1 for none
    others: tuple["Memory", ...] = ()  # those of the other members of an ensemble
    words: Int[Tensor, "B S"] | None = None  # of each position, where a stem has put words together


def end_to_end(memories: Sequence[Memory]) -> Memory:
    """Several memories of the same examples, concatenated along their positions."""
    if len(memories) == 1:
        return memories[0]
    keeps = [m.values.new_ones(m.values.shape[:2], dtype=torch.bool) if m.keep is None else m.keep
             for m in memories]  # fmt: skip
    masked = any(m.keep is not None for m in memories)
    return Memory(
        torch.cat([m.values for m in memories], 1),
        torch.cat(keeps, 1) if masked else None,
        torch.stack([m.summary for m in memories]).mean(0),
    )


def masked_mean(
    values: Float[Tensor, "B S D"], keep: Bool[Tensor, "B S"] | None
) -> Float[Tensor, "B D"]:
    """The mean over the positions in `keep`; zeros where there is none."""
    if keep is None:
        return values.mean(1)
    return (values * keep.unsqueeze(-1)).sum(1) / keep.sum(1, keepdim=True).clamp(min=1)
