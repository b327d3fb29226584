"""Linear layers with weights of 8 bits: a quarter of the memory, and faster on a CPU.

A row of weights is scaled to whole numbers once; activations are, at each call, by their own range.
"""

import copy
import warnings

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.nn.attention import Concat


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


def quantised(network: nn.Module) -> nn.Module:
    """A copy of a network, for a CPU and for inference alone, with linear layers of 8 bits."""
    lacking = not hasattr(torch, "quantize_per_channel")
    if lacking or torch.backends.quantized.engine in ("none", None):
        raise ConfigError("int8: this build of torch has no 8-bit kernels; leave it out")
    found = copy.deepcopy(network).cpu().eval()
    for parent in list(found.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and not isinstance(parent, Concat):  # that cuts its matrix
                setattr(parent, name, Int8Linear(child))
    return found
