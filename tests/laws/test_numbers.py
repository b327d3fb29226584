"""What must hold for decoders of numbers, which differ from those of tokens at both ends alone."""

from functools import cache
from math import nan
from typing import Any

import pytest
import torch
from torch import Tensor

from saccade import config as c
from saccade.data.batches import Batch
from saccade.decoding.series import drawn, expected, number_stepper, unroll
from saccade.models.build import build_decoder, init_weights, number_io
from saccade.models.networks import Generator, shifted
from saccade.nn.distributions import Distribution
from saccade.nn.packed import packed
from saccade.nn.padded import Padded
from saccade.nn.state import detach, leaves, select
from tests.architectures import DECODERS, config_of, generator, source_batch

OUTPUTS: dict[str, c.Output] = {"gaussian": c.Gaussian(), "mixture": c.Mixture(components=3)}
TARGET = c.Reals(3, (2,))  # two real numbers, and one that is 0 or 1
SPEAKERS = [(decoder, "mixture") for decoder in DECODERS if decoder != "edit"] + [
    ("lstm_additive_cell", "gaussian"),
    ("transformer", "gaussian"),
]
speakers = pytest.mark.parametrize(("decoder", "output"), SPEAKERS)


@cache
def writer(decoder: str, output: str = "mixture", alone: bool = False) -> Generator:
    """A network that writes numbers: one for all tests, nobody changes it."""
    settings = config_of("translate", "lstm", decoder).decoder
    assert settings is not None
    encoder = None if alone else generator("lstm", decoder).encoder
    ends = number_io(settings, OUTPUTS[output], TARGET)
    net = Generator(encoder, build_decoder(settings, ends, None if alone else 16))
    torch.manual_seed(11)
    init_weights(net.decoder)
    with torch.no_grad():
        for parameter in net.decoder.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        for name, bias in net.decoder.named_parameters():
            if name == "output.output.bias":  # what is 0 or 1 is more often 0
                K = 3 if output == "mixture" else 1
                bias[K if K > 1 else 0 :].view(K, -1)[:, -1] -= 4.0
    return net.eval()


def numbers(rows: int = 3, columns: int = 6) -> Tensor:
    values = torch.randn(rows, columns, 3, generator=torch.Generator().manual_seed(7))
    values[..., 2] = (values[..., 2] > 0).float()
    values[1, 2, 0] = nan  # a gap
    return values


def begin(net: Generator, source: Padded | None = None) -> Any:
    memory = net.encode(() if net.encoder is None else (source or source_batch(),))
    return net.decoder.start(memory, 3 if source is None else len(source.lengths))


@speakers
def test_step_by_step_and_in_chunks_is_all_at_once(decoder: str, output: str) -> None:
    net, values = writer(decoder, output), numbers()
    with torch.inference_mode():
        whole, end = net.decoder(values, begin(net))
        for cuts in ([1] * 6, [2, 4]):
            state, found = begin(net), []
            for part in values.split(cuts, 1):
                raw, state = net.decoder(part, state)
                found.append(raw)
            assert torch.allclose(torch.cat(found, 1), whole, atol=1e-5)
            for one, other in zip(leaves(state), leaves(end), strict=True):
                assert torch.allclose(one.float(), other.float(), atol=1e-5)


@speakers
def test_the_decoder_is_causal(decoder: str, output: str) -> None:
    net, values = writer(decoder, output), numbers()
    changed = values.clone()
    changed[:, 3:] += 1.0
    with torch.inference_mode():
        before, after = (net.decoder(some, begin(net))[0] for some in (values, changed))
    assert torch.allclose(before[:, :3], after[:, :3], atol=1e-6)
    assert not torch.allclose(before[:, 3:], after[:, 3:], atol=1e-4)


@speakers
def test_padding_is_invisible_and_a_batch_is_its_rows(decoder: str, output: str) -> None:
    net, values, source = writer(decoder, output), numbers(), source_batch()
    lengths = torch.tensor([6, 4, 2])
    with torch.inference_mode():
        whole, _ = net(Batch((source,), Padded(values, lengths)))
        junk = values.clone()
        junk[1, 4:], junk[2, 2:] = 1e3, nan
        same, _ = net(Batch((source,), Padded(junk, lengths)))
        alone = []
        for b, n in enumerate(lengths.tolist()):
            row = Padded(source.values[b : b + 1, : source.lengths[b]], source.lengths[b : b + 1])
            target = Padded(values[b : b + 1, :n], lengths[b : b + 1])
            alone.append(net(Batch((row,), target))[0])
    assert whole.count == sum(one.count for one in alone) == 12
    assert torch.allclose(same.nll, whole.nll, atol=1e-4)
    assert torch.allclose(torch.stack([one.nll for one in alone]).sum(), whole.nll, atol=1e-4)


@pytest.mark.parametrize("decoder", ["lstm_off", "gru_off", "transformer"])
def test_a_decoder_without_an_encoder_carries_its_state(decoder: str) -> None:
    net, values = writer(decoder, alone=True), numbers()
    with torch.inference_mode():
        whole, _ = net.decoder(values, net.decoder.start(None, 3))
        first, state = net.decoder(values[:, :4], net.decoder.start(None, 3))
        second, _ = net.decoder(values[:, 4:], detach(state))
    assert torch.allclose(torch.cat([first, second], 1), whole, atol=1e-5)


