"""Time: evaluations that fit into a budget, and say how far they are."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from saccade.config import parse
from saccade.setup.prepare import prepare
from saccade.tasks.tag import Tag
from saccade.tasks.task import Evaluation, result_of
from saccade.training import budget
from saccade.training.budget import Budget, affordable, reported
from saccade.training.events import Changed, Evaluated, Evaluating, Finished, Noticed
from saccade.training.loop import LossWatch
from saccade.training.report import following, sentence, show, status
from saccade.training.session import new_folder, resume, start
from saccade.training.stop import Interrupted, Stop
from saccade.training.trainer import StepResult, Trainer
from tests.helpers import run_through, settings, until
from tests.training.test_report import STEP


class Clock:
    """A clock that runs only while somebody works."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 100.0
        monkeypatch.setattr(budget, "perf_counter", lambda: self.now)

    def evaluation(self, examples: int, each: float) -> Evaluation:
        for done in range(examples):
            self.now += each
            yield (done + 1) / examples
        return {"loss": float(examples)}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def config_of(folder: Path, **train: Any) -> Any:
    return settings("tagger", folder, **train)


def end_of(work: Any) -> Any:
    try:
        while True:
            next(work)
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize(("each", "most"), [(0.001, 2000), (0.05, 2000), (1.0, 2000), (0.01, 7)])
def test_an_evaluation_takes_its_share_of_the_budget(
    each: float, most: int, clock: Clock, tmp_path: Path
) -> None:
    time = Budget(config_of(tmp_path, minutes=5.0), 0.0, most)
    for _ in range(3):
        began = clock.now
        found = end_of(time.intermediate_evaluation(most, lambda n: clock.evaluation(n, each)))
        allowed = budget.EVALUATION_SHARE * 300
        assert clock.now - began <= allowed * 1.3  # with what was measured to find the size
        assert found.examples == most or found.examples * each > 0.25 * allowed
        assert found.scores == {"loss": float(found.examples)}


def test_the_guide_has_the_shares_that_evaluations_take() -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "training.md"
    shares = [f"at most {100 * s:g} %" for s in (budget.EVALUATION_SHARE, budget.EVALUATIONS_SHARE)]
    text = " ".join(guide.read_text(encoding="utf-8").split())
    assert f"takes {shares[0]} of the budget, and all of them {shares[1]} of the time" in text


def test_an_evaluation_without_a_budget_takes_a_tenth_of_the_time() -> None:
    assert affordable(2000, evaluating=1.0, training=9.0) == 2000
    assert affordable(2000, evaluating=2.0, training=9.0) == 1000
    assert affordable(2000, evaluating=1e6, training=1.0) == budget.MIN_EXAMPLES
    assert affordable(50, evaluating=1e6, training=1.0) == 50


def test_how_many_examples_an_evaluation_looks_at_is_decided_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "MIN_EXAMPLES", 3)
    monkeypatch.setattr(budget, "EVALUATIONS_SHARE", 1e-6)
    config = settings("tagger", tmp_path, evaluate_every=2, steps=6)
    events = run_through(config, tmp_path / "run", stop_after=4)
    events += list(resume(tmp_path / "run"))
    first, *others = [e.examples for e in events if isinstance(e, Evaluated)]
    assert others == [others[0]] * len(others)
    assert others[0] == 3 < first
    assert sum("a tenth of the time" in e.text for e in events if isinstance(e, Noticed)) == 1
    asked = settings("tagger", tmp_path, evaluate_every=2, steps=6, evaluate_max=first)
    found = [e for e in run_through(asked, tmp_path / "asked") if isinstance(e, Evaluated)]
    assert {e.examples for e in found} == {first}


def test_progress_never_goes_back(clock: Clock, tmp_path: Path) -> None:
    """A fast evaluation leaves more time for steps, but a run that was over stays over."""
    time = Budget(config_of(tmp_path, minutes=1.0), 0.0, 100)
    clock.now += 55.0
    assert time.progress(time.seconds()) >= 1.0
    end_of(time.intermediate_evaluation(100, lambda n: clock.evaluation(n, 0.0001)))
    assert time.progress(time.seconds()) >= 1.0


def test_an_evaluation_for_which_there_is_no_time_is_left_out(clock: Clock, tmp_path: Path) -> None:
    time = Budget(config_of(tmp_path, minutes=0.1), 0.0, 100)
    assert end_of(time.intermediate_evaluation(100, lambda n: clock.evaluation(n, 10.0))) is None
    assert clock.now < 100 + 2 * 10.0
    clock.now += 6.0  # the budget is over
    began = clock.now
    assert end_of(time.intermediate_evaluation(100, lambda n: clock.evaluation(n, 0.001))) is None
    assert clock.now == began
    found = end_of(
        time.final_evaluation(lambda n: clock.evaluation(n, 0.1))
    )  # it has some in any case
    assert 4 <= found.examples <= 60
    assert clock.now - began <= 2 * budget.FINAL_SECONDS


