"""Streaming: what each step of a search adds to the outputs of a batch."""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Literal, NamedTuple

from torch import Tensor

from saccade import config as c
from saccade.decoding.sample import draw
from saccade.decoding.search import Pick, likeliest, walk
from saccade.errors import DataError
from saccade.models.networks import Generator
from saccade.tasks.generate import MAX_DRAWS, GeneratingTask, seed_of
from saccade.tasks.task import Query, Request

NO_CONTINUATION = "no token satisfies the decoding constraints"

End = Literal["", "end", "limit", "no continuation"]  # why an output has ended; "" before


class Piece(NamedTuple):
    """What a step adds to the output of one query."""

    number: int  # of the query in the batch
    text: str  # empty while a character is incomplete, and at the end
    token: int
    log_p: float  # of the token, the model's own
    top: tuple[tuple[int, float], ...]  # the likeliest tokens at this step, with theirs
    end: End


def pieces(
    task: GeneratingTask,
    network: Generator,
    queries: Sequence[Query],
    request: Request,
    alternatives: int = 0,
) -> Iterator[list[Piece]]:
    """At each step what is added to each open output; greedy, or sampled.

    The first is an empty list, after the encoder; DataError for a query that cannot be answered.
    Each token has `alternatives` likeliest ones beside it.
    """
    task.require_order()
    request = task.with_permitted(request)
    decode, end = request.decode, task.output.specials.eos
    encoded = task.encode_queries(queries, request)
    for query in encoded:
        if query.problem:
            raise DataError(query.problem)
    record: list[Tensor] = []
    prepared = task.prepare_search(network, encoded, request, record)
    yield []
    pick: Pick = likeliest
    if isinstance(decode, c.Sample):
        seeds = [seed_of(query, decode) for query in encoded]
        pick = draw(seeds, [query.number * MAX_DRAWS for query in encoded])
    limits = [query.limit for query in encoded]
    tokens: list[list[int]] = [[] for _ in encoded]
    shown = [query.prompt for query in encoded]
    steps = walk(prepared.step, prepared.state, prepared.first, end=end, limits=limits, pick=pick)
    for chosen in steps:
        (log_probs,) = record
        new_pieces = []
        for row, (number, token, score) in zip(log_probs, chosen, strict=True):
            top: tuple[tuple[int, float], ...] = ()
            if alternatives:
                best = row.topk(min(alternatives, len(row)))
                top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
            ended: End = ""
            if score == -inf:
                ended = "no continuation"
            elif token == end:
                ended = "limit" if len(tokens[number]) >= limits[number] else "end"
            else:
                tokens[number].append(token)
            text, query = "", encoded[number]
            output = task.full_output(query.sources[0], tokens[number])
            full_text = task.display_text(query, task.output.decode([output])[0])
            ready = bool(ended) or not full_text.endswith("\ufffd")
            if full_text.startswith(shown[number]) and ready:
                text, shown[number] = full_text[len(shown[number]) :], full_text
            new_pieces.append(Piece(number, text, token, float(row[token]), top, ended))
        yield new_pieces


def stream(
    task: GeneratingTask, network: Generator, query: Query, request: Request
) -> Iterator[str]:
    """The text of one output, piece by piece; greedy, or sampled.

    The output of a language model begins with the prompt.
    """
    prompt = task.prompt(query)
    for new_pieces in pieces(task, network, [query], request):
        for piece in new_pieces:
            if piece.end == "no continuation":
                raise DataError(NO_CONTINUATION)
            yield prompt + piece.text
            prompt = ""
