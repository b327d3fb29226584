"""`parallelize(network, mesh, config)`: a network distributed over processes, from outside.

Tensor parallelism first, then activation checkpointing, then FSDP around each block: torch's own
order. `models` and `nn` know nothing of it.
"""

import logging
import warnings
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.utils.checkpoint import checkpoint

from saccade import config as c
from saccade.distributed.tensor import apply_tensor, check_tensor
from saccade.errors import ConfigError
from saccade.models.heads import BagOfWords, CTCHead, PerToken, Pooled
from saccade.nn.dropout import current_slice, slice_of
from saccade.nn.precision import computing_in, current_format
from saccade.nn.products import Linear
from saccade.nn.transformer import Block


def check(config: c.Config, shard: int, tensor: int, dtype: torch.dtype) -> None:
    """ConfigError where a network cannot be distributed in this way."""
    transformer = any(isinstance(p, c.Transformer) for p in (config.encoder, config.decoder))
    if tensor > 1:
        check_tensor(config, tensor)
    if config.parallel.checkpoint_activations and not transformer:
        raise ConfigError("parallel: checkpoint_activations is for the blocks of a Transformer")
    if shard == tensor == 1:
        return
    if dtype == torch.float16:
        raise ConfigError("train.precision: fp16 is not for weights in parts: use 'bf16'")
    if dtype != torch.float32 and not transformer:
        raise ConfigError(
            "train.precision: weights in parts are computed with in half precision by "
            "Transformers alone: use 'fp32'"
        )
    if isinstance(config.start, c.Gradual):
        raise ConfigError("start: kind 'gradual' needs whole weights: set parallel.shard to 1")


def parallelize(
    network: nn.Module, mesh: DeviceMesh, config: c.Parallel, dtype: torch.dtype = torch.float32
) -> None:
    """Distribute a network in place; before, every process has the same weights.

    `mesh` has the dimensions data, shard and tensor.
    """
    if mesh["tensor"].size() > 1:
        apply_tensor(network, mesh["tensor"], config.sequence)
    blocks = [module for module in network.modules() if isinstance(module, Block)]
    if config.checkpoint_activations:
        for block in blocks:
            block.forward = checkpointed(block.forward)  # type: ignore[method-assign]
    if mesh["shard"].size() == 1:
        return
    rows = mesh["data", "shard"] if mesh["data"].size() > 1 else mesh["shard"]
    pinned = mesh.device_type == "cuda"  # only copies to a GPU need pinned memory
    offload = CPUOffloadPolicy(pin_memory=pinned) if config.offload else OffloadPolicy()
    single = MixedPrecisionPolicy()
    half = MixedPrecisionPolicy(dtype, torch.float32) if dtype != torch.float32 else single
    for block in blocks:
        inner = [m for name, m in block.named_children() if not name.endswith(("norm", "drop"))]
        fully_shard(inner, mesh=rows, mp_policy=half, offload_policy=offload)
        fully_shard(block, mesh=rows, mp_policy=single, offload_policy=offload)
    for layer in layers_of_heads(network) if dtype != torch.float32 else ():
        fully_shard(layer, mesh=rows, mp_policy=half, offload_policy=offload)
    fully_shard(network, mesh=rows, mp_policy=single, offload_policy=offload)
    # FSDP warns of views because of in-place changes, which are not made to the output of a block.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    for module in network.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # losses are sums, and so are gradients
            module.set_force_sum_reduction_for_comms(True)


def layers_of_heads(network: nn.Module) -> list[nn.Module]:
    """The linear layers that read the output of blocks, in its number format."""
    heads = [
        m for m in network.modules() if isinstance(m, Pooled | PerToken | CTCHead | BagOfWords)
    ]
    return [layer for head in heads for layer in head.children() if type(layer) is Linear]


def checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A block's forward pass with activation checkpointing.

    The backward pass may recompute in another thread: the context variables are set there again.
    """

    @contextmanager
    def recompute_context(rows: Any, dtype: torch.dtype | None) -> Any:
        with ExitStack() as stack:
            stack.enter_context(slice_of(rows))
            if dtype is not None:
                stack.enter_context(computing_in(dtype))
            yield

    def contexts() -> tuple[Any, Any]:
        return ExitStack(), recompute_context(current_slice(), current_format())

    def run(*arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **named)
        return checkpoint(forward, *arguments, use_reentrant=False, context_fn=contexts, **named)

    return run
