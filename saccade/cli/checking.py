"""The command that checks data before training: check."""

import json
from typing import Annotated

import typer

from saccade.cli.options import (
    AsJson,
    DataOrConfig,
    DevFiles,
    Settings,
    TaskName,
    end_quietly,
    gather_settings,
    say,
)


def check(
    data: DataOrConfig,
    task: TaskName = None,
    dev: DevFiles = None,
    settings: Settings = None,
    errors_only: Annotated[
        bool,
        typer.Option("--errors", help="Exit with 1 for errors alone; warnings are still told."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find what is wrong with the data. Names file and line; exit 1 for errors or warnings."""
    from collections import Counter

    from saccade.check.doctor import check as find_problems
    from saccade.check.findings import error, grouped, table
    from saccade.data.lines import Defect, counted
    from saccade.errors import DataError
    from saccade.setup.choose import task_and_data

    end_quietly()
    try:
        raw, where = gather_settings(data, task, dev, settings)
        pretrained = None
        if "start" in raw:
            from saccade.runs.start import pretrained_config  # which imports torch

            pretrained = pretrained_config(raw, where)
        settings_of_task, settings_of_data = task_and_data(raw, where, pretrained)
        findings = find_problems(settings_of_data, settings_of_task)
    except DataError as problem:  # the data cannot be read at all
        if not isinstance(problem.defect, Defect):
            raise
        findings = iter([error(problem.defect)])
    levels: Counter[str] = Counter()
    for finding in findings if as_json else (groups := grouped(findings)):
        levels[finding.level] += finding.count
        if as_json:
            print(json.dumps(finding.record(), ensure_ascii=False))
    if not as_json:
        for line in table(groups):
            print(line)
    errors, warnings = levels["error"], levels["warning"]
    counts = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
    say(counts if errors + warnings else "no errors or warnings")
    raise typer.Exit(1 if errors + (0 if errors_only else warnings) else 0)
