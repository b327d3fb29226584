"""Commands that analyse runs: inspect, compare."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from saccade.cli.options import AsJson, Data, DecodeSettings, RunFolder, decode_settings, say


def inspect(
    words: Annotated[
        list[str],
        typer.Argument(
            help="A run's directory, and a text, a photo or a sound to look at (a tab between "
            "columns); with --curves several runs.",
            metavar="RUN [INPUT]",
        ),
    ],
    view: Annotated[
        str,
        typer.Option(
            help="attention, tree, tokens, saliency, labels, flow, caption_path, speech, forecast, "
            "positions or embeddings. Without it, the first that the run has; in a page, all."
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="A file to write: .html, .json, .png, .svg or .pdf. Without it, the terminal."
        ),
    ] = None,
    target: Annotated[
        str, typer.Option(help="The output to look at. Without it, what the model predicts.")
    ] = "",
    layer: Annotated[
        int | None, typer.Option(help="For attention: the number of the module to show, from 0.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="For attention: the head to show, from 0.")
    ] = None,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="For attention: measure what each head is worth.")
    ] = False,
    method: Annotated[
        str,
        typer.Option(help="For saliency: the method, which is gradient, integrated or occlusion."),
    ] = "",
    position: Annotated[
        int | None,
        typer.Option(help="For saliency and flow: the position in the output to explain, from 0."),
    ] = None,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="For flow: take the weights from before training.")
    ] = False,
    word: Annotated[
        str, typer.Option(help="For embeddings: the token whose neighbours to show.")
    ] = "",
    curves: Annotated[
        bool, typer.Option("--curves", help="Show the training curves of one or several runs.")
    ] = False,
    worst: Annotated[
        int | None,
        typer.Option(help="List this many examples of the dev set that the run finds hardest."),
    ] = None,
    probes: Annotated[
        str,
        typer.Option(help="A TSV of pairs to judge: group, source, better output, worse output."),
    ] = "",
    strange: Annotated[
        str,
        typer.Option(help="A file of inputs, to find outputs that are empty, copied or looping."),
    ] = "",
    settings: DecodeSettings = None,
    as_json: AsJson = False,
) -> None:
    """Look inside a run. Attention, the beam's tree, saliency, gradient flow, curves and more."""
    from saccade.inspect.command import look, write
    from saccade.runs.printing import one_line

    options: dict[str, Any] = {
        "target": target,
        "layer": layer,
        "head": head,
        "ablate": ablate,
        "method": method,
        "position": position,
        "untrained": untrained,
        "word": word,
    }
    chosen = {name: value for name, value in options.items() if value not in ("", None, False)}
    analyses = {"curves": curves, "worst": worst, "probes": probes, "strange": strange}
    decode = decode_settings(settings, None, False)
    views = look(words, view, chosen, decode, {k: v for k, v in analyses.items() if v}, out)
    if out is not None:
        folders = words if curves else words[:1]
        names = " and ".join(Path(one).resolve().name for one in folders)
        write(views, out, ": ".join([names, *words[len(folders) :]]))
        texts = dict.fromkeys(one["text"] for one in views if one.get("text"))
        print("\n".join(map(one_line, list(texts)[:1])) or one_line(views[0]["kind"]))
        say(f"drawn to {out}")
    elif as_json:
        print(json.dumps(views[0] if len(views) == 1 else {"views": views}, ensure_ascii=False))
    else:
        from saccade.inspect.terminal import text_of

        print("\n\n".join(text_of(one) for one in views))


def compare(
    first: RunFolder,
    second: Annotated[Path, typer.Argument(help="The other run.", metavar="RUN")],
    data: Data,
    samples: Annotated[int, typer.Option(help="Bootstrap and randomisation samples.")] = 2000,
    lines: Annotated[int, typer.Option(help="Show the N lines that differ most.", min=0)] = 10,
    out: Annotated[Path | None, typer.Option(help="A .html or .json to write.")] = None,
    settings: DecodeSettings = None,
    as_json: AsJson = False,
) -> None:
    """Test whether two runs differ significantly on the same data."""
    from saccade.inspect.command import write
    from saccade.inspect.comparing import compare_runs, text_of
    from saccade.runs.printing import one_line
    from saccade.runs.run import load

    wanted = decode_settings(settings, None, False)
    comparison = compare_runs(load(first), load(second), data, wanted, samples, lines)
    if out is not None:
        write([comparison], out, f"{first.resolve().name} and {second.resolve().name}")
        say(f"written to {out}")
    if as_json:
        print(json.dumps(comparison, ensure_ascii=False))
        return
    print("\n".join(text_of(comparison)))
    for line in comparison["differ_most"]:
        say(f"line {line['line']}: {one_line(line['source'])}")
        say(f"  right:  {one_line(line['target'])}")
        say(f"  first:  {one_line(line['first'])}  ({line['values'][0]:.4g})")
        say(f"  second: {one_line(line['second'])}  ({line['values'][1]:.4g})")
