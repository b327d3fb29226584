"""Attention's shortcuts are exact."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from saccade.nn.attention import tanh_of_sums


@given(
    st.lists(st.floats(-120, 120, width=32), min_size=1, max_size=9),
    st.lists(st.floats(-120, 120, width=32), min_size=1, max_size=9),
)
def test_tanh_of_sums_is_tanh_of_sums(left: list[float], right: list[float]) -> None:
    query, keys = torch.tensor(left).view(1, -1, 1), torch.tensor(right).view(1, -1, 1)
    exact = torch.tanh(query.double().unsqueeze(2) + keys.double().unsqueeze(1))
    with torch.no_grad():
        ours = tanh_of_sums(query, keys)
    plain = torch.tanh(query.unsqueeze(2) + keys.unsqueeze(1)).double()
    error = (ours.double() - exact).abs().max()
    assert error <= 4e-7 + (plain - exact).abs().max()


def test_its_shortcut_is_taken_without_gradients_alone() -> None:
    query, keys = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    with torch.no_grad():
        short = tanh_of_sums(query, keys)
    plain = torch.tanh(query.unsqueeze(2) + keys.unsqueeze(1))
    assert not torch.equal(short, plain)
    assert torch.equal(tanh_of_sums(query, keys), plain)
    with torch.no_grad():
        assert torch.equal(
            tanh_of_sums(30 * query.sign(), keys),
            torch.tanh(30 * query.sign().unsqueeze(2) + keys.unsqueeze(1)),
        )
