"""FLOPs by formula are those that torch counts while a network computes."""

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from saccade.data.batches import Batch
from saccade.models.networks import Network
from saccade.plan.flops import flops_of
from saccade.plan.layers import layers_of
from saccade.plan.subject import shape_of
from tests.architectures import DECODERS
from tests.plan.networks import OTHERS, TRANSLATIONS, language_model, other, translation

ALONE = [
    name
    for name in DECODERS
    if (name.endswith("_off") and "copied" not in name) or name.startswith(("trans", "gpt", "lla"))
]
TOLERANCE = 0.01


def counted(work: Callable[[], object]) -> float:
    """What torch counts, with kernels that it knows in place of fused ones."""
    with (
        mock.patch("saccade.nn.products.onednn_is_faster", return_value=False),
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
    ):
        enabled = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)  # whose kernels for an LSTM it does not know
        try:
            work()
        finally:
            torch._C._set_mkldnn_enabled(enabled)
    return float(counter.get_total_flops())


def agree(network: Network, batch: Batch) -> None:
    layers = layers_of(network, shape_of(batch, network))
    ours = flops_of(layers)

    def step() -> None:
        network(batch)[0].sum.backward()

    torch_says = counted(step)
    assert ours.step == pytest.approx(torch_says, rel=TOLERANCE)
    assert 0.0 < ours.forward < ours.backward
    assert ours.attention + ours.output < ours.step
    own = sum(parameter.numel() for parameter in network.parameters())
    assert sum(layer.parameters for layer in layers) == own
    assert sum(layer.gradients for layer in layers) == own


@pytest.mark.parametrize(("encoder", "decoder"), TRANSLATIONS)
def test_a_step_of_an_encoder_and_a_decoder_has_the_flops_of_torch(
    encoder: str, decoder: str
) -> None:
    agree(*translation(encoder, decoder))


@pytest.mark.parametrize("decoder", ALONE)
def test_a_step_of_a_language_model_has_the_flops_of_torch(decoder: str) -> None:
    agree(*language_model(decoder))


@pytest.mark.parametrize("name", OTHERS)
def test_a_step_of_any_other_network_has_the_flops_of_torch(name: str) -> None:
    agree(*other(name))


def test_scheduled_sampling_adds_a_forward_pass_of_the_decoder() -> None:
    network, batch = translation("transformer", "transformer")
    shape = shape_of(batch, network)
    layers = layers_of(network, shape)
    plain = flops_of(layers)
    decoder = sum(one.cost.forward for one in layers if not one.name.startswith("encoder"))
    assert 0.0 < decoder < plain.forward
    network.scheduled_sampling = 0.5
    sampled = flops_of(layers_of(network, shape))
    assert sampled.forward == pytest.approx(plain.forward + decoder)
    assert sampled.backward == plain.backward


def test_checkpointing_computes_the_blocks_twice() -> None:
    network, batch = translation("transformer", "transformer")
    layers = layers_of(network, shape_of(batch, network))
    blocks = sum(layer.cost.forward for layer in layers if layer.block)
    again = flops_of(layers, checkpointing=True).step - flops_of(layers).step
    assert again == pytest.approx(blocks)
    assert 0.5 < blocks / flops_of(layers).forward < 1.0
