"""Our layers are torch's, by copied weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.config import parse
from saccade.models.build import build
from saccade.models.networks import Generator
from saccade.nn.attention import additive_mask
from saccade.nn.cache import Past
from saccade.nn.loss import projected_cross_entropy
from saccade.nn.padded import Padded
from saccade.nn.recurrent import Recurrent
from saccade.nn.transformer import Block
from saccade.text.vocab import Inventory

CELLS = {
    "elman": lambda **k: nn.RNN(**k),
    "elman_relu": lambda **k: nn.RNN(nonlinearity="relu", **k),
    "gru": lambda **k: nn.GRU(**k),
    "lstm": lambda **k: nn.LSTM(**k),
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("both", [False, True])
def test_our_recurrent_stack_is_torchs(cell: str, both: bool) -> None:
    width = 4 if both else 8
    theirs = CELLS[cell](
        input_size=5, hidden_size=width, num_layers=3, batch_first=True, bidirectional=both
    )
    ours = Recurrent(cell, 5, 8, 3, bidirectional=both)  # type: ignore[arg-type]
    with torch.no_grad():
        for i, layer in enumerate(ours.layers):
            for name, weight in layer.named_parameters():
                weight.copy_(getattr(theirs, name.replace("_l0", f"_l{i}")))
    x, lengths = torch.randn(3, 7, 5), torch.tensor([7, 2, 5])
    expected, last = theirs(x)
    outputs, states = ours(x)
    assert torch.allclose(outputs, expected, atol=1e-6)
    hidden = last[0] if isinstance(last, tuple) else last
    top = torch.cat(list(hidden[-2:] if both else hidden[-1:]), -1)
    assert torch.allclose(states[-1][0], top, atol=1e-6)

    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    assert torch.allclose(ours(x, lengths=lengths)[0], expected, atol=1e-6)


def by_head(weight: Tensor, parts: int, heads: int) -> Tensor:
    """Torch lays rows out as (parts, H, K); ours are (H, parts, K)."""
    rows = weight.view(parts, heads, -1, *weight.shape[1:])
    return rows.transpose(0, 1).reshape(weight.shape)


def copy_block(theirs: nn.Module, ours: Block, heads: int) -> None:
    with torch.no_grad():
        ours.attention.qkv.weight.copy_(by_head(theirs.self_attn.in_proj_weight, 3, heads))
        ours.attention.qkv.bias.copy_(by_head(theirs.self_attn.in_proj_bias, 3, heads))
        ours.attention.out.load_state_dict(theirs.self_attn.out_proj.state_dict())
        ours.feed_forward.up.load_state_dict(theirs.linear1.state_dict())
        ours.feed_forward.down.load_state_dict(theirs.linear2.state_dict())
        ours.attention_norm.load_state_dict(theirs.norm1.state_dict())
        if hasattr(theirs, "multihead_attn"):
            weight, bias = theirs.multihead_attn.in_proj_weight, theirs.multihead_attn.in_proj_bias
            dim = weight.size(1)
            ours.cross.query.weight.copy_(weight[:dim])
            ours.cross.query.bias.copy_(bias[:dim])
            ours.cross.kv.weight.copy_(by_head(weight[dim:], 2, heads))
            ours.cross.kv.bias.copy_(by_head(bias[dim:], 2, heads))
            ours.cross.out.load_state_dict(theirs.multihead_attn.out_proj.state_dict())
            ours.cross_norm.load_state_dict(theirs.norm2.state_dict())
            ours.feed_forward_norm.load_state_dict(theirs.norm3.state_dict())
        else:
            ours.feed_forward_norm.load_state_dict(theirs.norm2.state_dict())


def shaken(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.eval()


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_our_encoder_block_is_torchs(norm_first: bool, activation: str) -> None:
    theirs = shaken(
        nn.TransformerEncoderLayer(
            8, 2, 16, activation=activation, norm_first=norm_first, batch_first=True
        )
    )
    ours = Block(8, 2, 16, norm_first=norm_first, activation=activation)  # type: ignore[arg-type]
    ours.eval()
    copy_block(theirs, ours, 2)
    x, keep = torch.randn(2, 5, 8), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    expected = theirs(x, src_key_padding_mask=~keep)
    found, _, _ = ours(x, additive_mask(keep, x.dtype))
    assert torch.allclose(found[keep], expected[keep], atol=1e-5)


@pytest.mark.parametrize("norm_first", [True, False])
def test_our_decoder_block_is_torchs(norm_first: bool) -> None:
    theirs = shaken(nn.TransformerDecoderLayer(8, 2, 16, norm_first=norm_first, batch_first=True))
    ours = Block(8, 2, 16, memory_dim=8, norm_first=norm_first).eval()
    copy_block(theirs, ours, 2)
    x, memory = torch.randn(2, 5, 8), torch.randn(2, 4, 8)
    keep = torch.tensor([[True] * 4, [True, True, False, False]])
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    expected = theirs(x, memory, tgt_mask=causal, memory_key_padding_mask=~keep)
    found, _, _ = ours(x, None, Past.empty(2), memory, additive_mask(keep, x.dtype))
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_our_whole_transformer_is_torchs(norm_first: bool, scaled: bool) -> None:
    part = {
        "kind": "transformer", "dim": 8, "num_heads": 2, "ff_dim": 16, "num_layers": 3,
        "positions": "none", "norm_first": norm_first, "scale_embedding": scaled,
    }  # fmt: skip
    raw = {"task": {"kind": "translate"}, "encoder": part, "decoder": part | {"tied": False}}
    net = shaken(build(parse(raw, "test"), [Inventory(12)], Inventory(15)))
    assert isinstance(net, Generator)
    options = {"norm_first": norm_first, "batch_first": True}
    norms = [nn.LayerNorm(8) if norm_first else None for _ in range(2)]
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, **options), 3, norms[0], enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, **options), 3, norms[1])
    for theirs, ours in ((encoder, net.encoder.body), (decoder, net.decoder.stack)):
        shaken(theirs)
        for layer, block in zip(theirs.layers, ours.blocks, strict=True):
            copy_block(layer, block, 2)
        if theirs.norm is not None:
            ours.norm.load_state_dict(theirs.norm.state_dict())
    source, tokens = torch.randint(5, 12, (2, 5)), torch.randint(5, 15, (2, 6))
    lengths = torch.tensor([5, 3])
    out = torch.arange(5) >= lengths[:, None]
    factor = 8**0.5 if scaled else 1.0
    memory = encoder(factor * net.encoder.stem.embedding.weight[source], src_key_padding_mask=out)
    hidden = decoder(
        factor * net.decoder.embedding.weight[tokens],
        memory,
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(6),
        memory_key_padding_mask=out,
    )
    state = net.decoder.start(net.encode((Padded(source, lengths),)), 2)
    logits, _ = net.decoder(tokens, state)
    assert torch.allclose(logits, net.decoder.output(hidden), atol=1e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_our_cross_entropy_is_torchs_in_value_and_gradient(
    smoothing: float, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saccade.nn.loss.CHUNK_LOGITS", 3000)  # several chunks, the last one short
    hidden = torch.randn(250, 6, requires_grad=True)
    weight = torch.randn(30, 6, requires_grad=True)
    shift = torch.randn(30, requires_grad=True) if bias else None
    targets = torch.randint(0, 30, (250,))
    inputs = [t for t in (hidden, weight, shift) if t is not None]
    logits = F.linear(hidden, weight, shift)
    expected = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    wanted = torch.autograd.grad(expected * 0.5, inputs)
    loss, nll = projected_cross_entropy(hidden, weight, shift, targets, smoothing)
    found = torch.autograd.grad(loss * 0.5, inputs)
    expected, logits = expected.detach(), logits.detach()
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-5)
    assert float(nll) == pytest.approx(
        float(F.cross_entropy(logits, targets, reduction="sum")), rel=1e-5
    )
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-4)
    with torch.no_grad():
        quiet = projected_cross_entropy(hidden, weight, shift, targets, smoothing)
    assert float(quiet[0]) == pytest.approx(float(expected), rel=1e-5)