def test_steps_end_early_enough_for_the_evaluations_after_them(
    clock: Clock, tmp_path: Path
) -> None:
    for each in (0.001, 0.01, 0.1):

        def work(n: int, each: float = each) -> Evaluation:
            return clock.evaluation(n, each)

        time = Budget(config_of(tmp_path, minutes=5.0), 0.0, 1000)
        began, time.step = clock.now, 0.25
        end_of(time.intermediate_evaluation(200, work))
        while time.progress(time.seconds()) < 1.0:
            clock.now += 0.25
        end_of(time.intermediate_evaluation(200, work))
        end_of(time.final_evaluation(work))
        assert 270 <= clock.now - began <= 330


def test_without_minutes_all_is_measured(clock: Clock, tmp_path: Path) -> None:
    time = Budget(config_of(tmp_path), 0.0, 50)
    assert time.progress(10**6) == 0.0
    assert time.allows_another()
    for run in (time.final_evaluation, lambda evaluate: time.intermediate_evaluation(50, evaluate)):
        assert end_of(run(lambda n: clock.evaluation(n, 10**4))).examples == 50


def test_evaluations_that_take_most_of_the_time_are_fewer(clock: Clock, tmp_path: Path) -> None:
    time = Budget(config_of(tmp_path, minutes=5.0), 0.0, 100)
    clock.now += 10.0
    assert time.allows_another()
    end_of(time.intermediate_evaluation(100, lambda n: clock.evaluation(n, 0.1)))
    assert not time.allows_another()
    clock.now += 60.0
    assert time.allows_another()


def test_a_guard_is_left_to_report(clock: Clock) -> None:
    inside = []

    class Guard:
        def __enter__(self) -> None:
            inside.append(True)

        def __exit__(self, *error: object) -> None:
            inside.pop()

    shares = []
    for share in reported(clock.evaluation(10, 0.1), Guard):
        assert not inside
        shares.append(share)
    assert shares == [0.3, 0.6, 0.9]  # every quarter of a second


def test_a_run_says_and_records_how_much_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from time import sleep

    real = Tag.evaluating

    def slow(self: Any, network: Any, corpus: Any, examples: Any, quick: bool) -> Evaluation:
        for i in range(len(examples)):
            sleep(0.02)
            yield i / len(examples)
        return (yield from real(self, network, corpus, examples, quick))

    monkeypatch.setattr(Tag, "evaluating", slow)
    monkeypatch.setattr(budget, "FINAL_SECONDS", 0.2)
    monkeypatch.setattr(budget, "PROGRESS_SECONDS", 0.0)
    config = config_of(tmp_path, steps=10**6, minutes=0.02, patience=10**6, evaluate_every=10)
    folder = new_folder(config, tmp_path / "run")
    events = list(show(start(config, folder), folder, quiet=True))
    (last,) = [e for e in events if isinstance(e, Finished)]
    assert 0 < last.examples < last.wanted
    assert f"evaluated on {last.examples} of {last.wanted} dev examples" in str(sentence(last))
    assert {e.last for e in events if isinstance(e, Evaluating)} == {False, True}
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert records[-1]["examples"] == last.examples
    assert all(record["event"] != "Evaluating" for record in records)


def test_an_evaluation_that_ran_out_of_time_gives_the_weights_back(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    ready = prepare(config, tmp_path)
    trainer = Trainer(ready.task, ready.task.build(), tmp_path)
    trainer.step([ready.task.epoch(ready.train, 0)[0]], 0.5)
    before = {name: w.clone() for name, w in trainer.network.state_dict().items()}
    work = trainer.evaluating(ready.dev, list(ready.dev_examples), Stop())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "PROGRESS_SECONDS", 0.0)
        next(work)
        swapped = trainer.network.state_dict()
        assert not all(torch.equal(before[name], swapped[name]) for name in before)
        work.close()
    after = trainer.network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert trainer.doing is None
    stop = Stop()
    stop.requested = True
    with pytest.raises(Interrupted):
        result_of(trainer.evaluating(ready.dev, list(ready.dev_examples), stop))
    assert all(torch.equal(before[name], after[name]) for name in before)


# --- what is shown --------------------------------------------------------------------------------


@pytest.mark.parametrize("progress", [0.0, 1.0, 1.7])
def test_no_time_left_is_shown_where_there_is_none_or_nothing_is_known(progress: float) -> None:
    from dataclasses import replace

    assert "left" not in status(replace(STEP, progress=progress))


