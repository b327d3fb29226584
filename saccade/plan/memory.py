"""The peak memory of a training step, and the memory of decoding.

In the forward pass activations are kept for the backward pass, in which they shrink while gradients
grow. Logits of a vocabulary are computed in chunks (see nn.loss), and the gradient of an output
layer is ready with the loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from saccade import config as c
from saccade.plan.costs import Layer
from saccade.tasks.generate import hypotheses_of
from saccade.tasks.task import Request

WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2}  # bytes of a number


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of training, part by part."""

    weights: int
    gradients: int
    optimizer: int
    average: int  # the moving average of weights
    activations: int  # kept from the forward to the backward pass
    checkpointed: int  # the same, where blocks are computed a second time
    peak: int
    checkpointed_peak: int

    @property
    def static(self) -> int:
        """The memory that does not depend on the batch."""
        return self.weights + self.gradients + self.optimizer + self.average


def memory_of(layers: Sequence[Layer], train: c.Train, precision: str = "fp32") -> Memory:
    """The memory of training with steps of these layers."""
    count, width = sum(layer.parameters for layer in layers), WIDTHS[precision]
    copies = 0 if width == 4 else width  # of the weights, to compute with
    weights = (4 + copies) * count
    optimizer = 4 * train.moments * count
    average = 4 * count if train.average else 0
    kept = sum(layer.cost.bytes_kept(width) for layer in layers)
    blocks = [layer for layer in layers if layer.block]
    entries = sum(4 * block.entry for block in blocks)
    recomputed = max((block.cost.bytes_kept(width) for block in blocks), default=0.0)
    checkpointed = (
        kept - sum(block.cost.bytes_kept(width) for block in blocks) + entries + recomputed
    )
    rest = weights + optimizer + average
    return Memory(
        weights,
        4 * count,
        optimizer,
        average,
        round(kept),
        round(checkpointed),
        round(rest + peak_activations(layers, width)),
        round(rest + peak_activations(layers, width, checkpointing=True)),
    )


def peak_activations(layers: Sequence[Layer], width: int, *, checkpointing: bool = False) -> float:
    """The peak of activations and gradients in a step, in bytes."""
    peak = kept = gradients = 0.0
    for layer in layers:
        peak = max(peak, kept + layer.cost.bytes_kept(width) + layer.transient[0] * width / 4)
        kept += _kept(layer, width, checkpointing)
    for layer in reversed(layers):
        own = layer.cost.bytes_kept(width)
        recomputed = own if checkpointing and layer.block else 0.0
        transient = 4.0 * layer.weights + layer.transient[1] * width / 4
        peak = max(peak, kept + recomputed + gradients + transient)
        kept -= _kept(layer, width, checkpointing)
        gradients += 4.0 * layer.gradients
    return max(peak, gradients)


def _kept(layer: Layer, width: int, checkpointing: bool) -> float:
    return 4.0 * layer.entry if checkpointing and layer.block else layer.cost.bytes_kept(width)


@dataclass(frozen=True, slots=True)
class Caches:
    """Bytes of the state of decoding."""

    hypothesis: int  # of each, at the longest output
    source: int  # of each input, shared by its hypotheses
    search: int  # of the configured search of one input


def caches_of(config: c.Config, source: int, precision: str = "fp32") -> Caches | None:
    """The state of decoding after a source of `source` positions; None without a decoder."""
    decoder, decode, width = config.decoder, config.decode, WIDTHS[precision]
    if decoder is None:
        return None
    has_source = config.encoder is not None
    memory_dim = config.encoder.dim if config.encoder is not None else 0
    match decoder:
        case c.TransformerDecoder():
            heads = decoder.num_heads
            one = decoder.head_dim or decoder.dim // heads
            each = 2 * decoder.num_layers * one  # a key and a value in every layer
            positions = decode.max_len
            if decoder.positions == "learned":
                positions = min(positions, decoder.max_positions)
            own = each * (decoder.num_kv_heads or heads) * positions
            shared = each * heads * source if has_source else 0
        case c.RecurrentDecoder():
            own = decoder.num_layers * decoder.dim * (2 if decoder.cell == "lstm" else 1)
            attends = decoder.attention != "off" and has_source
            shared = source * (memory_dim + decoder.dim) if attends else memory_dim
        case c.EditDecoder():
            own = 3 * decoder.dim + source + 1  # the cell, the last token, the places
            shared = (source + 1) * decoder.dim
        case _:
            assert_never(decoder)
    rows = hypotheses_of(Request(decode))
    return Caches(own * width, shared * width, (own * rows + shared) * width)
