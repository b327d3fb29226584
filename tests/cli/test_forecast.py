"""Forecasts on the command line: train with no configuration, predict, back-test, and mistakes."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import saccade
from saccade.errors import DataError
from saccade.runs.measuring import windows as windows_of
from saccade.runs.run import Run
from saccade.tasks.forecast import METRICS, SIMPLE
from saccade.training.events import Finished
from saccade.training.session import resume
from tests.cli.conftest import Outcome, refused
from tests.series import QUICK, table

Call = Callable[..., Outcome]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forecast")
    path = table(folder, 200)
    saccade.train(path, task="forecast", out=folder / "run", settings=QUICK, quiet=True)
    return folder / "run"


def rows_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_a_noisy_sine_goes_on_within_two_percent(tmp_path: Path) -> None:
    t = np.arange(524)
    wave = 10 + 3 * np.sin(2 * np.pi * t / 24)
    noise = 0.02 * np.random.default_rng(0).standard_normal(500)
    path = tmp_path / "sine.csv"
    path.write_text("t,y\n" + "".join(f"{i},{y:.5f}\n" for i, y in enumerate(wave[:500] + noise)))
    run = saccade.train(path, task="forecast", out=tmp_path / "run", quiet=True)
    found = run.forecast(path, quantiles=(0.1, 0.9))
    assert run.config.task.season == run.config.task.horizon == 24  # type: ignore[union-attr]
    assert np.abs(found.mean[:, 0] / wave[500:] - 1).max() < 0.02
    low, high = found.quantiles[:, :, 0]
    assert (low < found.mean[:, 0]).all()
    assert (high - low < 0.3).all()


def test_train_says_what_was_found_and_chosen(call: Call, tmp_path: Path) -> None:
    path = table(tmp_path, 120)
    few = ["--set", "train.steps=2", "--set", "task.series=['a']"]
    out = call("train", path, "--task", "forecast", "--out", tmp_path / "run", *few)
    assert out.code == 0
    said = out.err.splitlines()[0]
    assert "a row each day in 'day', from 2020-01-01 to 2020-04-29; 1 series (a)" in said
    assert "not used: b, holiday, cause" in said
    assert "the last 24 rows to measure on; season 12 (autocorrelation" in said
    assert "horizon 9, look-back 24" in said
    assert "seasonal_naive_mse" in out.out
    assert "linear_crps" in out.out


def test_predict_continues_the_table(call: Call, run: Path) -> None:
    path = run.parent / "series.csv"
    head, *rows = rows_of(call("predict", run, path).out)
    assert head == ["day", "a", "b", "holiday", "cause"]
    assert [row[0] for row in rows] == ["2020-07-19", "2020-07-20", "2020-07-21", "2020-07-22"]
    assert all(len(row) == 5 for row in rows)


def test_predict_adds_quantiles_and_samples(call: Call, run: Path) -> None:
    path = run.parent / "series.csv"
    head, *rows = rows_of(call("predict", run, path, "--quantiles", "0.1,0.9").out)
    assert head[:4] == ["day", "a", "a 0.1", "a 0.9"]
    assert all(float(row[2]) < float(row[1]) < float(row[3]) for row in rows)
    head, *rows = rows_of(call("predict", run, path, "--sample", "--nbest", "3").out)
    assert head[:3] == ["sample", "day", "a"]
    assert [row[0] for row in rows] == [n for n in "123" for _ in range(4)]
    assert (
        call("predict", run, path, "--sample", "--nbest", "3").out
        == call("predict", run, path, "--sample", "--nbest", "3").out
    )
    out = call("predict", run, path, "--json", "--quantiles", "0.5")
    record = json.loads(out.out)
    assert record["series"]["a"]["quantiles"]["0.5"] == pytest.approx(record["series"]["a"]["mean"])
    assert record["times"][0] == "2020-07-19"


def test_a_long_window_to_look_into_is_no_name_of_a_file(call: Call, run: Path) -> None:
    item = json.dumps({"series": "a", "past": [[0.12345 + i] for i in range(400)]})
    assert len(item) > 4096
    done = call("inspect", run, item, "--view", "forecast")
    assert done.code == 0, done.err


def test_predict_draws_a_picture(call: Call, run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "f.png"
    assert call("predict", run, run.parent / "series.csv", "--plot", picture).code == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_evaluate_is_a_table_beside_simple_forecasts(call: Call, run: Path) -> None:
    out = call("evaluate", run, run.parent / "series.csv")
    head, *rows = (line.split("\t") for line in out.out.splitlines())
    assert head == ["method", *METRICS]
    assert [row[0] for row in rows] == ["this model", *SIMPLE.values()]
    scores = json.loads(call("evaluate", run, run.parent / "series.csv", "--json").out)
    assert scores["mse"] == pytest.approx(float(rows[0][2]), abs=1e-4)
    assert scores["linear_mae"] == pytest.approx(float(rows[2][1]), abs=1e-4)


def test_a_back_test_scores_every_window(run: Path, tmp_path: Path) -> None:
    loaded = saccade.load(run)
    lines = (run.parent / "series.csv").read_text().splitlines()
    later = table(tmp_path, 230).read_text().splitlines()
    fresh = tmp_path / "later.csv"
    fresh.write_text("\n".join([lines[0], *later[201:]]) + "\n")
    windows = windows_of(loaded, loaded.task, [fresh])  # type: ignore[arg-type]
    assert len(windows) == (30 - 4 + 1) * 4  # it goes on where the run's rows end
    apart = tmp_path / "apart.csv"
    apart.write_text("\n".join([lines[0], *later[203:]]) + "\n")
    assert len(windows_of(loaded, loaded.task, [apart])) == (28 - 4 + 1) * 4  # type: ignore[arg-type]
    whole = windows_of(loaded, loaded.task, [run.parent / "series.csv"])  # type: ignore[arg-type]
    assert len(whole) == (200 - 12 - 4 + 1) * 4


def test_a_dev_file_looks_back_to_the_training_file(tmp_path: Path) -> None:
    lines = table(tmp_path, 150).read_text().splitlines()
    train, dev = tmp_path / "train.csv", tmp_path / "dev.csv"
    train.write_text("\n".join(lines[:121]) + "\n")
    dev.write_text("\n".join([lines[0], *lines[121:]]) + "\n")
    run = saccade.train(
        train, dev=dev, task="forecast", out=tmp_path / "run", settings=QUICK, quiet=True
    )
    from saccade.setup.prepare import reopen

    ready = reopen(run.config, run.folder)
    assert len(ready.dev) == (30 - 4 + 1) * 4
    assert len(ready.train) == (120 - 12 - 4 + 1) * 4
    assert json.loads(ready.dev_examples[0].source[0])["step"] >= 120
    dev.write_text("\n".join([lines[0], *lines[110:]]) + "\n")
    with pytest.raises(DataError, match=r"dev\.csv:2: begins at 2020-04-19, and the training rows"):
        saccade.train(
            train, dev=dev, task="forecast", out=tmp_path / "b", settings=QUICK, quiet=True
        )
    short = table(tmp_path, 300, "far.csv").read_text().splitlines()
    dev.write_text("\n".join([short[0], *short[250:265]]) + "\n")  # too far to look back from
    with pytest.raises(DataError, match=r"dev\.csv: no window to measure on"):
        saccade.train(
            train, dev=dev, task="forecast", out=tmp_path / "c", settings=QUICK, quiet=True
        )


def test_known_covariates_stand_in_rows_that_are_still_empty(call: Call, tmp_path: Path) -> None:
    path = table(tmp_path, 160, noise=0.0)
    settings = {k: v for k, v in QUICK.items() if not k.startswith("train.")}
    settings |= {"task.series": ["a"], "task.known": ["holiday"], "train.steps": 400}
    run = saccade.train(path, task="forecast", out=tmp_path / "run", settings=settings, quiet=True)
    assert run.evaluate()["mae"] < 0.1  # a holiday is worth 2
    refused(call("predict", tmp_path / "run", path), "add rows after 2020-06-08")
    rows = "2020-06-09,,,0,\n2020-06-10,,,1,\n2020-06-11,,,0,\n"
    path.write_text(path.read_text() + rows)
    _, *found = rows_of(call("predict", tmp_path / "run", path).out)
    assert [row[0] for row in found] == ["2020-06-09", "2020-06-10", "2020-06-11"]
    sine = 10 + 3 * np.sin(2 * np.pi * np.arange(160, 163) / 12) + np.array([0, 2, 0])
    assert [float(row[1]) for row in found] == pytest.approx(sine.tolist(), abs=0.5)


def test_a_row_a_value_is_continued_as_such(call: Call, tmp_path: Path) -> None:
    rows = [
        f"{name},{2000 + t},{(t * k) % 5}" for name, k in (("x", 1), ("y", 2)) for t in range(60)
    ]
    path = tmp_path / "long.csv"
    path.write_text("\n".join(["id,year,value", *rows]) + "\n")
    saccade.train(path, task="forecast", out=tmp_path / "run", settings=QUICK, quiet=True)
    head, *found = rows_of(call("predict", tmp_path / "run", path, "--quantiles", "0.5").out)
    assert head == ["id", "year", "value", "0.5"]
    assert [row[:2] for row in found[:3]] == [["x", "2060"], ["y", "2060"], ["x", "2061"]]
    path.write_text(path.read_text() + "z,2000,1\n")
    refused(call("predict", tmp_path / "run", path), "long.csv:122: the series 'z' was not in")


def test_resuming_goes_on(tmp_path: Path) -> None:
    path = table(tmp_path, 100)
    straight = saccade.train(
        path, task="forecast", out=tmp_path / "a", settings=QUICK | {"train.steps": 8}, quiet=True
    )
    saccade.train(
        path, task="forecast", out=tmp_path / "b", settings=QUICK | {"train.steps": 8}, quiet=True
    )
    events = list(resume(tmp_path / "b", settings={"train.steps": 12}))
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.step == 12
    assert isinstance(straight, Run)


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        (
            "year,y\n2000,1\n2001,x\n2002,3\n",
            [],
            "t.csv:3: 'x' in 'y' is not a number; write a number",
        ),
        ("year,y\n2000,1\n2000,2\n", [], "t.csv:3: the same time as in line 2; remove one"),
        ("year,y\n2001,1\n2000,2\n", [], "t.csv:3: an earlier time than in line 2; sort the rows"),
        ("y\n" + "1\n" * 60, [], "t.csv:1: the series 'y' never changes; leave it out"),
        (
            "y\n" + "1\n2\n" * 10,
            ["task.horizon=40"],
            "20 rows, of which the last 40 are to measure",
        ),
        ("y\n1\n2\n3\n", [], "t.csv:4: 3 rows"),
        ("y\n" + "1\n2\n" * 30, ["task.known=['z']"], "t.csv:1: no column 'z' among y"),
        ("y\n" + "1\n2\n" * 30, ["task.horizons=4"], "unknown key 'task.horizons' (did you mean"),
        ("y\n" + "1\n2\n" * 30, ["head.shortcut=false"], "needs a table [encoder]"),
        ("y\n" + "1\n2\n" * 30, ["task.frame.cycle=true", "task.season=1"], "needs a season"),
    ],
)
def test_train_refuses_and_check_lists(
    call: Call, tmp_path: Path, text: str, settings: list[str], said: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    options = [word for one in settings for word in ("--set", one)]
    refused(call("train", path, "--task", "forecast", "--out", tmp_path / "run", *options), said)
    assert not (tmp_path / "run" / "config.toml").exists()
    out = call("check", path, "--task", "forecast", *options)
    assert out.code in (1, 2)
    what = said.partition("t.csv:")[2].partition("; ")[0].partition(": ")[2]
    assert what in " ".join((out.out + out.err).split())


def test_check_finds_gaps_and_spikes(call: Call, tmp_path: Path) -> None:
    values = [str(i % 7) for i in range(100)]
    values[40], values[60] = "", "900"
    path = tmp_path / "t.csv"
    path.write_text("y\n" + "".join(f"{y}\n" for y in values))
    out = call("check", path, "--task", "forecast", "--json")
    found = [json.loads(line) for line in out.out.splitlines()]
    codes = {one["code"]: one["where"].rpartition("/")[2] for one in found}
    assert codes == {"gaps": "t.csv:42", "spike": "t.csv:62"}


def test_what_a_forecast_has_not_is_refused(call: Call, run: Path) -> None:
    path = run.parent / "series.csv"
    refused(call("predict", run, path, "--width", "3"), "--width: a forecast does not search")
    refused(call("predict", run, path, "--quantiles", "0.1,x"), "as in 0.1,0.5,0.9")
    refused(call("predict", run, path, "--quantiles", "1.5"), "between 0 and 1, not 1.5")
    refused(call("predict", run, path, "--nbest", "3"), "--nbest: a forecast does not search")
    for words in ("--shard 1/2", "--fill x", "--neighbours x", "--analogy a b c"):
        option, *values = words.split()
        done = call("predict", run, path, option, *values)
        refused(done, f"{option}: a forecast does not search")
    refused(call("evaluate", run, path, path), "one table of series, not 2")


def test_a_table_from_memory_is_one_of_a_file(tmp_path: Path) -> None:
    rows = [{"t": t, "y": None if t == 20 else float(t % 5)} for t in range(80)]
    run = saccade.train(rows, task="forecast", out=tmp_path / "run", settings=QUICK, quiet=True)
    found = run.forecast(run.folder / "examples" / "train.csv")
    assert found.times == ["80", "81", "82", "83"]
    assert np.isnan(found.table.values).sum() == 1


def test_a_score_is_a_line_for_each_window(call: Call, run: Path) -> None:
    path = run.parent / "series.csv"
    out = call("score", run, path)
    assert out.code == 0
    assert len(out.out.splitlines()) == (200 - 12 - 4 + 1) * 4
    log_p, tokens, _ = out.out.splitlines()[0].split("\t")
    assert tokens == "4"
    scores = json.loads(call("evaluate", run, path, "--json").out)
    total = sum(float(line.split("\t")[0]) for line in out.out.splitlines())
    assert scores["loss"] == pytest.approx(-total / (4 * len(out.out.splitlines())), abs=1e-3)
    assert float(log_p) < 100


def test_many_windows_are_answered_as_one(run: Path) -> None:
    loaded = saccade.load(run)
    past = [[float(t % 12)] for t in range(12)]
    query = json.dumps({"past": past, "series": "a", "step": 24})
    with loaded:
        alone, many = loaded.predict([query]), loaded.predict([query] * 40)
    one = np.array(json.loads(alone[0].text)["mean"])
    for other in many:
        np.testing.assert_allclose(json.loads(other.text)["mean"], one, rtol=1e-5)
    with pytest.raises(DataError, match="which series"):
        loaded.predict([json.dumps({"past": past})])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("size=tiny", "a forecast has no named sizes"),
        ("data.target=a", "name the columns in task.series"),
        ("train.label_smoothing=0.1", "label_smoothing"),
        ("train.word_dropout=0.1", "word_dropout"),
        ("output.kind=gaussian", "remove the table [output]"),
        ("train.ctc=0.1", "ctc is for the task 'translate' alone"),
    ],
)
def test_what_has_no_effect_is_refused(call: Call, tmp_path: Path, setting: str, said: str) -> None:
    path = table(tmp_path, 60)
    out = call("train", path, "--task", "forecast", "--set", setting, "--out", tmp_path / "run")
    refused(out, said)


def test_a_table_shorter_than_the_look_back_is_no_basis_of_a_forecast(
    call: Call, run: Path, tmp_path: Path
) -> None:
    """What is missing before its first row would be made up."""
    lookback = saccade.load(run).config.task.lookback  # type: ignore[union-attr]
    path = table(tmp_path, 200)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: lookback + 1]))
    assert call("predict", run, path).code == 0
    path.write_text("".join(lines[:lookback]))
    said = f"{path}: {lookback - 1} rows, and a forecast looks back on {lookback}: give more rows"
    refused(call("predict", run, path), said)
