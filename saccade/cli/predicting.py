"""The command that runs models: predict."""

import os
import shlex
import sys
from itertools import islice, repeat
from pathlib import Path
from typing import Annotated, Any

import typer

from saccade.cli.options import (
    AsJson,
    DecodeSettings,
    Engine,
    Int8,
    Others,
    RunFolder,
    decode_settings,
    device_for,
    end_quietly,
    media_root,
    say,
)

SEARCH, OUTPUT = "Search", "What is read and written"
FORECASTS, VECTORS, BLANKS = "Of forecasts", "Of word vectors", "Of models that fill in blanks"
NEIGHBOURS = 10  # of a word, unless --nbest says otherwise


def predict(
    run: RunFolder,
    file: Annotated[
        Path | None,
        typer.Argument(help="A file of lines, a photo or a sound. Without it, standard input."),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(help="The beam's width; 1 is greedy search.", rich_help_panel=SEARCH),
    ] = None,
    nbest: Annotated[
        int,
        typer.Option(help="How many answers to each line, the best first.", rich_help_panel=SEARCH),
    ] = 1,
    sample: Annotated[
        bool,
        typer.Option("--sample", help="Sample instead of searching.", rich_help_panel=SEARCH),
    ] = False,
    prefix: Annotated[
        str, typer.Option(help="What every answer has to begin with.", rich_help_panel=SEARCH)
    ] = "",
    prefixes: Annotated[
        Path | None,
        typer.Option(
            help="A file with what each answer has to begin with, line by line.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    others: Others = None,
    settings: DecodeSettings = None,
    engine: Engine = None,
    int8: Int8 = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Show the text as it comes.", rich_help_panel=OUTPUT)
    ] = False,
    number: Annotated[
        bool,
        typer.Option(
            "--number",
            help="Begin each line with the number of the input that it answers, and a tab.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    details: Annotated[
        bool,
        typer.Option(
            "--details",
            help="With --json, add tokens, their alternatives and the beam's tree.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    fill: Annotated[
        str,
        typer.Option(
            help="One text, with <mask> in place of what is missing.", rich_help_panel=BLANKS
        ),
    ] = "",
    quantiles: Annotated[
        str,
        typer.Option(
            help="The quantiles of a forecast, as in --quantiles 0.1,0.5,0.9.",
            rich_help_panel=FORECASTS,
        ),
    ] = "",
    plot: Annotated[
        Path | None,
        typer.Option(help="A picture of the forecast, to be drawn.", rich_help_panel=FORECASTS),
    ] = None,
    neighbours: Annotated[
        str, typer.Option(help="A word, to list the words nearest to it.", rich_help_panel=VECTORS)
    ] = "",
    analogy: Annotated[
        tuple[str, str, str] | None,
        typer.Option(help="Three words: a is to b as c is to the answer.", rich_help_panel=VECTORS),
    ] = None,
    shard: Annotated[
        str,
        typer.Option(
            help="The part of the file to answer, as in 2/8; all parts together are the whole.",
            rich_help_panel=OUTPUT,
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Answer each line with a line. With --nbest up to N lines of score<TAB>text for each."""
    from saccade.data.lines import Defect, Part, input_lines, input_rows, part_of_lines
    from saccade.errors import ConfigError, DataError
    from saccade.runs.machine import tune_malloc
    from saccade.runs.printing import (
        Unknown,
        lines_in_words,
        one_line,
        printed,
        warning_of_unknown,
    )
    from saccade.runs.run import LINES_AT_ONCE, load
    from saccade.training.report import counting

    end_quietly()
    if details and not as_json:
        raise ConfigError("--details are for programs to read: add --json")
    if number and as_json:
        raise ConfigError("--number is for lines of text: --json has a line for each input")
    wanted = decode_settings(settings, engine, int8)
    wanted |= {"width": width} if width is not None else {}
    wanted |= {"kind": "sample"} if sample else {}
    tune_malloc()
    device = device_for(wanted)
    model = load(run, device)
    ensemble = [load(other, device) for other in others or []]
    if model.config.task.kind == "forecast":
        from saccade.inspect.forecast import show

        invalid = {"--width": width, "--prefix": prefix, "--prefixes": prefixes, "--with": others}
        invalid |= {
            "--number": number,
            "--stream": stream,
            "--shard": shard,
            "--fill": fill,
            "--neighbours": neighbours,
            "--analogy": " ".join(analogy or ()),
            "--details": details,
            "--nbest": nbest > 1 and not sample,
        }
        options = [name for name, value in invalid.items() if value]
        print(show(model, file, quantiles, nbest if sample else 0, wanted, plot, as_json, options))
        return
    if quantiles or plot:
        raise ConfigError("--quantiles and --plot are for forecasts: leave them out")
    named = file is not None and str(file) != "-"
    name = str(file) if named else "standard input"
    if file is not None and named and not os.path.lexists(file):
        text = f", or, if it is a text: echo {shlex.quote(name)} | saccade predict {run}"
        raise DataError(f"{file}: no such file; check the path{'' if file.suffix else text}")
    if not (named or fill or neighbours or analogy) and sys.stdin.isatty():
        say("reading lines from standard input, until Ctrl-D")
    unknown: list[Unknown] = []
    model.root = media_root(settings)
    words = neighbours or " ".join(analogy or ())
    nbest = NEIGHBOURS if words and nbest == 1 else nbest
    inputs: Any = model.sources(file) if file and model.has_data_format(file) else input_rows(file)
    single, skipped = file is not None and model.is_input(file), 0
    if shard:
        part = Part.parse(shard)
        if file is None or not named or single or words or fill or stream or not file.is_file():
            raise ConfigError("--shard is for a file of lines: name one, and leave out --stream")
        if model.has_data_format(file):
            total = sum(1 for _ in inputs)
            skipped, last = (total * n // part.count for n in (part.number, part.number + 1))
            inputs = islice(model.sources(file), skipped, last)
        else:
            skipped, inputs = part_of_lines(file, part)
    if single:  # the file is a single input
        inputs = [str(file)]
    if fill:
        model.require_fill(file)
        inputs, name, single = [fill], "--fill", True
    if words:
        model.require_vectors()
        inputs, single = [words], True
    if stream:
        plain = (
            nbest == 1
            and (width or 1) == 1
            and not (prefix or prefixes or others or as_json or number)
        )
        if not plain or int8 or engine == "ctranslate2":
            raise ConfigError(
                "--stream writes one answer, greedy or with --sample, and takes --set; leave out "
                "--width, --nbest, --number, "
                "--prefix, --prefixes, --with, --engine, --int8 and --json"
            )
        request = model.text_request(wanted)
        for i, item in enumerate(inputs, 1):
            if isinstance(item, Defect):
                raise DataError(f"{item.where}: {item.message}")
            for piece in model.stream_text(
                item, number=i, request=request, file=None if single else name
            ):
                print(one_line(piece), end="", flush=True)
            print(flush=True)
            if some := model.unknown(item):
                unknown.append(Unknown(model.location(i, name), len(some), some))
        if unknown:
            say(warning_of_unknown(unknown, model.task))
        return
    scored = as_json or nbest > 1
    request = model.request(
        nbest=nbest, settings=wanted, scored=scored, details=details, others=ensemble
    )
    if prefix or prefixes:
        model.check_prefix(prefix)
    begins: Any = islice(input_lines(prefixes), skipped, None) if prefixes else repeat(prefix)
    at_once = 1 if not named and sys.stdin.isatty() else LINES_AT_ONCE
    failed = 0
    answers = model.stream(inputs, request, begins, at_once, None if single else name, skipped + 1)
    with model:  # its processes end with it, also when it is interrupted
        path = file if named and not single and not shard else None
        for i, answer in enumerate(counting(answers, path), skipped + 1):
            if answer.problem and (words or fill):
                raise ConfigError(answer.problem)
            if answer.problem:
                failed += 1
                say(f"{model.location(i, name)}: {answer.problem}; left empty")
            if answer.unknown:
                unknown.append(
                    Unknown(model.location(i, name), answer.unknown, answer.unknown_units)
                )
            lines = printed(answer, nbest, as_json, model.task)
            print("\n".join(f"{i}\t{line}" for line in lines) if number else "\n".join(lines))
    if unknown:
        say(warning_of_unknown(unknown, model.task))
    if failed:
        say(f"{lines_in_words(failed)} could not be answered: left empty")
    if prefixes and not shard and next(begins, None) is not None:
        say(f"{prefixes}: more lines than there were inputs; the last ones were not used")
