"""Edits: all ways to write a target count, and nothing else."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from saccade.nn.edits import Edits, Moves
from saccade.nn.padded import Memory

VOCAB, DIM, END = 7, 6, 3


def edits(copies: bool) -> Edits:
    torch.manual_seed(4)
    module = Edits(nn.Linear(DIM, VOCAB), DIM, 5, END, copies, dropout=0.0)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module.eval()


def memory(rows: int, positions: int, real: int | None = None) -> Memory:
    """One whose last positions are padding, if so many are not real."""
    numbers = torch.Generator().manual_seed(6)
    values = torch.randn(rows, positions, 5, generator=numbers)
    tokens = torch.randint(4, VOCAB, (rows, positions), generator=numbers)
    tokens[:, -1] = END  # as the mark at the end of a source
    keep = None if real is None else (torch.arange(positions) < real).expand(rows, -1)
    return Memory(values, keep, values.mean(1), tokens)


def probability(moves: Moves, target: list[int], positions: int) -> Tensor:
    """The sum over all ways to write a target, each followed from its beginning to its end."""
    insert, move, write, delete = (part[0].exp() for part in moves)
    total = torch.zeros(())
    # For each token the position where it is written; between two, all others are deleted.
    for places in product(range(positions + 1), repeat=len(target)):
        p, at = torch.ones(()), 0
        for t, (place, token) in enumerate(zip(places, target, strict=True)):
            if place == at:
                p = p * insert[t, place, token]
            elif place > at:
                p = p * move[t, at] * delete[t, at + 1 : place].prod() * write[t, place, token]
            else:
                p = p * 0.0
            at = place
        total = total + p * move[len(target), at] * delete[len(target), at + 1 :].prod()
    return total


@pytest.mark.parametrize("copies", [False, True])
def test_a_target_has_the_probability_of_all_ways_to_write_it(copies: bool) -> None:
    module, target, positions = edits(copies), [5, 1, 6], 3
    hidden = torch.randn(1, len(target) + 1, DIM)
    with torch.no_grad():
        source = module.prepare(memory(1, positions))
        said, _ = module(hidden, torch.tensor([[2, *target]]), source, None)
        by_hand = probability(module.moves(hidden, source), target, positions)
    log_p = said[0, range(4), [*target, END]].sum()
    assert torch.allclose(log_p.exp(), by_hand, rtol=1e-4)


@pytest.mark.parametrize("real", [None, 3])
@pytest.mark.parametrize("copies", [False, True])
def test_what_comes_next_has_probability_one(copies: bool, real: int | None) -> None:
    module = edits(copies)
    with torch.no_grad():
        source = module.prepare(memory(2, 5, real))
        said, _ = module(torch.randn(2, 4, DIM), torch.tensor([[2, 5, 5, 1]] * 2), source, None)
    assert torch.allclose(said.exp().sum(-1), torch.ones(2, 4), atol=1e-5)


def test_a_copy_is_what_stands_in_the_source() -> None:
    module, read = edits(copies=True), memory(1, 3)
    assert read.tokens is not None
    with torch.no_grad():
        module.acts.bias[1] = 50.0  # nothing but copies
        module.acts.weight[1] = 0.0
        moves = module.moves(torch.randn(1, 1, DIM), module.prepare(read))
    written = moves.write[0, 0, 1:-1]
    assert torch.equal(written.argmax(-1), read.tokens[0, :-1])
    assert float(written.max(-1).values.min()) > -1e-3


def test_no_gradient_is_lost_where_a_target_has_ended() -> None:
    module = edits(copies=True)
    source = module.prepare(memory(2, 4, real=2))
    tokens = torch.tensor([[2, 5, END, 0, 0], [2, 5, 4, 4, 1]])  # one is padded
    said, _ = module(torch.randn(2, 5, DIM), tokens, source, None)
    (said[0, :2].sum() + said[1].sum()).backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name


@pytest.mark.parametrize("copies", [False, True])
def test_a_likelihood_and_its_slopes_are_those_of_all_that_could_be_said(copies: bool) -> None:
    module = edits(copies)
    hidden = torch.randn(2, 4, DIM, requires_grad=True)
    targets = torch.tensor([[5, 1, 6, END], [4, END, 0, 0]])  # the second is padded
    real = torch.tensor([[True] * 4, [True, True, False, False]])
    inputs = torch.cat([torch.tensor([[2], [2]]), targets[:, :-1]], 1)
    found, slopes = [], []
    for whole in (True, False):
        source = module.prepare(memory(2, 5, real=4))
        if whole:
            said = module(hidden, inputs, source, None)[0]
            log_p = said.gather(2, targets.unsqueeze(2)).squeeze(2)
        else:
            log_p = module.log_likelihood(hidden, targets, source)
        found.append(log_p[real])
        parameters = list(module.parameters())
        slopes.append(torch.autograd.grad(log_p[real].sum(), [hidden, *parameters]))
    assert torch.allclose(*found, atol=1e-5)
    for one, other in zip(*slopes, strict=True):
        assert torch.allclose(one, other, atol=1e-4)
