"""The command line through its real entry point: what it prints, where, and how it exits."""

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import QUICK, TINY, shell
from tests.helpers import corpus


def test_a_run_holds_what_it_needs(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert {"config.toml", "model.safetensors", "source.json", "target.json"} <= names
    assert {"metrics.jsonl", "checkpoints", "data"} <= names


def test_help_is_instant_and_imports_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['saccade', '--help']\n"
        "from saccade import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    before = os.times()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    after = os.times()
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout
    # Of the processor, not of the clock: another test runs beside this one.
    spent = after.children_user + after.children_system
    assert spent - before.children_user - before.children_system < 0.5


def test_predict_reads_a_line_and_writes_a_line(run: Path) -> None:
    done = shell("predict", run, stdin="abc\n\nda\u2028b\nzzz\n   \nab")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert len(lines) == 7
    assert lines[1] == lines[4] == lines[6] == ""


def test_predict_gives_n_best_with_scores(run: Path, call) -> None:
    source = run.parent / "in.txt"
    source.write_text("abc\nba\n")
    done = call("predict", run, source, "--width", 4, "--nbest", 3)
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert done.code == 0
    assert len(rows) == 6
    assert all(float(score) <= 0 for score, _ in rows)
    records = call("predict", run, source, "--width", 4, "--nbest", 3, "--json").out.splitlines()
    found = [answer for record in records for answer in json.loads(record)]
    assert [[f"{a['score']:.4f}", a["text"]] for a in found] == rows


def test_evaluate_prints_a_table_or_json(run: Path, call) -> None:
    table = call("evaluate", run)
    assert table.code == 0
    names = [line.split("\t")[0] for line in table.out.splitlines()]
    assert "sequence_error" in names
    assert list(json.loads(call("evaluate", run, "--json").out)) == names
    again = call("evaluate", run, corpus(run.parent, "translate"), "--json")
    assert 0 <= json.loads(again.out)["sequence_error"] <= 100


def test_score_is_a_line_for_each_example(run: Path, call) -> None:
    done = call("score", run, corpus(run.parent, "translate"))
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert len(rows) == 200
    assert all(float(log_p) < 0 and int(count) > 1 for log_p, count, _ in rows)
    assert "perplexity" in done.err


@pytest.mark.parametrize("task", ["language", "classify", "tag"])
def test_every_task_goes_from_raw_file_to_prediction(task: str, tmp_path: Path, call) -> None:
    path = corpus(tmp_path, task)
    done = call("train", path, "--out", tmp_path / "run", *QUICK, "--task", task)
    assert done.code == 0, done.err
    (tmp_path / "in.txt").write_text("ab cd\n\na\n")
    found = call("predict", tmp_path / "run", tmp_path / "in.txt")
    assert found.code == 0, found.err
    lines = found.out.split("\n")
    assert len(lines) == 4
    assert lines[1] == ""
    if task == "tag":
        assert [len(line.split()) for line in lines[:3]] == [2, 0, 1]
    if task == "language":
        assert lines[0].startswith("ab cd")
    assert call("evaluate", tmp_path / "run", path).code == 0
    assert call("score", tmp_path / "run", path).code == 0


def test_the_shape_of_the_file_chooses_the_task(tmp_path: Path, call) -> None:
    from saccade.runs.run import read_config

    for task in ("language", "classify", "tag", "translate"):
        out = tmp_path / task
        done = call("train", corpus(tmp_path, task), "--out", out, *QUICK)
        assert done.code == 0, done.err
        assert read_config(out).task.kind == task
        assert task in done.err


def test_a_signal_stops_with_all_saved_and_resume_goes_on(tmp_path: Path, call) -> None:
    command = [sys.executable, "-m", "saccade", "train", str(corpus(tmp_path, "translate"))]
    command += ["--out", str(tmp_path / "run"), "--set", "train.steps=100000"]
    command += TINY
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not (tmp_path / "run" / "checkpoints").exists():
        time.sleep(0.1)
        assert process.poll() is None
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 75
    assert f"saccade resume {tmp_path / 'run'}" in err
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace("steps = 100000", "steps = 10"))
    done = call("resume", tmp_path / "run")
    assert done.code == 0, done.err


def test_a_file_of_the_training_format_is_predicted_from(tmp_path: Path, call) -> None:
    rows = [
        {"text": f"word {i} {'good' if i % 2 else 'bad'}", "label": "ab"[i % 2]} for i in range(40)
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert call("train", path, "--out", tmp_path / "run", *QUICK).code == 0
    found = call("predict", tmp_path / "run", path)
    assert found.code == 0, found.err
    assert set(found.out.split()) <= {"a", "b"}
    assert len(found.out.splitlines()) == 40
    assert "does not search" in call("predict", tmp_path / "run", path, "--width", 3).err
    refused = call("predict", tmp_path / "run", path, "--prefix", "a").err
    assert "prefixes are not supported" in refused
    for more in (["--int8"], ["--engine", "torch"], ["--set", "decode.batch_tokens=9"]):
        assert len(call("predict", tmp_path / "run", path, *more).out.splitlines()) == 40
    measured = call("evaluate", tmp_path / "run", path, "--int8")
    assert measured.code == 0, measured.err
    alone = call("evaluate", tmp_path / "run", path, "--set", "decode.width=3")
    assert "does not search" in alone.err
    # Blank rows keep their places, also in a compressed file.
    lines = path.read_text().splitlines()
    blank = lines[0].replace(json.dumps(rows[0]["text"]), '""')
    with gzip.open(tmp_path / "odd.jsonl.gz", "wt") as file:
        file.write("\n".join([lines[0], "", blank, lines[1]]) + "\n")
    odd = call("predict", tmp_path / "run", tmp_path / "odd.jsonl.gz")
    first, second = found.out.splitlines()[:2]
    assert odd.out.splitlines() == [first, "", "", second]


def test_a_reader_that_has_seen_enough_is_no_error(run: Path, tmp_path: Path) -> None:
    source = tmp_path / "many.txt"
    source.write_text("ab\n" * 30_000)
    command = f'"{sys.executable}" -m saccade score "{run}" "{tmp_path / "many.tsv"}" | head -1'
    (tmp_path / "many.tsv").write_text("ab\tba\n" * 30_000)
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


def test_several_seeds_are_one_run_with_a_table(call, tmp_path):
    data, run = corpus(tmp_path, "translate"), tmp_path / "run"
    done = call("train", data, "--seeds", 2, "--out", run, *QUICK, *TINY)
    assert done.code == 0
    head, *rows = done.out.splitlines()[-4:]
    assert head.split("\t") == ["metric", "mean", "deviation", "ensemble"]
    assert [row.split("\t")[0] for row in rows] == ["loss", "sequence_error", "token_error"]
    assert "seed 2 of 2" in done.err
    (tmp_path / "new.txt").write_text("abc\ncc\n")
    assert len(call("predict", run, tmp_path / "new.txt").out.splitlines()) == 2
    assert call("evaluate", run).out.splitlines()[0] == f"loss\t{rows[0].split(chr(9))[-1]}"
    more = call("resume", run, "--set", "train.seeds=3")
    assert more.code == 0
    assert "seed 3 of 3" in more.err
