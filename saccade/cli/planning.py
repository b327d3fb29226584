"""The command that estimates the cost of a run: plan."""

import json
from typing import Annotated

import typer

from saccade.cli.options import AsJson, Settings


def plan(
    subjects: Annotated[
        list[str],
        typer.Argument(
            help="A configuration.toml, a published size such as gpt3-175b, or a run; with "
            "--scaling several runs.",
            metavar="CONFIG|PRESET|RUN",
        ),
    ],
    on: Annotated[
        str,
        typer.Option(help="Device: v100, a100, h100, tpu-v4 ..; 'here' measures this machine."),
    ] = "a100",
    devices: Annotated[int, typer.Option(help="Number of devices.")] = 1,
    utilisation: Annotated[
        float | None, typer.Option(help="Fraction of peak FLOP/s that is reached, 0 to 1.")
    ] = None,
    price: Annotated[float | None, typer.Option(help="Dollars per device hour.")] = None,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Fit a scaling law to the losses of several runs.")
    ] = False,
    parameters: Annotated[
        float | None, typer.Option(help="With --scaling: number of parameters to extrapolate to.")
    ] = None,
    tokens: Annotated[
        float | None, typer.Option(help="With --scaling: number of tokens to extrapolate to.")
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Estimate a run's parameters, FLOPs, memory, time and cost."""
    from saccade.errors import ConfigError

    if scaling:
        _scaling(subjects, parameters, tokens, as_json)
        return
    if len(subjects) > 1:
        raise ConfigError("plan: one configuration, size or run at a time (several: --scaling)")
    if parameters is not None or tokens is not None:
        raise ConfigError("plan: --parameters and --tokens are for --scaling")
    from saccade.plan.report import plan as planned
    from saccade.plan.table import lines

    found = planned(
        subjects[0],
        on=on,
        devices=devices,
        utilisation=utilisation,
        price=price,
        settings=settings or [],
    )
    print(json.dumps(found.record()) if as_json else "\n".join(lines(found)))


def _scaling(
    runs: list[str], parameters: float | None, tokens: float | None, as_json: bool
) -> None:
    from dataclasses import asdict

    from saccade.plan.scaling import extrapolate, fit, larger_points, trial_of
    from saccade.plan.table import scaling_lines

    trials = [trial_of(run) for run in runs]
    law = fit(trials)
    forecasts = [extrapolate(trials, *point) for point in larger_points(trials, parameters, tokens)]
    if as_json:
        print(json.dumps({"law": asdict(law), "forecasts": [asdict(one) for one in forecasts]}))
        return
    print("\n".join(scaling_lines(law, forecasts)))
