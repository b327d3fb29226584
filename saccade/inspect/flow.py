"""Gradient flow: how far back in time a network can learn, by the norms of its gradients.

A recurrent state h_t depends on h_i through t - i steps, and the norm of dh_t/dh_i vanishes or
explodes with their number (Bengio et al. 1994; Pascanu et al. 2013, arxiv.org/abs/1211.5063). Every
network has dL/dx_i, the gradient of the loss at each position.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.inspect.case import Case, differentiable, go_on
from saccade.inspect.packing import matrix, numbers
from saccade.inspect.saliency import check_position, gradient
from saccade.models.decoders import RecurrentDecoder
from saccade.nn.bodies import PyramidBody, RecurrentBody
from saccade.nn.recurrent import LayerState, Recurrent, Separate, run_cell

PROBES = 64  # directions of h_t that are backpropagated; exact if h is no wider
MAX_STEPS = 256  # the last ones of a longer input
MAX_ROWS = 64  # states h_t, evenly spaced, that are differentiated


class Recurrence(NamedTuple):
    """The first recurrent layer of a network, its inputs in a case, and its initial state."""

    path: str
    layer: nn.RNNBase
    inputs: Float[Tensor, "1 T C"]
    state: LayerState
    names: list[str]


def flow(case: Case, position: int | None = None) -> dict[str, Any]:
    """The view: |dL/dx_i| of each position, and |dh_t/dh_i| of a recurrent network.

    L is -log p of the output, or of one part of it.
    """
    check_position(case, position)
    gradients = gradient(case, case.vectors, position)
    inputs = torch.cat([grad[0].norm(dim=-1) for grad in gradients])
    found = {
        "kind": "flow",
        "tokens": case.names,
        "target": case.outputs,
        "text": case.text,
        "position": position,
        "inputs": numbers(inputs),
        "module": None,
        "states": None,
    }
    recurrence = recurrence_of(case)
    if recurrence is None:
        return found
    rows, norms = state_gradients(recurrence)
    return found | {
        "module": recurrence.path,
        "steps": recurrence.names[-norms.size(1) :],
        "rows": rows,
        "states": matrix(norms),
        "by_distance": numbers(by_distance(rows, norms)),
    }


def recurrence_of(case: Case) -> Recurrence | None:
    """The first recurrent layer: an encoder's, in its forward direction, or else a decoder's."""
    network = case.network
    for path, module in network.named_modules():
        match module:
            case RecurrentBody():
                ahead = (
                    module.layers.ahead if isinstance(module.layers, Separate) else module.layers
                )
                layer, inputs = ahead.layers[0], case.vectors[0]
            case PyramidBody():
                layer, inputs = module.layers[0], case.vectors[0]  # type: ignore[assignment]
            case RecurrentDecoder():
                return _of_decoder(case, path, module)
            case _:
                continue
        if inputs.size(-1) != layer.input_size:  # a forecast's, whose vectors are before the stem
            return None
        zero = inputs.new_zeros(1, layer.hidden_size)
        state = (zero, zero) if isinstance(layer, nn.LSTM) else (zero,)
        return Recurrence(path, layer, inputs, state, case.names)
    return None


def _of_decoder(case: Case, path: str, decoder: RecurrentDecoder) -> Recurrence:
    """That of a decoder, which may read its target at once or step by step."""
    columns: list[Tensor] = []
    states: list[LayerState] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        columns.append(inputs[0].detach())
        states.append(tuple(part.detach() for part in inputs[1][0]))

    assert isinstance(decoder.layers, Recurrent)
    handle = decoder.layers.register_forward_pre_hook(keep)
    try:
        with torch.no_grad():
            case.forward(1)
    finally:
        handle.remove()
    layer = decoder.layers.layers[0]
    return Recurrence(path, layer, torch.cat(columns, 1), states[0], case.read)


def state_gradients(
    recurrence: Recurrence,
) -> tuple[list[int], Float[Tensor, "R T"]]:
    """The rows t, and for each the norm of dh_t/dh_i for all i; 1 at i = t.

    It is the Frobenius norm, relative to that of the identity. An LSTM's h_i includes its cell. If
    h is wider than the number of probes, the norm is estimated from random directions of h_t.
    """
    _, layer, inputs, state, _ = recurrence
    inputs = inputs[:, -MAX_STEPS:]
    T, width = inputs.size(1), layer.hidden_size
    probes = torch.eye(width)
    if width > PROBES:
        noise = torch.randn(width, PROBES, generator=torch.Generator().manual_seed(1))
        probes = torch.linalg.qr(noise)[0].T
    probes = probes.to(inputs)
    K = len(probes)
    count = min(T, MAX_ROWS)
    rows = sorted({round(i * (T - 1) / max(1, count - 1)) for i in range(count)})
    norms = torch.zeros(len(rows), T)
    with torch.inference_mode(False), torch.enable_grad(), differentiable():
        columns = inputs.clone().unbind(1)
        states, current = [], tuple(part.clone() for part in state)
        for column in columns:
            go_on()
            current = tuple(part.detach() for part in run_cell(layer, column, current))
            states.append(current)
        # v dh_t/dh_i = (v dh_t/dh_{i+1}) dh_{i+1}/dh_i, for all rows t > i at once
        back = [inputs.new_zeros(len(rows), K, width) for _ in state]
        for i in range(T - 1, -1, -1):
            go_on()
            if i in rows:
                back[0][rows.index(i)] = probes
                norms[rows.index(i), i] = 1.0
            if not i:
                break
            active = slice(sum(t < i for t in rows), None)  # rows are in order
            vectors = [part[active].reshape(-1, width) for part in back]
            before = tuple(
                part.expand(len(vectors[0]), -1).clone().requires_grad_() for part in states[i - 1]
            )
            after = run_cell(layer, columns[i].expand(len(vectors[0]), -1), before)
            total = inputs.new_zeros(len(vectors[0]))
            for part, grad in zip(back, torch.autograd.grad(after, before, vectors), strict=True):
                part[active] = grad.view(-1, K, width)
                total += grad.square().sum(-1)
            norms[active, i - 1] = (total.view(-1, K).mean(1)).sqrt().cpu()
    return rows, norms


def by_distance(rows: list[int], norms: Float[Tensor, "R T"]) -> Float[Tensor, "T"]:
    """The mean norm over all pairs at each distance t - i."""
    T = norms.size(1)
    sums, counts = torch.zeros(T), torch.zeros(T)
    for row, t in enumerate(rows):
        sums[: t + 1] += norms[row, : t + 1].flip(0)
        counts[: t + 1] += 1
    return sums / counts.clamp(min=1)
