"""Dropout acts in training at every place where it is asked for, and nowhere in evaluation."""

import pytest
import torch
from torch import Tensor, nn

from saccade.config import parse
from saccade.errors import ConfigError
from saccade.models.build import build
from saccade.nn.attention import CrossAttention, SelfAttention
from saccade.nn.bodies import RecurrentBody
from saccade.nn.cache import KVCache, Past
from saccade.nn.dropout import RowSlice, WordDropout, dropout, slice_of
from saccade.nn.positions import Unmarked
from saccade.nn.recurrent import Cell, Recurrent
from saccade.nn.transformer import Block, CausalStack, Stack
from tests.architectures import IDS, RECURRENT, TRANSFORMER, config_of, source_batch
from tests.architectures import network as network_of


def share_of_zeros(x: Tensor) -> float:
    return float((x == 0).float().mean())


def silent_attention(x: Tensor) -> SelfAttention:
    """Attends to all positions alike, and says their mean: dropped weights are seen in it."""
    attention = SelfAttention(x.size(-1), 1, dropout=0.5)
    with torch.no_grad():
        attention.qkv.weight.zero_()
        attention.qkv.bias.zero_()
        attention.qkv.bias[-x.size(-1) :] = 1.0  # every value is 1
        attention.out.weight.copy_(torch.eye(x.size(-1)))
        attention.out.bias.zero_()
    return attention


@pytest.mark.parametrize("causal", [False, True])
def test_attention_weights_are_dropped_in_training_alone(causal: bool) -> None:
    x = torch.randn(64, 2, 4)
    attention, past = silent_attention(x), Past.empty(64) if causal else None
    said = attention(x, past=past)[0]
    # Of two weights of a half each, none, one or both are left, and then doubled.
    values, counts = said[:, -1, 0].round(decimals=4).unique(return_counts=True)
    assert values.tolist() == [0, 1, 2]
    assert counts[1] > counts[0]
    assert torch.allclose(attention.eval()(x, past=past)[0], torch.ones(64, 2, 4), atol=1e-6)


def test_attention_to_a_memory_is_dropped_in_training_alone() -> None:
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 6)
    cross = CrossAttention(8, 6, 2, dropout=0.5)
    whole, _ = CrossAttention.forward(cross.eval(), x, memory)
    assert torch.equal(whole, cross(x, memory)[0])
    cross.train()
    many = torch.stack([cross(x, memory)[0] for _ in range(400)])
    assert not torch.allclose(many[0], many[1], atol=1e-3)
    assert torch.allclose(many.mean(0), whole, atol=0.1)  # the mean is kept


def test_each_part_of_a_block_is_dropped_by_itself() -> None:
    """Where all parts are dropped, a block changes nothing: a quarter, or with a memory an eighth.

    In a block whose attention alone is dropped, all is changed.
    """
    x, memory = torch.randn(8, 50, 16), torch.randn(8, 7, 16)
    plain = Block(16, 2, 32, dropout=0.5)
    assert share_of_zeros(plain(x)[0] - x) == pytest.approx(0.25, abs=0.02)
    crossed = Block(16, 2, 32, memory_dim=16, dropout=0.5)
    changed = crossed(x, None, Past.empty(8), memory)[0] - x
    assert share_of_zeros(changed) == pytest.approx(0.125, abs=0.02)
    assert share_of_zeros(plain.eval()(x)[0] - x) == 0
    inside = Block(16, 2, 32, attention_dropout=0.5)
    assert share_of_zeros(inside(x)[0] - x) == 0
    assert not torch.equal(inside(x)[0], inside(x)[0])
    inside.eval()
    assert torch.equal(inside(x)[0], inside(x)[0])


def test_what_enters_a_stack_is_dropped() -> None:
    x = torch.randn(8, 50, 16)
    read: list[Tensor] = []
    for stack in (Stack, CausalStack):
        layers = stack(Unmarked(), [Block(16, 2, 32)], nn.Identity(), 0.5)
        layers.blocks[0].register_forward_pre_hook(lambda _, words: read.append(words[0]))
        layers(x, KVCache()) if stack is CausalStack else layers(x)
        assert share_of_zeros(read[-1]) == pytest.approx(0.5, abs=0.03)
        layers.eval()
        layers(x, KVCache()) if stack is CausalStack else layers(x)
        assert torch.equal(read[-1], x)


def test_recurrent_layers_drop_what_goes_from_one_to_the_next() -> None:
    stack, read = Recurrent("gru", 6, 16, 3, dropout=0.5), []
    for layer in stack.layers:
        layer.register_forward_pre_hook(lambda _, words: read.append(words[0]))
    x = torch.randn(8, 40, 6)
    outputs, _ = stack(x)
    assert torch.equal(read[0], x)  # what it is given is the caller's to drop
    assert [share_of_zeros(some) for some in read[1:]] == pytest.approx([0.5, 0.5], abs=0.03)
    assert share_of_zeros(outputs) == 0
    stack.eval()(x)
    assert [share_of_zeros(some) for some in read[3:]] == [0, 0, 0]


def test_a_recurrent_body_drops_what_it_reads_and_what_it_says() -> None:
    body, x = RecurrentBody(Recurrent("gru", 16, 16), 0.5), torch.randn(8, 40, 16)
    read: list[Tensor] = []
    body.layers.register_forward_pre_hook(lambda _, words: read.append(words[0]))
    memory = body(x, None, torch.full((8,), 40))
    for dropped in (read[0], memory.values):
        assert share_of_zeros(dropped) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("attention", ["off", "additive"])
