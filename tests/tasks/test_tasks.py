"""What every task must hold: a batch is its rows, a score is a sum, order is kept."""

from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import saccade
from saccade import config as c
from saccade.config import parse
from saccade.data.corpora import Examples
from saccade.data.fields import Text
from saccade.data.lines import Example
from saccade.errors import ConfigError, DataError
from saccade.metrics.labels import well_formed
from saccade.models.networks import Network, scheduled_inputs
from saccade.nn.dropout import WordDropout
from saccade.nn.padded import pad
from saccade.runs.run import load
from saccade.setup.choose import fill_config, gather
from saccade.setup.prepare import prepare
from saccade.setup.survey import tag_separator
from saccade.tasks.registry import load_task
from saccade.tasks.task import TOO_LONG, Prediction, Query, Request, Task, in_batches
from saccade.tasks.translate import references_of
from saccade.text.vocab import Specials
from saccade.verify import verify
from tests.helpers import corpus, run_through
from tests.small_runs import SEVERAL, SOURCES, TASK_OF, small_task

SPECIALS = Specials()
TASKS = ("translate", "classify", "tag", "language", *TASK_OF)


def predict(task: Task, network: Network, sources: list[Any], **decode: Any) -> list[Prediction]:
    wanted = task.config.decode.model_copy(update=decode)
    return task.predict(network, [Query(source) for source in sources], Request(wanted))


@pytest.mark.parametrize("kind", TASKS)
def test_predictions_are_the_same_one_by_one(kind: str, tmp_path: Path) -> None:
    task, network = small_task(kind, tmp_path)
    together = predict(task, network, SOURCES[kind])
    for source, found in zip(SOURCES[kind], together, strict=True):
        alone = predict(task, network, [source])[0]
        assert alone.text == found.text
        assert alone.score == pytest.approx(found.score, abs=1e-4)


@pytest.mark.parametrize("kind", TASKS)
def test_scores_are_the_same_one_by_one_and_agree_with_the_loss(kind: str, tmp_path: Path) -> None:
    task, network = small_task(kind, tmp_path)
    rows = Examples(tmp_path / "data" / "dev.jsonl")[:6]
    together = task.score(network, rows)
    for row, (log_p, count) in zip(rows, together, strict=True):
        alone, tokens = task.score(network, [row])[0]
        assert (alone, tokens) == (pytest.approx(log_p, abs=1e-4), count)
    if kind == "language":
        return  # there the loss is of a stream, not of lines
    found = task.evaluate(network, task.encode(rows), rows, quick=True)
    total, tokens = sum(s for s, _ in together), sum(n for _, n in together)
    assert found["loss"] == pytest.approx(-total / tokens, abs=1e-4)


@pytest.mark.parametrize("decoder", ["gru_off", "transformer", "transformer_rotary"])
def test_the_perplexity_of_a_text_is_that_of_its_tokens(decoder: str, tmp_path: Path) -> None:
    """One stream of one short line: the evaluation is scoring's sum, less the first token."""
    task, network = small_task("language", tmp_path, decoder=decoder)
    line = "ab cd abc"
    one = [Example((line,), None)]
    found = task.evaluate(network, task.encode(one), one, quick=False)
    ids = task.encode(one).target.ids.tolist()
    assert ids[-1] == SPECIALS.eos
    with torch.inference_mode():
        decoder_ = network.decoder  # type: ignore[union-attr]
        logits, _ = decoder_(torch.tensor([ids[:-1]]), decoder_.start(None, 1))
        log_probs = logits.log_softmax(-1)[0]
    expected = -sum(float(log_probs[t, token]) for t, token in enumerate(ids[1:]))
    assert found["loss"] == pytest.approx(expected / (len(ids) - 1), rel=1e-4)
    assert found["perplexity"] == pytest.approx(exp(expected / (len(ids) - 1)), rel=1e-4)


def test_windows_predict_every_token_once(tmp_path: Path) -> None:
    task, network = small_task(
        "language", tmp_path, decoder="transformer", task={"kind": "language", "context": 8}
    )
    import numpy as np

    for length in (2, 5, 8, 9, 12, 13, 17, 40):
        ids = np.arange(5, 5 + length) % 4 + 5
        with torch.inference_mode():
            parts = task.in_windows(network, ids)  # type: ignore[attr-defined]
            count = sum(tokens for _, tokens in parts)
        assert count == length - 1


def test_several_columns_are_laid_end_to_end(tmp_path: Path) -> None:
    task, _ = small_task("translate", tmp_path)
    (field,) = task.sources
    first, second = field.tokenizer.encode(["ab", "c"])  # type: ignore[attr-defined]
    assert field.encode([("ab", "c")])[0] == [*first, SPECIALS.sep, *second, SPECIALS.eos]


