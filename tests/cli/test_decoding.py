"""Every way to predict, by the command line."""

import json
from pathlib import Path

import pytest

import saccade
from saccade.runs import run as runs
from tests.cli.conftest import refused


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
    assert "2: the prefix contains characters outside the vocabulary" in odd.err
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
    assert f"{words}:1: no token satisfies the decoding constraints" in stuck.err


def test_a_stream_loads_a_language_model_once(
    run: Path, words: Path, tmp_path: Path, call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mono.txt").write_text("abcd\ndcba\n" * 30)
    settings = {"task.vocabulary": str(run / "target.json"), "train.steps": 2, "decoder.dim": 16}
    model = tmp_path / "lm"
    saccade.train(tmp_path / "mono.txt", task="language", out=model, settings=settings, quiet=True)
    loaded, load = [], runs.load

    def counted(folder, *more):
        loaded.append(Path(folder))
        return load(folder, *more)

    monkeypatch.setattr(runs, "load", counted)
    done = call("predict", run, words, "--stream", "--set", f"decode.model={model}")
    assert done.code == 0, done.err
    assert (
        done.out == call("predict", run, words, "--width", 1, "--set", f"decode.model={model}").out
    )
    assert loaded == [run, model] * 2


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


@pytest.mark.parametrize("sampled", [[], ["--sample"]])
def test_the_parts_of_a_file_are_answered_as_the_whole(
    call, fast: Path, tmp_path: Path, sampled: list[str]
) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{'abcd'[i % 4]}{'ab' * (i % 3)}\n" for i in range(11)))
    whole = call("predict", fast, path, *sampled)
    parts = [call("predict", fast, path, *sampled, "--shard", f"{i}/3").out for i in (1, 2, 3)]
    assert "".join(parts) == whole.out
    assert all(parts)
    wrong = call("predict", fast, path, "--shard", "4/3")
    assert wrong.code == 2
    assert "1/4, 2/4" in wrong.err
