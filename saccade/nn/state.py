"""State is a value: a frozen tree of batch-first tensors that a decoder takes and returns.

A tree is a tensor (or a wrapper of one), None, or a (named) tuple of trees. Parts that belong to
the source, and so are shared by all hypotheses about it, are marked `Fixed`: they are neither
reordered nor repeated. With M rows of them and N others, row n belongs to source n // (N / M).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Fixed:
    """A part of a state that no search reorders: a row for each source."""

    tree: Any


class Wrapped(ABC):
    """A leaf that stands for one tensor, such as a buffer of the KV cache."""

    __slots__ = ()

    @classmethod
    @abstractmethod
    def of(cls, tensor: Tensor) -> "Wrapped": ...

    @property
    @abstractmethod
    def tensor(self) -> Tensor: ...


Change = Callable[[Tensor], Tensor]


def map_state(
    function: Change, state: Any, *, fixed: Callable[[Fixed], Fixed] | None = None
) -> Any:
    """The state with `function` applied to every tensor; `fixed`, if given, to fixed parts."""
    match state:
        case Tensor():
            return function(state)
        case Fixed():
            return Fixed(map_state(function, state.tree)) if fixed is None else fixed(state)
        case Wrapped():
            return type(state).of(function(state.tensor))
        case tuple():
            parts = [map_state(function, part, fixed=fixed) for part in state]
            return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
        case None:
            return None
        case _:
            raise AssertionError(f"a state holds tensors and tuples, not {type(state).__name__}")


def repeat(state: Any, times: int) -> Any:
    """The state with every row repeated `times` times: rows a a b b."""
    return map_state(lambda tensor: tensor.repeat_interleave(times, 0), state)


def reorder(state: Any, rows: Int[Tensor, "N"]) -> Any:
    """The state whose row n is the old row `rows[n]`; fixed parts stay."""
    return map_state(lambda tensor: tensor.index_select(0, rows), state, fixed=lambda part: part)


def select(state: Any, rows: Int[Tensor, "N"], sources: Int[Tensor, "B"] | None = None) -> Any:
    """The state of some rows, and of their sources; by default each row has a source."""
    kept = rows if sources is None else sources

    def fixed(part: Fixed) -> Fixed:
        return Fixed(map_state(lambda tensor: tensor.index_select(0, kept), part.tree))

    return map_state(lambda tensor: tensor.index_select(0, rows), state, fixed=fixed)


def shared(tensor: Tensor, rows: int) -> Tensor:
    """A fixed tensor expanded to `rows` rows: that of each source for all its hypotheses."""
    return tensor.repeat_interleave(rows // tensor.size(0), 0) if rows > tensor.size(0) else tensor


def detach(state: Any) -> Any:
    """The state detached from the graph, for truncated backpropagation."""
    return map_state(torch.Tensor.detach, state)


def leaves(state: Any) -> list[Tensor]:
    """The tensors of a state, in order."""
    tensors: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    map_state(collect, state)
    return tensors


def with_leaves(state: Any, tensors: Iterable[Tensor]) -> Any:
    """A state of the same form with these tensors."""
    supply = iter(tensors)
    return map_state(lambda _: next(supply), state)


def concat(states: Sequence[Any]) -> Any:
    """The rows of several states of one form, one after the other."""
    if len(states) == 1 or states[0] is None:
        return states[0]
    columns = zip(*(leaves(state) for state in states), strict=True)
    return with_leaves(states[0], [torch.cat(column) for column in columns])
