"""Networks are built twice: shapes alone, and then with memory and weights."""

import subprocess
import sys

import torch

from saccade.models.build import build_meta, materialize
from tests.architectures import IDS, config_of

MEASURE = """
import sys
from tests.architectures import IDS, config_of
from saccade.models.build import build_meta
for encoder, decoder in (("transformer", "lstm_additive_cell"), ("convolution", "transformer")):
    build_meta(config_of("translate", encoder, decoder), [IDS], IDS)
print("torch._dynamo" in sys.modules)
"""


def test_shapes_alone_need_neither_memory_nor_a_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_the_same_seed_gives_the_same_weights_whatever_was_there() -> None:
    config = config_of("translate", "transformer", "lstm_additive_cell")
    one, other = (materialize(build_meta(config, [IDS], IDS), 7) for _ in range(2))
    another = materialize(build_meta(config, [IDS], IDS), 8)
    for name, weight in one.named_parameters():
        assert bool(weight.isfinite().all()), name
        assert torch.equal(weight, other.get_parameter(name)), name
    assert any(not torch.equal(w, another.get_parameter(n)) for n, w in one.named_parameters())
