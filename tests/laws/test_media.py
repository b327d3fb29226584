"""What must hold for every stem, with every body and decoders of each kind."""

from functools import cache
from itertools import product
from typing import Any

import pytest
import torch

from saccade import config as c
from saccade.config import parse
from saccade.data.batches import Batch
from saccade.models.build import Source, build
from saccade.models.networks import Classifier, Generator
from saccade.nn.padded import Padded, pad
from saccade.nn.watch import over_time, watch
from tests.architectures import DECODERS, ENCODERS, IDS, VOCAB

STEMS: dict[str, Source] = {
    "text": IDS,
    "linear": c.Vectors(c.Numbers(), 3),
    "strided": c.Vectors(c.Sound(stride=4), 5),
    "patches": c.Vectors(c.Picture(height=8, width=12, cell=4, stem="patches"), 48),
    "residual": c.Vectors(c.Picture(height=8, width=12, cell=4, channels=4, grey=True), 16),
    "standardised": c.Vectors(
        c.Picture(height=8, width=12, cell=4, channels=4, grey=True, standardised=True), 16
    ),
    "halved": c.Vectors(c.Picture(height=32, width=48, cell=16, channels=4, grey=True), 256),
}
BODIES: dict[str, dict[str, Any]] = {
    "lstm": ENCODERS["lstm"],
    "transformer": ENCODERS["transformer"],
    "convolution": ENCODERS["convolution"],
    "pyramid": {"kind": "pyramid", "dim": 16, "num_layers": 3, "dropout": 0.0},
    "none": {"kind": "none", "dim": 16, "dropout": 0.0},
}
SPEAKING = ("lstm_off", "lstm_additive_cell", "transformer")
ALL = list(product(STEMS, BODIES, SPEAKING))
PAIRS = list(product(STEMS, BODIES))
CELLS = 6  # of the pictures


def source_of(stem: str, lengths: tuple[int, ...] = (9, 3, 6)) -> Padded:
    numbers = torch.Generator().manual_seed(5)
    kind = STEMS[stem]
    if not isinstance(kind, c.Vectors):
        return pad([torch.randint(5, VOCAB, (n,), generator=numbers).tolist() for n in lengths])
    if isinstance(kind.reader, c.Picture):
        shape = len(lengths), CELLS, kind.size
        cells = torch.randint(0, 256, shape, generator=numbers).to(torch.uint8)
        return Padded(cells, torch.full((len(lengths),), CELLS))
    rows = [torch.randn(n, kind.size, generator=numbers) for n in lengths]
    return Padded(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor(lengths))


def alone(source: Padded, b: int) -> Padded:
    """One row without its padding."""
    length = int(source.lengths[b])
    return Padded(source.values[b : b + 1, :length], source.lengths[b : b + 1])


def config_of(
    task: str, body: str, decoder: str | None, columns: dict[str, Any], **more: Any
) -> Any:
    raw: dict[str, Any] = {
        "task": {"kind": task, "columns": columns} | more,
        "data": {"source": [*columns, *(["q"] if more else [])], "max_len": 40},
        "encoder": BODIES[body],
    }
    if decoder is None:
        raw["head"] = {"kind": "pooled", "dropout": 0.0}
    else:
        raw["decoder"] = DECODERS[decoder]
    return parse(raw, "test")


