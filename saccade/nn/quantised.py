"""Linear layers with weights of 8 bits: a quarter of the memory, and faster on a CPU.

A row of weights is scaled to whole numbers once; activations are, at each call, by their own range.
"""

import copy
import warnings
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.nn.attention import Concat
from saccade.nn.recurrent import LayerState


class Int8Linear(nn.Module):
    """y = x W^T + b with W as whole numbers from -127 to 127 and a scale for each row."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight = linear.weight.detach().float()  # (out, in)
        scale = (weight.abs().amax(1) / 127).clamp(min=1e-12).double()
        zero = torch.zeros_like(scale, dtype=torch.long)
        with warnings.catch_warnings():  # its successor lives outside of torch
            warnings.filterwarnings("ignore", message="torch.quantize_per")
            rows = torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8)
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.quantized.linear_prepack(rows, bias)

    def forward(self, x: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape F"]:
        # One bit less of the activations' range: without it 8-bit sums can overflow on AVX2.
        return torch.ops.quantized.linear_dynamic(x, self.packed, True)  # type: ignore[no-any-return]


class Int8Recurrent(nn.Module):
    """A recurrent layer of one direction, step by step: its two products of 8 bits."""

    def __init__(self, layer: nn.RNNBase):
        super().__init__()
        self.kind = "relu" if getattr(layer, "nonlinearity", "") == "relu" else layer.mode.lower()
        self.input = Int8Linear(_linear(layer.weight_ih_l0, layer.bias_ih_l0))
        self.hidden = Int8Linear(_linear(layer.weight_hh_l0, layer.bias_hh_l0))

    def forward(self, x: Float[Tensor, "B C"], state: LayerState) -> LayerState:
        ours, theirs = self.input(x), self.hidden(state[0])
        match self.kind:
            case "lstm":
                i, f, g, o = (ours + theirs).chunk(4, -1)
                c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
                return torch.sigmoid(o) * torch.tanh(c), c
            case "gru":
                (r, z, n), (hr, hz, hn) = ours.chunk(3, -1), theirs.chunk(3, -1)
                z = torch.sigmoid(z + hz)
                n = torch.tanh(n + torch.sigmoid(r + hr) * hn)
                return (n + z * (state[0] - n),)
            case "relu":
                return (torch.relu(ours + theirs),)
            case _:
                return (torch.tanh(ours + theirs),)


def _linear(weight: Any, bias: Any) -> nn.Linear:
    linear = nn.Linear(weight.size(1), weight.size(0))
    linear.weight, linear.bias = weight, bias
    return linear


def quantised(network: nn.Module) -> nn.Module:
    """A copy of a network, for a CPU and for inference alone, with products of 8 bits.

    Recurrent layers of an encoder, which read a whole source at once, stay as they are.
    """
    lacking = not hasattr(torch, "quantize_per_channel")
    if lacking or torch.backends.quantized.engine in ("none", None):
        raise ConfigError("int8: this build of torch has no 8-bit kernels; leave it out")
    found = copy.deepcopy(network).cpu().eval()
    decoder = getattr(found, "decoder", nn.Identity())
    stepping = {id(module) for module in decoder.modules()}
    for parent in list(found.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and not isinstance(parent, Concat):  # that cuts its matrix
                setattr(parent, name, Int8Linear(child))
            elif isinstance(child, nn.RNNBase) and id(child) in stepping:
                setattr(parent, name, Int8Recurrent(child))
    return found
