"""Tracing: a network as a graph for other libraries, for inputs of any length."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Of what is computed, not of a module, as torch's own modes; no other thread sees it.
_longest: ContextVar[int | None] = ContextVar("positions of a graph", default=None)


@contextmanager
def tracing(longest: int) -> Iterator[None]:
    """Inside, tables of positions have this length, and only standard products are used."""
    token = _longest.set(longest)
    try:
        yield
    finally:
        _longest.reset(token)


def traced_positions() -> int | None:
    """The length of `tracing`; None outside."""
    return _longest.get()
