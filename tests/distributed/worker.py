"""One of several processes that compute the loss and gradients of every kind of network together.

    torchrun --nproc-per-node 4 -m tests.distributed.worker RUNS RESULT

RUNS has a folder of prepared data for each kind; the first process writes into RESULT how far the
sums of each layout are from those of one process.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from saccade import config as c
from saccade.data.batches import Loader
from saccade.distributed import world as worlds
from saccade.distributed.mesh import MeshRanks, layout_of
from saccade.distributed.parallelize import parallelize
from saccade.distributed.ranks import whole
from saccade.runs.folder import read_config
from saccade.setup.prepare import reopen
from saccade.training.gradients import Gradients
from saccade.training.stop import Stop

LAYOUTS: dict[int, list[dict[str, Any]]] = {
    1: [{}],
    2: [
        {},
        {"checkpoint_activations": True},
        {"shard": 2},
        {"shard": 2, "checkpoint_activations": True},
        {"tensor": 2},
        {"tensor": 2, "sequence": True},
    ],
    4: [
        {},
        {"shard": 4},
        {"data": 2, "shard": 2},
        {"data": 2, "tensor": 2},
        {"shard": 2, "tensor": 2},
        {"shard": 2, "tensor": 2, "sequence": True, "checkpoint_activations": True},
        {"tensor": 4},
    ],
}


def fits(config: c.Config, layout: dict[str, Any]) -> bool:
    parts = (config.encoder, config.decoder)
    blocks = any(isinstance(part, c.Transformer) for part in parts)
    wanted = layout.get("tensor", 1) > 1 or "checkpoint_activations" in layout
    return blocks or not wanted


def sums(
    config: c.Config, folder: Path, layout: dict[str, Any], world: worlds.World | None
) -> tuple[float, int, dict[str, torch.Tensor]]:
    """The loss, its count and all gradients of two batches, by one process or by all."""
    ready = reopen(config, folder)
    network = ready.task.build().train()
    device, scaler = torch.device("cpu"), torch.amp.GradScaler("cpu", enabled=False)
    ranks, split = None, None
    if world is not None:
        parallel = c.Parallel(**layout)
        ranks = MeshRanks(world, layout_of(parallel, world.size), device)
        parallelize(network, ranks.mesh, parallel)
        split = ranks.part
    parameters = list(network.parameters())
    gradients = Gradients(network, parameters, device, torch.float32, scaler, seed=5)
    if ranks is not None:
        ranks.parameters = parameters
        gradients.ranks = ranks
    batches = Loader(lambda n: ready.task.epoch(ready.train, n), 0, split).take(0, 0, 2)
    found = gradients.sum(batches, None, 0.5, 3, Stop())
    grads = {name: whole(p.grad) for name, p in network.named_parameters() if p.grad is not None}
    norm = float(
        (ranks or gradients.ranks).norm([p.grad for p in parameters if p.grad is not None])
    )
    return float(found.nll), found.count, grads | {"norm": torch.tensor(norm)}


def main() -> None:
    runs, result = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    world = worlds.World()
    world.limit(60.0)
    found: dict[str, Any] = {}
    for folder in sorted(path for path in runs.iterdir() if path.is_dir()):
        config = read_config(folder)
        nll, count, expected = sums(config, folder, {}, None)
        for layout in LAYOUTS[world.size]:
            if not fits(config, layout):
                continue
            own, counted, grads = sums(config, folder, layout, world)
            norm, same = float(expected["norm"]), float(grads["norm"])
            far = [
                float((grads.get(name, torch.zeros_like(g)) - g).norm())
                for name, g in expected.items()
                if name != "norm"
            ]
            error = max(torch.tensor(far).norm().item() / norm, abs(same / norm - 1))
            key = f"{folder.name} {layout_of(c.Parallel(**layout), world.size)} "
            key += " ".join(name for name, value in layout.items() if value is True)
            found[key] = {"loss": abs(own / nll - 1), "gradients": error, "count": counted == count}
    if world.rank == 0:
        result.write_text(json.dumps(found, indent=1))
    world.close()


if __name__ == "__main__":
    main()
