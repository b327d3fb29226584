"""The time budget: a run with `train.minutes` keeps to it, with all its evaluations.

An evaluation measures as many dev examples as there is time for, and is skipped if there is none.
Without `train.minutes` one thing depends on the clock: how many dev examples an evaluation has, if
the user does not set it. It is decided once, after the first, and kept when a run is resumed.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from math import inf, isfinite
from time import perf_counter
from typing import NamedTuple

from saccade import config as c
from saccade.tasks.task import Evaluation, advance

PROGRESS_SECONDS = 0.25  # between two reports of an evaluation
EVALUATION_SHARE = 0.03  # of the budget, for one intermediate evaluation
EVALUATIONS_SHARE = 0.1  # of the elapsed time, for all of them
USUAL_EXAMPLES, MIN_EXAMPLES = 2000, 200  # of the dev set, in an evaluation without a budget
FINAL_SHARE = 0.1  # of the budget, reserved for what follows the last step
FINAL_SECONDS = 3.0  # of the final evaluation, at least
FIRST_EXAMPLES = 4  # timed before more are tried
MAX_GROWTH = 8  # in examples, from one attempt to the next


class Measured(NamedTuple):
    scores: dict[str, float]
    examples: int  # of the dev set


class Budget:
    """The clock of a run, and the time left, which is infinite without `train.minutes`."""

    def __init__(self, config: c.Config, seconds: float, examples: int):
        """`seconds` have been used before; the dev set has so many `examples`."""
        minutes, decode = config.train.minutes, config.decode
        self.began = perf_counter() - seconds
        self.total = 60 * minutes if minutes else inf
        self.examples = examples
        self.width = (
            decode.width if isinstance(decode, c.Beam) else 1
        )  # of the beam in the final evaluation
        self.step = 0.0  # seconds of the last step
        self.evaluating = 0.0  # seconds in evaluations
        self.pace = 0.0  # seconds per dev example in the previous evaluation; 0 is unknown
        self.size = FIRST_EXAMPLES  # dev examples in the previous evaluation
        self.furthest = 0.0  # the largest progress so far

    @property
    def limited(self) -> bool:
        return isfinite(self.total)

    def seconds(self) -> float:
        """Elapsed, in the whole run."""
        return perf_counter() - self.began

    def left(self) -> float:
        return self.total - self.seconds()

    def progress(self, seconds: float) -> float:
        """From 0 to 1, towards the moment at which steps have to end.

        An intermediate and the final evaluation follow it. Steps end within half a step of it. It
        never decreases, even if an evaluation was faster than expected: what has ended has ended.
        """
        if not self.limited:
            return 0.0
        reserved = FINAL_SHARE * self.total
        if self.pace:
            reserved = min(reserved, self.pace * (self.size + self.examples * self.width))
        self.furthest = max(self.furthest, (seconds + self.step / 2) / (self.total - reserved))
        return self.furthest

    def allows_another(self) -> bool:
        """Whether evaluations have not taken too much of the time so far."""
        return not self.limited or self.evaluating <= EVALUATIONS_SHARE * self.seconds()

    def intermediate_evaluation(
        self, most: int, evaluate: Callable[[int], Evaluation]
    ) -> "Measuring":
        """An evaluation of up to `most` dev examples, between steps or after the last one."""
        began = perf_counter()
        allowed = min(EVALUATION_SHARE * self.total, self.left() / 2)
        measured = yield from self.measure(min(self.size, most), most, allowed, evaluate)
        self.evaluating += perf_counter() - began
        return measured

    def final_evaluation(self, evaluate: Callable[[int], Evaluation]) -> "Measuring":
        """The evaluation of the final weights."""
        allowed = max(self.left(), FINAL_SECONDS)
        pace = 2 * self.pace * self.width
        first = int(allowed / pace) if pace else FIRST_EXAMPLES
        first = max(1, min(first, self.examples))
        return (yield from self.measure(first, self.examples, allowed, evaluate))

    def measure(
        self, first: int, most: int, allowed: float, evaluate: Callable[[int], Evaluation]
    ) -> "Measuring":
        """The metrics on as many examples as fit into the `allowed` seconds; None if on none.

        Starts with the `first` ones, and repeats with more while at least twice as many fit. An
        evaluation is aborted at twice the time.
        """
        if not self.limited:
            return Measured((yield from evaluate(most)), most)
        began, size, measured = perf_counter(), first, None
        while allowed > 0:
            start = perf_counter()
            scores = yield from run_until(began + 2 * allowed, evaluate(size))
            if scores is None:
                self.size = max(1, size // 2)
                break
            measured, self.size = Measured(scores, size), size
            self.pace = (perf_counter() - start) / size
            fitting = int((began + allowed - perf_counter()) / self.pace)
            if size == most or fitting < 2 * size:
                break
            size = min(most, MAX_GROWTH * size, fitting)
        return measured


def affordable(examples: int, evaluating: float, training: float) -> int:
    """The number of dev examples with which evaluations take at most a tenth of the time.

    `examples` of them took `evaluating` seconds, and the steps before took `training` seconds.
    """
    allowed = training * EVALUATIONS_SHARE / (1 - EVALUATIONS_SHARE)
    if evaluating <= allowed:
        return examples
    return min(examples, max(MIN_EXAMPLES, int(examples * allowed / evaluating)))


Measuring = Generator[float, None, Measured | None]


def run_until(
    deadline: float, evaluation: Evaluation
) -> Generator[float, None, dict[str, float] | None]:
    """The scores of an evaluation, or None if it is aborted at a deadline."""
    while True:
        share, scores = advance(evaluation)
        if scores is not None:
            return scores
        if perf_counter() > deadline:
            evaluation.close()
            return None
        yield share


def reported(
    evaluation: Evaluation, guard: Callable[[], AbstractContextManager[object]]
) -> Evaluation:
    """An evaluation that computes inside a guard, and leaves it to report its progress."""
    while True:
        next_report = perf_counter() + PROGRESS_SECONDS
        with guard():
            share, scores = advance(evaluation)
            while scores is None and perf_counter() < next_report:
                share, scores = advance(evaluation)
        if scores is not None:
            return scores
        yield share
