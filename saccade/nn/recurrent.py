"""Recurrent networks: Elman, GRU and LSTM layers, deep and in both directions.

The kernels are torch's; here they are stacked, with dropout and residuals between layers, and their
states are batch-first, so that a search can repeat and reorder them like any other.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from saccade.nn.dropout import Dropout, dropout, slice_of

Cell = Literal["elman", "elman_relu", "gru", "lstm"]
LayerState = tuple[Tensor, ...]  # (h,), or (h, c) of an LSTM: each (B, directions * H)


def build_layer(cell: Cell, input_dim: int, dim: int, bidirectional: bool = False) -> nn.RNNBase:
    """One layer of torch's recurrent network of this cell."""
    match cell:
        case "elman":
            return nn.RNN(input_dim, dim, batch_first=True, bidirectional=bidirectional)
        case "elman_relu":
            return nn.RNN(
                input_dim, dim, nonlinearity="relu", batch_first=True, bidirectional=bidirectional
            )
        case "gru":
            return nn.GRU(input_dim, dim, batch_first=True, bidirectional=bidirectional)
        case "lstm":
            return nn.LSTM(input_dim, dim, batch_first=True, bidirectional=bidirectional)
        case _:
            raise ValueError(f"no cell {cell!r}; choose one of {', '.join(get_args(Cell))}")


class Recurrent(nn.Module):
    """Stacked recurrent layers: (B, T, input_dim) -> (B, T, dim), and every layer's last state.

    With `weight_dropout` a share of the recurrent weights is zeroed in training, the same for all
    rows and steps of a call: DropConnect. Merity et al. 2018, arxiv.org/abs/1708.02182
    """

    def __init__(
        self,
        cell: Cell,
        input_dim: int,
        dim: int,
        num_layers: int = 1,
        *,
        bidirectional: bool = False,
        dropout: float = 0.0,
        weight_dropout: float = 0.0,
        residual: bool = False,
    ):
        super().__init__()
        if bidirectional and dim % 2:
            raise ValueError(f"dim ({dim}) must be even: each direction has half of it")
        self.cell = cell
        self.dim = dim
        self.residual = residual
        width = dim // 2 if bidirectional else dim  # of each direction
        self.layers: Sequence[nn.RNNBase] = nn.ModuleList(  # type: ignore[assignment]
            build_layer(cell, dim if i else input_dim, width, bidirectional)
            for i in range(num_layers)
        )
        self.drop = Dropout(dropout)
        self.weight_dropout = weight_dropout

    def forward(
        self,
        x: Float[Tensor, "B T C"],
        state: tuple[LayerState, ...] | None = None,
        lengths: Int[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], tuple[LayerState, ...]]:
        """Every position's output of the top layer, and the layers' states at each row's end.

        With `lengths` the rows end there: padding changes nothing, in either direction.
        """
        outputs, states = self.every(x, state, lengths)
        return outputs[-1], states

    def every(
        self,
        x: Float[Tensor, "B T C"],
        state: tuple[LayerState, ...] | None = None,
        lengths: Int[Tensor, "B"] | None = None,
    ) -> tuple[list[Float[Tensor, "B T D"]], tuple[LayerState, ...]]:
        """The same, with the outputs of every layer."""
        outputs, states = [], []
        for i, layer in enumerate(self.layers):
            before = x
            past = None if state is None else state[i]
            x = self.drop(x) if i else x
            if self.training and self.weight_dropout:
                x, last = run_dropped(layer, x, past, lengths, self.weight_dropout)
            else:
                x, last = run_layer(layer, x, past, lengths)
            if i and self.residual:
                x = x + before
            outputs.append(x)
            states.append(last)
        return outputs, tuple(states)

    def zeros(self, rows: int, like: Tensor) -> tuple[LayerState, ...]:
        """The state before the first step."""
        zero = like.new_zeros(rows, self.dim)
        return tuple((zero, zero) if self.cell == "lstm" else (zero,) for _ in self.layers)


