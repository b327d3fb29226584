"""Time: a run with `train.minutes` keeps to them, with all its evaluations.

An evaluation measures as many dev examples as there is time for, and is left out if there is none.
Without `train.minutes` one thing depends on the clock: how many dev examples an evaluation looks
at, if the user does not say. It is decided once, after the first, and kept when a run is resumed.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from math import inf, isfinite
from time import perf_counter
from typing import NamedTuple

from saccade import config as c
from saccade.tasks.task import Evaluation, advance

PROGRESS_SECONDS = 0.25  # between two reports of an evaluation
EVALUATION_SHARE = 0.03  # of the budget, that one evaluation on the way may take
EVALUATIONS_SHARE = 0.1  # of the time so far, that all of them may take
USUAL_EXAMPLES, MIN_EXAMPLES = 2000, 200  # of the dev set, in an evaluation without a budget
LAST_SHARE = 0.1  # of the budget, that is kept for what comes after the last step
LAST_SECONDS = 3.0  # that the last evaluation has in any case
FIRST_EXAMPLES = 4  # whose time is measured before more are tried
GROWTH = 8  # at most, from one try to the next


class Measured(NamedTuple):
    scores: dict[str, float]
    examples: int  # of the dev set


class Budget:
    """The clock of a run, and what is left of its minutes: for ever, if it has no such limit."""

    def __init__(self, config: c.Config, seconds: float, examples: int):
        """`seconds` were used before; there are so many dev `examples`."""
        minutes, decode = config.train.minutes, config.decode
        self.began = perf_counter() - seconds
        self.total = 60 * minutes if minutes else inf
        self.examples = examples
        self.width = decode.width if isinstance(decode, c.Beam) else 1  # of the last evaluation
        self.step = 0.0  # seconds of the last step
        self.evaluating = 0.0  # seconds in evaluations
        self.pace = 0.0  # seconds a dev example took in the last evaluation; 0 is unknown
        self.size = FIRST_EXAMPLES  # dev examples in the last evaluation
        self.furthest = 0.0  # progress so far

    @property
    def limited(self) -> bool:
        return isfinite(self.total)

    def seconds(self) -> float:
        """Of the run so far."""
        return perf_counter() - self.began

    def left(self) -> float:
        return self.total - self.seconds()

    def progress(self, seconds: float) -> float:
        """From 0 to 1, towards the moment at which steps have to end.

        After it there are an evaluation as on the way, and the last one. It is better to end half
        a step too early than half a step too late. It never goes back, though an evaluation that
        was faster than expected leaves more time: a run that was said to be over is over.
        """
        if not self.limited:
            return 0.0
        kept = LAST_SHARE * self.total
        if self.pace:
            kept = min(kept, self.pace * (self.size + self.examples * self.width))
        self.furthest = max(self.furthest, (seconds + self.step / 2) / (self.total - kept))
        return self.furthest

    def allows_another(self) -> bool:
        """Whether evaluations have not taken too much of the time so far."""
        return not self.limited or self.evaluating <= EVALUATIONS_SHARE * self.seconds()

    def on_the_way(self, most: int, evaluate: Callable[[int], Evaluation]) -> "Measuring":
        """An evaluation of up to `most` dev examples, between steps or after the last."""
        began = perf_counter()
        allowed = min(EVALUATION_SHARE * self.total, self.left() / 2)
        measured = yield from self.measure(min(self.size, most), most, allowed, evaluate)
        self.evaluating += perf_counter() - began
        return measured

    def at_the_end(self, evaluate: Callable[[int], Evaluation]) -> "Measuring":
        """The last evaluation."""
        allowed = max(self.left(), LAST_SECONDS)
        pace = 2 * self.pace * self.width
        first = int(allowed / pace) if pace else FIRST_EXAMPLES
        first = max(1, min(first, self.examples))
        return (yield from self.measure(first, self.examples, allowed, evaluate))

    def measure(
        self, first: int, most: int, allowed: float, evaluate: Callable[[int], Evaluation]
    ) -> "Measuring":
        """The metrics on as many examples as there are seconds for; None if on none.

        The `first` ones are tried, and then more, as long as more fit. What takes twice the time
        is left.
        """
        if not self.limited:
            return Measured((yield from evaluate(most)), most)
        began, size, measured = perf_counter(), first, None
        while allowed > 0:
            start = perf_counter()
            scores = yield from until(began + 2 * allowed, evaluate(size))
            if scores is None:
                self.size = max(1, size // 2)
                break
            measured, self.size = Measured(scores, size), size
            self.pace = (perf_counter() - start) / size
            fitting = int((began + allowed - perf_counter()) / self.pace)
            if size == most or fitting < 2 * size:
                break
            size = min(most, GROWTH * size, fitting)
        return measured


def affordable(examples: int, evaluating: float, training: float) -> int:
    """How many dev examples an evaluation may look at to take a tenth of the time at most.

    So many took `evaluating` seconds, and the steps before them took `training` seconds.
    """
    allowed = training * EVALUATIONS_SHARE / (1 - EVALUATIONS_SHARE)
    if evaluating <= allowed:
        return examples
    return min(examples, max(MIN_EXAMPLES, int(examples * allowed / evaluating)))


Measuring = Generator[float, None, Measured | None]


def until(moment: float, evaluation: Evaluation) -> Generator[float, None, dict[str, float] | None]:
    """An evaluation to its end, or None if it is left at a moment of the clock."""
    while True:
        share, scores = advance(evaluation)
        if scores is not None:
            return scores
        if perf_counter() > moment:
            evaluation.close()
            return None
        yield share


def reported(
    evaluation: Evaluation, guard: Callable[[], AbstractContextManager[object]]
) -> Evaluation:
    """An evaluation that works under a guard, and comes out of it to report from time to time."""
    while True:
        report = perf_counter() + PROGRESS_SECONDS
        with guard():
            share, scores = advance(evaluation)
            while scores is None and perf_counter() < report:
                share, scores = advance(evaluation)
        if scores is not None:
            return scores
        yield share
