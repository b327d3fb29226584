"""Dropout: the right share and mean, the same gradient, the same numbers for the same seed."""

from threading import Thread

import pytest
import torch

from saccade.nn.dropout import Dropout, RowSlice, dropout, slice_of


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_a_share_p_is_zeroed_and_the_mean_is_kept(p: float) -> None:
    x = torch.ones(1000, 1000)
    dropped = dropout(x, p, training=True)
    assert float((dropped == 0).float().mean()) == pytest.approx(p, abs=0.004)
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.01)
    assert len(dropped.unique()) == 2


def test_every_byte_of_a_draw_is_fair() -> None:
    dropped = dropout(torch.ones(100_000, 8), 0.25, training=True) == 0
    assert dropped.float().mean(0).tolist() == pytest.approx([0.25] * 8, abs=0.01)
    together = (dropped[:, :-1] & dropped[:, 1:]).float().mean()
    assert float(together) == pytest.approx(0.0625, abs=0.003)  # neighbours are independent


def test_the_gradient_flows_where_the_values_did() -> None:
    x = torch.randn(50, 50, requires_grad=True)
    y = dropout(x, 0.4, training=True)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad == 0, y == 0)
    assert torch.allclose(y, x * x.grad)


def test_the_same_seed_drops_the_same() -> None:
    x = torch.randn(33, 7)
    torch.manual_seed(5)
    one = dropout(x, 0.5, training=True)
    torch.manual_seed(5)
    assert torch.equal(one, dropout(x, 0.5, training=True))
    assert not torch.equal(one, dropout(x, 0.5, training=True))


def test_nothing_is_dropped_in_evaluation() -> None:
    x = torch.randn(4, 4)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_a_rate_too_small_for_a_byte_still_drops() -> None:
    x = torch.ones(2000, 1000)
    share = float((dropout(x, 0.001, training=True) == 0).float().mean())
    assert share == pytest.approx(0.001, rel=0.2)


def test_a_slice_draws_what_the_whole_would_have_drawn() -> None:
    x = torch.randn(10, 7)
    torch.manual_seed(5)
    whole = dropout(x, 0.5, training=True)
    torch.manual_seed(5)
    with slice_of(RowSlice(3, 6, 10)):
        assert torch.equal(dropout(x[3:6], 0.5, training=True), whole[3:6])


def test_no_other_thread_sees_a_slice() -> None:
    found = []
    with slice_of(RowSlice(0, 1, 1000)):
        thread = Thread(target=lambda: found.append(dropout(torch.ones(2, 3), 0.5, training=True)))
        thread.start()
        thread.join()
    assert found[0].shape == (2, 3)