def test_before_the_first_numbers_all_are_missing() -> None:
    target = Padded(numbers(), torch.tensor([6, 4, 2]))
    inputs, said = shifted(target)
    assert inputs[:, 0].isnan().all()
    assert torch.equal(inputs[:, 1:].nan_to_num(), target.values[:, :-1].nan_to_num())
    assert said is target


@speakers
def test_the_loss_is_that_of_the_distribution(decoder: str, output: str) -> None:
    net, target = writer(decoder, output), Padded(numbers(), torch.tensor([6, 4, 2]))
    inputs, _ = shifted(target)
    loss, _ = net(Batch((source_batch(),), target))
    raw, _ = net.decoder(inputs, begin(net))
    assert isinstance(net.decoder.output, Distribution)
    nll = net.decoder.output.nll(raw, target.values)
    keep = torch.arange(6) < target.lengths[:, None]
    assert torch.allclose(loss.sum, nll[keep].sum(), atol=1e-4)


def series_of(net: Generator, source: Padded, keys: list[int], **options: Any) -> list[Any]:
    distribution = net.decoder.output
    assert isinstance(distribution, Distribution)
    choose = drawn(distribution, options.pop("seed", 1), keys, options.pop("temperature", 1.0))
    limits = options.pop("limits", [12] * len(keys))
    first = torch.full((len(keys), 3), nan)
    step = number_stepper(net.decoder)
    with torch.inference_mode():
        state = begin(net, source)
    return unroll(step, state, first, distribution, choose=choose, limits=limits, **options)


@pytest.mark.parametrize("decoder", ["lstm_additive_cell", "gru_off", "transformer"])
@pytest.mark.parametrize("end", [None, 2])
def test_a_series_is_drawn_the_same_in_any_batch(decoder: str, end: int | None) -> None:
    net, source = writer(decoder), source_batch()
    together = series_of(net, source, [0, 1, 2], limits=[12, 5, 9], end=end)
    assert len({len(one.values) for one in together}) > 1
    for b, limit in enumerate([12, 5, 9]):
        row = Padded(source.values[b : b + 1, : source.lengths[b]], source.lengths[b : b + 1])
        (alone,) = series_of(net, row, [b], limits=[limit], end=end)
        assert torch.allclose(alone.values, together[b].values, atol=1e-4)
        assert alone.score == pytest.approx(together[b].score, abs=1e-3)
    other = series_of(net, source, [0, 1, 2], seed=2, end=end)
    assert not torch.equal(other[0].values[:1], together[0].values[:1])


@pytest.mark.parametrize("decoder", ["lstm_additive_cell", "transformer"])
@pytest.mark.parametrize("end", [None, 2])
def test_a_score_is_what_teacher_forcing_gives(decoder: str, end: int | None) -> None:
    net, source = writer(decoder), source_batch((5,))
    for key in range(6):
        (found,) = series_of(net, source, [key], end=end)
        rows = found.values
        if end is not None:  # an end is said by itself
            last = torch.tensor([[nan, nan, 1.0]])
            rows = torch.cat([rows, last])
            assert (found.values[:, 2] == 0).all()
        loss, _ = net(Batch((source,), Padded(rows[None], torch.tensor([len(rows)]))))
        assert found.score == pytest.approx(-float(loss.nll), abs=1e-3)


def test_means_are_fed_back_and_lots_are_cast_for_none() -> None:
    net, source = writer("lstm_additive_cell"), source_batch()
    distribution = net.decoder.output
    assert isinstance(distribution, Distribution)
    with torch.inference_mode():
        state = begin(net, source)
        first = torch.full((3, 3), nan)
        found = unroll(
            number_stepper(net.decoder), state, first, distribution,
            choose=expected(distribution), limits=[4, 4, 4],
        )  # fmt: skip
        values = torch.stack([one.values for one in found])
        raw, _ = net.decoder(shifted(Padded(values, torch.tensor([4, 4, 4])))[0], state)
        mean = distribution.mean(raw)
    assert torch.allclose(values[..., :2], mean[..., :2], atol=1e-5)
    assert torch.equal(values[..., 2], mean[..., 2].round())


@pytest.mark.parametrize("decoder", ["lstm_additive_cell", "gru_off", "transformer"])
def test_a_packed_decoder_says_what_it_was_made_of_says(decoder: str) -> None:
    net = writer(decoder)
    with torch.inference_mode():
        found = [one.decoder(numbers(), begin(one))[0] for one in (net, packed(net))]
    assert torch.allclose(*found, atol=1e-5)


@pytest.mark.parametrize("decoder", ["lstm_additive_cell", "transformer"])
def test_several_series_share_a_source(decoder: str) -> None:
    net, source = writer(decoder), source_batch((6,))
    with torch.inference_mode():
        start = begin(net, source)
        rows = torch.zeros(4, dtype=torch.long)
        raw, _ = net.decoder(numbers(4), select(start, rows))
        alone, _ = net.decoder(numbers(4)[2:3], start)
    assert torch.allclose(raw[2:3], alone, atol=1e-5)
