"""What a network's loss is made of: real positions, smoothing, its own guesses, what it carries."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.data.batches import Batch
from saccade.models.heads import BagOfWords
from saccade.models.networks import Generator, Labeller
from saccade.nn.loss import label_loss, rdrop_loss
from saccade.nn.padded import Padded
from saccade.nn.state import leaves
from tests.architectures import VOCAB, network, source_batch


def batch_of(rows: int = 3, columns: int = 7, lengths: tuple[int, ...] = (7, 4, 2)) -> Batch:
    numbers = torch.Generator().manual_seed(7)
    values = torch.randint(5, VOCAB, (rows, columns), generator=numbers)
    source = source_batch(tuple(3 + i % 4 for i in range(rows)))
    return Batch((source,), Padded(values, torch.tensor(lengths)))


def new(decoder: str = "transformer") -> Generator:
    net = network("translate", "lstm", decoder)
    assert isinstance(net, Generator)
    return net.train()


@pytest.mark.parametrize("decoder", ["transformer", "lstm_additive_cell", "gru_off", "edit"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_that_of_the_real_positions(decoder: str, smoothing: float) -> None:
    net, batch = new(decoder), batch_of()
    net.label_smoothing = smoothing
    values, lengths = batch.target.values, batch.target.lengths.tolist()
    logits, _ = net.decoder(values[:, :-1], net.decoder.start(net.encode(batch.sources), 3))
    said = torch.cat([logits[b, : n - 1] for b, n in enumerate(lengths)])
    gold = torch.cat([values[b, 1:n] for b, n in enumerate(lengths)])

    def expected(share: float) -> float:
        return float(F.cross_entropy(said, gold, reduction="sum", label_smoothing=share).detach())

    loss, _ = net(batch)
    assert loss.count == len(gold) == 6 + 3 + 1
    assert float(loss.nll) == pytest.approx(expected(0.0), rel=1e-5)
    assert float(loss.sum.detach()) == pytest.approx(expected(smoothing), rel=1e-5)


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_labels_are_smoothed_in_training_and_reported_as_they_are(task: str) -> None:
    net: Any = network(task, "transformer")
    net.label_smoothing = 0.2
    source = source_batch((6, 4))
    words = torch.tensor([[0, 0, 1, 2, 2, 2], [0, 1, 1, 1, -1, -1]])
    source = Padded(source.values, source.lengths, words)
    if task == "tag":
        target = Padded(torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([3, 2]))
    else:
        target = Padded(torch.tensor([[5], [9]]), torch.tensor([1, 1]))
    logits = net.logits((source,)).detach()
    logits = torch.cat([logits[0, :3], logits[1, :2]]) if task == "tag" else logits
    gold = torch.tensor([5, 6, 7, 8, 9] if task == "tag" else [5, 9])
    plain = float(F.cross_entropy(logits, gold, reduction="sum"))
    smooth = float(F.cross_entropy(logits, gold, reduction="sum", label_smoothing=0.2))
    for mode, expected in ((True, smooth), (False, plain)):
        loss, _ = net.train(mode)(Batch((source,), target))
        assert loss.count == len(gold)
        assert float(loss.nll) == pytest.approx(plain, rel=1e-5)
        assert float(loss.sum.detach()) == pytest.approx(expected, rel=1e-5)


def test_a_loss_of_labels_is_a_sum_and_a_count() -> None:
    logits, gold = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 0])
    whole = label_loss(logits, gold)
    parts = label_loss(logits[:2], gold[:2]), label_loss(logits[2:], gold[2:])
    assert float(whole.sum) == pytest.approx(sum(float(part.sum) for part in parts))
    assert whole.count == sum(part.count for part in parts) == 6


def test_what_is_carried_has_no_gradient() -> None:
    """Truncated back-propagation: values go on, gradients stop."""
    net: Any = network("language", None, "lstm_off").train()
    batch = Batch((), Padded(batch_of().target.values, torch.tensor([7, 7, 7])))
    _, carry = net(batch)
    assert leaves(carry)
    assert not any(leaf.requires_grad for leaf in leaves(carry))
    loss, _ = net(batch, carry)
    loss.sum.backward()  # reaches no earlier batch
    assert all(leaf.grad is None for leaf in leaves(carry))


# --- scheduled sampling ---------------------------------------------------------------------------

ROWS, COLUMNS = 60, 12


def read_by(net: Generator, batch: Batch, progress: float) -> Tensor:
    """What the decoder reads when the loss is computed."""
    read: list[Tensor] = []
    hook = net.decoder.embedding.register_forward_pre_hook(lambda _, words: read.append(words[0]))
    net(batch, None, progress)
    hook.remove()
    return read[-1]


def sampling(share: float) -> tuple[Generator, Batch]:
    """A network whose guess is always 17, which is nowhere in the batch."""
    net = new("gru_off")
    net.scheduled_sampling = share
    with torch.no_grad():
        net.decoder.output.bias[17] = 1e4
    batch = batch_of(ROWS, COLUMNS, (COLUMNS,) * ROWS)
    batch.target.values[batch.target.values == 17] = 16
    batch.target.values[:, 0] = 2
    return net, batch


@pytest.mark.parametrize(
    ("share", "progress"), [(1.0, 0.3), (0.5, 1.0), (0.5, 0.5), (0.8, 0.25), (0.6, 0.0), (0.0, 1.0)]
)
def test_a_share_grows_with_progress(share: float, progress: float) -> None:
    net, batch = sampling(share)
    read = read_by(net, batch, progress)
    real = batch.target.values[:, :-1]
    assert torch.equal(read[:, 0], real[:, 0])  # what all begin with
    guessed = read != real
    assert bool((read[guessed] == 17).all())
    found = float(guessed[:, 1:].float().mean())
    assert found == pytest.approx(share * progress, abs=0.06)
    assert found > 0 or share * progress == 0
    net.eval()
    assert torch.equal(read_by(net, batch, progress), real)


def test_no_special_is_replaced_by_a_guess() -> None:
    net, batch = sampling(1.0)
    assert net.special
    values = batch.target.values
    values[:, 3], values[:, 6] = net.special[0], net.special[3]
    read = read_by(net, batch, 0.999)
    assert torch.equal(read[:, [3, 6]], values[:, [3, 6]])
    assert float((read[:, [2, 4, 5]] == 17).float().mean()) > 0.95


def test_guesses_come_of_the_memory_that_the_loss_is_made_of() -> None:
    net, batch = sampling(1.0)
    memories: list[object] = []
    assert net.encoder is not None
    net.encoder.register_forward_hook(lambda *given: memories.append(given))
    net(batch, None, 1.0)[0].sum.backward()
    assert len(memories) == 1


def test_each_guess_comes_after_the_guesses_before_it() -> None:
    """With every token a guess, what is read is what greedy search says."""
    net, batch = new("lstm_additive_cell"), batch_of()
    batch.target.values[:, 0] = 2
    net.scheduled_sampling = 1.0
    read = read_by(net, batch, 1.0)
    with torch.no_grad():
        state = net.decoder.start(net.encode(batch.sources), 3)
        token = batch.target.values[:, :1]
        for t in range(read.size(1)):
            assert torch.equal(read[:, t : t + 1], token)
            logits, state = net.decoder(token, state)
            token = logits.argmax(-1)


def test_a_bag_of_words_is_a_share_of_the_loss_in_training_alone() -> None:
    plain, batch = new("lstm_additive_cell"), batch_of()
    words = BagOfWords(plain.encoder.dim, VOCAB)  # type: ignore[union-attr]
    net = Generator(plain.encoder, plain.decoder, words=words, bag=0.25).train()
    (alone, _), (both, _) = plain(batch), net(batch)
    unordered = words(net.encode(batch.sources), batch.target)
    assert torch.allclose(both.sum, 0.75 * alone.sum + 0.25 * unordered)
    assert both.count == alone.count
    (alone, _), (both, _) = plain.eval()(batch), net.eval()(batch)
    assert torch.equal(both.sum, alone.sum)


def test_rdrop_is_the_divergence_of_two_passes() -> None:
    one, other = torch.randn(5, 7), torch.randn(5, 7)
    gold = torch.randint(7, (5,))
    plain = [F.cross_entropy(logits, gold, reduction="sum") for logits in (one, other)]
    p, q = one.log_softmax(-1), other.log_softmax(-1)
    divergences = [
        F.kl_div(b, a, reduction="sum", log_target=True) for a, b in ((p, q), (q, p))
    ]  # torch's arguments are the other way round
    found = rdrop_loss(one, other, gold, 0.0, 3.0)
    assert torch.allclose(found.sum, sum(plain) / 2 + 3.0 * sum(divergences) / 4)
    assert torch.allclose(found.nll, sum(plain) / 2)
    assert found.count == 5


@pytest.mark.parametrize("task", ["translate", "classify", "tag"])
def test_two_passes_without_dropout_are_one(task: str) -> None:
    net = network(task, "lstm", "edit" if task == "translate" else None).train()
    assert isinstance(net, Generator | Labeller)
    source = source_batch()
    words = Padded(source.values, source.lengths, torch.arange(7).expand(3, -1))
    target = batch_of().target if task == "translate" else Padded(words.values % 7, words.lengths)
    plain, _ = net(Batch((words,), target))
    net.rdrop = 5.0
    twice, _ = net(Batch((words,), target))
    assert torch.allclose(plain.sum, twice.sum, rtol=1e-4)
    assert plain.count == twice.count
    for module in net.modules():
        if hasattr(module, "p"):
            module.p = 0.5
    apart, _ = net(Batch((words,), target))
    net.rdrop = 0.0
    torch.manual_seed(1)
    assert not torch.allclose(apart.sum, net(Batch((words,), target))[0].sum, rtol=1e-3)
