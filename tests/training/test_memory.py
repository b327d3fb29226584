"""A run's memory stays flat over many steps and evaluations."""

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from pathlib import Path
import numpy as np
import torch
from saccade.data.batches import collate
from saccade.runs.machine import tune_malloc
from saccade.setup.choose import fill_config
from saccade.setup.prepare import prepare
from saccade.training.stop import Stop
from saccade.training.trainer import Trainer
from saccade.tasks.task import result_of

folder = Path(sys.argv[1])
torch.set_num_threads(1)
tune_malloc()
raw = {
    "data": {"train": [str(folder / "texts.tsv")], "max_len": 1024},
    "task": {"kind": "classify", "tokenizer": {"kind": "char"}},
    "encoder": {"kind": "recurrent", "dim": 64},
    "train": {"steps": 1000},
}
ready = prepare(fill_config(raw, "x")[0], folder)
trainer = Trainer(ready.task, ready.task.build(), folder)
examples = list(ready.dev_examples)
numbers = np.random.default_rng(1)

def resident():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024

def train(steps):
    for _ in range(steps):
        rows = numbers.permutation(len(ready.train))[: numbers.integers(1, 4)]
        trainer.step([collate(ready.train, rows)], 0.5)
    result_of(trainer.evaluating(ready.dev, examples, Stop()))

train(40)
print(resident())
for _ in range(4):
    train(40)
print(resident())
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_stays_flat_over_many_shapes(tmp_path: Path) -> None:
    """Every batch has a shape of its own, as texts of many lengths have."""
    texts = ("ab" * (20 + i) + f"\t{'xy'[i % 2]}\n" for i in range(150))
    (tmp_path / "texts.tsv").write_text("".join(texts))
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, last = map(float, done.stdout.split())
    assert last < first + 10, (first, last)  # MB
