"""Means are means: of a word's pieces, and of several sources; and each source has its mark."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from saccade.models.encoders import Encoder, LateFusion
from saccade.models.heads import BagOfWords, CTCHead, PerToken, Pooled, word_means
from saccade.nn.loss import Vocabulary
from saccade.nn.padded import Memory, Padded, end_to_end
from tests.architectures import network, source_batch


def test_a_word_is_the_mean_of_its_pieces() -> None:
    values = torch.randn(2, 6, 4)
    words = torch.tensor([[0, 0, 0, 1, 2, 2], [0, 1, 1, -1, -1, -1]])
    means = word_means(values, words)
    assert torch.allclose(means[0, 0], values[0, :3].mean(0), atol=1e-6)
    assert torch.allclose(means[0, 1], values[0, 3], atol=1e-6)
    assert torch.allclose(means[0, 2], values[0, 4:].mean(0), atol=1e-6)
    assert torch.allclose(means[1, 0], values[1, 0], atol=1e-6)
    assert torch.allclose(means[1, 1], values[1, 1:3].mean(0), atol=1e-6)
    assert torch.equal(means[1, 2], torch.zeros(4))  # it has no third word


def test_several_memories_have_the_mean_of_their_summaries() -> None:
    one, two, three = (Memory(torch.randn(2, n, 4), None, torch.randn(2, 4)) for n in (3, 1, 5))
    both = end_to_end([one, two, three])
    assert torch.equal(both.values, torch.cat([one.values, two.values, three.values], 1))
    assert torch.allclose(both.summary, (one.summary + two.summary + three.summary) / 3)
    assert both.keep is None
    padded = Memory(one.values, torch.tensor([[True, True, False], [True] * 3]), one.summary)
    assert end_to_end([padded, two]).keep.tolist() == [  # type: ignore[union-attr]
        [True, True, False, True],
        [True, True, True, True],
    ]
    assert end_to_end([one]) is one


def test_every_source_has_a_mark_of_its_own() -> None:
    """Two columns that say the same, read by the same encoder, are still told apart."""
    net = network("translate", "transformer", "transformer")
    encoder = net.encoder  # type: ignore[union-attr]
    assert isinstance(encoder, Encoder)
    both = LateFusion([encoder, encoder])
    nn.init.normal_(both.marks.weight)
    source = source_batch((5, 5))
    with torch.inference_mode():
        memory, alone = both(source, source), encoder(source)
        first, second = memory.values.split(5, 1)
    assert torch.allclose(first, alone.values + both.marks.weight[0], atol=1e-6)
    assert torch.allclose(second, alone.values + both.marks.weight[1], atol=1e-6)


def test_a_pooler_reads_the_first_position() -> None:
    head = Pooled(4, nn.Identity(), "first", 0.0, "tanh")
    memory = Memory(torch.randn(2, 3, 4), None, torch.randn(2, 4))
    expected = torch.tanh(memory.values[:, 0] @ head.dense.weight.T + head.dense.bias)
    assert torch.allclose(head(memory), expected, atol=1e-6)


def test_the_loss_of_a_token_head_is_that_of_its_logits() -> None:
    output = Vocabulary(4, 7)
    head = PerToken(4, output, "gelu", 1e-12)
    values, gold = torch.randn(5, 4), torch.tensor([1, 6, 0, 3, 3])
    x = F.gelu(values @ head.dense.weight.T + head.dense.bias)
    x = (x - x.mean(-1, keepdim=True)) / x.var(-1, keepdim=True, unbiased=False).sqrt()
    assert torch.allclose(head(values), output(x), atol=1e-5)
    loss = head.loss(values, gold)
    expected = F.cross_entropy(output(x), gold, reduction="sum")
    assert torch.allclose(loss.sum, expected, rtol=1e-5)
    assert loss.count == 5


def every_way(log_probs: torch.Tensor, said: list[int], blank: int) -> float:
    """log p of a target by CTC: the sum over all ways, one by one."""
    S, V = log_probs.shape
    total = 0.0
    for way in itertools.product(range(V), repeat=S):
        told = [one for one, _ in itertools.groupby(way) if one != blank]
        if told == said:
            total += math.exp(sum(float(log_probs[s, one]) for s, one in enumerate(way)))
    return math.log(total)


def test_ctc_is_the_sum_over_all_ways_and_padding_is_invisible() -> None:
    head = CTCHead(6, 4, blank=0)
    values, keep = torch.randn(2, 5, 6), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    target = Padded(torch.tensor([[2, 1, 1, 3, 3], [2, 1, 3, 0, 0]]), torch.tensor([5, 3]))
    memory = Memory(values, keep, values.mean(1))
    with torch.inference_mode():
        log_probs = head(memory)
        found = float(head.loss(log_probs, keep, target))
    # between the marks at both ends: 1 1 3, of five positions, and 1, of three
    wanted = every_way(log_probs[0], [1, 1, 3], 0) + every_way(log_probs[1, :3], [1], 0)
    assert found == pytest.approx(-wanted, abs=1e-4)


def test_a_target_longer_than_its_source_counts_nothing_to_ctc() -> None:
    head, values = CTCHead(6, 4, blank=0), torch.randn(1, 2, 6)
    target = Padded(torch.tensor([[2, 1, 2, 3, 1, 3]]), torch.tensor([6]))
    with torch.inference_mode():
        log_probs = head(Memory(values, None, values.mean(1)))
        assert float(head.loss(log_probs, None, target)) == 0.0


def test_a_bag_of_words_is_scored_by_the_mean_of_what_was_read() -> None:
    head = BagOfWords(4, 9)
    keep = torch.tensor([[True, True, False], [True, True, True]])
    memory = Memory(torch.randn(2, 3, 4), keep, torch.randn(2, 4))
    target = Padded(torch.tensor([[1, 5, 7, 5, 2], [1, 8, 2, 0, 0]]), torch.tensor([5, 3]))
    first = head.output(memory.values[0, :2].mean(0)).log_softmax(-1)
    second = head.output(memory.values[1].mean(0)).log_softmax(-1)
    wanted = -(2 * first[5] + first[7] + second[8])  # no mark at either end, no padding
    assert torch.allclose(head(memory, target), wanted, atol=1e-6)
    swapped = Padded(target.values[:, [0, 3, 2, 1, 4]], target.lengths)
    only = Memory(memory.values[:1], keep[:1], memory.summary[:1])
    one, other = (Padded(t.values[:1], t.lengths[:1]) for t in (target, swapped))
    assert torch.allclose(head(only, one), head(only, other))
