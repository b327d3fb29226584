"""Products by oneDNN are torch's own, in value and in gradient."""

import pytest
import torch
import torch.nn.functional as F

from saccade.data.batches import Batch
from saccade.nn import products
from saccade.nn.loss import projected_cross_entropy
from saccade.nn.padded import pad
from tests.architectures import network

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN"
)


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """All products are oneDNN's, on whatever processor and however small."""
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "MIN_MULTIPLICATIONS", 0)
    monkeypatch.setattr(products, "MIN_WIDTH", 1)


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    x, weight, bias = torch.randn(5, 7, 48), torch.randn(32, 48), torch.randn(32)
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("strided", [False, True], ids=["dense", "a part of a wider tensor"])
def test_values_and_gradients_are_those_of_torch(strided: bool) -> None:
    x, weight, bias = inputs()
    part = x[..., :20] if strided else x
    matrix = weight[:, -20:] if strided else weight
    slope = torch.randn(5, 7, 32)
    ours, theirs = products.linear(part, matrix, bias), F.linear(part, matrix, bias)
    assert ours.grad_fn is not None
    assert type(ours.grad_fn.next_functions[0][0]).__name__ == "_LinearBackward"
    torch.testing.assert_close(ours, theirs)
    found = torch.autograd.grad(ours, (x, weight, bias), slope)
    wanted = torch.autograd.grad(theirs, (x, weight, bias), slope)
    torch.testing.assert_close(found, wanted)


@pytest.mark.usefixtures("onednn")
def test_no_gradient_is_computed_that_nobody_wants() -> None:
    x, weight, bias = inputs()
    products.linear(x.detach(), weight, None).sum().backward()
    assert x.grad is None
    assert weight.grad is not None
    assert bias.grad is None


def test_small_products_and_other_number_formats_are_left_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "_onednn", None)  # whoever calls it fails
    x, weight, bias = inputs()
    products.linear(x, weight, bias)
    wide = torch.randn(4096, 4096, dtype=torch.float64)
    products.linear(wide[:64], wide)
    products.times(wide[:64].bfloat16(), wide.bfloat16())


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("kinds", [("transformer", "transformer"), ("lstm", "lstm_additive_cell")])
def test_a_network_learns_the_same(kinds: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = network("translate", *kinds)
    rows = [[5, 6, 7, 8, 2], [9, 10, 2]]
    batch = Batch((pad(rows),), pad([[1, *row] for row in rows]))

    def learned() -> tuple[torch.Tensor, ...]:
        loss, _ = model(batch, None)
        return loss.sum.detach(), *torch.autograd.grad(loss.sum, list(model.parameters()))

    found = learned()
    monkeypatch.setattr(products, "onednn_is_faster", lambda: False)
    torch.testing.assert_close(found, learned())


@pytest.mark.usefixtures("onednn")
def test_the_loss_of_an_output_layer_is_that_of_cross_entropy() -> None:
    hidden, weight, bias = inputs()
    rows = hidden.flatten(0, 1)
    gold = torch.arange(35) % 32
    ours = projected_cross_entropy(rows, weight, bias, gold)[0]
    theirs = F.cross_entropy(F.linear(rows, weight, bias), gold, reduction="sum")
    found = torch.autograd.grad(ours, (hidden, weight, bias))
    wanted = torch.autograd.grad(theirs, (hidden, weight, bias))
    torch.testing.assert_close((ours, *found), (theirs, *wanted))
