"""The memory of a training step, and of decoding: what is there at its fullest moment.

From the first layer to the last a step keeps what its backward pass will need; on the way back
that shrinks while gradients grow. Logits of a vocabulary are never all there (see nn.loss), and the
gradient of an output layer is ready with the loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from saccade import config as c
from saccade.plan.costs import Layer
from saccade.tasks.generate import hypotheses_of
from saccade.tasks.task import Request

WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2}  # bytes of a number that is computed with


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
        """What does not depend on the batch."""
        return self.weights + self.gradients + self.optimizer + self.average


def memory_of(layers: Sequence[Layer], train: c.Train, precision: str = "fp32") -> Memory:
    """The memory of training with steps of these layers."""
    count, width = sum(layer.parameters for layer in layers), WIDTHS[precision]
    copies = 0 if width == 4 else width  # of the weights, to compute with
    weights = (4 + copies) * count
    optimizer = 4 * train.moments * count
    average = 4 * count if train.average else 0
    kept = sum(layer.cost.keeps(width) for layer in layers)
    blocks = [layer for layer in layers if layer.block]
    entries = sum(4 * block.entry for block in blocks)
    made_anew = max((block.cost.keeps(width) for block in blocks), default=0.0)
    checkpointed = kept - sum(block.cost.keeps(width) for block in blocks) + entries + made_anew
    rest = weights + optimizer + average
    return Memory(
        weights,
        4 * count,
        optimizer,
        average,
        round(kept),
        round(checkpointed),
        round(rest + fullest(layers, width)),
        round(rest + fullest(layers, width, checkpointing=True)),
    )


def fullest(layers: Sequence[Layer], width: int, *, checkpointing: bool = False) -> float:
    """The most bytes of activations and gradients at any moment of a step."""
    most = kept = gradients = 0.0
    for layer in layers:
        most = max(most, kept + layer.cost.keeps(width) + layer.at_once[0] * width / 4)
        kept += _kept(layer, width, checkpointing)
    for layer in reversed(layers):
        own = layer.cost.keeps(width)
        anew = own if checkpointing and layer.block else 0.0
        making = 4.0 * layer.weights + layer.at_once[1] * width / 4
        most = max(most, kept + anew + gradients + making)
        kept -= _kept(layer, width, checkpointing)
        gradients += 4.0 * layer.gradients
    return max(most, gradients)


def _kept(layer: Layer, width: int, checkpointing: bool) -> float:
    return 4.0 * layer.entry if checkpointing and layer.block else layer.cost.keeps(width)


@dataclass(frozen=True, slots=True)
class Caches:
    """Bytes of what decoding keeps between two tokens."""

    hypothesis: int  # of each, at the longest output
    source: int  # of each input, whatever the hypotheses about it
    search: int  # of the configured search about one input


def caches_of(config: c.Config, source: int, precision: str = "fp32") -> Caches | None:
    """What decoding keeps after a source of so many positions; None of what has no decoder."""
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
            own = 3 * decoder.dim + source + 1  # the cell, what was said last, where it may stand
            shared = (source + 1) * decoder.dim
        case _:
            assert_never(decoder)
    rows = hypotheses_of(Request(decode))
    return Caches(own * width, shared * width, (own * rows + shared) * width)