def test_two_text_columns_classify(tmp_path: Path) -> None:
    rows = [f"{a}\t{b}\t{'same' if a == b else 'other'}" for a in "abcdef" for b in "abcdef"] * 4
    (tmp_path / "pairs.tsv").write_text("\n".join(rows) + "\n")
    raw, where = gather(tmp_path / "pairs.tsv", task="classify")
    config, _ = fill_config(raw, where)
    assert config.data.source == (1, 2)
    assert config.data.target == 3


def test_a_column_of_tags_is_a_source_of_its_own(tmp_path: Path) -> None:
    task, network = small_task("inflect", tmp_path)
    tags = c.Tokenizer(kind="word", size=2000, separator=";", ordered=False)
    assert task.config.task.own == {"2": tags}
    letters, inflection = task.sources
    assert isinstance(letters, Text)
    assert isinstance(inflection, Text)
    corpus = task.encode([Example(("ab", "N;PL;ACC"), "ab")])
    assert letters.tokenizer.tokens(corpus.sources[0][0]) == ["a", "b", "<eos>"]
    assert inflection.tokenizer.tokens(corpus.sources[1][0]) == ["N", "PL", "ACC", "<eos>"]
    again = load_task(task.config, tmp_path)
    rows = Examples(tmp_path / "data" / "dev.jsonl")[:6]
    assert again.score(network, rows) == task.score(network, rows)
    assert said_with(task, network, "N;PL") != said_with(task, network, "V;PST")


def said_with(task: Task, network: Network, tags: str) -> float:
    return task.score(network, [Example(("abc", tags), "abc")])[0][0]


@pytest.mark.parametrize(
    ("cells", "separator"),
    [
        (["V;PST", "N;PL", "N;SG"] * 10, ";"),
        (["Case=Nom|Number=Sing", "Case=Acc|Number=Sing"] * 10, "|"),
        (["deu", "eng"] * 10, ""),
        (["a house", "two, or three", "no"] * 10, None),
        ([f"word{i}" for i in range(30)], None),
        ([f"a{i};b{i}" for i in range(30)], None),
    ],
)
def test_tags_are_told_from_text(cells: list[str], separator: str | None) -> None:
    assert tag_separator(cells) == separator


@pytest.mark.parametrize("kind", SEVERAL)
def test_a_run_with_two_sources_trains_predicts_and_obeys_the_laws(
    kind: str, tmp_path: Path
) -> None:
    raw, where = gather(corpus(tmp_path, kind), task=SEVERAL[kind])
    raw |= {"encoder": {"kind": "recurrent", "dim": 16}}
    if kind == "inflect":
        raw["decoder"] = {"kind": "recurrent", "dim": 16, "context": "output"}
    else:
        raw["task"]["columns"] = {"2": {"kind": "char", "size": 30}}
    raw["train"] = {"steps": 6, "batch_tokens": 200}
    config, _ = fill_config(raw, where)
    run_through(config, tmp_path / "run")
    run = load(tmp_path / "run")
    together = run.predict(SOURCES[kind])
    alone = [run.predict([source])[0] for source in SOURCES[kind]]
    assert [found.text for found in together] == [found.text for found in alone]
    assert run.evaluate()["loss"] > 0
    run.close()
    assert not [law.name for law in verify(tmp_path / "run") if law.passed is False]


def test_a_column_apart_must_be_a_source(tmp_path: Path) -> None:
    raw, where = gather(corpus(tmp_path, "inflect"), task="translate")
    raw["task"]["columns"] = {"3": {"kind": "char"}}
    with pytest.raises(ConfigError, match=r"columns has '3', which is not among data.source"):
        fill_config(raw, where)
    raw["task"]["columns"] = {"2": {"kind": "chars"}}
    with pytest.raises(ConfigError, match=r"task.columns.2.kind: invalid value 'chars'"):
        fill_config(raw, where)


def test_a_source_with_several_targets_may_be_given_any(tmp_path: Path) -> None:
    task, network = small_task("translate", tmp_path)
    said = predict(task, network, [("abc",)], width=1)[0].text or "a"
    losses: list[float] = []
    for rows in (
        [Example(("abc",), "dd"), Example(("abc",), said)],
        [Example(("abc",), "dd", others=(said,))],
    ):
        assert len(task.encode(rows)) == 2
        found = task.evaluate(network, task.encode(rows), rows, quick=True)
        assert found["sequence_error"] == 0.0
        losses.append(found["loss"])
    assert losses[0] == pytest.approx(losses[1])  # of all targets, however they are written down


