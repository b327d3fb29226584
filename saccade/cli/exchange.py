"""Commands that bring models in and out, and say how large they are: import, export, outline."""

import json
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.options import AsJson, RunFolder, say


def import_(
    path: Annotated[Path, typer.Argument(help="A folder in the Hugging Face layout.")],
    out: Annotated[Path, typer.Option(help="The run's directory.")],
    columns: Annotated[
        int, typer.Option(help="Texts that a classifier reads: 2 for pairs.", min=1, max=8)
    ] = 1,
) -> None:
    """Make a run of a published model. BERT, RoBERTa, GPT-2, Llama, T5, BART, Marian and more."""
    from saccade.runs.importing import import_run

    import_run(path, out, say, columns)


def export(
    run: RunFolder,
    to: Annotated[
        str, typer.Option(help="The format: ctranslate2, huggingface, onnx or word2vec.")
    ],
    out: Annotated[Path | None, typer.Option(help="The folder (or file); else in the run.")] = None,
) -> None:
    """Write the model for another engine. CTranslate2's, inside the run, `predict` finds."""
    from saccade.runs.exporting import export_run
    from saccade.runs.run import load

    say(f"exported to {export_run(load(run, 'cpu'), to, out)}")


def outline(
    model: Annotated[str, typer.Argument(help="A published size, as gpt2, or a run's directory.")],
    as_json: AsJson = False,
) -> None:
    """Say how many parameters a network has, part by part. It takes no memory for them."""
    from saccade.runs.outline import outline_of

    found = outline_of(model)
    if as_json:
        print(json.dumps(found))
        return
    for part, count in found.items():
        print(f"{part:<24}{count:>18,}")
