"""Networks packed for inference on a CPU: linear layers with prepacked weights.

Quantised to 8 bits they also take a quarter of the memory, and less time: weights are quantised
once by row, activations dynamically by the range of each call.
"""

import copy
import platform
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.nn.attention import Concat
from saccade.nn.loss import Vocabulary
from saccade.nn.products import Linear
from saccade.nn.recurrent import LayerState

# A kernel is compiled for each number of rows: above this, only for multiples of it.
ROW_MULTIPLE = 16

MIN_ROWS_FOR_ONEDNN = 4096  # of a matrix: then a kernel that writes its result once is faster

Packing = Callable[[nn.Linear], nn.Module]


class PackedLinear(nn.Module):
    """y = x W^T + b with W in the order in which oneDNN reads it."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(
            linear.weight.detach(), 4 * ROW_MULTIPLE
        )
        self.bias = linear.bias

    def forward(self, x: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape F"]:
        rows = x.flatten(0, -2)  # (N, D)
        N = rows.size(0)
        if N > ROW_MULTIPLE and N % ROW_MULTIPLE:
            rows = F.pad(rows, (0, 0, 0, ROW_MULTIPLE - N % ROW_MULTIPLE))
        y = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return y[:N].unflatten(0, x.shape[:-1])  # type: ignore[no-any-return]


class Int8Linear(nn.Module):
    """y = x W^T + b with W as integers from -127 to 127 and a scale for each row."""

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


class WideInt8Linear(nn.Module):
    """The same for very many rows of W, with oneDNN's kernel, which dequantises as it writes.

    Activations have all of their 8 bits: it is for processors with 32-bit sums (VNNI) only.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight = linear.weight.detach().float()  # (out, in)
        self.scale = (weight.abs().amax(1) / 127).clamp(min=1e-12)
        whole = (weight / self.scale[:, None]).round().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(whole, None)
        self.zero = torch.zeros(len(weight), dtype=torch.int)
        self.bias = None if linear.bias is None else linear.bias.detach().float()

    def forward(self, x: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape F"]:
        rows = x.flatten(0, -2)  # (N, D)
        step = max(float(rows.abs().amax()), 1e-12) / 127
        whole = (rows / step).add_(128.5).to(torch.uint8)
        y = torch.ops.onednn.qlinear_pointwise(
            whole, step, 128, self.packed, self.scale, self.zero, self.bias,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        return y.unflatten(0, x.shape[:-1])  # type: ignore[no-any-return]


class PackedRecurrent(nn.Module):
    """A recurrent layer of one direction, step by step: its two products by packed layers."""

    def __init__(self, layer: nn.RNNBase, linear: Packing):
        super().__init__()
        self.kind = "relu" if getattr(layer, "nonlinearity", "") == "relu" else layer.mode.lower()
        self.input = linear(_linear(layer.weight_ih_l0, layer.bias_ih_l0))
        self.hidden = linear(_linear(layer.weight_hh_l0, layer.bias_hh_l0))

    def forward(self, x: Float[Tensor, "B C"], state: LayerState) -> LayerState:
        of_x, of_h = self.input(x), self.hidden(state[0])
        match self.kind:
            case "lstm":
                i, f, g, o = (of_x + of_h).chunk(4, -1)
                c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
                return torch.sigmoid(o) * torch.tanh(c), c
            case "gru":
                (r, z, n), (hr, hz, hn) = of_x.chunk(3, -1), of_h.chunk(3, -1)
                z = torch.sigmoid(z + hz)
                n = torch.tanh(n + torch.sigmoid(r + hr) * hn)
                return (n + z * (state[0] - n),)
            case "relu":
                return (torch.relu(of_x + of_h),)
            case _:
                return (torch.tanh(of_x + of_h),)


def _int8(linear: nn.Linear) -> nn.Module:
    wide = linear.out_features >= MIN_ROWS_FOR_ONEDNN and torch.cpu._is_vnni_supported()
    return WideInt8Linear(linear) if wide else Int8Linear(linear)


def _linear(weight: Any, bias: Any) -> nn.Linear:
    linear = nn.Linear(weight.size(1), weight.size(0))
    linear.weight, linear.bias = weight, bias
    return linear


def packed(network: nn.Module) -> nn.Module:
    """A faster copy for CPU inference with the same outputs; the network itself if unsupported."""
    first = next(network.parameters())
    ready = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    intel = platform.machine() in ("x86_64", "AMD64")
    if not (ready and intel) or first.device.type != "cpu" or first.dtype != torch.float32:
        return network
    return _replaced(network, PackedLinear)


def quantised(network: nn.Module) -> nn.Module:
    """A copy of a network, for a CPU and for inference alone, with products of 8 bits."""
    missing = not hasattr(torch, "quantize_per_channel")
    if missing or torch.backends.quantized.engine in ("none", None):
        raise ConfigError("int8: this build of torch has no 8-bit kernels; leave it out")
    return _replaced(network, _int8)


def _replaced(network: nn.Module, linear: Packing) -> nn.Module:
    """A copy of a network with other linear layers.

    Recurrent layers of an encoder, which read a whole source at once, stay as they are.
    """
    others: dict[int, Any] = {}
    decoder = getattr(network, "decoder", nn.Identity())
    for layer in decoder.modules():
        if isinstance(layer, nn.RNNBase):
            others[id(layer)] = PackedRecurrent(layer, linear)
    for parent in network.modules():
        for child in parent.children():
            plain = type(child) is Linear or type(child) is Vocabulary
            if not plain or isinstance(parent, Concat):  # it uses slices of its matrix
                continue
            assert isinstance(child, Linear)
            if child.out_features >= ROW_MULTIPLE:  # else it is no faster
                others[id(child)] = linear(child)
    kept = {id(p): p for p in network.parameters()}  # shared, where they are not packed
    return copy.deepcopy(network, others | kept).cpu().eval()
