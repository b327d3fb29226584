"""Training speed and memory, ours against the best peers, everything in one run.

    python benchmarks/train_speed.py [tiny small lstm gpt lstm_lm g2p] [--seconds 3] [--rounds 3]
                                     [--only NAME ...] [--peers PYTHON] [--json FILE]

Ours is `saccade train`'s own loop on raw files, in five variants: `fp32` and `bf16` in one process,
`fp32x2` and `bf16x2` in two, and `auto`, which lets a probe choose. The peers are in train_peers.py
and get the batches of our loader. Each measurement is a process of its own; by turns, so that what
disturbs one disturbs all. A round has its own seed, and so its own order of batches. Figures are
medians of the undisturbed rounds, in real target tokens a second. From the second round on, peers
that were far behind the best one are left out, for time.

Memory is the high-water mark of a process, those that it has started added. The share of the
ceiling is the useful FLOPs of the tokens, over a large product's, which is measured here too.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import measuring
from train_peers import PEERS
from workloads import WORKLOADS, batches_file, save_batches, settings, write_files

HERE = Path(__file__).parent
VARIANTS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32", "processes": 1},
    "fp32x2": {"precision": "fp32", "processes": 2},
    "bf16": {"precision": "bf16", "processes": 1},
    "bf16x2": {"precision": "bf16", "processes": 2},
    "auto": {"precision": "auto", "processes": 0},
}
FAR_BEHIND = 0.8  # of the best peer in the first round
DEADLINE_SECONDS = 300.0  # for one measurement, whatever happens


# --- one measurement of ours ----------------------------------------------------------------------


def our_steps(
    raw: dict[str, Any], run: Path, facts: dict[str, Any]
) -> Generator[tuple[int, int], None, None]:
    """The steps of `saccade train` from one report to the next, and their target tokens.

    `facts` gets what the run has chosen by the time of the first report.
    """
    from saccade.runs.folder import read_config
    from saccade.setup.choose import survey_and_fill
    from saccade.training.events import Prepared, StepDone
    from saccade.training.report import show
    from saccade.training.session import new_folder, start

    config, _, seen = survey_and_fill(raw, "benchmark")
    folder = new_folder(config, run)
    last = 0
    reported = perf_counter()
    for event in show(start(config, folder, seen=seen), folder, quiet=True):
        if isinstance(event, Prepared):
            facts["parameters"] = event.parameters
        elif isinstance(event, StepDone):
            if not last:
                train = read_config(folder).train
                facts["precision"], facts["processes"] = train.precision, train.processes
            # `speed` is that of the time since the last report.
            now = perf_counter()
            done, tokens = event.step - last, round(event.speed * (now - reported))
            last, reported = event.step, now
            yield done, tokens


def measure_ours(name: str, variant: str, folder: Path, seed: int, seconds: float) -> Any:
    """Speed and memory of one of our variants, as `measuring.measure` gives them."""
    import torch

    raw = settings(name, folder, seed)
    raw["train"] |= VARIANTS[variant]
    facts: dict[str, Any] = {"threads": torch.get_num_threads()}
    with tempfile.TemporaryDirectory(dir=folder) as run:
        work = our_steps(raw, Path(run) / "run", facts)
        try:
            found = measuring.measure(work, seconds)
        finally:
            work.close()  # and with it the processes that share the steps
    return found | facts


# --- the whole campaign ---------------------------------------------------------------------------


@dataclass
class Contestant:
    """One column of a workload: ours or a peer's."""

    name: str
    command: list[str]
    ours: bool
    precision: str
    rounds: list[dict[str, Any]] = field(default_factory=list)

    @property
    def disturbed(self) -> bool:
        """Whether there is no round that was not."""
        return all(found["disturbed"] for found in self.rounds)

    @property
    def speed(self) -> float:
        """The median of the undisturbed rounds, or of all if there is none."""
        counted = [r for r in self.rounds if not r["disturbed"]] or self.rounds
        return float(median(found["tokens_per_second"] for found in counted))

    @property
    def peak_mb(self) -> float:
        return float(median(found["peak_mb"] for found in self.rounds))


