"""The KV cache is a value: whoever appends to it changes nothing that another holds."""

import torch

from saccade.nn.cache import Buffer


def row(buffer: Buffer) -> list[float]:
    return buffer.tensor.flatten().tolist()


def more(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).view(1, 1, -1, 1)


def test_two_who_append_to_one_buffer_do_not_see_each_other() -> None:
    with torch.inference_mode():
        first = Buffer.of(more(1, 2)).append(more(3))  # with room behind it
        one = first.append(more(4))
        other = first.append(more(5))
        longer = one.append(more(6, 7))
    assert row(first) == [1, 2, 3]
    assert row(one) == [1, 2, 3, 4]
    assert row(other) == [1, 2, 3, 5]
    assert row(longer) == [1, 2, 3, 4, 6, 7]


def test_a_buffer_grows_without_a_copy_where_there_is_room() -> None:
    with torch.inference_mode():
        buffer = Buffer.of(more(1)).append(more(2))
        longer = buffer.append(more(3))
    assert longer.tensor.data_ptr() == buffer.tensor.data_ptr()
    with torch.inference_mode():
        for i in range(40):
            longer = longer.append(more(float(i)))
    assert row(longer) == [1, 2, 3, *range(40)]


def test_with_gradients_a_buffer_is_a_plain_tensor() -> None:
    x = more(1, 2).requires_grad_()
    Buffer.of(x).append(2 * x).tensor.sum().backward()
    assert x.grad is not None
    assert x.grad.flatten().tolist() == [3, 3]
