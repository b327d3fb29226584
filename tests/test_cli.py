"""The command line through its real entry point: what it prints, where, and how it exits."""

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from saccade import cli
from tests.faults.corpora import lines, write
from tests.training.test_training import corpus

QUICK = ["--set", "train.steps=6", "--set", "train.evaluate_every=6"]
TINY = ["--set", "encoder.dim=16", "--set", "decoder.dim=16"]


class Outcome:
    def __init__(self, code: int, out: str, err: str):
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Call the command line in this process, as the installed script does."""

    def run(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["saccade", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capfd.readouterr()
        return Outcome(int(left.value.code or 0), out, err)

    return run


def shell(*words: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Call the command line as a user's shell does."""
    command = [sys.executable, "-m", "saccade.cli", *map(str, words)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trained run, made by the command line."""
    folder = tmp_path_factory.mktemp("cli")
    made = shell("train", corpus(folder, "translate"), "--out", folder / "run", *QUICK, *TINY)
    assert made.returncode == 0, made.stderr
    assert "sequence_error\t" in made.stdout
    assert "translate" in made.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Transformer with the same vocabularies, and no more than 30 positions."""
    import saccade

    folder = tmp_path_factory.mktemp("fast")
    part = {"kind": "transformer", "dim": 16, "num_heads": 2, "ff_dim": 32, "num_layers": 1}
    part |= {"positions": "learned", "max_positions": 30}
    settings = {"train.steps": 6, "data.max_len": 30, "encoder": part, "decoder": part}
    data = corpus(folder, "translate")
    saccade.train(data, out=folder / "run", settings=settings, quiet=True)
    return folder / "run"


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("abc\nba\n\ndcab\n")
    return path


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


@pytest.mark.parametrize("task", ["model", "classify", "tag"])
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
    if task == "model":
        assert lines[0].startswith("ab cd")
    assert call("evaluate", tmp_path / "run", path).code == 0
    assert call("score", tmp_path / "run", path).code == 0


def test_the_shape_of_the_file_chooses_the_task(tmp_path: Path, call) -> None:
    from saccade.training.run import read_config

    for task in ("model", "classify", "tag", "translate"):
        out = tmp_path / task
        done = call("train", corpus(tmp_path, task), "--out", out, *QUICK)
        assert done.code == 0, done.err
        assert read_config(out).task.kind == task
        assert task in done.err


def test_a_signal_stops_with_all_saved_and_resume_goes_on(tmp_path: Path, call) -> None:
    command = [sys.executable, "-m", "saccade.cli", "train", str(corpus(tmp_path, "translate"))]
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
    assert "no prefix" in call("predict", tmp_path / "run", path, "--prefix", "a").err
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
    command = f'"{sys.executable}" -m saccade.cli score "{run}" "{tmp_path / "many.tsv"}" | head -1'
    (tmp_path / "many.tsv").write_text("ab\tba\n" * 30_000)
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


# --- decoding -------------------------------------------------------------------------------------


def test_a_seed_decides_what_is_drawn(run: Path, words: Path, call) -> None:
    plain, again, other, cold = (
        call("predict", run, words, "--sample", *more).out.split("\n")
        for more in (
            [],
            ["--set", "decode.seed=1", "--set", "decode.batch_tokens=1"],
            ["--set", "decode.seed=2"],
            ["--set", "decode.temperature=0.001"],
        )
    )
    assert plain == again
    assert plain != other
    assert plain[2] == other[2] == ""
    assert cold == call("predict", run, words, "--width", 1).out.split("\n")
    four = call("predict", run, words, "--sample", "--nbest", 4).out.splitlines()
    assert [four[0].split("\t")[1], four[4].split("\t")[1]] == plain[:2]  # the first is the same


def test_details_are_json(run: Path, words: Path, call) -> None:
    done = call("predict", run, words, "--details", "--json", "--width", 3)
    assert done.code == 0, done.err
    plain = call("predict", run, words, "--width", 3).out.split("\n")
    for line, text in zip(done.out.splitlines(), plain, strict=False):
        (answer,) = json.loads(line)
        assert answer["text"] == text
        if not text:
            continue
        assert [token["text"] for token in answer["tokens"]] == [*text, "<eos>"]
        score = sum(token["log_p"] for token in answer["tokens"])
        assert score == pytest.approx(answer["score"], abs=1e-3)
        assert all(len(token["alternatives"]) == 5 for token in answer["tokens"])
        assert {"kept", "ended"} <= {node["fate"] for node in answer["tree"]}
        first = [node["text"] for node in answer["tree"] if node["parent"] is None]
        assert answer["text"][0] in first


def test_outputs_begin_with_a_prefix(run: Path, words: Path, tmp_path: Path, call) -> None:
    same = call("predict", run, words, "--prefix", "ba").out.split("\n")
    assert all(same[i].startswith("ba") for i in (0, 1, 3))
    assert same[2] == ""
    (tmp_path / "begin.txt").write_text("a\n\nb\ncc\n")
    each = call("predict", run, words, "--prefixes", tmp_path / "begin.txt").out.split("\n")
    assert each[0].startswith("a")
    assert each[3].startswith("cc")
    assert each[1] == call("predict", run, words).out.split("\n")[1]
    (tmp_path / "begin.txt").write_text("a\n日\nb\ncc\n")
    odd = call("predict", run, words, "--prefixes", tmp_path / "begin.txt")
    assert odd.code == 0
    assert odd.out.split("\n") == [each[0], "", *each[2:]]
    assert "2: its prefix holds what the model has no token for" in odd.err
    (tmp_path / "begin.txt").write_text("a\n\nb\ncc\na\n")
    more = call("predict", run, words, "--prefixes", tmp_path / "begin.txt")
    assert more.code == 0
    assert more.out.split("\n") == each
    assert "more lines than there were inputs" in more.err


def test_runs_decide_together(run: Path, fast: Path, words: Path, call) -> None:
    alone = call("predict", run, words)
    assert call("predict", run, words, "--with", run).out == alone.out
    both = call("predict", run, words, "--with", fast)
    assert both.code == 0, both.err
    assert both.out == call("predict", fast, words, "--with", run).out
    assert both.out != alone.out


def test_a_stream_is_the_greedy_answer(run: Path, words: Path, call) -> None:
    streamed = call("predict", run, words, "--stream")
    assert streamed.code == 0, streamed.err
    assert streamed.out == call("predict", run, words, "--width", 1).out
    drawn = call("predict", run, words, "--stream", "--sample")
    assert drawn.out == call("predict", run, words, "--sample").out
    stuck = call("predict", run, words, "--stream", "--set", "decode.min_len=300")
    assert stuck.code == 2
    assert "input 1: the constraints" in stuck.err


def test_engines_agree(run: Path, fast: Path, words: Path, call) -> None:
    pytest.importorskip("ctranslate2")
    torch = call("predict", fast, words, "--engine", "torch")
    assert torch.code == 0, torch.err
    assert call("predict", fast, words, "--engine", "ctranslate2").out == torch.out
    assert call("predict", fast, words).out == torch.out
    for more in ([], ["--engine", "torch"]):
        assert len(call("predict", fast, words, "--int8", *more).out.split("\n")) == 5
    longer = ["--set", "decode.min_len=5"]
    found = call("predict", fast, words, *longer).out.split("\n")
    assert [len(text) >= 5 for text in found] == [True, True, False, True, False]
    refused(call("predict", fast, words, *longer, "--engine", "ctranslate2"), "decode.min_len")


def test_an_export_is_found_and_used(fast: Path, words: Path, tmp_path: Path, call) -> None:
    pytest.importorskip("ctranslate2")
    before = call("predict", fast, words).out
    done = call("export", fast, "--to", "ctranslate2")
    assert done.code == 0, done.err
    assert str(fast / "ctranslate2") in done.err
    assert (fast / "ctranslate2" / "model.bin").is_file()
    assert call("predict", fast, words, "--engine", "ctranslate2").out == before
    assert call("export", fast, "--to", "ctranslate2", "--out", tmp_path / "there").code == 0
    assert (tmp_path / "there" / "model.bin").is_file()


def test_outputs_come_from_a_list(run: Path, words: Path, tmp_path: Path, call) -> None:
    (tmp_path / "list.txt").write_text("ab\ndcba\n")
    done = call("predict", run, words, "--set", f"decode.only={tmp_path / 'list.txt'}")
    assert done.code == 0, done.err
    assert set(done.out.split()) <= {"ab", "dcba"}
    assert len(done.out.split()) == 3


def test_exact_search_is_a_line_for_each_source_and_a_table(
    run: Path, tmp_path: Path, call
) -> None:
    data = tmp_path / "some.tsv"
    data.write_text("abc\tcba\nd\tq\nabc\tcb\nba\tab\n")
    done = call("exact", run, data, "--set", "decode.max_len=4")
    assert done.code == 0, done.err
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [len(row) for row in rows] == [4, 4, 4]  # a source given twice counts once
    assert all(float(score) < 0 and verdict == "proved" for score, verdict, _, _ in rows)
    table = [line.split() for line in done.err.splitlines()[-5:]]
    assert [row[0] for row in table] == ["1", "2", "5", "10", "50"]
    records = call("exact", run, data, "--set", "decode.max_len=4", "--limit", 2, "--json").out
    *lines, last = map(json.loads, records.splitlines())
    assert [f"{line['score']:.4f}" for line in lines] == [row[0] for row in rows[:2]]
    assert lines[0]["references"] == ["cba", "cb"]
    assert all(line["beams"]["50"][2] <= line["value"] + 1e-4 for line in lines)
    assert last["summary"]["lines"] == 2
    one = call("exact", run, data, "--set", "decode.max_len=4", "--limit", 1)
    assert "\n1 line, 100.0 % proved" in "\n" + one.err
    spent = call("exact", run, data, "--alpha", 1, "--budget", 1, "--order", "best")
    assert "budget exhausted" in spent.out


def test_a_line_that_cannot_be_read_is_left_empty(
    run: Path, fast: Path, tmp_path: Path, call
) -> None:
    source = tmp_path / "in.txt"
    source.write_text(f"abc\n{'ab' * 40}\nba\n")
    for more in (["--engine", "torch"], []):
        done = call("predict", fast, source, *more)
        assert done.code == 0
        lines = done.out.split("\n")
        assert lines[1] == ""
        warning, count = done.err.splitlines()
        assert warning.startswith(f"{source}:2: longer than the model's positions")
        assert count.startswith("1 line ")
        source.write_text("abc\nba\n")
        assert call("predict", fast, source, *more).out.split("\n") == [lines[0], *lines[2:]]
        source.write_text(f"abc\n{'ab' * 40}\nba\n")
    record = json.loads(call("predict", fast, source, "--json").out.splitlines()[1])
    assert "positions" in record[0]["problem"]
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(f"abc\tcba\n{'ab' * 40}\tba\nba\tab\n")
    done = call("exact", fast, pairs, "--set", "decode.max_len=3", "--budget", 50)
    assert "source 2: longer than the model's positions" in done.err
    assert len(done.out.splitlines()) == 2
    together = call("predict", run, source, "--with", fast)  # the other cannot read it
    assert together.out.split("\n")[1] == ""
    assert "2: longer than the model's positions" in together.err


# --- mistakes -------------------------------------------------------------------------------------

TWO = "a\tb\n" * 3
BROKEN: dict[str, tuple[bytes, str]] = {
    "too many columns": (TWO.encode() + b"a\tb\tc\n", "train.tsv:4"),
    "too few columns": (TWO.encode() + b"a\n" + TWO.encode(), "train.tsv:4"),
    "not utf-8": (TWO.encode() + b"a\xff\tb\n", "train.tsv:4"),
    "a NUL byte": (TWO.encode() + b"a\0\tb\n", "train.tsv:4"),
    "a blank target": (TWO.encode() + b"a\t  \n", "train.tsv:4"),
    "empty": (b"", "train.tsv"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named_with_its_line(name: str, tmp_path: Path, call) -> None:
    data, where = BROKEN[name]
    path = tmp_path / "train.tsv"
    path.write_bytes(data)
    done = call("train", path, "--task", "translate", "--out", tmp_path / "run")
    assert done.code == 2
    assert where in done.err
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) <= 12
    assert not (tmp_path / "run" / "config.toml").exists()
    checked = call("check", path, "--task", "translate")
    assert checked.code == 1
    assert where in checked.out + checked.err


def test_misaligned_files_are_refused(tmp_path: Path, call) -> None:
    (tmp_path / "a.de").write_text("eins\nzwei\ndrei\n")
    (tmp_path / "a.en").write_text("one\ntwo\n")
    files = tmp_path / "a.de", tmp_path / "a.en"
    done = call("train", *files, "--out", tmp_path / "run")
    assert done.code == 2
    assert "a.de:3" in done.err
    assert call("check", *files).code == 1


def test_a_missing_file_is_named(tmp_path: Path, call) -> None:
    done = call("train", tmp_path / "nowhere.tsv")
    assert done.code == 2
    assert "nowhere.tsv" in done.err
    assert len(done.err.splitlines()) <= 3


def test_a_label_that_training_never_saw_is_refused(tmp_path: Path, call) -> None:
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    train.write_text("".join(f"text {i}\t{'good' if i % 2 else 'bad'}\n" for i in range(40)))
    dev.write_text("one\tgood\ntwo\tugly\n")
    done = call("train", train, "--dev", dev, "--out", tmp_path / "run", "--task", "classify")
    assert done.code == 2
    assert "dev.tsv:2" in done.err
    assert "ugly" in done.err
    checked = call("check", train, "--dev", dev, "--task", "classify")
    assert checked.code == 1
    assert "dev.tsv:2" in checked.out


def test_a_clean_file_has_no_defects(tmp_path: Path, call) -> None:
    done = call("check", *write(lines(), tmp_path)[0])
    assert done.code == 0
    assert "no defects" in done.err
    assert "tokenizer" in done.out  # information is no defect
    assert "warning" not in done.out


def test_what_is_found_is_a_table_or_json(tmp_path: Path, call) -> None:
    files = lines()
    files["train.en"][9] += "\u200b"
    files["train.de"].append("")
    train, dev = write(files, tmp_path)
    words = [*train, "--dev", dev[0], "--dev", dev[1]]
    done = call("check", *words)
    assert done.code == 1
    assert done.err == "1 error, 1 warning\n"
    head, *rows = done.out.splitlines()
    assert head.split()[:4] == ["level", "code", "count", "where"]
    assert rows[0].split()[:4] == ["error", "misaligned", "1", f"{train[0]}:301"]
    assert "-> make both from one file again" in rows[1]
    assert rows[2].split()[:4] == ["warning", "invisible", "1", f"{train[1]}:10"]
    assert "ZERO WIDTH SPACE" in rows[2]
    assert "\\u200b" in rows[2]
    done = call("check", *words, "--json")
    assert done.code == 1
    found = {one["code"]: one for one in map(json.loads, done.out.splitlines())}
    assert found["invisible"]["where"] == f"{train[1]}:10"
    assert found["invisible"]["level"] == "warning"
    assert found["invisible"]["places"][0].keys() == {"where", "message", "text"}
    assert found["misaligned"]["level"] == "error"
    assert all({"count", "message", "advice"} <= one.keys() for one in found.values())


def test_check_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['saccade', 'check', *sys.argv[1:]]\n"
        "from saccade import cli\n"
        "try: cli.main()\n"
        "except SystemExit as left: assert left.code == 0\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    command = [sys.executable, "-c", code, *write(lines(), tmp_path)[0]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("verb", ["train", "check"])
def test_a_second_dev_file_without_its_option_is_understood(verb: str, tmp_path, call) -> None:
    train, dev = write(lines(), tmp_path)
    done = call(verb, *train, "--dev", *dev)
    assert done.code == 2
    assert "3 training files, but 1 dev file" in done.err
    assert f"--dev {dev[0]} --dev {dev[1]}" in done.err
    first = call(verb, "--dev", dev[0], dev[1], *train)
    assert f"--dev {dev[0]} --dev {dev[1]}" in first.err
    two = call(verb, *train, "--dev", dev[0])
    assert two.code == 2
    assert "--dev before each dev file" in two.err


def test_mistakes_in_settings_are_told_together(tmp_path: Path, call) -> None:
    path = corpus(tmp_path, "translate")
    done = call(
        "train", path, "--set", "encoder.kind=transformer", "--set", "encoder.dims=9",
        "--set", "train.stepz=1", "--set", "encoder.dim=63", "--set", "train.rate=fast",
    )  # fmt: skip
    assert done.code == 2
    assert "'encoder.dims' (did you mean 'dim'?)" in done.err
    assert "'train.stepz' (did you mean 'steps'?)" in done.err
    assert "divisible by num_heads" in done.err
    assert "train.rate" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "settings",
    [
        ["decoder.attention=additive"],
        ["decoder.attention=off"],
        ["task.target.kind=char"],
        ["encoder.kind=transformer", "encoder.num_heads=8"],
        ["encoder.dim=32"],
        ["size=tiny"],
        ["task.source.size=300"],
    ],
)
@pytest.mark.parametrize("words", [True, False], ids=["words", "sentences"])
def test_one_setting_alone_is_enough(
    settings: list[str], words: bool, tmp_path: Path, call
) -> None:
    """What else must change with it is chosen to fit."""
    path = tmp_path / "data.tsv"
    noun = ["dog", "cat", "bird", "fish", "cow"]
    rows = [f"{a}{b}\t{b}{a}" if words else f"the {a} and {b} x{i}\tder {a} und {b} x{i}"
            for i, (a, b) in enumerate((a, b) for a in noun for b in noun)]  # fmt: skip
    path.write_text("\n".join(rows) + "\n")
    chosen = [word for setting in settings for word in ("--set", setting)]
    if not words and settings == ["decoder.attention=additive"]:
        chosen += ["--set", "decoder.kind=recurrent"]
    if not words and settings == ["decoder.attention=off"]:
        chosen += ["--set", "decoder.kind=recurrent"]
    done = call("train", path, "--out", tmp_path / "run", "--set", "train.steps=1", *chosen)
    assert done.code == 0, done.err


def test_a_configuration_file_is_read_and_its_mistakes_are_placed(tmp_path: Path, call) -> None:
    path = corpus(tmp_path, "translate")
    good = tmp_path / "good.toml"
    good.write_text(
        f'[data]\ntrain = ["{path}"]\n[train]\nsteps = 3\n[encoder]\nkind = "recurrent"\ndim = 16\n'
    )
    assert call("train", good, "--out", tmp_path / "run").code == 0
    bad = tmp_path / "bad.toml"
    bad.write_text(good.read_text() + "layers = 3\n")
    done = call("train", bad, "--out", tmp_path / "other")
    assert done.code == 2
    assert "bad.toml: unknown key 'encoder.layers' (did you mean 'num_layers'?)" in done.err
    bad.write_text("this is not toml")
    assert "not TOML" in call("train", bad).err


def test_a_run_is_not_overwritten(run: Path, call) -> None:
    done = call("train", corpus(run.parent, "translate"), "--out", run)
    assert done.code == 2
    assert "holds a run already" in done.err


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ("--width 0", "decode.width"),
        ("--width 2 --nbest 5", "at most as many"),
        ("--nbest 0", "at least 1"),
        ("--widht 3", "--width"),
        ("--width wide", "--width"),
        ("--set decode.alpha=nan", "decode.alpha"),
        ("--set decode.temprature=2", "did you mean 'temperature'"),
        ("--set decode.groups=3", "evenly"),
        ("--set train.steps=3", "only keys of decode"),
        ("--engine onnx", "choose one of auto, torch, ctranslate2"),
        ("--engine ctranslate2", "recurrent"),
        ("--prefix 日本", "no token for"),
        ("--prefixes one.txt", "fewer prefixes"),
        ("--prefixes nowhere.txt", "nowhere.txt"),
        ("--details", "--json"),
        ("--stream --nbest 2", "leave out"),
        ("--with nowhere", "not a run"),
        ("--set decode.model=nowhere", "not a run"),
        ("--set decode.model={run}", "'model' is needed"),
        ("--set decode.only=nowhere.txt", "nowhere.txt"),
        ("--set decode.only=other.txt", "other.txt"),
        ('--set decode.banned=["日"]', "decode.banned"),
    ],
)
def test_predictions_that_cannot_be_are_refused(
    wish: str, message: str, run: Path, words: Path, call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(words.parent)
    Path("one.txt").write_text("a\n")
    Path("other.txt").write_text("日本\n")
    refused(call("predict", run, words, *wish.format(run=run).split()), message)


def test_exact_searches_and_exports_that_cannot_be_are_refused(
    run: Path, fast: Path, tmp_path: Path, call
) -> None:
    data = corpus(tmp_path, "translate")
    refused(call("exact", run, data, "--budget", 0), "budget")
    refused(call("exact", run, data, "--order", "worst"), "choose one of depth, best")
    refused(call("exact", run, tmp_path / "nowhere.tsv"), "nowhere.tsv")
    refused(call("export", fast, "--to", "nonsense"), "there is ctranslate2")
    refused(call("export", fast), "--to")
    refused(call("export", run, "--to", "ctranslate2"), "recurrent")


def refused(done: Outcome, message: str) -> None:
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) <= 4
    assert "Traceback" not in done.err
    assert done.out == ""


def test_no_run_is_no_run(tmp_path: Path, call) -> None:
    done = call("predict", tmp_path)
    assert done.code == 2
    assert "not a run" in done.err


def test_undecodable_input_is_named_with_its_line(run: Path, call) -> None:
    source = run.parent / "bad.txt"
    source.write_bytes(b"abc\n\xff\n")
    done = call("predict", run, source)
    assert done.code == 2
    assert "bad.txt:2" in done.err


def test_a_damaged_model_is_named(run: Path, call, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "model.safetensors").write_bytes(b"nonsense")
    source = run.parent / "in.txt"
    source.write_text("abc\n")
    done = call("predict", copy, source)
    assert done.code == 2
    assert "model.safetensors" in done.err
