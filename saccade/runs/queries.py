"""Queries: inputs with their prefixes, and their answers in order."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from saccade.engines.local import Pending
from saccade.errors import DataError
from saccade.tasks.task import Prediction, Query


def is_empty(query: Query) -> bool:
    """Whether there is nothing to answer."""
    return bool(query.problem) or not any(text.strip() for text in query.source)


def in_order(queries: list[Query], pending: Pending) -> Iterator[Prediction]:
    """The predictions of queries; an empty line in is an empty line out."""
    ready = iter(pending.result())
    for query in queries:
        yield Prediction("", 0.0, problem=query.problem) if is_empty(query) else next(ready)


def pairwise(
    inputs: Iterable[str | Sequence[str]], prefixes: Iterable[str], place: Callable[[int], str]
) -> Iterator[tuple[str | Sequence[str], str]]:
    supply = iter(prefixes)
    for number, item in enumerate(inputs, 1):
        prefix = next(supply, None)
        if prefix is None:
            raise DataError(
                f"{place(number)} has no prefix: there are fewer prefixes than inputs; "
                "give one for each, or an empty one"
            )
        yield item, prefix
