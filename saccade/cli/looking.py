"""Commands that show what is inside of a run: inspect."""

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.options import RunFolder, say


def inspect(
    run: RunFolder,
    item: Annotated[
        str,
        typer.Argument(help="A text, a photo or a sound; a tab between columns.", metavar="INPUT"),
    ],
    out: Annotated[Path, typer.Option(help="The picture to write: .png, .svg or .pdf.")],
    target: Annotated[str, typer.Option(help="The output; else what the model predicts.")] = "",
    layer: Annotated[
        int | None,
        typer.Option(
            help="Of a Transformer's attention, from 0; else of a picture's path the last."
        ),
    ] = None,
) -> None:
    """Draw what each word of the output attends to: an alignment, or the path over a picture."""
    from saccade.inspect.drawing import inspect as draw
    from saccade.runs.printing import one_line
    from saccade.runs.run import load

    print(one_line(draw(load(run), item, out, target, layer)))
    say(f"drawn to {out}")
