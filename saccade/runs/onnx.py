"""A run as ONNX: networks without a search, from ids to logits, in one graph.

`classify` gives a row of logits, `tag` and masked language models one for each position (the logits
of a word are the mean of its positions'), `language` those of the next token after each prefix.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from saccade import config as c
from saccade.errors import ConfigError, TrainingError
from saccade.models.encoders import Encoder
from saccade.models.heads import PerToken, PerWord, Pooled
from saccade.nn.padded import Padded
from saccade.nn.stems import TextStem
from saccade.nn.tracing import tracing
from saccade.runs import files
from saccade.runs.run import Run
from saccade.tasks.labels import LabelTask
from saccade.tasks.task import max_positions
from saccade.text.publishing import tokenizer_json

MAX_POSITIONS = 1024  # where the network has no limit of its own
TOLERANCE = 1e-3


class LabelLogits(nn.Module):
    """From ids and their padding mask to the logits of labels."""

    def __init__(self, network: Any):
        super().__init__()
        self.encoder, self.head = network.encoder, network.head

    def forward(self, tokens: Tensor, keep: Tensor) -> Tensor:
        read = self.encoder.stem(Padded(tokens, keep.sum(1)))
        memory = self.encoder.body(read.values, keep, read.lengths)
        match self.head:
            case Pooled():
                return self.head(memory)  # type: ignore[no-any-return]
            case PerWord():
                return self.head.output(memory.values)  # type: ignore[no-any-return]
            case _:
                return self.head(memory.values)  # type: ignore[no-any-return]


class NextTokenLogits(nn.Module):
    """From ids to the logits of the token after each."""

    def __init__(self, network: Any):
        super().__init__()
        self.decoder = network.decoder

    def forward(self, tokens: Tensor) -> Tensor:
        logits, _ = self.decoder(tokens, self.decoder.start(None, tokens.size(0)))
        return logits  # type: ignore[no-any-return]


def export_onnx(run: Run, folder: Path) -> None:
    """Write model.onnx, its tokenizer and its labels; checked with onnxruntime, if installed."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise ConfigError("onnx is not installed: pip install 'saccade[onnx]'") from None
    wrapped, part = wrap(run)
    longest = min(MAX_POSITIONS, max_positions(part))
    size = run.task.fields[0].size
    numbers = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, size, (2, min(7, longest)), generator=numbers)
    inputs: tuple[Tensor, ...] = (tokens,)
    if isinstance(wrapped, LabelLogits):
        inputs = tokens, torch.arange(tokens.size(1)) < torch.tensor([[tokens.size(1)], [4]])
    rows, columns = torch.export.Dim("rows"), torch.export.Dim("columns", min=2, max=longest)
    names = ["tokens", "keep"][: len(inputs)]
    path = folder / "model.onnx"
    with tracing(longest), torch.no_grad():
        expected = wrapped(*inputs)  # which also makes the table of positions
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                torch.onnx.export(
                    wrapped,
                    inputs,
                    str(path),
                    input_names=names,
                    output_names=["logits"],
                    dynamic_shapes=tuple({0: rows, 1: columns} for _ in inputs),
                    dynamo=True,
                    external_data=False,
                    verbose=False,
                )
            except Exception as error:  # torch has no one class for what it cannot trace
                first = str(error).strip().partition("\n")[0][:200]
                problem = "export: torch cannot write this network as ONNX"
                raise ConfigError(f"{problem}: {first}") from None
    check_outputs(path, wrapped, inputs, expected, longest)
    files.write_text(folder / "tokenizer.json", json.dumps(tokenizer_json(_tokenizer(run))))
    if isinstance(run.task, LabelTask):
        labels = {str(i): label for i, label in enumerate(run.task.labels.labels)}
        files.write_text(folder / "labels.json", json.dumps(labels, ensure_ascii=False))


def wrap(run: Run) -> tuple[nn.Module, Any]:
    """The network as one function of ids, and the settings of its Transformer."""
    network: Any = run.network.cpu().eval()
    config = run.config
    for part in (config.encoder, config.decoder):
        if part is not None and not isinstance(part, c.Transformer | c.Convolution):
            raise ConfigError(
                f"export: a part of this network is {part.kind}; to ONNX only Transformers and "
                "convolutions are exported"
            )
    if isinstance(config.decoder, c.Transformer) and config.encoder is None:
        return NextTokenLogits(network), config.decoder
    head = getattr(network, "head", None)
    labels = isinstance(head, Pooled | PerWord | PerToken) and config.decoder is None
    encoder = getattr(network, "encoder", None)
    if labels and isinstance(encoder, Encoder) and isinstance(encoder.stem, TextStem):
        return LabelLogits(network), config.encoder
    raise ConfigError(
        f"export: the task '{config.task.kind}' needs a search or reads more than text; to ONNX go "
        "networks that answer without: classify, tag, masked, language"
    )


def _tokenizer(run: Run) -> Any:
    return next(f.tokenizer for f in run.task.fields if hasattr(f, "tokenizer"))


def check_outputs(
    path: Path, wrapped: nn.Module, inputs: tuple[Tensor, ...], expected: Tensor, longest: int
) -> None:
    """TrainingError if the outputs of onnxruntime, where it is installed, differ from torch's."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        return
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for some, wanted in ((inputs, expected), _another_shape(wrapped, inputs, longest)):
        given = [one.name for one in session.get_inputs()]
        named = dict(zip(given, (one.numpy() for one in some), strict=True))
        found = session.run(None, named)[0]
        difference = float(np.abs(found - wanted.numpy()).max())
        if not difference < TOLERANCE:
            raise TrainingError(
                f"{path}: the exported model differs from torch by {difference:.2g}: do not use it"
            )


def _another_shape(
    wrapped: nn.Module, inputs: tuple[Tensor, ...], longest: int
) -> tuple[tuple[Tensor, ...], Tensor]:
    """The same for inputs of another shape."""
    times = max(1, min(5, longest // inputs[0].size(1)))
    more = tuple(one.repeat(2, times) for one in inputs)
    if len(more) > 1:
        more = more[0], torch.ones_like(more[1])
    with tracing(longest), torch.no_grad():
        return more, wrapped(*more)
