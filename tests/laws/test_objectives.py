"""Nothing leaks: a token that may not be seen changes no logit that may not see it.

For every view of a row, and for every objective as it makes its rows.
"""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from saccade import config as c
from saccade.data.batches import Batch
from saccade.models.build import build
from saccade.models.networks import Generator, TokenPredictor, shifted
from saccade.nn.padded import UNSCORED_ID, Padded, View
from saccade.tasks import objectives
from saccade.tasks.objectives import Sample, VocabInfo, rng_of
from saccade.tasks.pretrain import batch_of
from saccade.text import Tokenizer
from tests.architectures import TRANSFORMER

TOKENIZER = Tokenizer.train(
    c.Tokenizer(kind="word", size=60, mask=True, sentinels=6),
    [" ".join(f"w{i}" for i in range(40))],
)
IDS = VocabInfo.of(TOKENIZER)
POSITIONS = ("sinusoidal", "learned", "rotary", "relative")
OBJECTIVES: dict[str, dict[str, Any]] = {
    "masked": {"kind": "masked", "mask": 1.0, "random": 0.0, "share": 0.3},
    "unilm": {"kind": "unilm", "mask": 1.0, "random": 0.0, "share": 0.3},
    "permuted": {"kind": "permuted", "share": 0.4},
    "spans": {"kind": "spans", "share": 0.4},
    "denoising": {"kind": "denoising", "share": 0.4},
}
LENGTH = 14


@cache
def network(kind: str, positions: str) -> Any:
    part = TRANSFORMER | {"positions": positions, "max_positions": 64}
    raw: dict[str, Any] = {"task": {"kind": "pretrain", "objective": OBJECTIVES[kind]}}
    raw["task"] |= {"context": 32, "tokenizer": TOKENIZER.config.model_dump()}
    raw |= {name: part for name in c.OBJECTIVES[kind].parts if name != "head"}
    raw |= {"head": {"kind": "per_token"}} if "head" in c.OBJECTIVES[kind].parts else {}
    built = build(c.parse(raw, "test"), [TOKENIZER.inventory], TOKENIZER.inventory, seed=3)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return built.eval()


