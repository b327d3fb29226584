"""Recipes to results, and results to the table in the README.

    python benchmarks/results.py run recipes/NAME/NAME.toml [--seeds N] [--test FILE ...]
    python benchmarks/results.py keep recipes/NAME/NAME.toml RUN [--test FILE ...]
    python benchmarks/results.py table [--write]

`run` trains a recipe into runs/results/NAME and keeps the result; `keep` does the same for a run
that has been trained already. Both measure the run on its dev set (and on other files, if they are
named), and write results/NAME.json: figures, command, seconds, versions and the machine. `table`
prints a row of Markdown for each of these files; with --write it replaces the table in README.md.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from measuring import machine

import saccade
from saccade.config import read_toml

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
README = ROOT / "README.md"
VERSIONS = ("saccade", "torch", "numpy", "tokenizers")
BEGIN, END = "<!-- results -->\n", "<!-- /results -->\n"
HEAD = "| recipe | minutes | seeds | on | result |\n|---|---|---|---|---|\n"


def measured(recipe: Path, run: Path, tests: Sequence[str], command: str) -> dict[str, Any]:
    """All that is kept of a trained run."""
    loaded = saccade.load(run)
    found: dict[str, Any] = {
        "recipe": recipe.resolve().relative_to(ROOT).as_posix(),
        "command": command,
        "metric": loaded.task.metric,
        "seconds": round(trained_seconds(run), 1),
        "seeds": loaded.config.train.seeds,
        "machine": machine(),
        "versions": {name: version(name) for name in VERSIONS},
        "dev": json.loads(call(["saccade", "evaluate", str(run), "--json"])),
    }
    if (each := run / "seeds.json").exists():
        found["each"] = json.loads(each.read_text(encoding="utf-8"))["scores"]
    if tests:
        found["test"] = json.loads(call(["saccade", "evaluate", str(run), *tests, "--json"]))
    return found


def trained_seconds(run: Path) -> float:
    """How long the training of a run took, all its seeds together."""
    logs = [run / "metrics.jsonl", *sorted(run.glob("members/*/metrics.jsonl"))]
    lines = (json.loads(log.read_text(encoding="utf-8").splitlines()[-1]) for log in logs)
    return sum(float(line["seconds"]) for line in lines)


def call(command: Sequence[str]) -> str:
    """What a command of saccade prints; its log is shown."""
    words = [sys.executable, "-m", *command]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def changes(recipe: Path, config: Mapping[str, Any]) -> list[str]:
    """The options of `train` that turn the recipe into this configuration, data files apart."""
    options = []

    def compare(asked: Mapping[str, Any], have: Mapping[str, Any], path: str) -> None:
        for key, value in asked.items():
            if isinstance(value, Mapping):
                compare(value, have.get(key) or {}, f"{path}{key}.")
            elif have.get(key) != value:
                options.append(f"--set {path}{key}={json.dumps(have.get(key))}")

    tables = read_toml(str(recipe))
    compare({name: table for name, table in tables.items() if name != "data"}, config, "")
    return options


def row(found: Mapping[str, Any]) -> str:
    """A line of the table: the recipe's title, how long, and how well."""
    where = "test" if "test" in found else "dev"
    scores, shown = found[where], found.get("show") or [found["metric"]]
    said = []
    for name in (name for name in shown if name in scores):
        text = f"{name} {scores[name]:.4g}"
        if each := [one[name] for one in found.get("each", []) if name in one]:
            mean = sum(each) / len(each)
            text += f" together, {mean:.4g} alone ({min(each):.4g} to {max(each):.4g})"
        said.append(text)
    recipe = Path(found["recipe"])
    title = (ROOT / recipe.parent / "README.md").read_text("utf-8").splitlines()[0].strip("# ")
    name = recipe.stem if recipe.stem != recipe.parent.name else ""
    title += f" ({name})" if name else ""
    cells = [
        f"[{title}]({recipe.parent.as_posix()})",
        f"{found['seconds'] / 60:.1f}",
        str(found["seeds"]),
        where,
        ", ".join(said),
    ]
    return "| " + " | ".join(cells) + " |"


def table(folder: Path) -> str:
    """The results of a folder as Markdown."""
    files = sorted(folder.glob("*.json"))
    return HEAD + "".join(row(json.loads(file.read_text("utf-8"))) + "\n" for file in files)


def written(readme: str, rows: str) -> str:
    """The README with these rows between its marks."""
    before, _, rest = readme.partition(BEGIN)
    return before + BEGIN + rows + END + rest.partition(END)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="train a recipe and keep its result")
    keeping = commands.add_parser("keep", help="keep the result of a trained run")
    for one in (running, keeping):
        one.add_argument("recipe", type=Path)
        one.add_argument("--test", nargs="*", default=[], help="files to evaluate on, too")
        one.add_argument("--show", nargs="*", default=[], help="the scores for the table")
    running.add_argument("--seeds", type=int, default=1)
    keeping.add_argument("run", type=Path)
    tabling = commands.add_parser("table", help="print the table of all results")
    tabling.add_argument("--write", action="store_true", help="into README.md")
    asked = parser.parse_args()
    if asked.command == "table":
        rows = table(RESULTS)
        if asked.write:
            README.write_text(written(README.read_text("utf-8"), rows), encoding="utf-8")
        print(rows, end="")
        return
    name = asked.recipe.stem
    command = ["saccade", "train", asked.recipe.as_posix()]
    if asked.command == "run":
        run = ROOT / "runs" / "results" / name
        command += ["--seeds", str(asked.seeds)] if asked.seeds > 1 else []
        call([*command, "--out", str(run)])
    else:
        run = asked.run
        command += changes(asked.recipe, saccade.load(run).config.model_dump(mode="json"))
    found = measured(asked.recipe, run, asked.test, " ".join(command))
    if asked.show:
        found["show"] = asked.show
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(row(found))


if __name__ == "__main__":
    main()
