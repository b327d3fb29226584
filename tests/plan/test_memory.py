"""Memory by formula is what torch keeps for the backward pass, and what a step has at its peak."""

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from saccade import config as c
from saccade.data.batches import Batch
from saccade.models.build import build
from saccade.models.networks import Network
from saccade.nn.padded import UNSCORED_ID
from saccade.plan.layers import layers_of
from saccade.plan.memory import caches_of, memory_of
from saccade.plan.subject import shape_of
from saccade.text.vocab import Inventory
from tests.plan.networks import TRANSLATIONS, full, language_model, other, translation
from tests.plan.test_flops import ALONE

KEPT_TOLERANCE, PEAK_TOLERANCE = 0.1, 0.15


def kept_by_torch(network: Network, batch: Batch) -> int:
    """The bytes of all tensors that the graph holds, but the weights; each storage once."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    found: dict[int, tuple[int, Any]] = {}

    def look(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = (storage.nbytes(), storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor):
        network(batch)
    return sum(size for size, _ in found.values())


def keeps_the_same(network: Network, batch: Batch) -> None:
    layers = layers_of(network, shape_of(batch, network))
    ours = sum(layer.cost.bytes_kept(4) for layer in layers)
    assert ours == pytest.approx(kept_by_torch(network, batch), rel=KEPT_TOLERANCE)


@pytest.mark.parametrize(("encoder", "decoder"), TRANSLATIONS)
def test_an_encoder_and_a_decoder_keep_what_torch_keeps(encoder: str, decoder: str) -> None:
    keeps_the_same(*translation(encoder, decoder, dropout=0.1))


@pytest.mark.parametrize("decoder", ALONE)
def test_a_language_model_keeps_what_torch_keeps(decoder: str) -> None:
    keeps_the_same(*language_model(decoder, dropout=0.1))


@pytest.mark.parametrize("name", ["bert", "elmo", "pyramid", "classifier", "tagger", "patches"])
def test_any_other_network_keeps_what_torch_keeps(name: str) -> None:
    keeps_the_same(*other(name))


# --- peaks ----------------------------------------------------------------------------------------


def transformer(**more: Any) -> dict[str, Any]:
    sizes = {"dim": 128, "num_heads": 4, "ff_dim": 512, "num_layers": 3, "dropout": 0.1}
    return {"kind": "transformer"} | sizes | more


def recurrent(**more: Any) -> dict[str, Any]:
    return {"kind": "recurrent", "dim": 128, "num_layers": 2, "dropout": 0.2} | more


BERT = {"norm_first": False, "activation": "gelu", "norm_embedding": True}
SHAPES: dict[str, tuple[dict[str, Any], int, int, int]] = {  # tables, vocabulary, rows, positions
    "translate": (
        {"task": {"kind": "translate", "joint": True}}
        | {"encoder": transformer(), "decoder": transformer()},
        *(8000, 24, 32),
    ),
    "language": (
        {"task": {"kind": "language", "context": 128}}
        | {"decoder": transformer(activation="gelu_tanh", positions="learned")},
        *(4000, 12, 128),
    ),
    "bert": (
        {"task": {"kind": "pretrain", "context": 64}, "head": {"kind": "per_token"}}
        | {"encoder": transformer(attention_dropout=0.1, **BERT)},
        *(4000, 24, 64),
    ),
    "lstm": (
        {"task": {"kind": "translate"}, "encoder": recurrent()}
        | {"decoder": recurrent(attention="general", context="output")},
        *(4000, 32, 32),
    ),
    "additive": (
        {"task": {"kind": "translate"}, "encoder": recurrent()}
        | {"decoder": recurrent(num_layers=1)},
        *(2000, 16, 24),
    ),
    "convolution": (
        {"task": {"kind": "classify"}, "head": {"kind": "pooled"}}
        | {"encoder": {"kind": "convolution", "dim": 128, "num_layers": 8}},
        *(4000, 32, 64),
    ),
    "llama": (
        {"task": {"kind": "language", "context": 128}}
        | {"decoder": transformer(norm="rms", activation="swiglu", positions="rotary", bias=False)},
        *(4000, 12, 128),
    ),
}


def made(name: str) -> tuple[c.Config, Network, Batch]:
    raw, V, B, T = SHAPES[name]
    config, ids = c.parse(raw, "test"), Inventory(V, (0, 1, 2, 3, 4), 1)
    sources = [ids] if config.encoder is not None else []
    labels = config.task.kind == "classify"
    network = build(config, sources, Inventory(5) if labels else ids, seed=1).train()
    source = tuple(full(torch.randint(5, V, (B, T))) for _ in sources)
    target = torch.randint(5, 5 + V - 10, (B, T + 1))
    if config.task.kind == "pretrain":
        target = target[:, 1:]
        target[torch.rand(target.shape) > 0.15] = UNSCORED_ID
    return config, network, Batch(source, full(torch.randint(5, (B, 1)) if labels else target))


def peak_of_torch(network: Network, batch: Batch) -> int:
    """The most bytes that torch's allocator has given out at a time in a whole step."""
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)

    def step() -> None:
        network(batch)[0].sum.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()  # from now on the optimiser has its moments
    there = sum(12 * parameter.numel() for parameter in network.parameters())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    results: Any = recorded.profiler
    events = results.kineto_results.events()
    sizes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = most = 0
    for _, size in sizes:
        now += size
        most = max(most, now)
    return there + most


@pytest.mark.parametrize("name", SHAPES)
def test_the_peak_of_a_step_is_that_of_torchs_allocator(name: str) -> None:
    config, network, batch = made(name)
    found = memory_of(layers_of(network, shape_of(batch, network)), config.train)
    assert found.peak == pytest.approx(peak_of_torch(network, batch), rel=PEAK_TOLERANCE)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert (found.weights, found.gradients, found.optimizer) == (4 * count, 4 * count, 8 * count)


@pytest.mark.parametrize("name", ["translate", "language", "convolution"])
def test_checkpointing_keeps_less(name: str) -> None:
    config, network, batch = made(name)
    found = memory_of(layers_of(network, shape_of(batch, network)), config.train)
    assert found.checkpointed < 0.7 * found.activations
    assert found.checkpointed_peak < found.peak


def test_an_average_and_the_optimiser_take_their_copies() -> None:
    config, network, batch = made("translate")
    layers = layers_of(network, shape_of(batch, network))
    train = config.train.model_copy(update={"average": 0.9, "optimizer": "sgd"})
    plain, other_way = memory_of(layers, config.train), memory_of(layers, train)
    assert other_way.average == plain.weights
    assert other_way.optimizer == plain.optimizer // 2
    assert other_way.peak == plain.peak  # one copy more, one less


def test_the_caches_of_decoding_are_those_of_the_network() -> None:
    config, network, _ = made("translate")
    network.eval()
    source, steps = 10, config.decode.max_len
    found = caches_of(config, source)
    assert found is not None
    with torch.inference_mode():
        memory = network.encode((full(torch.randint(5, 100, (1, source))),))
        state = network.decoder.start(memory, 1)
        _, state = network.decoder(torch.randint(5, 100, (1, steps)), state)
    cached = [t.tensor for layer in state.cache.layers.tree for t in layer]
    heads, _ = state.source.tree
    assert found.hypothesis == sum(tensor.nbytes for tensor in cached)
    assert found.source == sum(tensor.nbytes for layer in heads for tensor in layer)
    assert found.search == found.source + config.decode.width * found.hypothesis