class Separate(nn.Module):
    """A forward and a backward stack of half the width, independent of each other (ELMo).

    Peters et al. 2018, arxiv.org/abs/1802.05365
    """

    def __init__(self, ahead: Recurrent, back: Recurrent):
        super().__init__()
        self.ahead, self.back = ahead, back

    def forward(
        self, x: Float[Tensor, "B T C"], *, lengths: Int[Tensor, "B"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], tuple[LayerState, ...]]:
        outputs, states = self.every(x, None, lengths)
        return outputs[-1], states

    def every(
        self,
        x: Float[Tensor, "B T C"],
        state: None = None,
        lengths: Int[Tensor, "B"] | None = None,
    ) -> tuple[list[Float[Tensor, "B T D"]], tuple[LayerState, ...]]:
        """For each layer both directions concatenated, and their final states."""
        left, ends = self.ahead.every(x, None, lengths)
        right, beginnings = self.back.every(reversed_rows(x, lengths), None, lengths)
        pairs = zip(left, right, strict=True)
        outputs = [torch.cat([ahead, reversed_rows(back, lengths)], -1) for ahead, back in pairs]
        both = zip(ends, beginnings, strict=True)
        return outputs, tuple((torch.cat([end[0], first[0]], -1),) for end, first in both)


def reversed_rows(
    x: Float[Tensor, "B T C"], lengths: Int[Tensor, "B"] | None
) -> Float[Tensor, "B T C"]:
    """Each row reversed within its length; padding stays in place."""
    if lengths is None:
        return x.flip(1)
    positions, ends = torch.arange(x.size(1)), lengths[:, None]
    order = torch.where(positions < ends, ends - 1 - positions, positions).to(x.device)
    return x.gather(1, order.unsqueeze(-1).expand(-1, -1, x.size(-1)))


class LayerMix(nn.Module):
    """gamma times the mean of several layers, with learned weights     (layers), ()

    Peters et al. 2018, arxiv.org/abs/1802.05365
    """

    def __init__(self, layers: int):
        super().__init__()
        self.weights = nn.Parameter(torch.empty(layers))
        self.gamma = nn.Parameter(torch.empty(()))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weights)
        nn.init.ones_(self.gamma)

    def forward(self, layers: Sequence[Float[Tensor, "B T D"]]) -> Float[Tensor, "B T D"]:
        shares = self.gamma * self.weights.softmax(0)
        mixed = layers[0] * shares[0]
        for x, share in zip(layers[1:], shares[1:], strict=True):
            mixed = mixed + x * share
        return mixed


def run_layer(
    layer: nn.Module,
    x: Float[Tensor, "B T C"],
    state: LayerState | None,
    lengths: Int[Tensor, "B"] | None = None,
) -> tuple[Float[Tensor, "B T D"], LayerState]:
    """One layer's outputs and its last state, batch-first; with `lengths` of an LSTM h alone."""
    if x.size(1) == 1 and lengths is None and state is not None:
        last = run_cell(layer, x[:, 0], state)
        return last[0].unsqueeze(1), last
    if not isinstance(layer, nn.RNNBase):  # a packed layer, which has single steps only
        return _step_by_step(layer, x, state, lengths)
    if lengths is not None and state is None and _reads_padding(layer, x, lengths):
        return _read_padding(layer, x, lengths, weights_of(layer))
    before = None if state is None else tuple(part.unsqueeze(0).contiguous() for part in state)
    given = before if before is None or len(before) > 1 else before[0]
    if lengths is None:
        output, last = layer(x, given)
    else:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        output, last = layer(packed, given)
        output, _ = pad_packed_sequence(output, batch_first=True, total_length=x.size(1))
    parts = last if isinstance(last, tuple) else (last,)
    parts = parts if lengths is None else parts[:1]
    return output, _concat_directions(parts)


def _concat_directions(states: tuple[Tensor, ...]) -> LayerState:
    """States of a kernel, (directions, B, H), with the directions concatenated."""
    return tuple(torch.cat(state.unbind(0), -1) for state in states)


MIN_REAL_SHARE = 0.6  # of all positions


def _reads_padding(layer: nn.RNNBase, x: Tensor, lengths: Tensor) -> bool:
    """Whether it is faster to compute padding too, and ignore its outputs.

    On a CPU torch has a kernel for all steps of an LSTM, but not for packed sequences, which take
    two to four times as long.
    """
    known = isinstance(layer, nn.LSTM) and x.device.type == "cpu"
    return known and int(lengths.sum()) >= MIN_REAL_SHARE * x.size(0) * x.size(1)


def weights_of(layer: nn.RNNBase, dropped: float = 0.0) -> list[Tensor]:
    """The weights of a layer in the order of torch's kernels, four for each direction.

    A share `dropped` of the recurrent ones is zeroed.
    """
    weights: list[Tensor] = []
    for name, parameter in layer.named_parameters():
        weight: Tensor = parameter
        if dropped and name.startswith("weight_hh"):
            with slice_of(None):  # weights have no rows: a slice of a batch drops the same
                weight = dropout(weight, dropped, True)
        weights.append(weight)
    return weights


