"""Who watches a model sees all that its attentions do, whoever else watches."""

import torch

from saccade.nn.watch import is_watched, watch, watched
from tests.architectures import generator, source_batch


def test_nested_watches_both_record() -> None:
    net = generator("lstm", "transformer")
    tokens = torch.tensor([[2, 5], [2, 6]])

    def forward() -> None:
        memory = net.encode((source_batch((4, 2)),))
        net.decoder(tokens, net.decoder.start(memory, 2))

    with torch.inference_mode(), watch(net) as outer:
        forward()
        with watch(net.decoder.stack.blocks[1].cross) as inner:
            forward()
        forward()
    assert [len(calls) for calls in inner.values()] == [1]
    assert {len(calls) for calls in outer.values()} == {3}
    assert len(outer) == 4  # of two layers, the attention to itself and to the source
    (seen,) = inner.values()
    assert torch.equal(outer["decoder.stack.blocks.1.cross"][1], seen[0])


def test_a_model_is_watched_as_long_as_the_block_runs() -> None:
    net, other = generator("lstm", "transformer"), generator("lstm", "gru_off")
    with watch(net):
        assert is_watched(net.decoder.stack.blocks[0].cross)
        assert watched(other, net)
        assert not watched(other)
    assert not watched(net)
    assert not watched()
