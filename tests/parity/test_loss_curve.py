"""Training in single precision is training with torch's own operations: the curves are the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.data.batches import Batch
from saccade.models.networks import Generator, Labeller, shifted
from saccade.nn.padded import Padded
from saccade.nn.state import detach
from saccade.setup.prepare import prepare
from saccade.training.trainer import Trainer
from tests.helpers import SMALL, settings

STEPS = 50


def config_of(name: str, folder: Path) -> Any:
    train = {"word_dropout": 0.0, "average": 0.0, "label_smoothing": 0.0, "warmup": 5}
    config = settings(name, folder, steps=STEPS, **train)
    parts: dict[str, Any] = {"train": config.train}
    for part in ("encoder", "decoder", "head"):
        if (old := getattr(config, part)) is not None:
            parts[part] = old.model_copy(update={"dropout": 0.0})
    return config.model_copy(update=parts)


def stock_loss(network: Any, batch: Batch, carry: Any) -> tuple[Tensor, Any]:
    """The mean loss of a batch, all its logits at once, and what is carried on."""
    if isinstance(network, Labeller):
        logits = network.logits(batch.sources)
        gold = batch.target.values[:, 0] if logits.dim() == 2 else scored(batch.target)
    else:
        assert isinstance(network, Generator)
        tokens, said = shifted(batch.target)
        state = carry or network.decoder.start(network.encode(batch.sources), len(tokens))
        logits, state = network.decoder(tokens, state)
        carry = detach(state) if network.carries else None
        gold = scored(said)
    rows = logits.flatten(0, -2)
    return F.cross_entropy(rows, gold.flatten()), carry


def scored(target: Padded) -> Tensor:
    """The ids of a target, with torch's mark where there is padding."""
    keep = target.keep
    return target.values if keep is None else target.values.masked_fill(~keep, -100)


@pytest.mark.parametrize("name", SMALL)
def test_the_loss_curve_is_that_of_stock_operations(name: str, tmp_path: Path) -> None:
    config = config_of(name, tmp_path)
    ready = prepare(config, tmp_path)
    network, stock = ready.task.build(), ready.task.build()
    stock.load_state_dict(network.state_dict())
    trainer = Trainer(ready.task, network, tmp_path)
    groups = [
        {"params": [dict(stock.named_parameters())[n] for n in names], "weight_decay": decay}
        for names, decay in groups_of(trainer)
    ]
    settings_ = {k: v for k, v in trainer.optimizer.defaults.items() if k in ("betas", "eps")}
    optimizer = torch.optim.AdamW(groups, lr=0.0, fused=False, foreach=False, **settings_)
    batches, carry, index = ready.task.epoch(ready.train, 0), None, 0
    for step in range(STEPS):
        if index == len(batches):
            index, carry, trainer.carry = 0, None, None
        batch = batches[index]
        result = trainer.step([batch], step / STEPS)
        loss, carry = stock_loss(stock.train(), batch, carry)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(stock.parameters(), config.train.clip)
        for group in optimizer.param_groups:
            group["lr"] = result.rate
        optimizer.step()
        assert float(result.nll) / result.count == pytest.approx(loss.item(), abs=1e-5)
        index += 1


def groups_of(trainer: Trainer) -> list[tuple[list[str], float]]:
    """The names of the weights in each group of the optimiser, and its weight decay."""
    names = {id(p): name for name, p in trainer.network.named_parameters()}
    return [
        ([names[id(p)] for p in group["params"]], group["weight_decay"])
        for group in trainer.optimizer.param_groups
    ]
