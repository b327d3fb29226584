"""Saccade: sequence models from the recurrent network to the Transformer.

`saccade.train("words.tsv")` makes a run; `saccade.load("runs/words")` opens one. What needs torch
is imported when it is first used, so that `import saccade` and the command line's help stay
instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from saccade.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    SaccadeError,
    TrainingError,
)

if TYPE_CHECKING:
    from saccade.nn.watch import watch
    from saccade.runs.run import Run, load
    from saccade.tasks.task import Prediction
    from saccade.training.session import train

__version__ = "0.1.0"
__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Prediction",
    "Run",
    "SaccadeError",
    "TrainingError",
    "load",
    "train",
    "watch",
]

_LAZY = {
    "Prediction": "saccade.tasks.task",
    "Run": "saccade.runs.run",
    "load": "saccade.runs.run",
    "train": "saccade.training.session",
    "watch": "saccade.nn.watch",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'saccade' has no attribute '{name}'")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """The public names, those that are not imported yet among them."""
    return sorted([*__all__, "__version__"])