def test_dropped_words_are_never_special() -> None:
    tokens = torch.arange(20).repeat(200, 1)
    special = (0, 3, 7, 1)
    words = [i for i in range(20) if i not in special]
    dropped = WordDropout(0.5, 1, special)(tokens)
    assert torch.equal(dropped[:, special], tokens[:, special])
    assert 0.4 < float((dropped[:, words] == 1).float().mean()) < 0.6
    assert WordDropout(0.0, 1, special)(tokens) is tokens
    assert WordDropout(0.5, 1, special).eval()(tokens) is tokens


def test_scheduled_sampling_replaces_a_share_by_guesses(tmp_path: Path) -> None:
    _, network = small_task("translate", tmp_path)
    source = (pad([[5, 6, SPECIALS.eos]] * 50),)
    tokens = torch.tensor([[2, 5, 6, 7, 5]] * 50)
    memory = network.encode(source)  # type: ignore[union-attr,operator]
    same = scheduled_inputs(network, memory, tokens, 0.0)  # type: ignore[arg-type]
    assert torch.equal(same, tokens)
    mixed = scheduled_inputs(network, memory, tokens, 1.0 - 1e-9)  # type: ignore[arg-type]
    assert torch.equal(mixed[:, 0], tokens[:, 0])
    with torch.inference_mode():
        decoder = network.decoder  # type: ignore[union-attr]
        state = decoder.start(network.encode(source), 50)  # type: ignore[union-attr,operator]
        logits, _ = decoder(tokens[:, :1], state)
    assert torch.equal(mixed[:, 1], logits[:, 0].argmax(-1))


def test_batches_keep_the_order_and_the_budget() -> None:
    items = [f"{i}" for i in range(50)]
    lengths = [1 + i * 7 % 13 for i in range(50)]
    seen = []

    def work(some: list[str]) -> list[str]:
        seen.append(len(some) * max(lengths[int(s)] for s in some))
        return [s + "!" for s in some]

    assert in_batches(items, lengths, 40, work) == [s + "!" for s in items]
    assert max(seen) <= 40
    assert in_batches([], [], 40, work) == []


@pytest.mark.parametrize("lines", [1, 2, 3, 10])
def test_very_few_examples_are_split_or_refused_in_words(lines: int, tmp_path: Path) -> None:
    path = tmp_path / "few.tsv"
    path.write_text("".join(f"a{i}\tb{i}\n" for i in range(lines)))
    raw, where = gather(path, task="translate")
    config, _ = fill_config(raw, where)
    if lines == 1:
        with pytest.raises(DataError, match="too few"):
            prepare(config, tmp_path)
        return
    ready = prepare(config, tmp_path)
    assert len(ready.dev) >= 1
    assert len(ready.train) >= 1
    assert len(ready.dev) + len(ready.train) == lines


def test_examples_longer_than_the_limit_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "long.tsv"
    path.write_text("".join(f"{'a' * (i + 1)}\tb{i}\n" for i in range(30)))
    raw, where = gather(path, task="translate")
    raw["data"]["max_len"] = 12
    config, _ = fill_config(raw, where)
    ready = prepare(config, tmp_path)
    assert ready.left_out > 0
    assert ready.left_out + len(ready.train) + len(ready.dev) == 30
    raw["data"]["max_len"] = 1
    with pytest.raises(DataError, match=r"longer than data\.max_len"):
        prepare(fill_config(raw, where)[0], tmp_path)


def test_no_source_is_in_both_sets(tmp_path: Path) -> None:
    path = tmp_path / "twice.tsv"
    path.write_text("".join(f"w{i % 40}\tt{i}\n" for i in range(200)))
    raw, where = gather(path, task="translate")
    ready = prepare(fill_config(raw, where)[0], tmp_path)
    train = {tuple(ready.train.sources[0][i]) for i in range(len(ready.train))}
    dev = {tuple(ready.dev.sources[0][i]) for i in range(len(ready.dev))}
    assert train
    assert dev
    assert not train & dev


def test_a_joint_vocabulary_is_one_table(tmp_path: Path) -> None:
    path = tmp_path / "text.tsv"
    path.write_text("".join(f"the cat {i} sat\tthe cat sat {i}\n" for i in range(60)))
    raw, where = gather(path, task="translate")
    config, _ = fill_config(raw, where)
    assert config.task.joint  # type: ignore[union-attr]
    network: Any = prepare(config, tmp_path).task.build()
    assert network.encoder.stem.embedding.weight is network.decoder.embedding.weight
    assert network.decoder.output.weight is network.decoder.embedding.weight
    assert parse(config.model_dump(exclude_none=True), "x") == config


