"""Word vectors: learned, asked, tested, written, read, and taken over by other networks."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import saccade
from saccade import cli
from saccade.data.vectors import Analogies, Similarities, read_test, read_vectors, write_vectors
from saccade.errors import ConfigError, DataError
from saccade.metrics.numbers import spearman
from saccade.runs import checkpoints, files
from saccade.runs.importing import import_run
from saccade.runs.run import Run
from saccade.runs.vectors import export_vectors
from saccade.setup.choose import fill_config, gather
from saccade.tasks.task import result_of
from saccade.training.session import resume
from tests.helpers import run_through, same_weights, until

ANIMALS, TOOLS = (["cat", "dog", "cow", "hen"], ["saw", "axe", "nail", "drill"])


def text(folder: Path) -> Path:
    """Lines that speak of animals, or of tools."""
    numbers, path = random.Random(1), folder / "topics.txt"
    topics = [[*words, *filler] for words, filler in ((ANIMALS, "abcd"), (TOOLS, "wxyz"))]
    lines = [" ".join(numbers.choices(numbers.choice(topics), k=12)) for _ in range(400)]
    path.write_text("\n".join(lines) + "\n")
    return path


SETTINGS = {"task.objective.sample": 0.0, "encoder.dim": 16, "train.epochs": 20}


@pytest.fixture(scope="module", params=["skipgram", "cbow"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("vectors")
    settings = SETTINGS | {"task.objective.kind": request.param}
    return saccade.train(
        text(folder), task="pretrain", out=folder / "run", settings=settings, quiet=True
    )


def test_words_of_one_topic_are_nearer_than_those_of_another(run: Run) -> None:
    for topic in (ANIMALS, TOOLS):
        for word in topic:
            near = run.predict(word, nbest=7)
            found = {near.text, *(other for other, _ in near.others)}
            assert not found & {*ANIMALS, *TOOLS} - {*topic}
            assert word not in found


def test_an_analogy_is_answered_with_the_nearest_to_b_less_a_and_c(run: Run) -> None:
    task, network = run.require_vectors()
    vectors = torch.nn.functional.normalize(network.vectors.detach(), dim=-1)
    a, b, c = (vectors[task.index(word)] for word in ("cat", "dog", "saw"))
    wanted = torch.nn.functional.normalize(b - a + c, dim=0)
    words = [w for w in task.tokenizer.tokens(task.words) if w not in ("cat", "dog", "saw")]
    scores = {word: float(vectors[task.index(word)] @ wanted) for word in words}
    best = run.predict("cat dog saw", nbest=2)
    assert best.text == max(scores, key=scores.__getitem__)
    assert best.score == pytest.approx(max(scores.values()), abs=1e-5)


def test_what_cannot_be_answered_is_said(run: Run) -> None:
    strange, two, loud = run.predict(["zebra", "cat dog", "CAT"])
    assert loud.text == run.predict("cat").text
    assert "'zebra' is not in the vocabulary" in strange.problem
    assert "one word" in two.problem


def test_tests_of_vectors_are_read_and_scored(run: Run, tmp_path: Path) -> None:
    questions, pairs = tmp_path / "questions.txt", tmp_path / "pairs.tsv"
    questions.write_text(": same\ncat dog saw axe\n: other\ncat zebra dog saw\n")
    pairs.write_text("word1\tword2\tscore\ncat\tdog\t9\ncat\tsaw\t1\ndog\tcow\t8\nhen\taxe\t0.5\n")
    scores = run.evaluate(questions, pairs)
    assert scores["questions: covered"] == 50.0
    assert scores["pairs: covered"] == 100.0
    assert scores["pairs"] > 50.0
    right = run.predict("cat dog saw").text == "axe"
    assert scores["questions"] == 100.0 * right == scores["questions: same"]
    assert run.evaluate(text(tmp_path))["loss"] < 3.5  # 6 log 2 is 4.2


def test_a_special_token_is_no_answer_to_an_analogy(run: Run) -> None:
    """Its vector is 0, which would be nearer than any word whose cosine is negative."""
    task, _ = run.require_vectors()
    directions = torch.tensor([[0.0, -1.0]]).repeat(task.target.size, 1)
    directions[list(task.target.inventory.special)] = 0.0
    question = {"cat": (1.0, 0.0), "dog": (0.0, 1.0), "saw": (1.0, 0.0), "axe": (0.6, -0.8)}
    for word, direction in question.items():
        directions[task.index(word)] = torch.tensor(direction)
    scores = result_of(task.analogies(directions, Analogies("test", [(*question,)], [""])))
    assert scores["test"] == 100.0


def test_what_is_in_a_test_file_is_known_by_its_look(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    for content, kind in ((": a\na b c d\n", Analogies), ("a\tb\t1.5\n", Similarities)):
        path.write_text(content)
        assert isinstance(read_test(path), kind)
    path.write_text("plain text\nof two lines\n")
    assert read_test(path) is None
    path.write_text(": a\na b c\n")
    with pytest.raises(DataError, match=r"some\.txt:2: a question has four words, found 3"):
        read_test(path)


def test_ranks_correlate_as_spearman_says() -> None:
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 21.0])) == pytest.approx(1.0)
    one, other = np.array([1.0, 2.0, 2.0, 4.0]), np.array([1.0, 3.0, 2.0, 4.0])
    assert spearman(one, other) == pytest.approx(0.9486833)  # of ranks 1 2.5 2.5 4 and 1 3 2 4
    assert spearman(one, np.ones(4)) == 0.0


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.bin"])
def test_a_run_exported_and_imported_answers_the_same(name: str, run: Run, tmp_path: Path) -> None:
    export_vectors(*run.require_vectors(), tmp_path / name)
    said: list[str] = []
    import_run(tmp_path / name, tmp_path / "again", said.append)
    assert f"{len(run.require_vectors()[0].words)} words, vectors of 16 numbers" in said[0]
    other = saccade.load(tmp_path / "again")
    for question in ("cat", "cat dog saw"):
        one, two = run.predict(question, nbest=3), other.predict(question, nbest=3)
        assert one.text == two.text
        assert one.score == pytest.approx(two.score, abs=1e-4)


def test_words_with_blanks_inside_are_left_out_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("the 0.5 1.5\n. . 2.5 3.5\nThe 1 1\n<unk> 2 2\n")
    said: list[str] = []
    import_run(tmp_path / "glove.txt", tmp_path / "run", said.append)
    assert any("1 words with a blank inside" in line for line in said)
    task, network = saccade.load(tmp_path / "run").require_vectors()
    assert network.vectors[task.index("the")].tolist() == [0.5, 1.5]
    assert network.vectors[task.index("The")].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.bin"])
def test_vectors_written_are_vectors_read(name: str, tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    write_vectors(tmp_path / name, ["a", "naïve", "c"], vectors)
    words, found = read_vectors(tmp_path / name)
    assert words == ["a", "naïve", "c"]
    np.testing.assert_allclose(found, vectors, rtol=1e-5)


def test_glove_has_no_header_and_words_with_blanks(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("the 0.5 1.5\n. . 2.5 3.5\nthe 9 9\n")
    words, vectors = read_vectors(path)
    assert words == ["the", ". ."]
    assert vectors.tolist() == [[0.5, 1.5], [2.5, 3.5]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.txt", b"a 1 2\nb 1\n", "v.txt:2: expected a word and 2 numbers"),
        ("v.txt", b"a 1 x\n", "v.txt:1: a number was expected"),
        ("v.txt", b"a 1 nan\n", "'a' has a number that is not finite"),
        ("v.txt", b"\n", "contains no vectors"),
        ("v.bin", b"5 4\nab ", "5 vectors of 4 numbers are not in the file"),
        ("v.bin", b"hello\n", "not a binary word2vec file"),
        ("v.bin", b"2 1\na 1234b 12", "ends within word 2 of 2"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_vectors(tmp_path / name)


def test_resuming_is_never_having_stopped(tmp_path: Path) -> None:
    raw, where = gather(text(tmp_path), task="pretrain")
    raw["task"]["objective"] = {"kind": "skipgram"}
    raw["encoder"] = {"kind": "none", "dim": 8}
    raw["train"] = {"steps": 12, "batch_tokens": 300, "evaluate_every": 4, "save_every": 3}
    config, _ = fill_config(raw, where)
    run_through(config, tmp_path / "straight")
    run_through(config, tmp_path / "halted", stop_after=5)
    list(until(None, lambda stop: resume(tmp_path / "halted", stop)))
    assert same_weights(tmp_path / "straight", tmp_path / "halted")
    ends = [checkpoints.paths(tmp_path / n / "checkpoints")[-1] for n in ("straight", "halted")]
    one, other = (files.read_tensors(end / "model.safetensors") for end in ends)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_other_networks_begin_with_known_vectors(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "labels.tsv"
    rows = [(f"{word} {n}", "ab"[word in TOOLS]) for n in range(9) for word in (*ANIMALS, *TOOLS)]
    data.write_text("".join(f"{source}\t{label}\n" for source, label in rows))
    settings = {"data.vectors": str(run.folder), "encoder.dim": 16, "train.steps": 1}
    settings |= {"train.rate": 1e-9, "train.average": 0.0}
    made = saccade.train(data, task="classify", out=tmp_path / "new", settings=settings, quiet=True)
    table = made.network.encoder.stem.embedding.weight.detach()
    tokenizer = made.task.sources[0].tokenizer
    task, network = run.require_vectors()
    ids = [tokenizer.encode([word])[0][0] for word in ANIMALS]
    taken = torch.nn.functional.normalize(table[ids], dim=-1)
    gold = network.vectors.detach()[[task.index(word) for word in ANIMALS]]
    torch.testing.assert_close(
        taken, torch.nn.functional.normalize(gold, dim=-1), rtol=1e-3, atol=1e-4
    )
    assert float(table.square().mean().sqrt()) == pytest.approx(16**-0.5, rel=0.4)
    with pytest.raises(ConfigError, match="vectors of 16 numbers, and no table"):
        saccade.train(
            data, task="classify", out=tmp_path / "odd", quiet=True,
            settings=settings | {"encoder.dim": 24},
        )  # fmt: skip


def test_the_command_line_answers_words_and_writes_vectors(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["saccade", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return int(left.value.code or 0), *capfd.readouterr()

    code, out, _ = call("predict", run.folder, "--neighbours", "cat", "--nbest", 3)
    assert (code, len(out.splitlines())) == (0, 3)
    score, word = out.splitlines()[0].split("\t")
    assert (word, float(score)) == (run.predict("cat").text, pytest.approx(1.0, abs=0.5))
    code, out, _ = call("predict", run.folder, "--analogy", "cat", "dog", "saw")
    assert (code, len(out.splitlines())) == (0, 10)
    code, _, err = call("predict", run.folder, "--neighbours", "zebra")
    assert (code, err) == (2, "saccade: 'zebra' is not in the vocabulary\n")
    code, _, _ = call("export", run.folder, "--to", "word2vec", "--out", tmp_path / "v.bin")
    assert code == 0
    words, vectors = read_vectors(tmp_path / "v.bin")
    task, network = run.require_vectors()
    i = words.index("cat")
    assert vectors[i].tolist() == network.vectors[task.index("cat")].tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder.kind": "recurrent"}, "learns a vector for each word and nothing else"),
        ({"train.optimizer": "adamw"}, "needs optimizer = 'sparse'"),
        ({"task.tokenizer.kind": "bpe"}, "a word has one vector: set it to 'word'"),
    ],
)
def test_what_word2vec_cannot_be_is_said(
    settings: dict[str, str], message: str, tmp_path: Path
) -> None:
    settings = {"task.objective.kind": "skipgram"} | settings
    with pytest.raises(ConfigError, match=message):
        saccade.train(text(tmp_path), task="pretrain", out=tmp_path / "r", settings=settings)
