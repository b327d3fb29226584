"""Commands that import and export models: import, export."""

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.options import RunFolder, say


def import_(
    path: Annotated[Path, typer.Argument(help="A folder in the Hugging Face layout.")],
    out: Annotated[Path, typer.Option(help="The run's directory.")],
    columns: Annotated[
        int, typer.Option(help="How many texts a classifier reads; 2 for pairs.", min=1, max=8)
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
    out: Annotated[
        Path | None,
        typer.Option(help="The folder or file to write. Without it, a folder inside the run."),
    ] = None,
) -> None:
    """Write the model for another engine. CTranslate2's, inside the run, `predict` finds."""
    from saccade.runs.exporting import export_run
    from saccade.runs.members import FOLDER
    from saccade.runs.run import load

    say(f"exported to {export_run(load(run, 'cpu', ensemble=False), to, out)}")
    if (run / FOLDER).is_dir():
        say(f"of an ensemble the first network was exported; the others are runs in {run / FOLDER}")