def run_dropped(
    layer: nn.RNNBase,
    x: Float[Tensor, "B T C"],
    state: LayerState | None,
    lengths: Int[Tensor, "B"] | None,
    dropped: float,
) -> tuple[Float[Tensor, "B T D"], LayerState]:
    """The same as `run_layer` in training, with a share of the recurrent weights dropped."""
    weights = weights_of(layer, dropped)
    if lengths is not None:
        assert state is None
        return _read_padding(layer, x, lengths, weights)
    directions = 2 if layer.bidirectional else 1
    zero = x.new_zeros(directions, x.size(0), layer.hidden_size)
    before: tuple[Tensor, ...] = (zero, zero)
    if state is not None:
        before = tuple(part.unsqueeze(0).contiguous() for part in state)
    output, last = _kernel(layer, x, before, weights, layer.bidirectional)
    return output, _concat_directions(last)


def _kernel(
    layer: nn.RNNBase,
    x: Float[Tensor, "B T C"],
    state: tuple[Tensor, ...],
    weights: list[Tensor],
    both: bool,
) -> tuple[Float[Tensor, "B T D"], tuple[Tensor, ...]]:
    """Torch's kernel for all steps of a layer, with these weights; states: (directions, B, H)."""
    options: tuple[Any, ...] = weights, True, 1, 0.0, layer.training, both, True
    match layer:
        case nn.LSTM():
            output, *last = torch.lstm(x, state, *options)
        case nn.GRU():
            output, *last = torch.gru(x, state[0], *options)
        case nn.RNN(nonlinearity="relu"):
            output, *last = torch.rnn_relu(x, state[0], *options)
        case _:
            output, *last = torch.rnn_tanh(x, state[0], *options)
    return output, tuple(last)


def _read_padding(
    layer: nn.RNNBase, x: Float[Tensor, "B T C"], lengths: Int[Tensor, "B"], weights: list[Tensor]
) -> tuple[Float[Tensor, "B T D"], LayerState]:
    """The outputs of a layer, zeros beyond each row's end, and h at its end.

    From left to right padding comes last. From right to left each row is reversed within its
    length, read from left to right, and reversed again.
    """
    positions = torch.arange(x.size(1), device=x.device)
    end = (lengths - 1)[:, None]  # (B, 1)
    real = positions <= end
    outputs = _from_left(layer, x, weights[:4])
    last = outputs[torch.arange(len(end)), end[:, 0]]
    if layer.bidirectional:
        mirrored = torch.where(real, end - positions, positions).unsqueeze(-1)  # (B, T, 1)
        back = _from_left(layer, x.gather(1, mirrored.expand_as(x)), weights[4:])
        back = back.gather(1, mirrored.expand_as(back))
        outputs, last = torch.cat([outputs, back], -1), torch.cat([last, back[:, 0]], -1)
    return outputs * real.unsqueeze(-1), (last,)


def _from_left(
    layer: nn.RNNBase, x: Float[Tensor, "B T C"], weights: list[Tensor]
) -> Float[Tensor, "B T D"]:
    """The outputs of one direction, read from left to right."""
    zero = x.new_zeros(1, x.size(0), layer.hidden_size)
    return _kernel(layer, x, (zero, zero), weights, both=False)[0]


def _step_by_step(
    layer: nn.Module,
    x: Float[Tensor, "B T C"],
    state: LayerState | None,
    lengths: Int[Tensor, "B"] | None,
) -> tuple[Float[Tensor, "B T D"], LayerState]:
    assert state is not None, "a decoder's layer has a state"
    assert lengths is None
    outputs = []
    for column in x.unbind(1):
        state = layer(column, state)
        outputs.append(state[0])
    return torch.stack(outputs, 1), state


def run_cell(layer: nn.Module, x: Float[Tensor, "B C"], state: LayerState) -> LayerState:
    """One step of a layer: without the set-up of a whole sequence's kernel, which costs more."""
    if not isinstance(layer, nn.RNNBase):
        return layer(x, state)  # type: ignore[no-any-return]
    weights: tuple[Tensor, ...] = (
        layer.weight_ih_l0,
        layer.weight_hh_l0,
        layer.bias_ih_l0,
        layer.bias_hh_l0,
    )  # type: ignore[assignment]
    match layer:
        case nn.LSTM():
            return torch.lstm_cell(x, state, *weights)
        case nn.GRU():
            return (torch.gru_cell(x, state[0], *weights),)
        case nn.RNN(nonlinearity="relu"):
            return (torch.rnn_relu_cell(x, state[0], *weights),)
        case _:
            return (torch.rnn_tanh_cell(x, state[0], *weights),)
