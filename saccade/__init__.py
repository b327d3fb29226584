"""Saccade: sequence models from the recurrent network to the Transformer.

`saccade.train("words.tsv")` makes a run; `saccade.load("runs/words")` opens one. Both names are
imported when they are first used, so that `import saccade` and the command line's help stay
instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from saccade.errors import CheckpointError, ConfigError, DataError, SaccadeError

if TYPE_CHECKING:
    from saccade.nn.watch import watch
    from saccade.training.run import Run, load, train

__version__ = "0.1.0"
__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Run",
    "SaccadeError",
    "load",
    "train",
    "watch",
]

_LAZY = {
    "Run": "saccade.training.run",
    "load": "saccade.training.run",
    "train": "saccade.training.run",
    "watch": "saccade.nn.watch",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'saccade' has no attribute '{name}'")
    return getattr(import_module(_LAZY[name]), name)