def test_the_end_of_a_text_is_its_dev_set_and_not_blank(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {i}\n" for i in range(19)) + "\n")
    raw, where = gather(path, task="language")
    ready = prepare(fill_config(raw, where)[0], tmp_path)
    assert [row.source[0] for row in ready.dev_examples] == ["line 18", ""]
    raw["data"]["dev_max"] = 3
    path.write_text("".join(f"line {i}\n" for i in range(1000)))
    assert len(prepare(fill_config(raw, where)[0], tmp_path).dev_examples) == 3


def test_a_text_of_one_line_needs_a_dev_file(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("all in one line")
    raw, where = gather(path, task="language")
    with pytest.raises(DataError, match="give a dev file"):
        prepare(fill_config(raw, where)[0], tmp_path)


def test_blanks_around_a_target_are_not_errors(tmp_path: Path) -> None:
    """A tokenizer of words cannot write them, so they do not count."""
    task, network = small_task(
        "translate", tmp_path, task={"kind": "translate", "target": {"kind": "word"}}
    )
    said = predict(task, network, [("abc",)], width=1)[0].text
    row = Example(("abc",), f" {said}  ")
    found = task.evaluate(network, task.encode([row]), [row], quick=True)
    assert found["sequence_error"] == 0.0


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_an_input_too_long_for_the_positions_costs_no_other_its_prediction(
    task: str, tmp_path: Path
) -> None:
    settings = {"train.steps": 1, "data.max_len": 60, "train.preflight": "off"}
    settings |= {"encoder": {"kind": "transformer", "dim": 16, "num_layers": 1, "num_heads": 2}}
    settings |= {"encoder.positions": "learned", "encoder.max_positions": 64}
    data = corpus(tmp_path, task)
    run = saccade.train(data, task=task, out=tmp_path / "run", settings=settings, quiet=True)
    texts = ["a b", " ".join("ab" * 100), "b a"]
    first, second, third = run.predict(texts)
    assert second.problem == TOO_LONG
    assert second.text == ""
    assert [first.text, third.text] == [run.predict(texts[i]).text for i in (0, 2)]


def test_media_of_one_name_in_several_folders_are_different_dev_examples(tmp_path: Path) -> None:
    for name, letter in (("one", "a"), ("two", "b")):
        (tmp_path / name).mkdir()
        for i in range(20):
            np.save(tmp_path / name / f"{i}.npy", np.full(3, i, np.float32))
        rows = "".join(f"{i}.npy\t{letter * (i % 3 + 1)}\n" for i in range(20))
        (tmp_path / name / "list.tsv").write_text(rows)
    lists = f"{tmp_path}/*/list.tsv"
    raw, where = gather(lists, task="translate", dev=lists)
    (tmp_path / "run").mkdir()
    ready = prepare(fill_config(raw, where)[0], tmp_path / "run")
    references = references_of(ready.dev_examples)
    assert len(references) == 40
    assert all(len(some) == 1 for some in references.values())


def test_labels_of_spans_are_predicted_as_spans(tmp_path: Path) -> None:
    """With random weights: whatever the network scores, what is written is well-formed."""
    rows = ["a b c d\tO B-x I-x O", "b c a\tB-y I-y O", "c a b\tO O B-x"] * 10
    (tmp_path / "train.tsv").write_text("".join(f"{row}\n" for row in rows))
    config = {"train.steps": 1, "train.preflight": "off", "encoder.dim": 16}
    run = saccade.train(
        tmp_path / "train.tsv", task="tag", out=tmp_path / "run", settings=config, quiet=True
    )
    assert run.config.task.spans
    with torch.no_grad():
        for parameter in run.network.parameters():
            parameter.normal_(0.0, 1.0)
    lines = ["a b c d a b c d", "d c b a", "c"]
    found = run.predict(lines)
    assert all(well_formed(one.text.split()) for one in found)
    run.task.following = None  # as without the setting
    assert not all(well_formed(one.text.split()) for one in run.predict(lines))


def test_labels_that_are_no_spans_are_left_alone(tmp_path: Path) -> None:
    for number, labels in enumerate(("I-x I-x O", "N V N")):  # IOB1; parts of speech
        path = tmp_path / f"{number}.tsv"
        path.write_text("".join(f"a b {c}\t{labels}\n" for c in "abcdefgh" * 3))
        raw, where = gather(path, task="tag")
        assert not fill_config(raw, where)[0].task.spans
    raw["task"] |= {"spans": True}
    with pytest.raises(ConfigError, match=r"task.spans: labels are O, B-x and I-x; there is 'N'"):
        prepare(fill_config(raw, where)[0], tmp_path)
