"""A layer with an argument that cannot be is refused when it is made, in words."""

from collections.abc import Callable

import pytest

from saccade.nn import (
    Block,
    CrossAttention,
    FeedForward,
    GatedConvolution,
    ParameterFree,
    Recurrent,
    SelfAttention,
    Sinusoidal,
)
from saccade.nn.transformer import build_norm


@pytest.mark.shapes_checked_elsewhere  # a user's layers have no checked types either
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recurrent("lstn", 4, 4), "no cell 'lstn'; choose one of elman, elman_relu, gru"),
        (lambda: Recurrent("lstm", 4, 5, bidirectional=True), r"dim \(5\) must be even"),
        (lambda: FeedForward(4, 8, "relo"), "no activation 'relo'; choose one of relu, gelu"),
        (lambda: build_norm("batch", 4), "no norm 'batch'; choose one of layer, rms"),
        (lambda: Block(4, 2, 8, norm="batch"), "choose one of layer, rms"),
        (
            lambda: Block(4, 2, 8, activation="tanh"),
            "choose one of relu, gelu, gelu_tanh, silu",
        ),
        (lambda: SelfAttention(10, 3), r"dim \(10\) must be divisible by num_heads \(3\)"),
        (lambda: SelfAttention(6, 2, rotary=True), "even width, not 3"),
        (lambda: CrossAttention(10, 4, 0), r"num_heads \(0\)"),
        (lambda: GatedConvolution(4, 2), r"kernel \(2\) must be odd"),
        (lambda: ParameterFree(4, 6), "must be equal"),
        (lambda: Sinusoidal(5), r"dim \(5\) must be even"),
    ],
)
def test_a_layer_that_cannot_be_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
