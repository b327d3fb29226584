"""Several seeds of one configuration: their runs in turn, and how they compare."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from saccade import config as c
from saccade.runs import files
from saccade.runs.failures import writing
from saccade.runs.folder import read_config
from saccade.runs.members import make_member, member_folders
from saccade.runs.run import load
from saccade.training.events import Event, Finished
from saccade.training.session import resume
from saccade.training.stop import Stop

TABLE = "seeds.json"


def other_seeds(
    folder: Path, stop: Stop | None = None, settings: Mapping[str, Any] | None = None
) -> Iterator[tuple[Path, Iterator[Event]]]:
    """The folder and the training events of each member of a run but the first.

    `settings` are limits to raise, as in `resume`.
    """
    config = read_config(folder)
    limits = {key: value for key, value in (settings or {}).items() if key != "train.seeds"}
    for number, member in enumerate(member_folders(folder, config), 2):
        if not (member / "config.toml").exists():
            with writing(folder):
                make_member(folder, member, config, number)
        yield member, resume(member, stop, limits)


@dataclass(frozen=True)
class Seeds:
    """The dev scores of several seeds, and of the ensemble of them."""

    scores: list[dict[str, float]]  # of each
    ensemble: dict[str, float]

    def rows(self) -> Iterator[tuple[str, float, float, float]]:
        """For each metric its mean, its standard deviation, and the ensemble's."""
        for name, value in self.ensemble.items():
            each = [scores[name] for scores in self.scores if name in scores]
            if each:
                yield name, mean(each), stdev(each) if len(each) > 1 else 0.0, value

    def save(self, folder: Path) -> None:
        with writing(folder):
            files.write_text(folder / TABLE, json.dumps(asdict(self), indent=1) + "\n")


def final_scores(path: Path) -> dict[str, float]:
    """The final scores of a run, from its log."""
    scores: dict[str, float] = {}
    with (path / "metrics.jsonl").open(encoding="utf-8") as log:  # long after days of training
        for line in log:
            record = json.loads(line)
            if record.get("event") == Finished.__name__ and not record.get("stopped"):
                scores = record["scores"]
    return scores


def compare_seeds(folder: Path, config: c.Config, root: str = "") -> Seeds:
    """The comparison of a run's seeds, once all are trained; written into the run.

    `root` is the folder that the user permits paths to media to lead to.
    """
    each = [final_scores(path) for path in (folder, *member_folders(folder, config))]
    with load(folder) as run:
        run.root = root
        seeds = Seeds(each, run.evaluate())
    seeds.save(folder)
    return seeds
