"""The layers of a network, with their parameters and costs on a batch of some shape.

Only shapes are read, so the network may be one on the meta device.
"""

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import assert_never

from torch import nn

from saccade.models import networks
from saccade.models.decoders import Decoder, EditDecoder, RecurrentDecoder, TransformerDecoder
from saccade.models.encoders import AnyEncoder, EarlyFusion, Encoder, LateFusion
from saccade.models.forecaster import Forecaster, StepForecaster
from saccade.models.heads import PerToken, PerWord, Pooled
from saccade.models.networks import Network
from saccade.models.vectors import WordVectors
from saccade.nn import bodies, stems
from saccade.nn.convolution import GatedConvolution
from saccade.nn.distributions import Distribution
from saccade.nn.loss import CHUNK_LOGITS
from saccade.plan import recurrents, transformers
from saccade.plan.costs import (
    Cost,
    Layer,
    Shape,
    dropout_mask,
    linear,
    matmul,
    norm_inputs,
    pairwise,
)

Pair = tuple[nn.Module | None, Layer]  # a layer, and the module whose parameters it has
Memory = tuple[int, int]  # the positions and the width of an encoder's memory


def layers_of(network: Network, shape: Shape) -> list[Layer]:
    """The layers in the order of the forward pass; all parameters are in one of them."""
    pairs = list(_network(network, shape))
    sizes = [{id(p): p.numel() for p in m.parameters()} if m else {} for m, _ in pairs]
    first, last = _new(sizes), _new(sizes[::-1])[::-1]
    counts = zip(first, map(_sum, sizes), last, strict=True)
    sized = [
        replace(layer, parameters=new, weights=count, gradients=gradients)
        for (_, layer), (new, count, gradients) in zip(pairs, counts, strict=True)
    ]
    rest = sum(p.numel() for p in network.parameters()) - sum(first)
    return [*sized, Layer("rest", rest, Cost(), rest, rest)] if rest else sized


def _new(each: list[dict[int, int]]) -> list[int]:
    """The number of parameters of each layer that none before it has."""
    seen: set[int] = set()
    counts = []
    for sizes in each:
        counts.append(sum(count for key, count in sizes.items() if key not in seen))
        seen |= sizes.keys()
    return counts


def _sum(sizes: dict[int, int]) -> int:
    return sum(sizes.values())


def _network(network: Network, shape: Shape) -> Iterator[Pair]:
    B, N = shape.rows, shape.targets
    match network:
        case networks.Generator():
            memory = None
            if network.encoder is not None:
                memory = yield from _encoder(network.encoder, shape)
                kept = Cost(numbers=float(B * memory[0] * memory[1]))
                yield None, Layer("encoder.memory", 0, kept)
            if network.scheduled_sampling:  # guesses: once more, without gradients
                for _, layer in _decoder(network.decoder, shape, memory):
                    yield None, layer.without_gradient()
            yield from _decoder(network.decoder, shape, memory)
            if network.monotone is not None and memory is not None:
                n, V = B * memory[0], network.monotone.output.out_features
                cost = linear(network.monotone.output, n) + Cost(single=2.0 * n * V)
                yield network.monotone, Layer("monotone", 0, cost, output=True)
            if network.words is not None:
                cost = linear(network.words.output, B)
                cost += Cost(single=B * network.words.output.out_features)
                yield network.words, Layer("words", 0, cost, output=True)
        case networks.BidirectionalLM():
            yield from _encoder(network.encoder, shape)
            yield from _token_head(network.head, 2 * N)
        case networks.TokenPredictor():
            yield from _encoder(network.encoder, shape)
            yield from _token_head(network.head, N)
            if network.pair is not None:
                yield from _pooled("pair", network.pair, B, 1, network.encoder.dim)
        case networks.Labeller() | networks.Regressor():
            memory = yield from _encoder(network.encoder, shape)
            if isinstance(network.head, PerWord):
                n, D = B * shape.target, memory[1]
                cost = _output(network.head.output, n) + dropout_mask(network.head.drop, n * D)
                cost += Cost(numbers=2.0 * n * D)
                yield network.head, Layer("head", 0, cost, output=True)
            else:
                yield from _pooled("head", network.head, B, *memory)
        case Forecaster():
            yield from _forecaster(network, shape)
        case StepForecaster():
            yield network.frame, Layer("frame", 0, Cost())
            memory = yield from _encoder(network.encoder, shape)
            yield from _decoder(network.decoder, shape, memory)
        case WordVectors():
            noise, words = shape.sources[:2]  # of a block: each word meets all that are near
            D = network.vectors.size(1)
            near, drawn = B * words * shape.target, B * words * noise
            cost = pairwise(near, D) + pairwise(drawn, D)
            if network.cbow:  # words that are near are only averaged
                cost += Cost(backward=-2.0 * near * D, attention=-2.0 * near * D)
            cost += Cost(single=B * (words + shape.target + noise) * D)
            yield network, Layer("vectors", 0, cost, output=True)
        case _:
            assert_never(network)


