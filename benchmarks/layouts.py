"""The loss of one, two and four processes and of every layout, laid over each other in a picture.

    python benchmarks/layouts.py docs/layouts.png

Trains a small Transformer once for each layout, on the CPU, from the same first weights on the same
batches: the curves are one curve, and the differences from one process's are drawn below it.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from saccade import config as c
from saccade.data.batches import Loader
from saccade.distributed.mesh import MeshRanks, layout_of
from saccade.distributed.parallelize import parallelize
from saccade.distributed.world import join, leave
from saccade.runs.folder import read_config, write_config
from saccade.runs.machine import choose_device
from saccade.runs.start import first_weights
from saccade.setup.choose import fill_config, gather
from saccade.setup.prepare import prepare, reopen
from saccade.training.trainer import Trainer

LAYOUTS: dict[int, list[dict[str, Any]]] = {
    1: [{}],
    2: [
        {"data": 2},
        {"shard": 2},
        {"shard": 2, "offload": True, "checkpoint_activations": True},
        {"tensor": 2},
    ],
    4: [
        {"data": 4},
        {"shard": 4},
        {"data": 2, "shard": 2, "checkpoint_activations": True},
        {"data": 2, "tensor": 2},
        {"shard": 2, "tensor": 2, "sequence": True},
        {"tensor": 4},
    ],
}
STEPS = 40
PART = {"kind": "transformer", "dim": 32, "num_heads": 4, "ff_dim": 64, "num_layers": 2}
PART |= {"dropout": 0.0}
TRAIN = {"batch_tokens": 1000, "optimizer": "sgd", "rate": 0.5, "warmup": 0, "steps": STEPS}
TRAIN |= {"schedule": "constant", "average": 0, "precision": "fp32", "processes": 1, "workers": 0}
TRAIN |= {"word_dropout": 0, "label_smoothing": 0}


class Alike(MeshRanks):
    """Processes that all know by themselves what is next."""

    def order(self, *what: Any) -> None: ...


def curve(folder: Path, layout: dict[str, Any]) -> list[float]:
    """The loss of each step."""
    world, config = join(), read_config(folder)
    ready = reopen(config, folder)
    network, ranks = first_weights(ready.task.build_meta(), config, folder), None
    if world is not None:
        parallel = c.Parallel(**layout)
        ranks = Alike(world, layout_of(parallel, world.size), choose_device("cpu"))
        parallelize(network, ranks.mesh, parallel)
    trainer = Trainer(ready.task, network, folder, ranks)
    split = None if ranks is None else ranks.row_range
    loader = Loader(partial(ready.task.epoch, ready.train), 0, split)
    found, epoch, index = [], 0, 0
    while len(found) < STEPS:
        if index == len(loader.epoch(epoch)):
            epoch, index = epoch + 1, 0
        result = trainer.step(loader.take(epoch, index, 1), len(found) / STEPS)
        found.append(float(result.nll) / result.count)
        index += 1
    loader.close()
    return found


def one_of(folder: Path, result: Path) -> None:
    """One process of those that go through all layouts of as many."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if (world := join()) is not None:
        world.set_timeout(300.0)
    found = [(size, layout, curve(folder, layout)) for layout in LAYOUTS[size]]
    if world is None or world.rank == 0:
        result.write_text(json.dumps(found))
    leave()


def trained(folder: Path, size: int) -> list[Any]:
    result = folder / f"{size}.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command = [*command, str(size)] if size > 1 else [sys.executable]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = [__file__, "--part", str(folder), str(result)]
    subprocess.run([*command, *words], check=True, env=environment)
    return list(json.loads(result.read_text()))


def prepared(folder: Path) -> Path:
    numbers = random.Random(1)
    words = ["".join(numbers.choices("abcdef", k=numbers.randint(2, 8))) for _ in range(3000)]
    data = folder / "reverse.tsv"
    data.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    raw, where = gather(data, task="translate")
    raw |= {"encoder": PART, "decoder": PART, "train": TRAIN}
    config, _ = fill_config(raw, where)
    prepare(config, folder)
    write_config(folder, config, prepared=True)
    return folder


def draw(curves: list[Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    _, (above, below) = pyplot.subplots(2, 1, figsize=(8, 7), sharex=True, height_ratios=(2, 1))
    first, steps = curves[0][2], range(1, STEPS + 1)
    for number, (size, layout, found) in enumerate(curves):
        words = [name if n is True else f"{name} {n}" for name, n in layout.items()]
        label = f"{size} processes: {', '.join(words)}" if size > 1 else "one process"
        far = [abs(a / b - 1) for a, b in zip(found, first, strict=True)]
        print(f"{label}: last loss {found[-1]:.6f}, furthest from one process {max(far):.1e}")
        width = 1.0 + 1.2 * (len(curves) - number)  # the later ones are seen on the earlier ones
        above.plot(steps, found, label=label, linewidth=width)
        below.plot(steps, [max(one, 1e-9) for one in far], color=above.lines[-1].get_color())
    above.set_ylabel("training loss of a step")
    above.legend(fontsize=8)
    below.set_yscale("log")
    below.set_ylabel("relative difference")
    below.set_xlabel("step")
    pyplot.tight_layout()
    pyplot.savefig(path, dpi=110)


def main() -> None:
    if sys.argv[1] == "--part":
        one_of(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = prepared(Path(name))
        curves = [curve for size in LAYOUTS for curve in trained(folder, size)]
    draw(curves, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