def contestants(name: str, folder: Path, peers: Path, wanted: list[str]) -> list[Contestant]:
    """Those that are wanted; `{seed}` and `{batches}` in a command are the round's."""
    found = []
    bf16_is_fast = measuring.machine()["bf16"]
    ours = [sys.executable, __file__, name, "--folder", str(folder), "--seed", "{seed}"]
    for variant, train in VARIANTS.items():
        if variant in wanted or (not wanted and (bf16_is_fast or train["precision"] != "bf16")):
            command = [*ours, "--worker", variant]
            found.append(Contestant(variant, command, True, train["precision"]))
    for peer, (names, has_bf16) in PEERS.items():
        for label, flags in ((peer, []), (f"{peer}-bf16", ["--bf16"])):
            is_wanted = label in wanted or (not wanted and (bf16_is_fast or not flags))
            if name in names and is_wanted and (has_bf16 or not flags):
                command = [str(peers), str(HERE / "train_peers.py"), peer, name, "{batches}"]
                precision = "bf16" if flags else "fp32"
                found.append(Contestant(label, command + flags, False, precision))
    return found


def run_json(command: list[str]) -> dict[str, Any] | str:
    """The last line that a command prints, or the last line of why it did not."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=DEADLINE_SECONDS
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        return str(error)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no word"])[-1]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measured(one: Contestant, folder: Path, seed: int, seconds: float) -> dict[str, Any] | str:
    """A measurement, done again once if most of it was disturbed."""
    fill = {"{seed}": str(seed), "{batches}": str(batches_file(folder, seed))}
    command = [fill.get(word, word) for word in one.command] + ["--seconds", str(seconds)]
    found = run_json(command)
    if isinstance(found, str) or not found["disturbed"]:
        return found
    again = run_json(command)
    if isinstance(again, str):
        return found
    return max(found, again, key=lambda result: result["clean_seconds"])


def campaign(names: list[str], chosen: argparse.Namespace) -> dict[str, Any]:
    """All measurements of these workloads."""
    machine = measuring.machine()
    print(f"{machine['model']}, {machine['cores']} cores, {machine['kind']}")
    if not chosen.peers.exists():
        print(f"no {chosen.peers}: plain torch is the only peer (`make bench` makes it)")
        chosen.peers = Path(sys.executable)
    precisions = ["fp32", "bf16"] if machine["bf16"] else ["fp32"]
    ceilings: dict[str, list[float]] = {name: [] for name in precisions}
    seeds, results = range(1, chosen.rounds + 1), {}
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            folder = Path(temporary) / name
            folder.mkdir()
            write_files(name, folder)
            flops = save_batches(name, folder, seeds)
            running = contestants(name, folder, chosen.peers, chosen.only)
            entrants = list(running)
            for precision, found in ceilings.items():  # before each workload: speeds drift
                product = run_json([sys.executable, __file__, "--ceiling", precision])
                assert isinstance(product, dict), product
                found.append(product["gflops"])
            for seed in seeds:
                running = one_round(running, folder, seed, chosen.seconds)
            best = {precision: max(found) for precision, found in ceilings.items()}
            results[name] = summary(entrants, flops, best)
            print_workload(name, results[name])
    return {
        "machine": machine,
        "seconds": chosen.seconds,
        "rounds": chosen.rounds,
        "ceiling_gflops": {precision: max(found) for precision, found in ceilings.items()},
        "workloads": results,
    }


def one_round(
    running: list[Contestant], folder: Path, seed: int, seconds: float
) -> list[Contestant]:
    """Measure everybody once, by turns; returns who is worth another round."""
    left = []
    for one in running:
        found = measured(one, folder, seed, seconds)
        if isinstance(found, str):
            print(f"{folder.name}: {one.name} is left out: {found}", flush=True)
            continue
        one.rounds.append(found)
        left.append(one)
        if found["disturbed"]:
            print(f"{folder.name}: {one.name}, round {seed}: disturbed", file=sys.stderr)
    best = max((one.speed for one in left if not one.ours), default=0.0)
    return [one for one in left if one.ours or one.disturbed or one.speed >= FAR_BEHIND * best]


def summary(entrants: list[Contestant], flops: float, ceilings: dict[str, float]) -> dict[str, Any]:
    """Speeds, memory, and what they are beside the best peer's."""
    there = [one for one in entrants if one.rounds]
    best = max((one for one in there if not one.ours), key=lambda one: one.speed, default=None)
    rows = {}
    for one in there:
        precision = one.rounds[-1].get("precision", one.precision)  # what `auto` has chosen
        precision = precision if precision in ceilings else "fp32"
        row = {
            "ours": one.ours,
            "tokens_per_second": one.speed,
            "ceiling_share": one.speed * flops / 1e9 / ceilings[precision],
            "ceiling_of": precision,
            "peak_mb": one.peak_mb,
            "disturbed": one.disturbed,
            "rounds": one.rounds,
        }
        if best is not None:
            row |= {
                "speed_ratio": one.speed / best.speed,
                "memory_ratio": one.peak_mb / best.peak_mb,
            }
        rows[one.name] = row
    return {
        "mflops_per_token": flops / 1e6,
        "best_peer": best.name if best else None,
        "contestants": rows,
    }