def stirred(network: Any) -> Any:
    """The same network with larger weights, so that differences show."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network.eval()


@cache
def generator(stem: str, body: str, decoder: str) -> Generator:
    kind = STEMS[stem]
    columns = {"x": kind.reader.model_dump()} if isinstance(kind, c.Vectors) else {}
    config = config_of("translate", body, decoder, columns)
    torch.manual_seed(0)
    built = stirred(build(config, [kind], IDS, seed=3))
    assert isinstance(built, Generator)
    return built


def targets() -> torch.Tensor:
    return torch.randint(5, VOCAB, (3, 5), generator=torch.Generator().manual_seed(7))


def logits_of(net: Generator, *sources: Padded, rows: slice = slice(None)) -> torch.Tensor:
    tokens = targets()[rows]
    return net.decoder(tokens, net.decoder.start(net.encode(sources), len(tokens)))[0]


@pytest.mark.parametrize(("stem", "body", "decoder"), ALL)
def test_step_by_step_is_all_at_once(stem: str, body: str, decoder: str) -> None:
    net, tokens = generator(stem, body, decoder), targets()
    with torch.inference_mode():
        state = net.decoder.start(net.encode((source_of(stem),)), 3)
        whole, _ = net.decoder(tokens, state)
        columns = []
        for column in tokens.split(1, 1):
            logits, state = net.decoder(column, state)
            columns.append(logits)
    assert torch.allclose(torch.cat(columns, 1), whole, atol=1e-5)


@pytest.mark.shapes_checked_elsewhere
@pytest.mark.parametrize(("stem", "body", "decoder"), ALL)
def test_a_batch_is_its_rows(stem: str, body: str, decoder: str) -> None:
    net, source = generator(stem, body, decoder), source_of(stem)
    with torch.inference_mode():
        together = logits_of(net, source)
        for b in range(3):
            one = logits_of(net, alone(source, b), rows=slice(b, b + 1))
            assert torch.allclose(one[0], together[b], atol=1e-5)
    assert not torch.allclose(together[0], together[1], atol=1e-3)


@pytest.mark.shapes_checked_elsewhere
@pytest.mark.parametrize(("stem", "body"), PAIRS)
def test_padding_is_invisible_whatever_it_holds(stem: str, body: str) -> None:
    net, source = generator(stem, body, "lstm_additive_cell"), source_of(stem)
    wide = torch.cat([source.values, source.values[:, :3]], 1)
    real = torch.arange(wide.size(1)) < source.lengths[:, None]
    wide[~real] = 17  # what is beyond a row's end is not always zero
    with torch.inference_mode():
        narrow = logits_of(net, source)
        assert torch.allclose(logits_of(net, Padded(wide, source.lengths)), narrow, atol=1e-5)


@pytest.mark.shapes_checked_elsewhere
@pytest.mark.parametrize(("stem", "body"), PAIRS)
def test_watching_changes_nothing_and_sees_every_position(stem: str, body: str) -> None:
    net, source = generator(stem, body, "transformer"), source_of(stem)
    with torch.inference_mode():
        unseen = logits_of(net, source)
        with watch(net.decoder) as maps:
            seen = logits_of(net, source)
        memory = net.encode((source,))
    assert torch.allclose(seen, unseen, atol=1e-5)
    assert memory is not None
    crossed = [over_time(weights) for path, weights in maps.items() if path.endswith("cross")]
    assert crossed[0].shape[-1] == memory.values.shape[1]
    if memory.keep is not None:
        assert float(crossed[0].masked_fill(memory.keep[:, None, None], 0.0).max()) < 1e-6


@pytest.mark.parametrize("fusion", ["early", "late"])
@pytest.mark.parametrize(("stem", "body"), list(product(["strided", "residual"], BODIES)))
def test_a_question_beside_media_is_a_batch_of_its_rows(stem: str, body: str, fusion: str) -> None:
    kind = STEMS[stem]
    assert isinstance(kind, c.Vectors)
    columns = {"x": kind.reader.model_dump()}
    config = config_of("classify", body, None, columns, fusion=fusion)
    net = stirred(build(config, [IDS, kind], IDS, seed=3))
    assert isinstance(net, Classifier)
    sources = source_of("text", (4, 7, 2)), source_of(stem)
    with torch.inference_mode():
        together = net.logits(sources)
        for b in range(3):
            one = net.logits([alone(source, b) for source in sources])
            assert torch.allclose(one[0], together[b], atol=1e-5)


@pytest.mark.shapes_checked_elsewhere
@pytest.mark.parametrize(("stem", "body"), PAIRS)
def test_every_weight_has_a_gradient(stem: str, body: str) -> None:
    net = generator(stem, body, "lstm_additive_cell")
    target = Padded(targets(), torch.tensor([5, 5, 5]))
    loss, _ = net(Batch((source_of(stem, (33, 20, 17)),), target))
    loss.sum.backward()
    without = [n for n, p in net.encoder.named_parameters() if p.grad is None or not p.grad.any()]
    net.zero_grad(set_to_none=True)
    assert not without


@pytest.mark.parametrize("body", BODIES)
def test_a_strided_stem_shortens_and_a_pyramid_halves(body: str) -> None:
    net, source = generator("strided", body, "lstm_off"), source_of("strided", (17, 8, 5))
    with torch.inference_mode():
        memory = net.encode((source,))
    assert memory is not None
    lengths = torch.tensor([5, 2, 2])  # of 17, 8 and 5 frames, four at a time
    if body == "pyramid":
        lengths = torch.tensor([2, 1, 1])
    assert memory.keep is not None
    assert torch.equal(memory.keep.sum(1), lengths)