# --- encoders -------------------------------------------------------------------------------------


def _encoder(encoder: AnyEncoder, shape: Shape) -> Generator[Pair, None, Memory]:
    """The layers of an encoder; returns the positions and the width of its memory."""
    B = shape.rows
    match encoder:
        case Encoder():
            S = yield from _stem("encoder.stem", encoder.stem, B, shape.sources[0])
            if isinstance(encoder.stem, stems.SpelledStem):
                S = shape.target  # a position for each word
            S = yield from _body("encoder.body", encoder.body, B, S, encoder.dim)
        case EarlyFusion():
            S = 0
            for i, (stem, size) in enumerate(zip(encoder.stems, shape.sources, strict=True)):
                S += yield from _stem(f"encoder.stems.{i}", stem, B, size)
            yield encoder.marks, Layer("encoder.marks", 0, Cost())
            S = yield from _body("encoder.body", encoder.body, B, S, encoder.dim)
        case LateFusion():
            S = 0
            for i, (one, size) in enumerate(zip(encoder.encoders, shape.sources, strict=True)):
                assert isinstance(one, Encoder)
                path = f"encoder.encoders.{i}"
                positions = yield from _stem(f"{path}.stem", one.stem, B, size)
                S += yield from _body(f"{path}.body", one.body, B, positions, one.dim)
            yield encoder.marks, Layer("encoder.marks", 0, Cost())
        case _:
            assert_never(encoder)
    return S, encoder.dim