def print_workload(name: str, result: dict[str, Any]) -> None:
    print(f"\n{name}: {result['mflops_per_token']:.1f} MFLOP a token; ratios to the best peer")
    print(f"{'':16}{'tokens/s':>10}{'ratio':>8}{'ceiling':>9}{'MB':>8}{'ratio':>8}")
    for who, row in result["contestants"].items():
        notes = ["the best peer"] if who == result["best_peer"] else []
        if who == "auto":
            last = row["rounds"][-1]
            notes.append(f"{last['precision']}, processes: {last['processes']}")
        notes += ["disturbed"] if row["disturbed"] else []
        print(
            f"{'saccade ' if row['ours'] else '  '}{who:{8 if row['ours'] else 14}}"
            f"{row['tokens_per_second']:10,.0f}{row.get('speed_ratio', 0):8.2f}"
            f"{row['ceiling_share']:9.0%}{row['peak_mb']:8,.0f}{row.get('memory_ratio', 0):8.2f}"
            f"  {'; '.join(notes)}",
            flush=True,
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only",
        nargs="*",
        default=[],
        metavar="NAME",
        help=f"columns: {', '.join([*VARIANTS, *PEERS])}, and PEER-bf16",
    )
    parser.add_argument("--peers", type=Path, default=HERE.parent / ".venv-peers/bin/python")
    parser.add_argument("--json", type=Path, default=Path("bench.json"))
    parser.add_argument("--worker", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--ceiling", choices=["fp32", "bf16"], help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    columns = [*VARIANTS, *PEERS, *(f"{peer}-bf16" for peer, (_, has) in PEERS.items() if has)]
    for given, known in ((chosen.workloads, WORKLOADS), (chosen.only, columns)):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"no such name: {', '.join(unknown)}; there are {', '.join(known)}")
    return chosen


def main() -> None:
    chosen = parse_arguments()
    if chosen.ceiling:
        print(json.dumps({"gflops": measuring.ceiling(chosen.ceiling)}))
        return
    if chosen.worker:
        (name,) = chosen.workloads
        found = measure_ours(name, chosen.worker, chosen.folder, chosen.seed, chosen.seconds)
        print(json.dumps(found))
        return
    began = perf_counter()
    results = campaign(chosen.workloads or list(WORKLOADS), chosen)
    chosen.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    took = (perf_counter() - began) / 60
    best = ", ".join(f"{name} {value:.0f}" for name, value in results["ceiling_gflops"].items())
    print(f"\na large product has {best} GFLOP/s; {took:.0f} minutes in all; see {chosen.json}")


if __name__ == "__main__":
    main()
