"""Prediction on Ray Data, for more lines than one machine answers: the extra `ray`.

    import ray, saccade.ray

    answers = saccade.ray.predict(ray.data.read_text("lines/"), "runs/g2p")
    answers.write_parquet("answers/")

Ray reads, spreads, retries and writes; every actor loads the run once. docs.ray.io/en/latest/data
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from saccade.errors import ConfigError

ROWS_AT_ONCE = 1024  # that an actor is given


def predict(
    dataset: Any,
    run: str | Path,
    *,
    column: str = "text",
    settings: Mapping[str, Any] | None = None,
    actors: int = 1,
    cpus: float = 1.0,
    gpus: float = 0.0,
    rows_at_once: int = ROWS_AT_ONCE,
) -> Any:
    """The dataset with two columns more: `prediction`, and its `score` (a log-probability).

    `run` has to be a path that every worker sees, `column` is that of the inputs, `settings` are
    keys of the table `decode`. An input that cannot be answered has an empty prediction and its
    reason in the column `problem`. `actors` processes load the run, each with so many `cpus` and
    `gpus` of a machine.
    """
    try:
        import_module("ray.data")
    except ImportError:
        raise ConfigError("saccade.ray needs Ray: pip install 'saccade[ray]'") from None
    folder = Path(run).absolute()
    if not (folder / "config.toml").is_file():
        raise ConfigError(f"{folder}: not a run: it has no config.toml")
    return dataset.map_batches(
        Predictor,
        fn_constructor_args=(str(folder), column, dict(settings or {}), max(1, int(cpus))),
        batch_size=rows_at_once,
        batch_format="numpy",
        concurrency=actors,
        num_cpus=cpus,
        num_gpus=gpus,
    )


class Predictor:
    """An actor that has loaded a run."""

    def __init__(self, folder: str, column: str, settings: dict[str, Any], threads: int):
        import torch

        from saccade.runs.run import load

        torch.set_num_threads(threads)
        self.run, self.column = load(Path(folder)), column
        self.request = self.run.request(settings={"workers": 1} | settings)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        if self.column not in batch:
            names = ", ".join(sorted(batch))
            raise ConfigError(f"the dataset has no column '{self.column}'; it has {names}")
        lines = [str(text) for text in batch[self.column]]
        found = list(self.run.stream(lines, self.request))
        return batch | {
            "prediction": np.array([one.text for one in found], dtype=object),
            "score": np.array([one.score for one in found], dtype=np.float64),
            "problem": np.array([one.problem for one in found], dtype=object),
        }
