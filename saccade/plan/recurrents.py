"""What recurrent layers and their attention cost on a batch."""

from torch import nn

from saccade.models.decoders import RecurrentDecoder
from saccade.nn import attention as scores
from saccade.nn.edits import Edits
from saccade.nn.recurrent import Recurrent, Separate
from saccade.plan.costs import Cost, between, dropped, linear, product

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
    H, ways, gates = one.hidden_size, 1 + one.bidirectional, GATES[one.mode]
    n = rows * steps
    found = product(n, one.input_size, ways * gates * H, first=first)
    found += product(ways * n, H, gates * H)
    if not learned:  # nothing goes back into zeros
        found += Cost(backward=-2.0 * ways * rows * H * gates * H)
    kept = KEPT[one.mode] * H
    if one.mode == "LSTM" and not by_step:
        kept = KERNEL_UNIT * H + KERNEL_WIDTH * max(one.input_size, H)
    return found + Cost(numbers=n * ways * (one.input_size + kept))


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
        ahead = layers(found.ahead, rows, steps)
        back = layers(found.back, rows, steps)
        return [(f"ahead.{a}", b, c) for a, b, c in ahead] + [
            (f"back.{a}", b, c) for a, b, c in back
        ]
    made: list[tuple[str, nn.Module, Cost]] = []
    for i, one in enumerate(found.layers):
        cost = layer(one, rows, steps, learned=learned, by_step=by_step)
        cost += dropped(found.drop, rows * steps * one.input_size) if i else Cost()
        made.append((f"layers.{i}", one, cost))
    return made


def attention(one: scores.Attention, rows: int, queries: int, keys: int, values: int) -> Cost:
    """One head under any score, over values of so many numbers."""
    pairs, n, m = float(rows * queries * keys), rows * queries, rows * keys
    score = one.score
    found = Cost(numbers=pairs) + between(pairs, values)
    match score:
        case scores.Additive():
            D = score.query.out_features
            found += linear(score.query, n) + linear(score.key, m) + between(pairs, D)
            return found + Cost(numbers=pairs * D + m * D)
        case scores.Concat():
            D = score.both.out_features
            found += product(n, D, D) + product(m, score.both.in_features - D, D)
            return found + between(pairs, D) + Cost(numbers=pairs * D + m * D)
        case scores.General():
            D = score.key.out_features
            return found + linear(score.key, m) + between(pairs, D) + Cost(numbers=(m + n) * D)
        case _:
            D = values
            if isinstance(score.bridge, nn.Linear):
                D = score.bridge.out_features
                found += linear(score.bridge, m) + Cost(numbers=m * D)
            return found + between(pairs, D) + Cost(numbers=n * D)


def decoder(
    one: RecurrentDecoder, rows: int, steps: int, memory: tuple[int, int] | None
) -> list[tuple[str, nn.Module | None, Cost]]:
    """The layers of a decoder between its ends; a memory has positions and a width."""
    n, D = rows * steps, one.dim
    by_step = one.attention is not None and one.context_in_cell
    made: list[tuple[str, nn.Module | None, Cost]] = []
    if memory is not None and not one.copied:
        first = linear(one.first, rows) + Cost(numbers=rows * one.first.out_features)
        made.append(("first", one.first, first))
    learned = memory is not None
    some = layers(one.layers, rows, steps, learned=learned, by_step=by_step)
    made += [(f"layers.{path}", module, cost) for path, module, cost in some]
    if one.attention is not None and memory is not None:
        made.append(("attention", one.attention, attention(one.attention, rows, steps, *memory)))
        cost = linear(one.readout, n)
        cost += Cost(numbers=n * (one.readout.in_features + D))
        made.append(("readout", one.readout, cost))
    return made


# Numbers kept of each token at each position: so many are within 10 % of what autograd saves.
EDIT_LOGITS = 6.0


def edits(one: Edits, rows: int, steps: int, source: int) -> Cost:
    """Edits: every target position says tokens at every position of the source."""
    n, places, D, V = rows * steps, source + 1, one.query.out_features, one.size
    pairs = n * places
    found = linear(one.key, rows * source) + linear(one.query, n)
    found += linear(one.acts, pairs) + linear(one.insert, pairs) + linear(one.output, pairs)
    found += dropped(one.drop, pairs * D) + Cost(numbers=rows * source * D + n * D)
    kept = D * (2 if one.drop.p else 1)  # with dropout what was there before it, too
    return found + Cost(numbers=pairs * kept, single=EDIT_LOGITS * pairs * V)
