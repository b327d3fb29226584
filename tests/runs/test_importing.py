"""What a folder of published weights becomes, and what is refused of a stranger's."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import saccade
from saccade.errors import CheckpointError, ConfigError, SaccadeError
from saccade.models.pretrained import published
from saccade.runs.importing import import_run
from saccade.verify import verify
from tests.published import BERT, LLAMA, write

GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 40,
    "eos_token_id": 18,
}


def quietly(path: Path, out: Path) -> Path:
    return import_run(path, out, lambda _: None)


def test_an_imported_run_is_a_run_like_any_other(tmp_path: Path) -> None:
    write(tmp_path / "gpt2", GPT2)
    run = saccade.load(quietly(tmp_path / "gpt2", tmp_path / "run"))
    assert run.predict("abc").text.startswith("abc")
    (tmp_path / "lines.txt").write_text("abc de\nfa kop\n" * 3)
    assert run.evaluate(tmp_path / "lines.txt")["perplexity"] > 1.0
    assert len(list(run.score(tmp_path / "lines.txt"))) == 6
    assert all(law.passed is not False for law in verify(tmp_path / "run"))


def test_one_shard_or_many_is_the_same(tmp_path: Path) -> None:
    write(tmp_path / "one", GPT2)
    write(tmp_path / "many", GPT2, shards=5)
    runs = [saccade.load(quietly(tmp_path / n, tmp_path / f"run-{n}")) for n in ("one", "many")]
    one, many = (dict(run.network.named_parameters()) for run in runs)
    assert one.keys() == many.keys()
    assert all(torch.equal(one[name], many[name]) for name in one)


@pytest.mark.parametrize("kind", ["half", "bfloat16"])
def test_weights_of_half_precision_are_read(kind: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = write(tmp_path / "gpt2", GPT2)
    few = {name: tensor.to(getattr(torch, kind)) for name, tensor in tensors.items()}
    save_file(few, tmp_path / "gpt2" / "model.safetensors")
    run = saccade.load(quietly(tmp_path / "gpt2", tmp_path / "run"))
    expected = few["transformer.wte.weight"].float()
    assert torch.equal(run.network.decoder.embedding.weight, expected)  # type: ignore[union-attr]


def test_a_layout_leads_there_and_back() -> None:
    for raw in (
        {"model_type": "llama", "vocab_size": 22, "num_key_value_heads": 2} | LLAMA,
        {"model_type": "gpt2", "vocab_size": 22} | GPT2,
        {"model_type": "bert"} | BERT,
    ):
        for rule in published(raw, "config.json").weights:
            parts = len(rule.theirs)
            rows = 48 if parts == 1 else 16
            shape = (16, rows) if "attn.c_attn.weight" in rule.theirs[0] else (rows, 16)
            shape = (rows,) if rule.ours.endswith("bias") else shape
            theirs = [torch.randn(shape) for _ in rule.theirs]
            if "self_attn.k_proj" in str(rule.theirs):
                theirs[1:] = [torch.randn(8, 16), torch.randn(8, 16)]
            ours = rule.layout.join(theirs)
            assert ours.shape == rule.layout.shape([tuple(t.shape) for t in theirs])
            again = rule.layout.split(ours)
            assert all(torch.allclose(a, b) for a, b in zip(again, theirs, strict=True))


MEASURE = """
import sys
from saccade.runs.importing import import_run
def used(key):
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(key)) << 10
import_run(sys.argv[1] + "/small", sys.argv[1] + "/first", lambda _: None)  # all code is loaded
before = used("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
import_run(sys.argv[1] + "/large", sys.argv[1] + "/second", lambda _: None)
print(used("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_many_shards_take_the_memory_of_one(tmp_path: Path) -> None:
    write(tmp_path / "small", GPT2)
    large = GPT2 | {"n_embd": 384, "n_layer": 10}
    write(tmp_path / "large", large, shards=4)
    sizes = [path.stat().st_size for path in (tmp_path / "large").glob("*.safetensors")]
    code = [sys.executable, "-c", MEASURE, str(tmp_path)]
    try:
        done = subprocess.run(code, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        if "clear_refs" in error.stderr:
            pytest.skip("the peak cannot be reset here")
        raise AssertionError(error.stderr) from None
    assert sum(sizes) > 3 * max(sizes)
    assert int(done.stdout) < 1.5 * max(sizes)


# --- what is refused ------------------------------------------------------------------------------


def test_pickles_are_refused_with_the_way(tmp_path: Path) -> None:
    write(tmp_path / "gpt2", GPT2)
    os.remove(tmp_path / "gpt2" / "model.safetensors")
    (tmp_path / "gpt2" / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(CheckpointError, match=r"is a pickle.*save_pretrained"):
        quietly(tmp_path / "gpt2", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def broken(folder: Path, what: str) -> None:
    """Spoil a folder in one way."""
    config, weights = folder / "config.json", folder / "model.safetensors"
    raw = json.loads(config.read_text())
    match what:
        case "unknown":
            config.write_text(json.dumps(raw | {"model_type": "mamba"}))
        case "no json":
            config.write_text("{" * 100_000)
        case "huge":
            config.write_text(json.dumps(raw | {"n_embd": 1 << 23, "n_layer": 255}))
        case "beyond":
            config.write_text(json.dumps(raw | {"n_embd": 10**30}))
        case "other shapes":
            config.write_text(json.dumps(raw | {"n_embd": 32}))
        case "more layers":
            config.write_text(json.dumps(raw | {"n_layer": 3}))
        case "text for a number":
            config.write_text(json.dumps(raw | {"n_layer": "two"}))
        case "cut off":
            weights.write_bytes(weights.read_bytes()[:-100])
        case "header":
            weights.write_bytes(b"\xff" * 64)
        case "pipe":
            weights.unlink()
            os.mkfifo(weights)
        case "outside":
            index = {"weight_map": {"a": "../../etc/passwd"}}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        case "vocabulary":
            (folder / "vocab.json").write_text('{"a": 99}')
        case "tokenizer":
            bad = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}
            model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
            content = {"version": "1.0", "pre_tokenizer": bad, "model": model}
            (folder / "tokenizer.json").write_text(json.dumps(content))
        case "no vocabulary":
            (folder / "vocab.json").unlink()


WAYS = (
    *("unknown", "no json", "huge", "beyond", "other shapes", "more layers", "text for a number"),
    *("cut off", "header", "pipe", "outside", "vocabulary", "tokenizer", "no vocabulary"),
)


@pytest.mark.parametrize("what", WAYS)
def test_a_hostile_folder_is_refused(what: str, tmp_path: Path) -> None:
    write(tmp_path / "gpt2", GPT2)
    broken(tmp_path / "gpt2", what)
    with pytest.raises(CheckpointError) as raised:
        quietly(tmp_path / "gpt2", tmp_path / "run")
    assert str(tmp_path / "gpt2") in str(raised.value)
    assert len(str(raised.value)) < 1000
    assert not (tmp_path / "run").exists()


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    write(tmp_path / "gpt2", GPT2)
    quietly(tmp_path / "gpt2", tmp_path / "run")
    with pytest.raises(ConfigError, match="already exists"):
        quietly(tmp_path / "gpt2", tmp_path / "run")
    with pytest.raises(SaccadeError, match="no such file"):
        quietly(tmp_path / "none", tmp_path / "other")


def test_vectors_that_could_not_be_opened_again_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "v.txt").write_text("".join(f"w{i} 1 2\n" for i in range(2000)))
    monkeypatch.setattr("saccade.runs.guard.JSON_MEMORY_BYTES", 1 << 10)
    with pytest.raises(ConfigError, match="the vocabulary is too large to be loaded again"):
        quietly(tmp_path / "v.txt", tmp_path / "run")
    assert not (tmp_path / "run").exists()
