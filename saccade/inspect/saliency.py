"""Saliency: the attribution of an output to the positions of an input.

All methods compare the vectors of the positions with a baseline, and explain one number: log p of
the output or of one part of it; for numbers, the predicted mean.
"""

from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import ConfigError
from saccade.inspect.case import Case, Vectors, differentiable, go_on
from saccade.inspect.packing import number, numbers

Method = Literal["gradient", "integrated", "occlusion"]
FIRST_POINTS, MAX_POINTS = 32, 512  # on the path from the baseline to the input
TOLERANCE = 0.01  # of the explained difference: the error at which refinement ends


def saliency(case: Case, method: str = "gradient", position: int | None = None) -> dict[str, Any]:
    """The view: a signed attribution for each position of the input."""
    if method not in get_args(Method):
        raise ConfigError(f"method {method!r}: choose one of {', '.join(get_args(Method))}")
    check_position(case, position)
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
        "target": case.outputs,
        "text": case.text,
        "position": position,
        "explains": case.unit,
        "value": number(float(explained(case, None, position))),
    }
    return found | ({} if error is None else {"completeness_error": number(error)})


def check_position(case: Case, position: int | None) -> None:
    """ConfigError for a position that the output does not have."""
    if position is not None and not 0 <= position < len(case.outputs):
        last = len(case.outputs) - 1
        raise ConfigError(f"position {position}: the output has positions from 0 to {last}")


def explained(case: Case, vectors: Vectors | None, position: int | None) -> Float[Tensor, "K"]:
    """The number that is explained, for each row of vectors."""
    go_on()
    if vectors is None:
        with torch.inference_mode():
            scores = case.scores()
    else:
        scores = case.scores(vectors)
    return scores.sum(-1) if position is None else scores[:, position]


def gradient(case: Case, vectors: Vectors, position: int | None) -> Vectors:
    """The gradient of the explained number with respect to the vectors, row by row."""
    leaves = tuple(vector.detach().requires_grad_() for vector in vectors)
    with torch.inference_mode(False), torch.enable_grad(), differentiable():
        total = explained(case, leaves, position).sum()
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    pairs = zip(gradients, leaves, strict=True)
    return tuple(torch.zeros_like(v) if g is None else g for g, v in pairs)


def gradient_times_input(case: Case, position: int | None) -> Float[Tensor, "S"]:
    """The gradient times the difference from the baseline: a first-order occlusion."""
    gradients = gradient(case, case.vectors, position)
    return torch.cat([part[0] for part in attributions(case, gradients)])


def integrated_gradients(case: Case, position: int | None) -> tuple[Float[Tensor, "S"], float]:
    """The mean gradient on the straight path from baseline to input, times the path's length.

    Sundararajan et al. 2017, arxiv.org/abs/1703.01365. The scores add up to the difference between
    baseline and input (completeness), up to the returned error of the numerical integration. It is
    adaptive, as trained networks change abruptly: of the segments, each with a gradient at its
    midpoint, those with the largest errors are halved.
    """
    edges = torch.linspace(0.0, 1.0, FIRST_POINTS + 1)
    values = along(case, position, edges)
    starts, stops = edges[:-1], edges[1:]
    before, after = values[:-1], values[1:]
    scores = segments(case, position, starts, stops)  # (segments, S)
    total, points = float(values[-1] - values[0]), FIRST_POINTS
    while True:
        errors = (scores.sum(1) - (after - before)).abs()
        error = abs(float(scores.sum()) - total)
        if error <= TOLERANCE * abs(total) or points >= MAX_POINTS:
            return scores.sum(0), error
        order = errors.argsort(descending=True, stable=True)
        count = min((MAX_POINTS - points + 1) // 2, max(1, len(order) // 4))
        split, kept = order[:count], order[count:]
        middle = (starts[split] + stops[split]) / 2
        at_middle = along(case, position, middle)
        new = segments(
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
        points += 2 * len(split)


def between(case: Case, shares: Float[Tensor, "K"]) -> Vectors:
    """The vectors at these shares of the path from baseline to input."""
    return tuple(
        blank + shares.to(own)[:, None, None] * (own - blank)
        for blank, own in zip(case.baseline, case.vectors, strict=True)
    )


def along(case: Case, position: int | None, shares: Float[Tensor, "K"]) -> Float[Tensor, "K"]:
    """The explained number at shares of the path."""
    with torch.inference_mode():
        values = [
            explained(case, between(case, chunk), position)
            for chunk in torch.split(shares, case.rows_at_once)
        ]
    return torch.cat(values).cpu()


def segments(
    case: Case, position: int | None, starts: Float[Tensor, "K"], stops: Float[Tensor, "K"]
) -> Float[Tensor, "K S"]:
    """For each segment of the path the attribution at its midpoint, times its length."""
    scores = []
    for chunk in torch.split((starts + stops) / 2, case.rows_at_once):
        gradients = gradient(case, between(case, chunk), position)
        scores.append(torch.cat(attributions(case, gradients), 1))
    return torch.cat(scores).cpu() * (stops - starts)[:, None]


def occlusion(case: Case, position: int | None) -> Float[Tensor, "S"]:
    """By how much the explained number falls when a position has its baseline, one at a time."""
    full = explained(case, None, position)
    drops = []
    with torch.inference_mode():
        for source, (own, blank) in enumerate(zip(case.vectors, case.baseline, strict=True)):
            for places in torch.split(torch.arange(own.size(1)), case.rows_at_once):
                rows = [vector.expand(len(places), -1, -1) for vector in case.vectors]
                occluded = rows[source].clone()
                occluded[torch.arange(len(places)), places] = blank[0, places]
                rows[source] = occluded
                drops.append(full - explained(case, tuple(rows), position))
    return torch.cat(drops)


def attributions(case: Case, gradients: Vectors) -> list[Float[Tensor, "K S"]]:
    """For each source the gradients times the difference from the baseline, by position."""
    parts = zip(gradients, case.vectors, case.baseline, strict=True)
    return [(grad * (own - blank)).sum(-1) for grad, own, blank in parts]
