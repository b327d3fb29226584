"""Saliency: how much each position of an input counts for an output.

All methods begin with the vectors of the positions and with vectors that say nothing (`neutral`),
and explain one number: log p of the output or of one part of it; of numbers, what is said.
"""

from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import ConfigError
from saccade.inspect.case import Case, Vectors, differentiable
from saccade.inspect.packing import number, numbers

Method = Literal["gradient", "integrated", "occlusion"]
FIRST_POINTS, MOST_POINTS = 32, 512  # on the way from nothing to the input
ENOUGH = 0.01  # of the difference that is explained: so small an error needs no more points


def saliency(case: Case, method: str = "gradient", position: int | None = None) -> dict[str, Any]:
    """The view: a signed score for each position of the input."""
    if method not in get_args(Method):
        raise ConfigError(f"method {method!r}: choose one of {', '.join(get_args(Method))}")
    if position is not None and not 0 <= position < len(case.said):
        last = len(case.said) - 1
        raise ConfigError(f"position {position}: the output has positions from 0 to {last}")
    error = None
    match method:
        case "gradient":
            scores = gradient_times_input(case, position)
        case "occlusion":
            scores = occlusion(case, position)
        case _:
            scores, error = integrated_gradients(case, position)
    found = {
        "kind": "saliency",
        "method": method,
        "tokens": case.names,
        "scores": numbers(scores),
        "target": case.said,
        "text": case.text,
        "position": position,
        "explains": case.unit,
        "value": number(float(explained(case, None, position))),
    }
    return found | ({} if error is None else {"completeness_error": number(error)})


def explained(case: Case, vectors: Vectors | None, position: int | None) -> Float[Tensor, "K"]:
    """The number that is explained, for each row of vectors."""
    if vectors is None:
        with torch.inference_mode():
            scores = case.scores()
    else:
        scores = case.scores(vectors)
    return scores.sum(-1) if position is None else scores[:, position]


def gradient(case: Case, vectors: Vectors, position: int | None) -> Vectors:
    """The gradient of what is explained by the vectors, row by row."""
    leaves = tuple(vector.detach().requires_grad_() for vector in vectors)
    with torch.inference_mode(False), torch.enable_grad(), differentiable():
        total = explained(case, leaves, position).sum()
        found = torch.autograd.grad(total, leaves, allow_unused=True)
    pairs = zip(found, leaves, strict=True)
    return tuple(torch.zeros_like(v) if g is None else g for g, v in pairs)


def gradient_times_input(case: Case, position: int | None) -> Float[Tensor, "S"]:
    """The gradient times how far a vector is from saying nothing: a first-order occlusion."""
    slopes = gradient(case, case.vectors, position)
    return end_to_end(case, slopes)


def integrated_gradients(case: Case, position: int | None) -> tuple[Float[Tensor, "S"], float]:
    """The mean gradient on the straight way from nothing to the input, times the way's length.

    Sundararajan et al. 2017, arxiv.org/abs/1703.01365. The scores sum up to the difference that the
    input makes; by how much they do not, for lack of points, is the error. The way is in parts,
    each with a gradient in its middle; those whose gradient does not explain what happens between
    their ends are halved, for trained networks change their minds within small parts of the way.
    """
    edges = torch.linspace(0.0, 1.0, FIRST_POINTS + 1)
    values = along(case, position, edges)
    starts, stops = edges[:-1], edges[1:]
    before, after = values[:-1], values[1:]
    scores = parts(case, position, starts, stops)  # (parts, S)
    wanted, spent = float(values[-1] - values[0]), FIRST_POINTS
    while True:
        off = (scores.sum(1) - (after - before)).abs()
        error = abs(float(scores.sum()) - wanted)
        if error <= ENOUGH * abs(wanted) or spent >= MOST_POINTS:
            return scores.sum(0), error
        order = off.argsort(descending=True, stable=True)
        most = min((MOST_POINTS - spent + 1) // 2, max(1, len(order) // 4))
        split, kept = order[:most], order[most:]
        middle = (starts[split] + stops[split]) / 2
        at_middle = along(case, position, middle)
        new = parts(
            case, position, torch.cat([starts[split], middle]), torch.cat([middle, stops[split]])
        )
        starts, stops = (
            torch.cat([starts[kept], starts[split], middle]),
            torch.cat([stops[kept], middle, stops[split]]),
        )
        before, after = (
            torch.cat([before[kept], before[split], at_middle]),
            torch.cat([after[kept], at_middle, after[split]]),
        )
        scores = torch.cat([scores[kept], new])
        spent += 2 * len(split)


def between(case: Case, shares: Float[Tensor, "K"]) -> Vectors:
    """The vectors at so many shares of the way from nothing to the input."""
    return tuple(
        empty + shares.to(own)[:, None, None] * (own - empty)
        for empty, own in zip(case.neutral, case.vectors, strict=True)
    )


def along(case: Case, position: int | None, shares: Float[Tensor, "K"]) -> Float[Tensor, "K"]:
    """What is explained, at shares of the way."""
    with torch.inference_mode():
        found = [
            explained(case, between(case, some), position)
            for some in torch.split(shares, case.rows_at_once)
        ]
    return torch.cat(found).cpu()


def parts(
    case: Case, position: int | None, starts: Float[Tensor, "K"], stops: Float[Tensor, "K"]
) -> Float[Tensor, "K S"]:
    """For each part of the way the gradient in its middle, times its length."""
    found = []
    for some in torch.split((starts + stops) / 2, case.rows_at_once):
        slopes = gradient(case, between(case, some), position)
        way = zip(slopes, case.vectors, case.neutral, strict=True)
        found.append(torch.cat([(slope * (own - empty)).sum(-1) for slope, own, empty in way], 1))
    return torch.cat(found).cpu() * (stops - starts)[:, None]


def occlusion(case: Case, position: int | None) -> Float[Tensor, "S"]:
    """How much less what is explained is when a position says nothing, one after the other."""
    whole = explained(case, None, position)
    found = []
    with torch.inference_mode():
        for which, (own, empty) in enumerate(zip(case.vectors, case.neutral, strict=True)):
            for places in torch.split(torch.arange(own.size(1)), case.rows_at_once):
                rows = [vector.expand(len(places), -1, -1) for vector in case.vectors]
                hidden = rows[which].clone()
                hidden[torch.arange(len(places)), places] = empty[0, places]
                rows[which] = hidden
                found.append(whole - explained(case, tuple(rows), position))
    return torch.cat(found)


def end_to_end(case: Case, slopes: Vectors) -> Float[Tensor, "S"]:
    """For each position slope times distance from nothing, of all sources end to end."""
    parts = zip(slopes, case.vectors, case.neutral, strict=True)
    return torch.cat([(slope * (own - empty)).sum(-1)[0] for slope, own, empty in parts])
