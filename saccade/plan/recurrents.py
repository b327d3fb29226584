"""The costs of recurrent layers and their attention on a batch."""

from torch import nn

from saccade.models.decoders import RecurrentDecoder
from saccade.nn import attention as scores
from saccade.nn.edits import Edits
from saccade.nn.recurrent import Recurrent, Separate
from saccade.plan.costs import Cost, dropout_mask, linear, matmul, pairwise

GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
KEPT = {"LSTM": 7.0, "GRU": 7.0, "RNN_TANH": 1.0, "RNN_RELU": 1.0}  # by a step, for each unit
# oneDNN's kernel for all steps of an LSTM keeps more, measured with torch 2.13: for each unit, and
# for each number of the wider of input and state.
KERNEL_UNIT, KERNEL_WIDTH = 10.0, 6.4


def layer(
    one: nn.RNNBase,
    rows: int,
    steps: int,
    *,
    first: bool = False,
    learned: bool = False,
    by_step: bool = False,
) -> Cost:
    """A recurrent layer, in its directions; `learned` says whether its first state is."""
    H, directions, gates = one.hidden_size, 1 + one.bidirectional, GATES[one.mode]
    n = rows * steps
    found = matmul(n, one.input_size, directions * gates * H, first=first)
    found += matmul(directions * n, H, gates * H)
    if not learned:  # zeros have no gradient
        found += Cost(backward=-2.0 * directions * rows * H * gates * H)
    kept = KEPT[one.mode] * H
    if one.mode == "LSTM" and not by_step:
        kept = KERNEL_UNIT * H + KERNEL_WIDTH * max(one.input_size, H)
    return found + Cost(numbers=n * directions * (one.input_size + kept))


def layers(
    found: Recurrent | Separate,
    rows: int,
    steps: int,
    *,
    learned: bool = False,
    by_step: bool = False,
) -> list[tuple[str, nn.Module, Cost]]:
    """The layers of a stack, or of two."""
    if isinstance(found, Separate):
        forward = layers(found.ahead, rows, steps)
        backward = layers(found.back, rows, steps)
        return [(f"ahead.{a}", b, c) for a, b, c in forward] + [
            (f"back.{a}", b, c) for a, b, c in backward
        ]
    parts: list[tuple[str, nn.Module, Cost]] = []
    for i, one in enumerate(found.layers):
        cost = layer(one, rows, steps, learned=learned, by_step=by_step)
        cost += dropout_mask(found.drop, rows * steps * one.input_size) if i else Cost()
        parts.append((f"layers.{i}", one, cost))
    return parts


def attention(one: scores.Attention, rows: int, queries: int, keys: int, values: int) -> Cost:
    """One head under any score, over values of so many numbers."""
    pairs, n, m = float(rows * queries * keys), rows * queries, rows * keys
    score = one.score
    found = Cost(numbers=pairs) + pairwise(pairs, values)
    match score:
        case scores.Additive():
            D = score.query.out_features
            found += linear(score.query, n) + linear(score.key, m) + pairwise(pairs, D)
            return found + Cost(numbers=pairs * D + m * D)
        case scores.Concat():
            D = score.both.out_features
            found += matmul(n, D, D) + matmul(m, score.both.in_features - D, D)
            return found + pairwise(pairs, D) + Cost(numbers=pairs * D + m * D)
        case scores.General():
            D = score.key.out_features
            return found + linear(score.key, m) + pairwise(pairs, D) + Cost(numbers=(m + n) * D)
        case _:
            D = values
            if isinstance(score.bridge, nn.Linear):
                D = score.bridge.out_features
                found += linear(score.bridge, m) + Cost(numbers=m * D)
            return found + pairwise(pairs, D) + Cost(numbers=n * D)


def decoder(
    one: RecurrentDecoder, rows: int, steps: int, memory: tuple[int, int] | None
) -> list[tuple[str, nn.Module | None, Cost]]:
    """The layers of a decoder between its ends; a memory has positions and a width."""
    n, D = rows * steps, one.dim
    by_step = one.attention is not None and one.context_in_cell
    parts: list[tuple[str, nn.Module | None, Cost]] = []
    if memory is not None and not one.copied:
        first = linear(one.first, rows) + Cost(numbers=rows * one.first.out_features)
        parts.append(("first", one.first, first))
    learned = memory is not None
    stacked = layers(one.layers, rows, steps, learned=learned, by_step=by_step)
    parts += [(f"layers.{path}", module, cost) for path, module, cost in stacked]
    if one.attention is not None and memory is not None:
        parts.append(("attention", one.attention, attention(one.attention, rows, steps, *memory)))
        cost = linear(one.readout, n)
        cost += Cost(numbers=n * (one.readout.in_features + D))
        parts.append(("readout", one.readout, cost))
    return parts


# Numbers kept for each position of the target at each of the source, beside the logits of insertion
# and substitution: measured with torch 2.13.
EDIT_SCALARS = 10.5


def edits(one: Edits, rows: int, steps: int, source: int) -> Cost:
    """Edits: every target position predicts tokens at every position of the source."""
    n, places, D, V = rows * steps, source + 1, one.query.out_features, one.size
    pairs = n * places
    found = linear(one.key, rows * source) + linear(one.query, n)
    found += linear(one.acts, pairs) + linear(one.insert, pairs) + linear(one.output, pairs)
    found += dropout_mask(one.drop, pairs * D) + Cost(numbers=rows * source * D + n * D)
    found += Cost(numbers=(2 * V + 3) * D)  # the weights of the three layers, as one
    kept = D * (2 if one.drop.p else 1)  # with dropout what was there before it, too
    return found + Cost(numbers=pairs * kept, single=pairs * (2 * V + EDIT_SCALARS))
