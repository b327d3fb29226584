"""What is exported says the same elsewhere: in `transformers` without our code, in onnxruntime."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import saccade
from saccade.errors import ConfigError
from saccade.nn.padded import pad
from saccade.runs.exporting import export_run
from saccade.runs.importing import import_run
from saccade.runs.run import Run
from tests.helpers import corpus
from tests.parity.test_transformers import BERT, LANGUAGE, NAMES, TEXTS, TRANSLATE
from tests.published import make

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
transformers.logging.set_verbosity_error()
ALL = {name: (kind, NAMES[kind], settings) for name, (kind, settings) in LANGUAGE.items()}
ALL |= TRANSLATE | BERT  # type: ignore[arg-type]
LABELS = {f"{name} {head}": (kind, f"{prefix}For{head}Classification", {"num_labels": 3})
          for name, kind, prefix in (("bert", "bert", "Bert"), ("roberta", "roberta", "Roberta"),
                                     ("distilbert", "distilbert", "DistilBert"))
          for head in ("Sequence", "Token")}  # fmt: skip


@pytest.mark.parametrize("which", [*ALL, *LABELS])
def test_what_was_imported_goes_back_as_it_was(which: str, tmp_path: Path) -> None:
    kind, name, settings = (ALL | LABELS)[which]
    theirs = make(tmp_path / "folder", kind, name, **settings)
    import_run(tmp_path / "folder", tmp_path / "run", lambda _: None)
    export_run(saccade.load(tmp_path / "run"), "huggingface", tmp_path / "out")
    again = getattr(transformers, name).from_pretrained(tmp_path / "out")
    assert type(again) is type(theirs)
    expected, found = (
        {key: p for key, p in model.named_parameters() if p.requires_grad}
        for model in (theirs, again)
    )
    for key in expected.keys() & found.keys():
        if "pooler" not in key or "Sequence" in which:  # which masked models have not
            assert torch.allclose(found[key], expected[key], atol=1e-5), key
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    run = saccade.load(tmp_path / "run")
    reader = next(f.tokenizer for f in run.task.fields if hasattr(f, "tokenizer"))
    assert [tokenizer.encode(t, add_special_tokens=False) for t in TEXTS] == reader.encode(TEXTS)


def trained(tmp_path: Path, task: str, settings: dict[str, Any]) -> Run:
    small = {"dim": 16, "num_heads": 2, "ff_dim": 16, "num_layers": 2, "kind": "transformer"}
    parts = ("decoder",) if task == "language" else ("encoder", "decoder")
    both = {f"{part}.{key}": value for part in parts for key, value in small.items()}
    return saccade.train(
        corpus(tmp_path, task),
        out=tmp_path / "run",
        settings=both | {"train.steps": 3, "train.evaluate_every": 3} | settings,
        quiet=True,
    )


TOKENIZERS = ("bpe", "bytes", "unigram", "char")


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("first", [True, False])
def test_a_translation_model_of_ours_is_pegasus_or_marian(
    kind: str, first: bool, tmp_path: Path
) -> None:
    tokenizer = {"kind": kind, "size": 300}
    settings = {"task.joint": True, "task.source": tokenizer, "task.target": tokenizer}
    more = {"encoder.norm_first": first, "decoder.norm_first": first}
    run = trained(tmp_path, "translate", settings | more)
    export_run(run, "huggingface", tmp_path / "out")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    texts = ["abcd", "cab", "dd"] if kind == "char" else ["abc  da", " a b cad", "cab"]
    rows = run.task.readers[0].rows([(text,) for text in texts])  # type: ignore[attr-defined]
    assert [reader.encode(text) for text in texts] == rows
    output = run.task.output  # type: ignore[attr-defined]
    assert [reader.decode(row, skip_special_tokens=True) for row in rows] == output.decode(rows)
    tokens = torch.randint(5, len(output), (1, 9), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        memory = run.network.encode((pad([rows[0]]),))  # type: ignore[union-attr, operator]
        state = run.network.decoder.start(memory, 1)  # type: ignore[union-attr]
        ours, _ = run.network.decoder(tokens, state)  # type: ignore[union-attr, operator]
        expected = theirs(torch.tensor([rows[0]]), decoder_input_ids=tokens).logits
    assert torch.allclose(ours, expected, atol=1e-4)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "scaled"])
def test_a_language_model_of_ours_is_gpt2_or_llama(positions: str, tmp_path: Path) -> None:
    kind = "rotary" if positions == "scaled" else positions
    settings = {"decoder.positions": kind, "decoder.output_bias": False, "task.context": 32}
    if positions == "scaled":
        settings["decoder.rotary_scaling"] = {"kind": "llama3", "factor": 3.0, "context": 12}
    if kind == "rotary":
        settings |= {"decoder.norm": "rms", "decoder.activation": "swiglu", "decoder.bias": False}
    run = trained(tmp_path, "language", settings)
    export_run(run, "huggingface", tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    size = len(run.task.output)  # type: ignore[attr-defined]
    tokens = torch.randint(0, size, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        state = run.network.decoder.start(None, 2)  # type: ignore[union-attr]
        ours, _ = run.network.decoder(tokens, state)  # type: ignore[union-attr, operator]
        assert torch.allclose(ours, theirs(tokens).logits, atol=1e-4)


def test_a_causal_pretraining_with_its_own_defaults_is_a_llama(tmp_path: Path) -> None:
    settings = {"task.objective": "causal", "decoder.dim": 16, "decoder.ff_dim": 16}
    run = saccade.train(
        corpus(tmp_path, "language"),
        task="pretrain",
        out=tmp_path / "run",
        settings=settings | {"train.steps": 3, "train.evaluate_every": 3},
        quiet=True,
    )
    export_run(run, "huggingface", tmp_path / "out")
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out")
    tokens = torch.randint(0, len(run.task.output), (2, 20))  # type: ignore[attr-defined]
    with torch.inference_mode():
        state = run.network.decoder.start(None, 2)  # type: ignore[union-attr]
        ours, _ = run.network.decoder(tokens, state)  # type: ignore[union-attr, operator]
        assert torch.allclose(ours, theirs(tokens).logits, atol=1e-4)


def test_a_network_that_fits_nowhere_is_said_so(tmp_path: Path) -> None:
    run = trained(tmp_path, "language", {"train.steps": 20})
    with pytest.raises(ConfigError, match=r"no architecture.*decoder\.output_bias = false"):
        export_run(run, "huggingface", tmp_path / "out")
    with pytest.raises(ConfigError, match="no such format; there are ctranslate2"):
        export_run(run, "gguf", tmp_path / "out")


SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("roberta Sequence", "distilbert Token", "gpt2", "llama")
]


@pytest.mark.parametrize("which", ["bert", *SLOW])
@pytest.mark.shapes_checked_elsewhere
def test_onnxruntime_says_what_we_say(which: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    kind, name, settings = (ALL | LABELS)[which]
    theirs = make(tmp_path / "folder", kind, name, **settings)
    import_run(tmp_path / "folder", tmp_path / "run", lambda _: None)
    export_run(saccade.load(tmp_path / "run"), "onnx", tmp_path / "out")
    session = runtime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    tokens = torch.randint(5, 18, (3, 11), generator=torch.Generator().manual_seed(1))
    keep = torch.ones_like(tokens).bool()
    given = {"tokens": tokens.numpy()}
    if len(session.get_inputs()) > 1:
        given["keep"] = keep.numpy()
    with torch.inference_mode():
        expected = theirs(tokens).logits
    assert torch.allclose(torch.from_numpy(session.run(None, given)[0]), expected, atol=1e-3)
    assert json.loads((tmp_path / "out" / "tokenizer.json").read_text())["model"]
