"""One of several processes that compute the loss and gradients of every kind of network together.

    torchrun --nproc-per-node 4 -m tests.distributed.worker RUNS RESULT

RUNS has a folder of prepared data for each kind; the first process writes into RESULT how far the
sums of each layout are from those of one process, which computes in the same number format. Beside
keys of [parallel] a layout may have "precision": "bf16", or "fp64", in which the order of a sum is
nothing: what is left there of a difference is a mistake.
"""

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from saccade import config as c
from saccade.cli import exit_process
from saccade.data.batches import Loader
from saccade.distributed import world as worlds
from saccade.distributed.mesh import MeshRanks, layout_of
from saccade.distributed.parallelize import parallelize
from saccade.distributed.ranks import full_tensor
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
        {"shard": 2, "offload": True},
        {"shard": 2, "precision": "bf16"},
        {"tensor": 2},
        {"tensor": 2, "sequence": True},
        {"tensor": 2, "sequence": True, "precision": "fp64"},
    ],
    4: [
        {},
        {"shard": 4},
        {"data": 2, "shard": 2},
        {"data": 2, "tensor": 2},
        {"shard": 2, "tensor": 2},
        {"shard": 2, "tensor": 2, "sequence": True, "checkpoint_activations": True},
        {"tensor": 4},
        {"shard": 2, "tensor": 2, "precision": "fp64"},
    ],
}
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
BATCHES = 2  # of a step


class Counted(TorchDispatchMode):
    """Counts the sums over processes."""

    sums = 0

    def __torch_dispatch__(self, operation: Any, _: Any, given: Any = (), named: Any = None) -> Any:
        self.sums += str(operation).startswith(("c10d.allreduce_", "c10d._reduce_scatter"))
        return operation(*given, **(named or {}))


def fits(config: c.Config, layout: dict[str, Any]) -> bool:
    parts = (config.encoder, config.decoder)
    blocks = any(isinstance(part, c.Transformer) for part in parts)
    special = {"checkpoint_activations", "precision"} & layout.keys()
    return blocks or not (layout.get("tensor", 1) > 1 or special)


def sums(
    config: c.Config, folder: Path, layout: dict[str, Any], world: worlds.World | None, count: int
) -> tuple[float, int, dict[str, torch.Tensor], int]:
    """The same as `_sums`; what the network sums in single precision is double in "fp64"."""
    if layout.get("precision") != "fp64":
        return _sums(config, folder, layout, world, count)
    double = torch.Tensor.double
    soft = lambda x, dim, dtype=None: torch.softmax(x, dim)  # noqa: E731
    with mock.patch.multiple(torch.Tensor, float=double, softmax=soft):
        return _sums(config, folder, layout, world, count)


def _sums(
    config: c.Config, folder: Path, layout: dict[str, Any], world: worlds.World | None, count: int
) -> tuple[float, int, dict[str, torch.Tensor], int]:
    """Of some batches, by one process or by all: loss, its count, all gradients.

    And how often gradients were summed over processes.
    """
    parallel = {key: value for key, value in layout.items() if key != "precision"}
    dtype = FORMATS[layout.get("precision", "fp32")]
    ready = reopen(config, folder)
    network = ready.task.build().train()
    if dtype == torch.float64:
        network, dtype = network.double(), torch.float32  # no other format to compute in
    device, scaler = torch.device("cpu"), torch.amp.GradScaler("cpu", enabled=False)
    ranks, split = None, None
    if world is not None:
        asked = c.Parallel(**parallel)
        ranks = MeshRanks(world, layout_of(asked, world.size), device)
        parallelize(network, ranks.mesh, asked, dtype)
        split = ranks.row_range
    parameters = list(network.parameters())
    gradients = Gradients(network, parameters, device, dtype, scaler, seed=5)
    if ranks is not None:
        ranks.parameters = parameters
        gradients.ranks = ranks
    batches = Loader(lambda n: ready.task.epoch(ready.train, n), 0, split).take(0, 0, count)
    with Counted() as told:
        found = gradients.sum(batches, None, 0.5, 3, Stop())
    grads = {
        name: full_tensor(p.grad) for name, p in network.named_parameters() if p.grad is not None
    }
    norm = float(
        (ranks or gradients.ranks).gradient_norm([p.grad for p in parameters if p.grad is not None])
    )
    return (
        float(found.nll),
        found.count,
        grads | {"norm": torch.tensor(norm, dtype=torch.float64)},
        told.sums,
    )


def main() -> None:
    runs, result = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    world = worlds.World()
    world.set_timeout(60.0)
    found: dict[str, Any] = {}
    for folder in sorted(path for path in runs.iterdir() if path.is_dir()):
        config = read_config(folder)
        alone: dict[str, Any] = {}
        for layout in LAYOUTS[world.size]:
            if not fits(config, layout):
                continue
            format = layout.get("precision", "fp32")
            if format not in alone:
                alone[format] = sums(config, folder, {"precision": format}, None, BATCHES)
            nll, count, expected, _ = alone[format]
            own, counted, grads, told = sums(config, folder, layout, world, BATCHES)
            norm, same = float(expected["norm"]), float(grads["norm"])
            far = [
                float((grads.get(name, torch.zeros_like(g)) - g).norm())
                for name, g in expected.items()
                if name != "norm"
            ]
            error = max(torch.tensor(far).norm().item() / norm, abs(same / norm - 1))
            parallel = {key: value for key, value in layout.items() if key != "precision"}
            key = f"{folder.name} {layout_of(c.Parallel(**parallel), world.size)} "
            key += " ".join(
                name if value is True else str(value)
                for name, value in layout.items()
                if value is True or name == "precision"
            )
            found[key] = {"loss": abs(own / nll - 1), "gradients": error, "count": counted == count}
            if layout.get("tensor", 1) == 1:  # with tensor, activations are summed, too
                once = sums(config, folder, layout, world, 1)[3]
                found[key]["sums"] = [once, told]
    if world.rank == 0:
        result.write_text(json.dumps(found, indent=1))
    world.close()


if __name__ == "__main__":
    main()
    exit_process(0)
