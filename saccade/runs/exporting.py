"""Export of a run: to CTranslate2, Hugging Face's transformers, ONNX, word2vec's format."""

import json
import os
from pathlib import Path
from typing import Any

from saccade import config as c
from saccade.data.fields import Text
from saccade.errors import ConfigError
from saccade.models.describe import describe, exported_tensors, task_kind
from saccade.runs import files
from saccade.runs.run import Run
from saccade.runs.vectors import default_path, export_vectors
from saccade.tasks.labels import LabelTask
from saccade.text.publishing import special_roles, tokenizer_json
from saccade.text.tokenizers import Tokenizer

FORMATS = ("ctranslate2", "huggingface", "onnx", "word2vec")


def export_run(run: Run, to: str, folder: str | os.PathLike[str] | None = None) -> Path:
    """Write a run in one of the formats; inside the run, if no folder is named."""
    if to not in FORMATS:
        raise ConfigError(f"--to {to}: no such format; there are {', '.join(FORMATS)}")
    if to == "word2vec":
        file = default_path(run.folder) if folder is None else Path(folder)
        return export_vectors(*run.require_vectors(), file)
    if to == "ctranslate2":
        return run.export(folder)
    path = run.folder / to if folder is None else Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if to == "huggingface":
            export_huggingface(run, path)
        else:
            from saccade.runs.onnx import export_onnx  # whose imports nothing else needs

            export_onnx(run, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def tokenizers_of(run: Run) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target, mostly the same one."""
    found = [field.tokenizer for field in run.task.fields if isinstance(field, Text)]
    if not found:
        raise ConfigError(f"{run.folder}: the task '{run.config.task.kind}' reads no text")
    return found[0], found[-1]


def export_huggingface(run: Run, folder: Path) -> None:
    """Write a folder that transformers loads by AutoModel and AutoTokenizer."""
    source, target = tokenizers_of(run)
    if not source.agrees(target):
        raise ConfigError(
            "no architecture of transformers fits: source and target have a tokenizer each"
        )
    description = describe(run.config, files.weights_of(run.network), len(target))
    raw, special, frame = description.raw, target.specials, target.frame
    raw |= {"pad_token_id": special.pad, "eos_token_id": special.eos, "torch_dtype": "float32"}
    if isinstance(run.config.decoder, c.Transformer):
        raw["bos_token_id"] = frame.line[-1] if run.config.encoder is None else special.bos
    if task_kind(run.config) == "translate":
        raw["decoder_start_token_id"] = frame.start[0]
        raw["bos_token_id"] = raw["forced_bos_token_id"] = None
        if len(frame.start) > 1:
            raw["bos_token_id"] = raw["forced_bos_token_id"] = frame.start[1]
    if description.arch.model_type == "roberta":  # whose positions begin after it
        raw["pad_token_id"] = description.raw["pad_token_id"]
    if isinstance(run.task, LabelTask):
        labels = run.task.labels.labels
        raw["id2label"] = {str(i): label for i, label in enumerate(labels)}
        raw["label2id"] = {label: i for i, label in enumerate(labels)}
    tensors = exported_tensors(description)
    content = tokenizer_json(source)
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= special_roles(source) | {"clean_up_tokenization_spaces": False}
    if description.arch.longest:
        settings["model_max_length"] = description.arch.longest
    for name, table in (
        ("config.json", raw),
        ("tokenizer.json", content),
        ("tokenizer_config.json", settings),
    ):
        files.write_text(folder / name, json.dumps(table, indent=1, ensure_ascii=False))
    files.write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
