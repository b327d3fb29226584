"""Copying: the pointer's laws, and words that no training example has."""

import random
from functools import cache
from pathlib import Path

import pytest
import torch

import saccade
from saccade.config import parse
from saccade.data.batches import Batch
from saccade.decoding.search import beam_search, greedy
from saccade.decoding.steps import stepper
from saccade.engines.export import unsupported
from saccade.errors import ConfigError
from saccade.models.build import build
from saccade.models.networks import Generator
from saccade.nn.padded import Padded, pad
from tests.architectures import DECODERS, ENCODERS, IDS, VOCAB, source_batch

KINDS = ("lstm_additive_cell", "lstm_general_output", "gru_off", "transformer")
JOINT = {"kind": "translate", "joint": True}
JOINT |= {"source": {"kind": "char"}, "target": {"kind": "char"}}


@cache
def copier(decoder: str) -> Generator:
    raw = {"task": JOINT, "encoder": ENCODERS["lstm"], "data": {"max_len": 40}}
    raw["decoder"] = DECODERS[decoder] | {"copy": True}
    built = build(parse(raw, "test"), [IDS], IDS, seed=3)
    assert isinstance(built, Generator)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return built.eval()


def targets(rows: int = 3, columns: int = 6) -> torch.Tensor:
    return torch.randint(5, VOCAB, (rows, columns), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("decoder", KINDS)
def test_step_by_step_is_all_at_once_and_probabilities_sum_to_one(decoder: str) -> None:
    net, tokens = copier(decoder), targets()
    with torch.inference_mode():
        state = net.decoder.start(net.encode((source_batch(),)), 3)
        whole, _ = net.decoder(tokens, state)
        columns = []
        for column in tokens.split(1, 1):
            log_probs, state = net.decoder(column, state)
            columns.append(log_probs)
    assert torch.allclose(torch.cat(columns, 1), whole, atol=1e-5)
    assert torch.allclose(whole.exp().sum(-1), torch.ones(whole.shape[:2]), atol=1e-5)


@pytest.mark.parametrize("decoder", KINDS)
def test_what_the_source_holds_is_likelier_by_the_attention_to_it(decoder: str) -> None:
    net, tokens, source = copier(decoder), targets(), source_batch()
    assert net.decoder.pointer is not None
    with torch.inference_mode():
        state = net.decoder.start(net.encode((source,)), 3)
        found, after = net.decoder(tokens, state)
        hidden, _ = net.decoder.hidden(tokens, state)
        plain = net.decoder.output(hidden).softmax(-1)
        weights, gate = net.decoder.pointer.point(hidden, after.pointed.tree)
        share = gate.sigmoid()
        gold = (1 - share) * plain
        for b in range(3):
            for s in range(int(source.lengths[b])):
                gold[b, :, source.values[b, s]] += share[b, :, 0] * weights[b, :, s]
    assert torch.allclose(found.exp(), gold, atol=1e-5)


@pytest.mark.parametrize("decoder", KINDS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_the_probabilities(decoder: str, smoothing: float) -> None:
    net, source = copier(decoder), source_batch()
    target = pad([[2, 7, 8, 3], [2, 9, 5, 6, 7, 3], [2, 3]])
    tokens, said = target.values[:, :-1], Padded(target.values[:, 1:], target.lengths - 1)
    net.zero_grad()
    loss, _ = net.decoder.loss(tokens, said, net.decoder.start(net.encode((source,)), 3), smoothing)
    loss.sum.backward()
    slopes = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    state = net.decoder.start(net.encode((source,)), 3)
    log_probs, _ = net.decoder(tokens, state)
    nll = -said.real(log_probs).gather(1, said.real(said.values)[:, None]).sum()
    hidden, _ = net.decoder.hidden(tokens, state)
    plain = net.decoder.output(said.real(hidden)).log_softmax(-1)
    total = (1 - smoothing) * nll - smoothing * plain.mean(-1).sum()
    total.backward()
    assert loss.count == 9
    assert float(loss.nll) == pytest.approx(float(nll.detach()), rel=1e-5)
    assert float(loss.sum.detach()) == pytest.approx(float(total.detach()), rel=1e-5)
    gold = [p.grad for p in net.parameters() if p.grad is not None]
    for mine, other in zip(slopes, gold, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)
    net.zero_grad()


def test_logits_in_chunks_give_the_same_loss_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    net, source = copier("transformer"), source_batch()
    target = pad([[2, *range(5, 15), 3] * 12, [2, 9, 5, 6, 7, 3] * 9, [2, 3]])
    found = []
    for size in (1 << 22, 64 * VOCAB):
        monkeypatch.setattr("saccade.nn.loss.CHUNK_LOGITS", size)
        net.zero_grad()
        loss, _ = net(Batch((source,), target))
        loss.sum.backward()
        found.append([loss.sum.detach(), *(p.grad for p in net.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1]) > 10
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("decoder", KINDS)
def test_padding_is_invisible_and_a_batch_is_its_rows(decoder: str) -> None:
    net, source = copier(decoder), source_batch()
    target = pad([[2, 7, 8, 3], [2, 9, 5, 3], [2, 3]])
    wide = Padded(torch.nn.functional.pad(source.values, (0, 4)), source.lengths)
    with torch.inference_mode():
        losses = [net(Batch((some,), target))[0] for some in (source, wide)]
        alone = [
            net(Batch((source.rows(torch.tensor([b])),), target.rows(torch.tensor([b]))))[0]
            for b in range(3)
        ]
    assert torch.allclose(losses[0].nll, losses[1].nll, atol=1e-4)
    assert torch.allclose(losses[0].nll, sum(loss.nll for loss in alone), atol=1e-4)


@pytest.mark.parametrize("decoder", KINDS)
def test_searches_agree_with_scores(decoder: str) -> None:
    net = copier(decoder)
    step = stepper(net.decoder, (0, 1, 2, 4))
    with torch.inference_mode():
        state = net.decoder.start(net.encode((source_batch(),)), 3)
        first = torch.full((3,), 2)
        one = greedy(step, state, first, end=3, limits=[6] * 3)
        beams = beam_search(step, state, first, end=3, width=1, limits=[6] * 3)
        wide = beam_search(step, state, first, end=3, width=4, limits=[6] * 3)
        both = net.decoder(torch.full((6, 1), 2), state)[0]  # two rows of each source
        single = net.decoder(first[:, None], state)[0]
        assert [a.tokens for a in one] == [b[0].tokens for b in beams]
    assert torch.allclose(both, single.repeat_interleave(2, 0), atol=1e-5)
    for b, found in enumerate(wide):
        best = found[0]
        tokens = torch.tensor([[2, *best.tokens, 3]])
        with torch.inference_mode():
            memory = net.encode((source_batch().rows(torch.tensor([b])),))
            log_probs, _ = net.decoder(tokens[:, :-1], net.decoder.start(memory, 1))
        score = float(log_probs.gather(2, tokens[:, 1:, None]).sum())
        assert best.score == pytest.approx(score, abs=1e-3)


def test_words_that_no_training_example_has_are_copied(tmp_path: Path) -> None:
    """A name follows a word that says so; letters of the test names never follow one another."""
    numbers = random.Random(1)

    def rows(letters: str, count: int) -> list[tuple[str, str]]:
        names = ["".join(numbers.choices(letters, k=numbers.randint(3, 5))) for _ in range(count)]
        return [(f"call {name} now", f"<{name}>") for name in names]

    data = tmp_path / "names.tsv"
    known = rows("abcdefgh", 300) + rows("stuvwxyz", 300)
    data.write_text("".join(f"{source}\t{target}\n" for source, target in known))
    settings = {
        "task": {"kind": "translate"} | JOINT,
        "encoder": {"kind": "recurrent", "dim": 48, "dropout": 0.0},
        "decoder": {"kind": "recurrent", "dim": 48, "dropout": 0.0, "attention": "general",
                    "context": "output", "copy": True},
        "train": {"steps": 400, "rate": 4e-3, "batch_tokens": 1024, "average": 0.0,
                  "evaluate_every": 400, "label_smoothing": 0.0},
    }  # fmt: skip
    run = saccade.train(data, out=tmp_path / "run", settings=settings, quiet=True)
    new = rows("ahsz", 40)  # halves of both
    right = sum(found.text == gold for found, (_, gold) in zip(
        run.predict([source for source, _ in new], width=1), new, strict=True))  # fmt: skip
    assert right >= 32
    (log_p, count), *_ = run.score(data)
    assert count > 4
    assert log_p > -3.0


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"kind": "translate"}, "one vocabulary"),
        (JOINT | {"source": {"kind": "word"}, "target": {"kind": "word"}}, "cannot be copied"),
    ],
)
def test_what_cannot_be_copied_is_said(task: dict[str, object], message: str) -> None:
    raw = {"task": task, "encoder": ENCODERS["lstm"]}
    raw["decoder"] = DECODERS["transformer"] | {"copy": True}
    with pytest.raises(ConfigError, match=message):
        parse(raw, "test")
    parts = {"encoder": ENCODERS["transformer"], "decoder": raw["decoder"]}
    assert "copy mechanism" in unsupported(parse({"task": JOINT} | parts, "test"))
