"""What a training run reports. The bar, the log, the page and the tests read these."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Prepared:
    """The data is read, the network is built."""

    train_examples: int
    dev_examples: int
    left_out: int  # examples longer than data.max_len
    parameters: int
    device: str
    start: int  # the step training begins after: 0, or that of a checkpoint


@dataclass(frozen=True, slots=True)
class StepDone:
    step: int
    epoch: float
    loss: float  # per token, since the last report
    rate: float
    speed: float  # tokens per second, since the last report
    norm: float  # of the gradient, before clipping
    progress: float  # 0 to 1, towards the limit that ends training first
    seconds: float  # of training so far


@dataclass(frozen=True, slots=True)
class Evaluating:
    """An evaluation is under way; this is not written into metrics.jsonl."""

    step: int
    share: float  # 0 to 1, of what is done
    last: bool  # whether it is the one at the end of the run
    seconds: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    step: int
    scores: dict[str, float]
    best: bool
    seconds: float
    examples: int = 0  # of the dev set, evaluated
    wanted: int = 0  # to be evaluated, had there been time


@dataclass(frozen=True, slots=True)
class Saved:
    step: int
    path: Path


@dataclass(frozen=True, slots=True)
class Skipped:
    """A step whose loss or gradient was not finite: the weights are as before."""

    step: int
    total: int  # of such steps in the run


@dataclass(frozen=True, slots=True)
class Changed:
    """A setting that differs from that before the run was stopped."""

    key: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Noticed:
    """Something that the user should know, and that does not stop the run."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    step: int
    reason: str  # for people
    scores: dict[str, float]
    seconds: float
    stopped: bool = False  # by a signal, before its end
    examples: int = 0  # of the dev set, evaluated
    wanted: int = 0  # to be evaluated, had there been time


Event = (
    Prepared | StepDone | Evaluating | Evaluated | Saved | Skipped | Changed | Noticed | Finished
)
