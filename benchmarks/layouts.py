"""The loss of one, two and four processes and of every layout, laid over each other in a picture.

    python benchmarks/layouts.py docs/layouts.png

Trains a small Transformer once for each layout, on the CPU, from the same first weights on the same
batches: the curves are one curve, and the differences from one process's are written beside it.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

LAYOUTS: list[tuple[int, list[str]]] = [
    (1, []),
    (2, []),
    (4, []),
    (2, ["shard=2"]),
    (4, ["shard=4"]),
    (4, ["data=2", "shard=2", "checkpoint_activations=true"]),
    (2, ["tensor=2"]),
    (4, ["data=2", "tensor=2"]),
    (4, ["shard=2", "tensor=2", "sequence=true"]),
]
STEPS, EVERY = 80, 4
SETTINGS = [
    *(f"{part}.{key}" for part in ("encoder", "decoder") for key in (
        "kind='transformer'", "dim=32", "num_heads=4", "ff_dim=64", "num_layers=2", "dropout=0",
    )),
    "train.batch_tokens=1000", "train.optimizer='sgd'", "train.rate=0.5", "train.warmup=0",
    "train.schedule='constant'", "train.average=0", "train.processes=1", "train.precision='fp32'",
    f"train.steps={STEPS}", f"train.evaluate_every={EVERY}", f"train.save_every={STEPS}",
    "train.word_dropout=0", "train.label_smoothing=0",
]  # fmt: skip


def losses(data: Path, folder: Path, size: int, parallel: list[str]) -> list[float]:
    """The dev loss at every few steps of a run."""
    settings = [*SETTINGS, *(f"parallel.{setting}" for setting in parallel)]
    words = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "saccade", "train", str(data), "--task", "translate"]
    command += ["--out", str(folder), *words]
    if size > 1:
        launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
        command = [sys.executable, "-m", *launcher, *command[1:]]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [one["scores"]["loss"] for one in records if one["event"] == "Evaluated"]


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    numbers = random.Random(1)
    words = ["".join(numbers.choices("abcdef", k=numbers.randint(2, 8))) for _ in range(3000)]
    steps = range(EVERY, STEPS + 1, EVERY)
    _, (above, below) = pyplot.subplots(2, 1, figsize=(8, 6), sharex=True, height_ratios=(2, 1))
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "reverse.tsv"
        data.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
        first: list[float] = []
        for number, (size, parallel) in enumerate(LAYOUTS):
            found = losses(data, Path(name) / str(number), size, parallel)
            first = first or found
            label = f"{size}: {', '.join(parallel) or 'data'}" if size > 1 else "1 process"
            far = [abs(a / b - 1) for a, b in zip(found, first, strict=True)]
            print(f"{label}\tlast loss {found[-1]:.6f}\tfurthest from one process {max(far):.1e}")
            style = {"linewidth": 9 - number, "alpha": 0.7} if number < 8 else {"linestyle": ":"}
            above.plot(steps, found, label=label, **style)
            below.plot(steps, [max(one, 1e-9) for one in far])
    above.set_ylabel("dev loss")
    above.legend(fontsize=8)
    below.set_yscale("log")
    below.set_ylabel("relative difference")
    below.set_xlabel("step")
    pyplot.tight_layout()
    pyplot.savefig(sys.argv[1], dpi=110)


if __name__ == "__main__":
    main()