def row_of(seed: int, length: int = LENGTH) -> np.ndarray:
    """Two lines of words."""
    row = np.random.default_rng(seed).choice(IDS.plain, length)
    row[[length // 2, -1]] = TOKENIZER.specials.eos
    return row


def made_of(kind: str, row: np.ndarray, index: int) -> Sample:
    objective = c.parse(
        {"task": {"kind": "pretrain", "objective": OBJECTIVES[kind], "context": 16,
                  "tokenizer": TOKENIZER.config.model_dump()},
         **{part: {"kind": "per_token"} if part == "head" else TRANSFORMER
            for part in c.OBJECTIVES[kind].parts}}, "test",
    ).task.objective  # fmt: skip
    return getattr(objectives, kind)(row, rng_of(1, 1, index), objective, IDS)


def logits_of(net: Any, batch: Batch) -> Tensor:
    """Those of all targets, one after the other."""
    with torch.inference_mode():
        if isinstance(net, TokenPredictor):
            return net.logits(batch.sources, batch.target)
        assert isinstance(net, Generator)
        tokens, said = shifted(batch.target)
        state = net.decoder.start(net.encode(batch.sources), tokens.size(0))
        return said.real(net.decoder(tokens, state)[0])


def differ(one: Tensor, other: Tensor) -> np.ndarray:
    """Which rows of logits are not the same."""
    return ((one - other).abs().amax(-1) > 1e-5).numpy()


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_position_hears_what_it_sees_and_what_those_see_and_no_more(positions: str) -> None:
    net, numbers = network("permuted", positions), np.random.default_rng(2)
    for _ in range(3):
        ids = torch.tensor(numbers.choice(IDS.plain, (1, 10)))
        order, sight = torch.tensor(numbers.integers(0, 6, (2, 1, 10)))
        view = View(order, sight, torch.tensor(numbers.integers(0, 20, (1, 10))))
        own = torch.eye(10, dtype=torch.bool)
        heard = view.seen[0] | own
        heard = (heard.float() @ heard.float()) > 0  # two layers
        with torch.inference_mode():
            before = net.encoder(Padded(ids, torch.tensor([10]), view=view)).values[0]
            for j in range(10):
                changed = ids.clone()
                changed[0, j] = IDS.plain[0] if ids[0, j] != IDS.plain[0] else IDS.plain[1]
                after = net.encoder(Padded(changed, torch.tensor([10]), view=view)).values[0]
                assert (differ(before, after) == heard[:, j].numpy()).all()


@pytest.mark.parametrize("positions", POSITIONS)
def test_where_positions_stand_is_all_that_their_order_in_a_row_means(positions: str) -> None:
    net, numbers = network("permuted", positions), np.random.default_rng(3)
    ids = torch.tensor(numbers.choice(IDS.plain, (1, 9)))
    mix, zeros = torch.tensor(numbers.permutation(9)), torch.zeros(1, 9, dtype=torch.long)
    places = torch.arange(9)[None]
    with torch.inference_mode():
        plain = net.encoder(Padded(ids, torch.tensor([9]))).values[0]
        same = net.encoder(Padded(ids, torch.tensor([9]), view=View(zeros, zeros, places)))
        mixed = View(zeros, zeros, places[:, mix])
        other = net.encoder(Padded(ids[:, mix], torch.tensor([9]), view=mixed)).values[0]
    assert torch.allclose(plain, same.values[0], atol=1e-5)
    assert torch.allclose(plain[mix], other, atol=1e-5)


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_no_objective_leaks_what_it_asks_for(kind: str) -> None:
    """A token of the text is changed, and the row made again with the same random numbers."""
    positions = {"masked": "rotary", "unilm": "learned", "permuted": "relative"}
    net = network(kind, positions.get(kind, "sinusoidal"))
    heard_some = 0
    for index in range(6):
        row = row_of(index)
        made = made_of(kind, row, index)
        batch = batch_of([made], 0, 0 if isinstance(net, Generator) else UNSCORED_ID)
        before = logits_of(net, batch)
        for j in np.flatnonzero(~IDS.special[row]):
            changed = row.copy()
            changed[j] = IDS.plain[(np.flatnonzero(IDS.plain == row[j])[0] + 1) % len(IDS.plain)]
            again = made_of(kind, changed, index)
            after = logits_of(net, batch_of([again], 0, 0 if kind in BOTH else UNSCORED_ID))
            heard = differ(before, after)
            may = allowed(kind, made, again, row, int(j))
            assert not (heard & ~may).any(), (kind, index, j)
            heard_some += int(heard.any())
    assert heard_some > 5  # what may be seen is seen


BOTH = ("spans", "denoising")  # an encoder and a decoder


def allowed(kind: str, made: Sample, again: Sample, row: np.ndarray, j: int) -> np.ndarray:
    """Which targets may see token j of a row, in the words of the papers."""
    if kind in BOTH:  # in the source: all; else what is said after it
        said = made.target[1:]
        if (made.source != again.source).any():
            return np.ones(len(said), bool)
        first = np.flatnonzero(said != again.target[1:])[0]
        return np.arange(len(said)) > first
    asked = np.flatnonzero(made.target != UNSCORED_ID)
    if kind == "masked":
        return np.full(len(asked), made.target[j] == UNSCORED_ID)
    if kind == "permuted":
        assert made.view is not None
        rank = made.view.key_order[: len(row)]
        of_targets = made.view.query_order[asked] + 1
        return of_targets > rank[j]
    assert made.view is not None
    order = made.view.key_order
    if made.target[j] != UNSCORED_ID:  # hidden: nobody
        return np.zeros(len(asked), bool)
    if order.max() == 0:  # both ways
        return np.ones(len(asked), bool)
    return (order[j] == 0) | (asked >= j)


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_rows_side_by_side_are_rows_alone(kind: str) -> None:
    net = network(kind, "rotary")
    made = [made_of(kind, row_of(n, length), n) for n, length in enumerate((14, 6, 10))]
    fill = 0 if kind in BOTH else UNSCORED_ID
    together = logits_of(net, batch_of(made, 0, fill))
    alone = torch.cat([logits_of(net, batch_of([one], 0, fill)) for one in made])
    assert torch.allclose(together, alone, atol=1e-4)
