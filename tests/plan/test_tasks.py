"""Tasks whose batches come of their own data: forecasts, and word vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saccade import config as c
from saccade.plan.flops import flops_of
from saccade.plan.layers import layers_of
from saccade.plan.subject import shape_of
from saccade.setup.choose import gather, survey_and_fill
from saccade.setup.prepare import prepare
from tests.helpers import corpus
from tests.plan.test_flops import TOLERANCE, counted
from tests.series import table

BODY = {"kind": "recurrent", "dim": 32}
SPANS = {"task.lookback": 24, "task.horizon": 6, "task.season": 12}
STEPS = {"encoder": BODY, "output.kind": "gaussian", "decoder.tied": False, "decoder.dim": 32}
FORECASTS: dict[str, dict[str, Any]] = {
    "linear": {},
    "encoder": {"encoder": BODY},
    "covariates": {"task.known": ["holiday"], "task.past": ["cause"], "task.series": ["a", "b"]},
    "joint": {"task.channels": "joint", "encoder": BODY | {"kind": "convolution"}},
    "steps": STEPS | {"decoder.kind": "recurrent"},
}


def agrees(data: Path, settings: dict[str, Any], folder: Path) -> None:
    raw, where = gather(data)
    for key, value in settings.items():
        c.assign(raw, key, value)
    config, _, seen = survey_and_fill(raw, where)
    ready = prepare(config, folder, seen)
    network, batch = ready.task.build().train(), ready.task.epoch(ready.train, 0)[0]
    layers = layers_of(network, shape_of(batch, network))
    torch_says = counted(lambda: network(batch)[0].sum.backward())
    assert flops_of(layers).step == pytest.approx(torch_says, rel=TOLERANCE)
    own = sum(parameter.numel() for parameter in network.parameters())
    assert sum(layer.parameters for layer in layers) == own


@pytest.mark.parametrize("name", FORECASTS)
def test_a_forecast_has_the_flops_of_torch(name: str, tmp_path: Path) -> None:
    settings = {"task.kind": "forecast"} | SPANS | FORECASTS[name]
    agrees(table(tmp_path, 150), settings, tmp_path)


@pytest.mark.parametrize("objective", ["skipgram", "cbow"])
def test_word_vectors_have_the_flops_of_torch(objective: str, tmp_path: Path) -> None:
    words = np.random.default_rng(0).choice([f"w{i}" for i in range(30)], (200, 12))
    path = tmp_path / "text.txt"
    path.write_text("".join(" ".join(row) + "\n" for row in words))
    settings = {"task.kind": "pretrain", "task.objective.kind": objective}
    agrees(path, settings, tmp_path)


def test_a_translation_from_a_file_has_the_flops_of_torch(tmp_path: Path) -> None:
    """Rows of unlike lengths: what is padded is counted, where torch's kernels skip some of it."""
    agrees(corpus(tmp_path, "translate"), {"encoder.kind": "transformer"}, tmp_path)
