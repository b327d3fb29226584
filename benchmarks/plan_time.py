"""What `saccade plan --on here` predicts of a run's time, and what the run takes.

    python benchmarks/plan_time.py [tiny g2p lstm ...] [--seconds 40]

Plans a workload of train_speed.py for as many steps as should fill the seconds, trains it, and says
how far the two are apart. The bar is 25 %. The run is that of a user: it looks for its fastest way
if it is long enough (two minutes), evaluates once and saves.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from workloads import WORKLOADS, settings, write_files

from saccade import config as c
from saccade.plan.report import plan
from saccade.runs.machine import tune_malloc
from saccade.setup.choose import fill_config

FURTHEST = 0.25


def planned(path: Path, steps: int) -> float:
    """The seconds of a step of a run of so many."""
    return plan(str(path), on="here", settings=[f"train.steps={steps}"]).timing.step


def measured(path: Path, run: Path, steps: int) -> tuple[float, str]:
    """The seconds that a run says it took, and how it computed."""
    words = ["--set", f"train.steps={steps}"]
    command = [sys.executable, "-m", "saccade", "train", str(path), "--out", str(run), *words]
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    train = c.read_toml(run / "config.toml")["train"]
    return records[-1]["seconds"], f"precision {train['precision']}, processes {train['processes']}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="else tiny g2p lstm")
    parser.add_argument("--seconds", type=float, default=40.0)
    chosen = parser.parse_args()
    if odd := set(chosen.workloads) - set(WORKLOADS):
        parser.error(f"no workload {min(odd)}; there are {', '.join(WORKLOADS)}")
    tune_malloc()  # as the command line does
    for name in chosen.workloads or ("tiny", "g2p", "lstm"):
        with tempfile.TemporaryDirectory() as folder:
            write_files(name, Path(folder))
            raw = settings(name, Path(folder), 1)
            path = Path(folder) / "run.toml"
            path.write_text(c.write_toml(fill_config(raw, "benchmark")[0]), encoding="utf-8")
            steps = max(10, round(chosen.seconds / planned(path, 1)))
            # a run of another length may compute in another way
            expected = steps * planned(path, steps)
            found, way = measured(path, Path(folder) / "run", steps)
            error = expected / found - 1
            print(
                f"{name}: {steps:,} steps: planned {expected:.1f} s, "
                f"took {found:.1f} s ({way}): {error:+.0%}, "
                + ("fine" if abs(error) <= FURTHEST else "MORE THAN THE BAR"),
                flush=True,
            )


if __name__ == "__main__":
    main()
