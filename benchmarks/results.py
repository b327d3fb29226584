"""Recipes to results, and results to a table.

    python benchmarks/results.py run recipes/NAME.toml [--seeds N] [--test FILE ...]
    python benchmarks/results.py table

`run` trains a recipe into runs/results/NAME, measures it on its dev set (and on other files, if
they are named), and writes results/NAME.json: figures, command, seconds, versions and the machine.
`table` prints a row of Markdown for each of these files.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from measuring import machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
VERSIONS = ("saccade", "torch", "numpy", "tokenizers")


def run_recipe(recipe: Path, seeds: int, tests: Sequence[str], out: Path) -> dict[str, Any]:
    """Train a recipe with the command that its user would give, and measure what came of it."""
    command = ["saccade", "train", str(recipe), "--out", str(out)]
    command += ["--seeds", str(seeds)] if seeds > 1 else []
    began = time.perf_counter()
    call(command)
    seconds = time.perf_counter() - began
    found: dict[str, Any] = {"recipe": recipe.name, "command": " ".join(command)}
    found |= {"seconds": round(seconds, 1), "seeds": seeds, "machine": machine()}
    found["versions"] = {name: version(name) for name in VERSIONS}
    found["dev"] = json.loads(call(["saccade", "evaluate", str(out), "--json"]))
    if seeds > 1:
        found["each"] = json.loads((out / "seeds.json").read_text(encoding="utf-8"))["scores"]
    if tests:
        found["test"] = json.loads(call(["saccade", "evaluate", str(out), *tests, "--json"]))
    return found


def call(command: Sequence[str]) -> str:
    """What a command of saccade prints; its log is shown."""
    words = [sys.executable, "-m", *command]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def row(found: dict[str, Any]) -> str:
    """A line of the table: what, how long, and how well."""
    scores = found.get("test") or found["dev"]
    said = []
    for name, value in scores.items():
        if name == "loss" and len(scores) > 1:
            continue
        text = f"{name} {value:.2f}"
        if each := [one[name] for one in found.get("each", []) if name in one]:
            mean = sum(each) / len(each)
            text += f" together, {mean:.2f} alone ({min(each):.2f} to {max(each):.2f})"
        said.append(text)
    where = "test" if "test" in found else "dev"
    link = f"[{Path(found['recipe']).stem}](recipes/{found['recipe']})"
    seeds = str(found["seeds"])
    return f"| {link} | {found['seconds'] / 60:.1f} | {seeds} | {where} | {', '.join(said)} |"


def table(folder: Path) -> str:
    """The results of a folder as Markdown."""
    head = ["| recipe | minutes | seeds | on | result |", "|---|---|---|---|---|"]
    files = sorted(folder.glob("*.json"))
    return "\n".join([*head, *(row(json.loads(file.read_text("utf-8"))) for file in files)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="train a recipe and keep its result")
    running.add_argument("recipe", type=Path)
    running.add_argument("--seeds", type=int, default=1)
    running.add_argument("--test", nargs="*", default=[])
    commands.add_parser("table", help="print the table of all results")
    asked = parser.parse_args()
    if asked.command == "table":
        print(table(RESULTS))
        return
    name = asked.recipe.stem
    found = run_recipe(asked.recipe, asked.seeds, asked.test, ROOT / "runs" / "results" / name)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(row(found))


if __name__ == "__main__":
    main()
