"""The costs of a layer on one batch: FLOPs, and the activations kept for the backward pass.

A multiplication and an addition are two FLOPs. Element-wise operations (norms, softmax, dropout)
are not counted, as usual: they are less than a hundredth.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import nn

from saccade.nn.dropout import Dropout
from saccade.nn.lora import AdaptedLinear


class Shape(NamedTuple):
    """The sizes of a batch, padding included."""

    rows: int
    sources: tuple[int, ...]  # the positions of each
    target: int  # positions that a decoder reads, words that a tagger labels, or 1
    targets: int  # tokens, labels or numbers that the loss counts, of all rows

    def of_rows(self, rows: int) -> "Shape":
        """The same for another number of rows."""
        targets = max(1, round(self.targets * rows / self.rows))
        return self._replace(rows=rows, targets=targets)


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOPs of a batch, and the activations kept for the backward pass."""

    forward: float = 0.0
    backward: float = 0.0
    attention: float = 0.0  # of both, the products between positions
    numbers: float = 0.0  # kept, in the number format of the computation
    single: float = 0.0  # kept, always in single precision
    masks: float = 0.0  # kept, bytes

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(a + b for a, b in zip(self._all, other._all, strict=True)))

    @property
    def _all(self) -> tuple[float, ...]:
        return (
            *(self.forward, self.backward, self.attention),
            *(self.numbers, self.single, self.masks),
        )

    @property
    def flops(self) -> float:
        return self.forward + self.backward

    def bytes_kept(self, width: int) -> float:
        """The bytes that are kept; `width` are those of a number."""
        return self.numbers * width + self.single * 4 + self.masks

    def without_gradient(self) -> "Cost":
        """The forward pass alone."""
        share = self.forward / self.flops if self.flops else 0.0
        return Cost(self.forward, 0.0, self.attention * share)


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a network, with its costs on a batch."""

    name: str
    parameters: int  # those that no layer before it has
    cost: Cost
    weights: int = 0  # all that it has, shared ones too
    gradients: int = 0  # those of its weights that no later layer has
    block: bool = False  # one of several equal ones, which checkpointing recomputes
    entry: float = 0.0  # the size of its input, all that checkpointing keeps
    output: bool = False
    # temporary bytes beside what is kept, in the forward pass and in the backward pass
    transient: tuple[float, float] = (0.0, 0.0)

    def without_gradient(self) -> "Layer":
        """The same in a forward pass without gradients."""
        return replace(self, name=f"guesses.{self.name}", cost=self.cost.without_gradient())


def matmul(rows: float, width: int, out: int, *, first: bool = False) -> Cost:
    """A product with a weight: forward once, backward for its input and for the weight.

    The `first` of a network has no gradient for its input.
    """
    once = 2.0 * rows * width * out
    return Cost(once, once if first else 2 * once)


def linear(layer: nn.Module, rows: float, *, first: bool = False) -> Cost:
    """A linear layer, with its low-rank adapter if it has one."""
    assert isinstance(layer, nn.Linear)
    found = matmul(rows, layer.in_features, layer.out_features, first=first)
    if isinstance(layer, AdaptedLinear):  # whose own weight is frozen
        found = Cost(found.forward, found.forward)
        rank = layer.shrink.size(0)
        found += matmul(rows, layer.in_features, rank) + matmul(rows, rank, layer.out_features)
        found += Cost(numbers=rows * rank)
    return found


def pairwise(pairs: float, width: int, out: int = 1) -> Cost:
    """Products between `pairs` pairs of positions."""
    once = 2.0 * pairs * width * out
    return Cost(once, 2 * once, 3 * once)


def dropout_mask(layer: nn.Module, numbers: float) -> Cost:
    """The mask of a dropout, a byte for each number."""
    return Cost(masks=numbers) if isinstance(layer, Dropout) and layer.p else Cost()


def norm_inputs(layer: nn.Module | None, rows: float, width: int) -> Cost:
    """The activations that a norm keeps: its input, and its statistics."""
    match layer:
        case nn.LayerNorm() | nn.GroupNorm():
            return Cost(single=rows * (width + 2))
        case nn.RMSNorm():  # the input, and the result before it is scaled
            return Cost(single=rows * (2 * width + 1))
        case _:
            return Cost()