def test_an_evaluation_is_shown_on_standard_error_alone(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from saccade.training import report

    monkeypatch.setattr(report, "monotonic", lambda: clock.now)
    assert following(clock.evaluation(4, 32.0)) == {"loss": 4.0}
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "25%  evaluating  1:36 left",
        "50%  evaluating  1:04 left",
        "75%  evaluating  0:32 left",
        "100%  evaluating",
    ]


# --- what is said once ----------------------------------------------------------------------------


def test_a_dev_loss_that_rises_is_said_once(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    ready = prepare(config, tmp_path)
    trainer = Trainer(ready.task, ready.task.build(), tmp_path)
    watch, said = LossWatch(trainer), []
    dev = [2.0, 1.0, 1.2, 1.3, 1.05, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 0.9, 1.2, 1.3, 1.4]
    for step, loss in enumerate(dev):
        nll = torch.tensor(10 / (step + 1))
        watch.add(StepResult(nll, 10, nll, 0.1, True, 0.5, False))
        trainer.at.step = step
        said += [(step, e.text) for e in watch.check(Evaluated(step, {"loss": loss}, False, 1.0))]
    ((step, text),) = said
    assert step == 7  # the third in a row
    assert "has risen from 1.000 to 1.400, and in training it fell from 0.500 to 0.125" in text
    assert "dropout" in text


def test_a_loss_below_0_rises_as_one_above(tmp_path: Path) -> None:
    ready = prepare(config_of(tmp_path), tmp_path)
    trainer = Trainer(ready.task, ready.task.build(), tmp_path)
    watch, said = LossWatch(trainer), []
    for step, loss in enumerate([-1.0, -2.0, -1.95, -1.95, -1.95, -1.7, -1.7, -1.7]):
        nll = torch.tensor(-10.0 - step)
        watch.add(StepResult(nll, 10, nll, 0.1, True, 0.5, False))
        trainer.at.step = step
        said += [step for _ in watch.check(Evaluated(step, {"loss": loss}, False, 1.0))]
    assert said == [7]


def test_a_dev_loss_that_rises_with_the_training_loss_is_no_overfitting(tmp_path: Path) -> None:
    ready = prepare(config_of(tmp_path), tmp_path)
    trainer = Trainer(ready.task, ready.task.build(), tmp_path)
    watch, said = LossWatch(trainer), []
    for step, loss in enumerate([1.0, 1.2, 1.4, 1.6, 1.8]):
        nll = torch.tensor(10.0 + step)
        watch.add(StepResult(nll, 10, nll, 0.1, True, 0.5, False))
        said += list(watch.check(Evaluated(step, {"loss": loss}, False, 1.0)))
    assert not said


def test_a_rising_dev_loss_reaches_the_log(tmp_path: Path) -> None:
    """Labels that nothing tells: what is learned is by heart."""
    import random

    numbers = random.Random(3)
    names = ["".join(numbers.choices("abcdefgh", k=4)) for _ in range(120)]
    path = tmp_path / "noise.tsv"
    path.write_text(
        "".join(f"{name} {i}\t{numbers.choice('xy')}\n" for i, name in enumerate(names))
    )
    raw = {
        "data": {"train": [str(path)]},
        "task": {"kind": "classify"},
        "encoder": {"kind": "convolution", "dim": 32, "dropout": 0.0},
        "train": {"steps": 120, "rate": 0.02, "warmup": 1, "evaluate_every": 10, "average": 0.0},
    }
    from saccade.setup.choose import fill_config

    config = parse(fill_config(raw, "x")[0].model_dump(exclude_none=True), "x")
    events = run_through(config, tmp_path / "run")
    told = [e.text for e in events if isinstance(e, Noticed)]
    assert len([text for text in told if "the loss on the dev set has risen" in text]) == 1


def test_other_threads_are_said_when_a_run_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_through(config_of(tmp_path, steps=6), folder, stop_after=2)
    found = list(until(4, lambda stop: resume(folder, stop)))
    assert not [e for e in found if isinstance(e, Changed)]
    torch.set_num_threads(2)
    try:
        found = list(show(resume(folder), folder, quiet=True))
    finally:
        torch.set_num_threads(1)
    (changed,) = [e for e in found if isinstance(e, Changed)]
    assert changed == Changed("threads", 1, 2)
    assert "last bits" in str(sentence(changed))
    assert '"event": "Changed", "key": "threads"' in (folder / "metrics.jsonl").read_text()


def test_a_run_that_diverges_says_so_once(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    train = config.train.model_copy(
        update={"rate": 1000.0, "warmup": 0, "clip": 0.0, "evaluate_every": 5, "steps": 20}
    )
    events = run_through(config.model_copy(update={"train": train}), tmp_path / "run")
    told = [e.text for e in events if isinstance(e, Noticed) and "diverges" in e.text]
    assert len(told) == 1
    assert "lower train.rate (1000)" in told[0]