def _stem(name: str, stem: nn.Module, rows: int, size: int) -> Generator[Pair, None, int]:
    """The layer of a stem; returns how many positions it leaves."""
    cost, positions = Cost(), size
    match stem:
        case stems.TextStem():
            cost = Cost(masks=8.0 * rows * size)  # the ids
        case stems.SpelledStem():
            n, D = rows * size, stem.embedding.embedding_dim
            cost = Cost(masks=8.0 * n) + linear(stem.spelling, n)
            cost += matmul(n, 3 * D, D // 2) + matmul(n, 3 * D // 2, D // 2)
            cost += Cost(numbers=5.0 * n * D)
        case stems.LinearStem():
            cost = linear(stem.linear, rows * size, first=True)
            cost += Cost(numbers=rows * size * stem.linear.in_features)
        case stems.StridedStem():
            for i, layer in enumerate(stem.layers):
                width, before = layer.in_channels, positions
                positions = -(-positions // stem.stride)
                cost += matmul(rows * positions, 3 * width, layer.out_channels, first=i == 0)
                cost += Cost(numbers=rows * (before * width + positions * layer.out_channels))
        case stems.PatchStem():
            positions = stem.cells
            cost = linear(stem.linear, rows * positions, first=True)
            cost += Cost(numbers=rows * positions * stem.linear.in_features)
        case stems.ResidualStem():
            positions = stem.cells
            cost = _residual_stem(stem, rows)
    yield stem, Layer(name, 0, cost)
    return positions


def _residual_stem(stem: stems.ResidualStem, rows: int) -> Cost:
    side = stem.cell  # pixels of a cell of the grid, which every stage halves
    side = -(-side // stem.first.stride[0])
    pixels = rows * stem.cells * side * side
    cost = _conv2d(stem.first, pixels, first=True)
    cost += Cost(numbers=rows * stem.cells * stem.cell**2 * stem.first.in_channels)
    for block in stem.stages:
        assert isinstance(block, stems.ResidualBlock)
        before, C, E = pixels, block.conv1.in_channels, block.conv1.out_channels
        pixels = before // block.stride**2
        cost += _conv2d(block.conv1, pixels) + _conv2d(block.conv2, pixels)
        # each norm's input, and the ReLU's result, which the convolution reads
        cost += Cost(numbers=2.0 * before * C + 2.0 * pixels * E)
        if isinstance(block.skip, nn.Conv2d):
            cost += _conv2d(block.skip, pixels)
            cost += Cost(numbers=pixels * C if block.stride > 1 else 0.0)
    width = stem.last.in_features
    return cost + linear(stem.last, pixels) + Cost(numbers=2.0 * pixels * width)


def _conv2d(layer: nn.Conv2d, pixels: float, *, first: bool = False) -> Cost:
    """A convolution that leaves so many pixels."""
    width = layer.in_channels * layer.kernel_size[0] * layer.kernel_size[1]
    return matmul(pixels, width, layer.out_channels, first=first)


def _body(
    name: str, body: bodies.Body, rows: int, size: int, dim: int
) -> Generator[Pair, None, int]:
    """The layers of a body; returns how many positions it leaves."""
    n = rows * size
    match body:
        case bodies.RecurrentBody():
            yield None, Layer(f"{name}.drop", 0, dropout_mask(body.drop, n * dim))
            for path, module, cost in recurrents.layers(body.layers, rows, size):
                yield module, Layer(f"{name}.layers.{path}", 0, cost)
            last = dropout_mask(body.drop, n * dim)
            if body.mix is not None:
                last += Cost(numbers=n * dim)
            yield body.mix, Layer(f"{name}.mix", 0, last)
        case bodies.TransformerBody():
            yield from transformers.stack(body, name, rows, size)
        case bodies.ConvolutionBody():
            first = dropout_mask(body.drop, n * dim)
            yield body.positions, Layer(f"{name}.positions", 0, first)
            for i, layer in enumerate(body.layers):
                assert isinstance(layer, GatedConvolution)
                width = dim * layer.convolution.kernel_size[0]
                cost = matmul(n, width, 2 * dim) + dropout_mask(layer.drop, n * dim)
                cost += Cost(numbers=3.0 * n * dim)
                path = f"{name}.layers.{i}"
                momentary = 4.0 * n * dim * 2
                transient = momentary, 2 * momentary
                yield layer, Layer(path, 0, cost, block=True, entry=n * dim, transient=transient)
        case bodies.PyramidBody():
            for i, one in enumerate(body.layers):
                assert isinstance(one, nn.RNNBase)
                size = -(-size // 2) if i else size
                cost = recurrents.layer(one, rows, size)
                cost += dropout_mask(body.drop, rows * size * one.input_size)
                yield one, Layer(f"{name}.layers.{i}", 0, cost)
        case bodies.NoBody():
            yield None, Layer(name, 0, dropout_mask(body.drop, n * dim))
        case _:
            assert_never(body)
    return size


# --- decoders and heads ---------------------------------------------------------------------------


def _decoder(decoder: Decoder, shape: Shape, memory: Memory | None) -> Iterator[Pair]:
    B, T, D = shape.rows, shape.target, decoder.dim
    n = B * T
    embedded = Cost(masks=8.0 * n)  # the ids
    if isinstance(decoder.embedding, stems.NumberEmbedding):
        embedded = linear(decoder.embedding.linear, n, first=True)
        embedded += Cost(numbers=n * decoder.embedding.linear.in_features)
    yield decoder.embedding, Layer("decoder.embedding", 0, embedded)
    if isinstance(decoder, RecurrentDecoder):
        yield None, Layer("decoder.drop", 0, dropout_mask(decoder.drop, 2 * n * D))
        for path, module, cost in recurrents.decoder(decoder, B, T, memory):
            yield module, Layer(f"decoder.{path}", 0, cost)
    elif isinstance(decoder, EditDecoder):
        assert memory is not None
        yield None, Layer("decoder.drop", 0, dropout_mask(decoder.drop, 2 * n * D))
        for path, module, cost in recurrents.layers(decoder.layers, B, T):
            yield module, Layer(f"decoder.layers.{path}", 0, cost)
        cost = recurrents.edits(decoder.attention, B, T, memory[0])
        yield decoder.attention, Layer("decoder.attention", 0, cost, output=True)
        return
    else:
        assert isinstance(decoder, TransformerDecoder)
        size = None if memory is None else memory[0]
        yield from transformers.stack(decoder.stack, "decoder.stack", B, T, size)
    if decoder.pointer is not None and memory is not None:
        pointer, (S, C) = decoder.pointer, memory
        cost = linear(pointer.query, n) + linear(pointer.key, B * S) + linear(pointer.gate, n)
        cost += pairwise(n * S, D + C) + Cost(numbers=n * (S + 2 * D + C) + B * S * D)
        yield pointer, Layer("decoder.pointer", 0, cost)
        assert isinstance(decoder.output, nn.Linear)
        cost = linear(decoder.output, shape.targets)
        cost += Cost(single=2.0 * shape.targets * decoder.output.out_features)
        yield decoder.output, Layer("decoder.output", 0, cost, output=True)
        return
    yield decoder.output, _projection("decoder.output", decoder.output, shape.targets)


def _token_head(head: PerToken, targets: int) -> Iterator[Pair]:
    if head.activation != "off":
        D = head.dense.out_features
        cost = linear(head.dense, targets) + norm_inputs(head.norm, targets, D)
        cost += Cost(numbers=targets * (head.dense.in_features + 2 * D))
        yield head.dense, Layer("head.dense", 0, cost)
        yield head.norm, Layer("head.norm", 0, Cost())
    yield head.output, _projection("head.output", head.output, targets)


def _projection(name: str, output: nn.Module, targets: int) -> Layer:
    """An output layer: of a vocabulary, whose logits are made some megabytes at a time."""
    cost = _output(output, targets)
    if not isinstance(output, nn.Linear):
        return Layer(name, 0, cost, output=True)
    V, D = output.weight.shape
    # The gradients are ready with the loss: of the weights, and of what the layer reads.
    cost += Cost(numbers=float(targets * D), single=float(V * D + V))
    chunk = min(targets, max(64, CHUNK_LOGITS // V))
    chunked = 4.0 * (2 * chunk * V + V * D)
    return Layer(name, 0, cost, output=True, transient=(chunked, 4.0 * V * D))


def _output(output: nn.Module, n: float) -> Cost:
    """The last product of a network: labels, tokens, or the parameters of a distribution."""
    if isinstance(output, Distribution):
        (inner,) = (one for one in output.modules() if isinstance(one, nn.Linear))
        return linear(inner, n) + Cost(numbers=n * (inner.in_features + 4 * inner.out_features))
    assert isinstance(output, nn.Linear)
    return linear(output, n)


def _pooled(name: str, head: Pooled, rows: int, size: int, dim: int) -> Iterator[Pair]:
    n = rows * size
    cost = (
        _output(head.output, rows) + dropout_mask(head.drop, rows * dim) + Cost(numbers=rows * dim)
    )
    if head.activation != "off":
        cost += linear(head.dense, rows) + Cost(numbers=2.0 * rows * dim)
    if head.pool == "attention":
        cost += linear(head.score, n) + pairwise(n, dim) + Cost(numbers=n * (dim + 1))
    yield head, Layer(name, 0, cost, output=True)


def _forecaster(network: Forecaster, shape: Shape) -> Iterator[Pair]:
    """A forecast of all steps at once."""
    B, frame = shape.rows, network.frame
    S, H, C = frame.lookback, frame.horizon, frame.channels
    effects = matmul(B * (S + H), frame.known, C, first=True)
    learned = any(True for _ in frame.effects.parameters())  # then what is read has a gradient
    yield frame, Layer("frame", 0, effects + Cost(numbers=B * C * (2 * S + 8 * H)))
    if network.shortcut is not None:
        inputs = network.shortcut.weight.size(1)
        cost = matmul(B * C, S, H, first=not learned) + matmul(B, inputs - S, H, first=True)
        yield network.shortcut, Layer("shortcut", 0, cost + Cost(numbers=B * C * S))
    if network.encoder is not None and network.head is not None:
        memory = yield from _encoder(network.encoder, shape)
        yield from _pooled("head", network.head, B, *memory)
    yield network.spread, Layer("spread", 0, Cost())