def test_a_recurrent_decoder_drops_what_the_output_layer_reads(attention: str) -> None:
    net = decoder_with(RECURRENT | {"attention": attention, "dropout": 0.5})
    hidden = hidden_of(net)
    assert share_of_zeros(hidden) == pytest.approx(0.5, abs=0.05)
    net.eval()
    assert share_of_zeros(hidden_of(net)) == 0


@pytest.mark.parametrize("key", ["dropout", "attention_dropout"])
def test_a_transformers_settings_are_heeded(key: str) -> None:
    net = decoder_with(TRANSFORMER | {key: 0.5})
    assert not torch.allclose(hidden_of(net), hidden_of(net), atol=1e-3)
    net.eval()
    assert torch.equal(hidden_of(net), hidden_of(net))


def decoder_with(decoder: dict[str, object]) -> nn.Module:
    config = config_of("translate", "lstm", "transformer")
    raw = config.model_dump(exclude_none=True) | {"decoder": decoder}
    return build(parse(raw, "test"), [IDS], IDS, seed=3).train()


def hidden_of(net: nn.Module) -> Tensor:
    memory = net.encode((source_batch((6, 6, 6)),))  # type: ignore[operator]
    tokens = torch.randint(5, 20, (3, 30), generator=torch.Generator().manual_seed(1))
    hidden, _ = net.decoder.hidden(tokens, net.decoder.start(memory, 3))  # type: ignore[union-attr,operator]
    return hidden.detach()


def test_a_slice_drops_the_words_that_the_whole_would_have_dropped() -> None:
    words, tokens = WordDropout(0.5, 1, (0,)), torch.arange(5, 85).view(10, 8)
    torch.manual_seed(5)
    whole = words(tokens)
    torch.manual_seed(5)
    with slice_of(RowSlice(3, 6, 10)):
        assert torch.equal(words(tokens[3:6]), whole[3:6])


def test_word_dropout_is_part_of_a_network_in_training() -> None:
    net = network_of("classify", "transformer")
    net.encoder.stem.words.share = 0.5  # type: ignore[union-attr]
    source = source_batch((30, 30))
    assert torch.equal(net.logits((source,)), net.logits((source,)))  # type: ignore[union-attr,operator]
    net.train()
    assert not torch.equal(net.logits((source,)), net.logits((source,)))  # type: ignore[union-attr,operator]


CELLS: list[Cell] = ["elman", "elman_relu", "gru", "lstm"]


@pytest.mark.parametrize("lengths", [None, (9, 4, 1)])
@pytest.mark.parametrize("cell", CELLS)
def test_recurrent_weights_are_dropped_in_training_alone(
    cell: Cell, lengths: tuple[int, ...] | None
) -> None:
    """What comes out is what a layer says whose recurrent weights have holes, and no others."""
    stack = Recurrent(cell, 6, 16, 2, bidirectional=True, weight_dropout=0.5)
    x, ends = torch.randn(3, 9, 6), None if lengths is None else torch.tensor(lengths)
    whole, _ = stack.eval()(x, lengths=ends)
    torch.manual_seed(5)
    found, state = stack.train()(x, lengths=ends)
    assert not torch.allclose(found, whole, atol=1e-3)
    torch.manual_seed(5)
    with torch.no_grad():
        for layer in stack.layers:
            layer.eval()
            for name, weight in layer.named_parameters():
                if name.startswith("weight_hh"):
                    weight.copy_(dropout(weight, 0.5, True))
                    assert share_of_zeros(weight) == pytest.approx(0.5, abs=0.25)
    expected, end = stack.eval()(x, lengths=ends)
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(state[-1][0], end[-1][0], atol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_dropped_recurrent_weights_are_the_same_for_all_rows_and_steps(cell: Cell) -> None:
    stack = Recurrent(cell, 6, 16, weight_dropout=0.5)
    x, state = torch.randn(4, 9, 6), stack.zeros(4, torch.empty(0))
    torch.manual_seed(5)
    whole, _ = stack(x, state)
    for part in (x[1:3], x[1:3, :1]):
        torch.manual_seed(5)
        with slice_of(RowSlice(1, 3, 4)):
            some, _ = stack(part, stack.zeros(2, part))
        assert torch.allclose(some, whole[1:3, : part.size(1)], atol=1e-5)
    whole.sum().backward()
    assert stack.layers[0].weight_hh_l0.grad is not None
    assert share_of_zeros(stack.layers[0].weight_hh_l0.grad) > 0.3  # of those that were dropped


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_the_weight_dropout_of_a_configuration_is_heeded(part: str) -> None:
    recurrent = RECURRENT | {"attention": "off"}
    raw = config_of("translate", "lstm", "lstm_off").model_dump(exclude_none=True)
    own = raw["encoder"] if part == "encoder" else recurrent
    raw |= {"decoder": recurrent, part: own | {"weight_dropout": 0.5}}
    net = build(parse(raw, "test"), [IDS], IDS, seed=3).train()
    assert not torch.allclose(hidden_of(net), hidden_of(net), atol=1e-4)
    net.eval()
    assert torch.equal(hidden_of(net), hidden_of(net))


def test_a_cell_that_attends_step_by_step_drops_no_weights() -> None:
    raw = config_of("translate", "lstm", "lstm_off").model_dump(exclude_none=True)
    raw["decoder"] = RECURRENT | {"attention": "additive", "weight_dropout": 0.5}
    with pytest.raises(ConfigError, match="context = 'output'"):
        parse(raw, "test")
