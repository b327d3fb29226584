"""What must hold for every encoder, decoder and score."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from saccade.data.batches import Batch
from saccade.models.networks import Classifier, Generator, Tagger
from saccade.nn.padded import Memory, Padded, pad
from saccade.nn.state import detach, leaves, reorder, select, with_leaves
from saccade.nn.watch import over_time, watch
from tests.architectures import (
    DECODERS,
    ENCODERS,
    ONLY_PUBLISHED,
    VOCAB,
    generator,
    language_model,
    network,
    source_batch,
)

# Published networks beside the plain one, and those that have both parts together.
PAIRS = [
    (encoder, decoder)
    for encoder, decoder in product(ENCODERS, DECODERS)
    if encoder == decoder
    or (encoder not in ONLY_PUBLISHED and decoder not in ONLY_PUBLISHED)
    or (encoder in ONLY_PUBLISHED and decoder == "transformer")
    or (encoder == "transformer" and decoder in ONLY_PUBLISHED)
]


def targets(rows: int = 3, columns: int = 6) -> torch.Tensor:
    return torch.randint(5, VOCAB, (rows, columns), generator=torch.Generator().manual_seed(7))


def step_by_step(net: Generator, tokens: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
    columns = []
    for column in tokens.split(1, 1):
        logits, state = net.decoder(column, state)
        columns.append(logits)
    return torch.cat(columns, 1), state


@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_step_by_step_is_all_at_once(encoder: str, decoder: str) -> None:
    net, tokens = generator(encoder, decoder), targets()
    with torch.inference_mode():
        start = net.decoder.start(net.encode((source_batch(),)), 3)
        whole, end = net.decoder(tokens, start)
        logits, state = step_by_step(net, tokens, start)
    assert torch.allclose(logits, whole, atol=1e-5)
    for one, other in zip(leaves(state), leaves(end), strict=True):
        assert torch.allclose(one.float(), other.float(), atol=1e-5)


@pytest.mark.shapes_checked_elsewhere
@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_in_chunks_is_all_at_once(encoder: str, decoder: str) -> None:
    net, tokens = generator(encoder, decoder), targets()
    with torch.inference_mode():
        state = net.decoder.start(net.encode((source_batch(),)), 3)
        whole, _ = net.decoder(tokens, state)
        first, state = net.decoder(tokens[:, :2], state)
        second, _ = net.decoder(tokens[:, 2:], state)
    assert torch.allclose(torch.cat([first, second], 1), whole, atol=1e-5)


@pytest.mark.shapes_checked_elsewhere
@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_the_decoder_is_causal(encoder: str, decoder: str) -> None:
    net, tokens = generator(encoder, decoder), targets()
    changed = tokens.clone()
    changed[:, 3:] = (changed[:, 3:] - 4) % (VOCAB - 5) + 5
    with torch.inference_mode():
        state = net.decoder.start(net.encode((source_batch(),)), 3)
        before, after = net.decoder(tokens, state)[0], net.decoder(changed, state)[0]
    assert torch.allclose(before[:, :3], after[:, :3], atol=1e-6)
    assert not torch.allclose(before[:, 3:], after[:, 3:], atol=1e-4)


@pytest.mark.shapes_checked_elsewhere
@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_padding_is_invisible_and_a_batch_is_its_rows(encoder: str, decoder: str) -> None:
    net, tokens, source = generator(encoder, decoder), targets(), source_batch()
    with torch.inference_mode():
        together, _ = net.decoder(tokens, net.decoder.start(net.encode((source,)), 3))
        for b, length in enumerate(source.lengths.tolist()):
            alone = Padded(source.values[b : b + 1, :length], source.lengths[b : b + 1])
            logits, _ = net.decoder(tokens[b : b + 1], net.decoder.start(net.encode((alone,)), 1))
            assert torch.allclose(logits[0], together[b], atol=1e-5)


@pytest.mark.shapes_checked_elsewhere
@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_watching_changes_nothing(encoder: str, decoder: str) -> None:
    net, tokens, source = generator(encoder, decoder), targets(), source_batch()
    with torch.inference_mode():
        unseen, _ = net.decoder(tokens, net.decoder.start(net.encode((source,)), 3))
        with watch(net) as maps:
            seen, _ = net.decoder(tokens, net.decoder.start(net.encode((source,)), 3))
    assert torch.allclose(seen, unseen, atol=1e-5)
    for weights in maps.values():
        total = over_time(weights).sum(-1)
        assert torch.allclose(total, torch.ones_like(total), atol=1e-5)
    if "off" not in decoder:
        assert any(path.startswith("decoder") for path in maps)


@pytest.mark.parametrize("decoder", DECODERS)
def test_reordering_a_state_is_reordering_its_rows(decoder: str) -> None:
    net, tokens = generator("lstm", decoder), targets()
    with torch.inference_mode():
        one = pad([source_batch().values[0].tolist()])
        state = reorder(net.decoder.start(net.encode((one,)), 1), torch.tensor([0, 0, 0]))
        _, state = net.decoder(tokens[:, :3], state)
        rows = torch.tensor([2, 0, 0])
        moved, _ = net.decoder(tokens[rows, 3:4], reorder(state, rows))
        still, _ = net.decoder(tokens[:, 3:4], state)
        both = select(state, torch.tensor([0, 1]), torch.tensor([0]))
        few, _ = net.decoder(tokens[:2, 3:4], both)
        alone, _ = net.decoder(tokens[2:, 3:4], reorder(state, torch.tensor([2])))
    assert torch.allclose(moved, still[rows], atol=1e-6)
    assert torch.allclose(alone, still[2:], atol=1e-6)
    assert torch.allclose(few, still[:2], atol=1e-6)


@pytest.mark.parametrize("decoder", DECODERS)
def test_hypotheses_share_their_source(decoder: str) -> None:
    net, tokens = generator("transformer", decoder), targets(6)
    rows = torch.tensor([0, 0, 0, 2, 2, 2])
    with torch.inference_mode():
        start = net.decoder.start(net.encode((source_batch(),)), 3)
        with watch(net.decoder) as maps:
            own, _ = net.decoder(tokens, select(start, rows))  # a source for each row
        with watch(net.decoder) as shared_maps:
            together, _ = net.decoder(tokens, select(start, rows, torch.tensor([0, 2])))
        unseen, _ = net.decoder(tokens, select(start, rows, torch.tensor([0, 2])))
    assert torch.allclose(together, own, atol=1e-5)
    assert torch.allclose(unseen, own, atol=1e-5)
    to_source = [path for path in maps if "blocks" not in path or "cross" in path]
    for path in to_source:
        for one, two in zip(maps[path], shared_maps[path], strict=True):
            assert one.shape == two.shape
            assert torch.allclose(one, two, atol=1e-5)


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_state_can_be_gone_on_from_twice(decoder: str) -> None:
    net, tokens = generator("lstm", decoder), targets(3, 30)
    with torch.inference_mode():
        start = net.decoder.start(net.encode((source_batch(),)), 3)
        _, state = net.decoder(tokens[:, :3], start)
        before = [leaf.clone() for leaf in leaves(state)]
        one, after = net.decoder(tokens[:, 3:4], state)
        other, _ = net.decoder(tokens[:, 4:5], state)
        again, _ = net.decoder(tokens[:, 3:4], state)
        mine, _ = net.decoder(tokens[:, 5:6], after)
        _, twin = net.decoder(tokens[:, 3:4], state)
        theirs, _ = net.decoder(tokens[:, 5:6], twin)
        _, left = net.decoder(tokens[:, 6:7], after)  # from a state with room behind it, too
        net.decoder(tokens[:, 7:8], after)
        branch, _ = net.decoder(tokens[:, 8:9], left)
        alone, _ = net.decoder(tokens[:, [0, 1, 2, 3, 6, 8]], start)
    assert torch.allclose(branch[:, 0], alone[:, -1], atol=1e-5)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.allclose(mine, theirs, atol=1e-6)
    for leaf, same in zip(leaves(state), before, strict=True):
        assert torch.equal(leaf, same)
    with torch.no_grad():  # nor does it matter how it was made
        later, _ = net.decoder(tokens[:, 5:6], after)
    assert torch.allclose(mine, later, atol=1e-6)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("seed", range(3))
def test_a_hypothesis_hears_its_own_past_alone(decoder: str, seed: int) -> None:
    net, tokens = generator("lstm", decoder), targets(6, 20)
    numbers = torch.Generator().manual_seed(seed)
    said = torch.zeros(6, 0, dtype=torch.long)
    with torch.inference_mode():
        start = net.decoder.start(net.encode((source_batch((7, 3)),)), 2)
        state = reorder(start, torch.tensor([0, 0, 0, 1, 1, 1]))
        for t, column in enumerate(tokens.split(1, 1)):
            said = torch.cat([said, column], 1)
            logits, state = net.decoder(column, state)
            few = 1 if seed == 0 and t > 5 else 3  # of each source's rows go on
            rows = torch.randint(0, few, (6,), generator=numbers) + torch.tensor(
                [0, 3]
            ).repeat_interleave(3)
            whole, _ = net.decoder(said, select(start, torch.tensor([0, 0, 0, 1, 1, 1])))
            assert torch.allclose(logits[:, 0], whole[:, -1], atol=1e-5)
            said, state = said[rows], reorder(state, rows)
    if "transformer" in decoder and seed == 0:  # what was given up is forgotten
        assert state.cache.positions < 2 * 20


@pytest.mark.parametrize("decoder", [name for name in DECODERS if "transformer" in name])
def test_long_targets_go_step_by_step_too(decoder: str) -> None:
    net, tokens = generator("transformer", decoder), targets(3, 24)
    with torch.inference_mode():
        start = net.decoder.start(net.encode((source_batch((20, 17, 24)),)), 3)
        whole, _ = net.decoder(tokens, start)
        logits, _ = step_by_step(net, tokens, start)
    assert torch.allclose(logits, whole, atol=1e-5)


ALONE = [
    name for name in DECODERS if ("off" in name or "transformer" in name) and "copied" not in name
]


@pytest.mark.parametrize("decoder", ALONE)
def test_a_decoder_without_an_encoder_is_a_language_model(decoder: str) -> None:
    net, tokens = language_model(decoder), targets()
    with torch.inference_mode():
        whole, _ = net.decoder(tokens, net.decoder.start(None, 3))
        first, state = net.decoder(tokens[:, :4], net.decoder.start(None, 3))
        second, _ = net.decoder(tokens[:, 4:], detach(state))
    assert torch.allclose(torch.cat([first, second], 1), whole, atol=1e-5)


def test_leaves_and_their_state_are_the_same() -> None:
    state = language_model("gru_off").zero_state(2)
    copy = with_leaves(state, [leaf + 1 for leaf in leaves(state)])
    assert type(copy) is type(state)
    assert all(bool((leaf == 1).all()) for leaf in leaves(copy))


@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_encoder_does_not_see_its_padding(encoder: str) -> None:
    net = network("translate", encoder, "transformer")
    source = source_batch()
    junk = Padded(source.values.clone(), source.lengths)
    for b, length in enumerate(source.lengths.tolist()):
        junk.values[b, length:] = 17
    with torch.inference_mode():
        clean, dirty = net.encode((source,)), net.encode((junk,))  # type: ignore[union-attr]
    assert isinstance(clean, Memory)
    assert isinstance(dirty, Memory)
    assert clean.keep is not None
    assert torch.allclose(clean.values[clean.keep], dirty.values[clean.keep], atol=1e-6)
    assert torch.allclose(clean.summary, dirty.summary, atol=1e-6)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("pool", ["last", "mean", "max", "attention"])
def test_a_pooled_head_gives_a_batch_what_it_gives_its_rows(encoder: str, pool: str) -> None:
    net = network("classify", encoder)
    assert isinstance(net, Classifier)
    net.head.pool = pool  # type: ignore[assignment]
    source = source_batch()
    with torch.inference_mode():
        together = net.logits((source,))
        for b, length in enumerate(source.lengths.tolist()):
            row = Padded(source.values[b : b + 1, :length], source.lengths[b : b + 1])
            alone = net.logits((row,))
            assert torch.allclose(alone[0], together[b], atol=1e-5)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_label_sits_with_its_word(encoder: str) -> None:
    net = network("tag", encoder)
    assert isinstance(net, Tagger)
    source = source_batch((6, 4))
    words = torch.tensor([[0, 0, 1, 2, 2, 2], [0, 1, 1, 2, -1, -1]])
    with torch.inference_mode():
        together = net.logits((Padded(source.values, source.lengths, words),))
        row = Padded(source.values[1:, :4], source.lengths[1:], words[1:, :4])
        alone = net.logits((row,))
    assert together.shape == (2, 3, VOCAB)
    assert torch.allclose(together[1], alone[0], atol=1e-5)


# --- several sources, one entry -------------------------------------------------------------------


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("decoder", ["lstm_additive_cell", "gru_off", "transformer"])
@pytest.mark.parametrize("fusion", ["early", "late"])
def test_several_sources_are_laid_end_to_end(encoder: str, decoder: str, fusion: str) -> None:
    net, tokens = network("translate", encoder, decoder, fusion), targets()
    assert isinstance(net, Generator)
    one, two = source_batch((7, 3, 5)), source_batch((2, 6, 5))
    with torch.inference_mode():
        memory = net.encode((one, two))
        assert memory is not None
        longest = 7 + 6 if fusion == "late" else 10  # late fusion leaves padding between them
        assert memory.keep is not None
        assert memory.values.shape[:2] == (3, longest)
        assert memory.keep.sum(1).tolist() == [9, 9, 10]
        logits, _ = net.decoder(tokens, net.decoder.start(memory, 3))
        for b in range(3):  # padding inside is invisible, and a batch is its rows
            rows = [s.values[b : b + 1, : s.lengths[b]] for s in (one, two)]
            alone = [Padded(row, torch.tensor([row.size(1)])) for row in rows]
            single, _ = net.decoder(tokens[b : b + 1], net.decoder.start(net.encode(alone), 1))
            assert torch.allclose(single[0], logits[b], atol=1e-5)
        other, _ = net.decoder(tokens, net.decoder.start(net.encode((two, one)), 3))
    if "off" not in decoder:
        assert not torch.allclose(other, logits, atol=1e-3)  # it matters which source is which


NETWORKS = {
    "translate": ("translate", "transformer", "lstm_additive_cell"),
    "translate with a transformer": ("translate", "lstm", "transformer"),
    "language": ("language", None, "transformer"),
    "carried": ("language", None, "gru_off"),
    "classify": ("classify", "convolution", None),
    "tag": ("tag", "transformer", None),
}


def batch_for(task: str) -> Batch:
    source = source_batch((6, 4))
    words = torch.tensor([[0, 0, 1, 2, 2, 2], [0, 1, 1, 2, -1, -1]])
    match task:
        case "classify":
            return Batch((source,), Padded(torch.tensor([[1], [3]]), torch.tensor([1, 1])))
        case "tag":
            source = Padded(source.values, source.lengths, words)
            return Batch((source,), Padded(targets(2, 3), torch.tensor([3, 3])))
        case "language":
            return Batch((), Padded(targets(2, 6), torch.tensor([6, 6])))
        case _:
            return Batch((source,), Padded(targets(2, 6), torch.tensor([6, 4])))


class Entries(nn.Module):
    """Wraps a network as data parallelism does: what is not called through it is not seen."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network, self.calls = network, 0

    def forward(self, *words: Any) -> Any:
        self.calls += 1
        return self.network(*words)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_entered_the_same_way(name: str) -> None:
    task, encoder, decoder = NETWORKS[name]
    net, batch = Entries(network(task, encoder, decoder)), batch_for(task)
    loss, carry = net(batch, None, 0.5)
    loss.sum.backward()
    assert loss.count == batch.target.count - (0 if task in ("classify", "tag") else 2)
    assert all(p.grad is not None for p in net.parameters() if p.requires_grad)
    assert (carry is not None) == (name == "carried")
    if carry is not None:
        again, _ = net(batch, carry, 0.5)
        assert not torch.allclose(again.nll, loss.nll)  # it goes on from where it was
        blank, _ = net(batch, net.network.zero_state(2), 0.5)  # type: ignore[union-attr,operator]
        assert torch.allclose(blank.nll, loss.nll, atol=1e-5)


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_decoder_uses_its_parameters_only_when_it_is_called(decoder: str) -> None:
    """As with sharded weights, which are there only inside `forward`."""
    net = network("translate", "lstm", decoder)
    assert isinstance(net, Generator)
    memory = net.encode((source_batch(),))
    weights = {name: p.data for name, p in net.decoder.named_parameters()}
    for parameter in net.decoder.parameters():
        parameter.data = torch.full_like(parameter.data, float("nan"))
    state = net.decoder.start(memory, 3)
    for name, parameter in net.decoder.named_parameters():
        parameter.data = weights[name]
    logits, _ = net.decoder(targets(), state)
    assert bool(logits.isfinite().all())
