"""Our BERT, GPT-2, T5 and the others are those of `transformers`: logits, and what is said.

Small random networks, with every switch of their configurations that we know. A beam of theirs that
its limit cuts off has no end, and ours always has: such texts are not compared.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

import saccade
from saccade.nn.padded import pad
from saccade.runs.importing import import_run
from saccade.runs.run import Run
from tests.published import make

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
transformers.logging.set_verbosity_error()

TEXTS = ["abc de", "fa ab kop", "h"]
SCALED = {
    "rope_theta": 20.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 2.5,
    "original_max_position_embeddings": 16,
}
LANGUAGE = {
    "gpt2": ("gpt2", {}),
    "gpt2 relu": ("gpt2", {"activation_function": "relu", "n_inner": 20}),
    "gpt2 untied": ("gpt2", {"tie_word_embeddings": False, "layer_norm_epsilon": 1e-3}),
    "llama": ("llama", {}),
    "llama grouped": ("llama", {"num_key_value_heads": 2, "rms_norm_eps": 1e-3}),
    "llama tied": ("llama", {"tie_word_embeddings": True, "head_dim": 6}),
    "llama scaled": ("llama", {"rope_parameters": SCALED | {"rope_type": "llama3"}}),
    "llama linear": ("llama", {"rope_parameters": SCALED | {"rope_type": "linear"}}),
    "llama theta": ("llama", {"rope_theta": 500.0, "rope_parameters": {"rope_theta": 500.0}}),
}
NAMES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}
TRANSLATE = {
    "t5": ("t5", "T5ForConditionalGeneration", {}),
    "t5 gated": (
        "t5",
        "T5ForConditionalGeneration",
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "bart": ("bart", "BartForConditionalGeneration", {}),
    "bart scaled": (
        "bart",
        "BartForConditionalGeneration",
        {"scale_embedding": True, "activation_function": "relu"},
    ),
    "marian": (
        "marian",
        "MarianMTModel",
        {"scale_embedding": True, "activation_function": "swish"},
    ),
    "marian plain": ("marian", "MarianMTModel", {"scale_embedding": False}),
}
BERT = {
    "bert": ("bert", "BertForMaskedLM", {}),
    "bert tanh": ("bert", "BertForMaskedLM", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    "roberta": ("roberta", "RobertaForMaskedLM", {}),
    "distilbert": ("distilbert", "DistilBertForMaskedLM", {}),
}


def imported(tmp_path: Path, kind: str, name: str, settings: dict[str, Any]) -> tuple[Any, Run]:
    theirs = make(tmp_path / "folder", kind, name, **settings)
    import_run(tmp_path / "folder", tmp_path / "run", lambda _: None)
    return theirs, saccade.load(tmp_path / "run")


@pytest.mark.parametrize("which", LANGUAGE)
def test_a_language_model_is_theirs(which: str, tmp_path: Path) -> None:
    kind, settings = LANGUAGE[which]
    theirs, run = imported(tmp_path, kind, NAMES[kind], settings)
    network, output = run.network, run.task.output  # type: ignore[attr-defined]
    numbers = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, len(output), (2, 30), generator=numbers)
    with torch.inference_mode():
        ours, _ = network.decoder(tokens, network.decoder.start(None, 2))  # type: ignore[union-attr]
        expected = theirs(tokens).logits
    assert torch.allclose(ours, expected, atol=1e-4)
    silent = list(output.specials.never_generated)
    for width in (1, 4):
        settings = {"width": width, "max_len": 12, "engine": "torch", "length": "none"}
        for text in TEXTS[:2]:
            row = [*output.frame.line, *output.encode([text])[0]]
            best = theirs.generate(
                torch.tensor([row]),
                num_beams=width,
                do_sample=False,
                max_new_tokens=12,
                length_penalty=0.0,
                suppress_tokens=silent or None,
                pad_token_id=output.specials.pad,
            )[0].tolist()
            if width == 1 or output.specials.eos in best[len(row) :]:
                assert run.predict(text, settings=settings).text == _shown(output, row, best, text)


def _shown(output: Any, row: list[int], best: list[int], text: str) -> str:
    whole, read = output.decode([best, row])
    return text + whole[len(read) :]


@pytest.mark.parametrize("which", TRANSLATE)
def test_an_encoder_and_a_decoder_are_theirs(which: str, tmp_path: Path) -> None:
    kind, name, settings = TRANSLATE[which]
    theirs, run = imported(tmp_path, kind, name, settings)
    network, output = run.network, run.task.output  # type: ignore[attr-defined]
    rows = run.task.readers[0].rows([(text,) for text in TEXTS])  # type: ignore[attr-defined]
    source = pad(rows, output.specials.pad)
    numbers = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, len(output), (3, 14), generator=numbers)
    keep = torch.arange(source.values.size(1)) < source.lengths[:, None]
    with torch.inference_mode():
        state = network.decoder.start(network.encode((source,)), 3)  # type: ignore[union-attr]
        ours, _ = network.decoder(tokens, state)  # type: ignore[union-attr]
        expected = theirs(source.values, keep.long(), decoder_input_ids=tokens).logits
    assert torch.allclose(ours, expected, atol=1e-4)
    start, silent = list(output.frame.start), list(output.specials.never_generated)
    for width in (1, 4):
        settings = {"width": width, "max_len": 10, "max_ratio": 100.0, "engine": "torch"}
        settings |= {"length": "none"}
        found = theirs.generate(
            source.values,
            attention_mask=keep.long(),
            decoder_input_ids=torch.tensor([start] * 3),
            num_beams=width,
            do_sample=False,
            max_new_tokens=10,
            length_penalty=0.0,
            suppress_tokens=silent or None,
            forced_bos_token_id=None,
            bad_words_ids=None,
        )
        for text, row in zip(TEXTS, found.tolist(), strict=True):
            said = row[len(start) :]
            if width == 1 or output.specials.eos in said:
                assert run.predict(text, settings=settings).text == output.decode([said])[0]


@pytest.mark.parametrize(
    "which", ["llama grouped", "llama linear", "t5", "t5 gated", "bart", "marian"]
)
def test_ctranslate2_says_the_same_of_what_was_imported(which: str, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    kind, name, settings = TRANSLATE.get(which) or ("llama", NAMES["llama"], LANGUAGE[which][1])
    _, run = imported(tmp_path, kind, name, settings)
    said = []
    for engine in ("torch", "ctranslate2"):
        asked = {"width": 1, "max_len": 30, "engine": engine}
        said.append([(p.text, round(p.score, 2)) for p in run.predict(TEXTS, settings=asked)])
    assert said[0] == said[1]


@pytest.mark.parametrize("which", BERT)
def test_a_masked_language_model_is_theirs(which: str, tmp_path: Path) -> None:
    kind, name, settings = BERT[which]
    theirs, run = imported(tmp_path, kind, name, settings)
    numbers = torch.Generator().manual_seed(1)
    tokenizer = run.task.target.tokenizer  # type: ignore[attr-defined]
    sep = tokenizer.specials.sep
    tokens = torch.randint(5, len(tokenizer), (2, 30), generator=numbers)
    tokens[:, [9, 29]] = sep
    tokens[:, 0] = tokenizer.specials.bos
    segments = (torch.arange(30) > 9).long().expand(2, -1)
    extra = {"token_type_ids": segments} if kind == "bert" else {}
    lengths = torch.tensor([30, 20])
    keep = torch.arange(30) < lengths[:, None]
    source = pad([row[:n] for row, n in zip(tokens.tolist(), lengths.tolist(), strict=True)])
    with torch.inference_mode():
        memory = run.network.encoder(source)  # type: ignore[union-attr, operator, misc]
        ours = run.network.head(memory.values)  # type: ignore[union-attr, operator]
        expected = theirs(tokens.masked_fill(~keep, 1), keep.long(), **extra).logits
    assert torch.allclose(ours[keep], expected[keep], atol=1e-4)
    row = [tokenizer.specials.bos, *tokenizer.encode(["ab"])[0], tokenizer.specials.mask, sep]
    with torch.inference_mode():
        logits = theirs(torch.tensor([row])).logits[0, -2]
    logits = logits.clone()
    logits[list(tokenizer.specials.ids)] = -torch.inf
    filled = tokenizer.decode([[int(logits.argmax())]])[0].strip()
    assert run.predict("ab <mask>").text == f"ab {filled}"


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
@pytest.mark.parametrize("head", ["Sequence", "Token"])
def test_a_head_of_labels_is_theirs(kind: str, head: str, tmp_path: Path) -> None:
    prefix = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}[kind]
    labels = {"id2label": {0: "no", 1: "yes", 2: "maybe"}, "label2id": {"no": 0}}
    name = f"{prefix}For{head}Classification"
    theirs, run = imported(tmp_path, kind, name, {"num_labels": 3} | labels)
    assert run.task.labels.labels == ("no", "yes", "maybe")  # type: ignore[attr-defined]
    text = "abc de"
    tokenizer = run.task.sources[0].tokenizer  # type: ignore[attr-defined]
    if head == "Sequence":
        row = run.task.sources[0].rows([(text,)])[0]  # type: ignore[attr-defined]
        with torch.inference_mode():
            expected = theirs(torch.tensor([row])).logits[0]
            found = run.network.logits((pad([row]),))[0]  # type: ignore[union-attr, operator]
        assert torch.allclose(found, expected, atol=1e-4)
        best = int(expected.argmax())
        assert run.predict(text).text == run.task.labels.label(best)  # type: ignore[attr-defined]
        return
    column = run.task.sources[0].encode([tuple(text.split())])  # type: ignore[attr-defined]
    row = column[0]
    assert row[0] == tokenizer.specials.bos
    assert row[-1] == tokenizer.specials.sep
    with torch.inference_mode():
        expected = theirs(torch.tensor([row])).logits[0]
        values = run.network.encoder(pad([row])).values  # type: ignore[union-attr, operator, misc]
        found = run.network.head.output(values)[0]  # type: ignore[union-attr]
    assert torch.allclose(found, expected, atol=1e-4)
    assert len(run.predict(text).text.split()) == 2


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_classifier_of_pairs_reads_two_columns_as_theirs_does(kind: str, tmp_path: Path) -> None:
    name = {"bert": "Bert", "roberta": "Roberta"}[kind] + "ForSequenceClassification"
    theirs = make(tmp_path / "folder", kind, name, num_labels=2)
    import_run(tmp_path / "folder", tmp_path / "run", lambda _: None, columns=2)
    run = saccade.load(tmp_path / "run")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    given = tokenizer("abc de", "fa b", return_tensors="pt")
    row = run.task.sources[0].rows([("abc de", "fa b")])[0]  # type: ignore[attr-defined]
    assert row == given["input_ids"][0].tolist()
    with torch.inference_mode():
        expected = theirs(**given).logits[0]
        found = run.network.logits((pad([row]),))[0]  # type: ignore[union-attr, operator]
    assert torch.allclose(found, expected, atol=1e-4)
    (tmp_path / "pairs.tsv").write_text("abc de\tfa b\tLABEL_0\n" * 3)
    right = 100.0 * (int(expected.argmax()) == 0)
    assert run.evaluate(tmp_path / "pairs.tsv")["accuracy"] == right


def test_pairs_are_for_classifiers_alone(tmp_path: Path) -> None:
    make(tmp_path / "folder", "gpt2", "GPT2LMHeadModel")
    with pytest.raises(saccade.errors.ConfigError, match="classifiers alone read several"):
        import_run(tmp_path / "folder", tmp_path / "run", lambda _: None, columns=2)
