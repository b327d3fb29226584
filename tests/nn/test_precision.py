"""Half precision: products of half-precision copies, sums in single precision."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from saccade.data.batches import Batch
from saccade.models.networks import Generator
from saccade.nn.loss import projected_cross_entropy
from saccade.nn.padded import pad
from saccade.nn.precision import Halved
from saccade.training.session import resume
from tests.architectures import DECODERS, ENCODERS, network
from tests.helpers import SMALL, run_through, settings

SOURCE = pad([[5, 6, 7, 8, 9, 3], [6, 7, 3], [9, 9, 8, 3]])
TARGET = pad([[2, 5, 6, 7, 3], [2, 8, 3], [2, 9, 9, 3]])
PAIRS = [(encoder, "lstm_additive_cell") for encoder in ENCODERS]
PAIRS += [("transformer", decoder) for decoder in DECODERS]


@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_gradients_point_where_those_of_single_precision_do(encoder: str, decoder: str) -> None:
    net, batch = network("translate", encoder, decoder).train(), Batch((SOURCE,), TARGET)
    assert isinstance(net, Generator)
    halved = Halved(net, torch.bfloat16, (net.decoder.output,))
    found = []
    for half in (False, True):
        net.zero_grad()
        halved.cast()
        loss, _ = halved(batch) if half else net(batch)
        loss.sum.backward()
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in net.parameters())
        gradient = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
        found.append((float(loss.nll), gradient))
    (nll, exact), (half_nll, near) = found
    assert half_nll == pytest.approx(nll, rel=0.01)
    assert torch.cosine_similarity(exact, near, dim=0) > 0.95


@pytest.mark.shapes_checked_elsewhere
@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_padding_is_invisible_in_half_precision_too(encoder: str, decoder: str) -> None:
    net, batch = network("translate", encoder, decoder).train(), Batch((SOURCE,), TARGET)
    assert isinstance(net, Generator)
    halved = Halved(net, torch.bfloat16, (net.decoder.output,))
    halved.cast()
    together, _ = halved(batch)
    alone = [halved(batch.rows(torch.tensor([i])))[0] for i in range(3)]
    assert sum(loss.count for loss in alone) == together.count
    assert float(sum(loss.nll for loss in alone)) == pytest.approx(float(together.nll), rel=5e-3)


@pytest.mark.parametrize("decoder", [name for name in DECODERS if name.startswith("transformer")])
def test_a_decoder_is_causal_in_half_precision_too(decoder: str) -> None:
    net = network("translate", "transformer", decoder).train()
    assert isinstance(net, Generator)
    halved, seen = Halved(net, torch.bfloat16, (net.decoder.output,)), []
    stack = net.decoder.get_submodule("stack")
    stack.register_forward_hook(lambda _, __, found: seen.append(found[0]))
    halved.cast()
    for last in ([8, 9, 3], [6, 5, 3]):
        halved(Batch((pad([[5, 6, 7, 3]]),), pad([[2, 5, 6, *last]])))
    one, other = seen
    assert one.dtype == torch.bfloat16
    assert torch.equal(one[:, :3], other[:, :3])
    assert not torch.equal(one[:, 3:], other[:, 3:])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_half_precision_rows_has_single_precision_sums(smoothing: float) -> None:
    torch.manual_seed(1)
    hidden, weight = torch.randn(500, 16), torch.randn(30, 16).requires_grad_()
    bias, targets = torch.randn(30).requires_grad_(), torch.randint(30, (500,))
    found = []
    for rows in (hidden, hidden.bfloat16()):
        weight.grad = bias.grad = None
        loss, _ = projected_cross_entropy(rows, weight, bias, targets, smoothing)
        loss.backward()
        assert weight.grad is not None
        assert weight.grad.dtype == torch.float32
        found.append((float(loss.detach()), weight.grad.clone()))
    assert found[1][0] == pytest.approx(found[0][0], rel=2e-3)
    assert torch.allclose(found[1][1], found[0][1], atol=0.02 * float(found[0][1].abs().max()))


@pytest.mark.parametrize("name", SMALL)
def test_a_run_in_half_precision_that_is_resumed_was_never_stopped(
    name: str, tmp_path: Path
) -> None:
    config = settings(name, tmp_path, precision="bf16")
    run_through(config, tmp_path / "whole")
    run_through(config, tmp_path / "halted", stop_after=5)
    list(resume(tmp_path / "halted"))
    whole, halted = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "halted"))
    assert all(torch.equal(whole[name], halted[name]) for name in whole)
    assert all(bool(tensor.isfinite().all()) for tensor in whole.values())


def test_a_run_goes_on_in_another_precision_and_says_so(tmp_path: Path) -> None:
    run_through(settings("lstm", tmp_path, precision="bf16"), tmp_path / "run", stop_after=5)
    events = list(resume(tmp_path / "run", settings={"train.precision": "fp32"}))
    assert ("train.precision", "bf16", "fp32") in [
        (e.key, e.old, e.new) for e in events if type(e).__name__ == "Changed"
    ]
