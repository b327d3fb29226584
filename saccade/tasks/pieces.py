"""Text that comes piece by piece: what each step of a search adds to the answers of a batch."""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Literal, NamedTuple

from torch import Tensor

from saccade import config as c
from saccade.decoding.sample import draw
from saccade.decoding.search import Pick, likeliest, walk
from saccade.errors import DataError
from saccade.models.networks import Generator
from saccade.tasks.generate import DRAWS, GeneratingTask, seed_of
from saccade.tasks.task import Query, Request

NO_WAY_ON = "no token satisfies the decoding constraints"

End = Literal["", "end", "limit", "no way on"]  # why a text is over; nothing while it is not


class Piece(NamedTuple):
    """What a step adds to the answer to one query."""

    number: int  # of the query in the batch
    text: str  # nothing while a character is not whole, and at the end
    token: int
    log_p: float  # of the token, the model's own
    top: tuple[tuple[int, float], ...]  # the likeliest tokens in its place, with theirs
    end: End


def pieces(
    task: GeneratingTask,
    network: Generator,
    queries: Sequence[Query],
    request: Request,
    alternatives: int = 0,
) -> Iterator[list[Piece]]:
    """At each step what is added to each answer that goes on; greedy, or drawn.

    The first is an empty list: then the queries are read, and DataError says which cannot be
    answered. `alternatives` are wanted for each token.
    """
    task.require_order()
    request = task.with_permitted(request)
    decode, end = request.decode, task.output.specials.eos
    encoded = task.encode_queries(queries, request)
    for query in encoded:
        if query.problem:
            raise DataError(query.problem)
    record: list[Tensor] = []
    begun = task.begin(network, encoded, request, record)
    yield []
    pick: Pick = likeliest
    if isinstance(decode, c.Sample):
        seeds = [seed_of(query, decode) for query in encoded]
        pick = draw(seeds, [query.number * DRAWS for query in encoded])
    limits = [query.limit for query in encoded]
    tokens: list[list[int]] = [[] for _ in encoded]
    shown = [query.prompt for query in encoded]  # which is the user's own
    steps = walk(begun.step, begun.state, begun.first, end=end, limits=limits, pick=pick)
    for taken in steps:
        (log_probs,) = record
        found = []
        for row, (number, token, score) in zip(log_probs, taken, strict=True):
            top: tuple[tuple[int, float], ...] = ()
            if alternatives:
                best = row.topk(min(alternatives, len(row)))
                top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
            over: End = ""
            if score == -inf:
                over = "no way on"
            elif token == end:
                over = "limit" if len(tokens[number]) >= limits[number] else "end"
            else:
                tokens[number].append(token)
            text, query = "", encoded[number]
            whole = task.written(query.readings[0], tokens[number])
            whole_text = task.shown(query, task.output.decode([whole])[0])
            ready = bool(over) or not whole_text.endswith("\ufffd")
            if whole_text.startswith(shown[number]) and ready:
                text, shown[number] = whole_text[len(shown[number]) :], whole_text
            found.append(Piece(number, text, token, float(row[token]), top, over))
        yield found


def stream(
    task: GeneratingTask, network: Generator, query: Query, request: Request
) -> Iterator[str]:
    """The text of one answer, piece by piece as it comes; greedy, or drawn.

    A text that goes on with the user's begins with that.
    """
    prompt = task.prompt(query)
    for found in pieces(task, network, [query], request):
        for piece in found:
            if piece.end == "no way on":
                raise DataError(NO_WAY_ON)
            yield prompt + piece.text
            prompt = ""
