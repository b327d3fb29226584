"""Commands that make runs: train, resume."""

import os
import shlex
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from saccade.cli.options import (
    DataOrConfig,
    DevFiles,
    RunFolder,
    Settings,
    TaskName,
    gather_settings,
    say,
)


def train(
    data: DataOrConfig,
    task: TaskName = None,
    dev: DevFiles = None,
    from_run: Annotated[
        Path | None,
        typer.Option(
            "--from", help="A run to start from, whose vocabulary and weights are taken over."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The run's directory. Without it, the folder runs and the name of the data file."
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds to train; they predict as an ensemble."),
    ] = None,
    settings: Settings = None,
) -> None:
    """Train a model from a raw file. What you do not set is chosen for you."""
    from saccade.training.stop import EXIT_CODE, Interrupted, Stop

    _quiet_torch()
    with Stop() as stop:
        if "RANK" not in os.environ:  # else rank 0 reports for all
            from saccade.setup.paths import refuse_paths

            refuse_paths(gather_settings(data, task, dev, settings)[0], out)
        from saccade.training.launched import agreed, follow, launched_job
        from saccade.training.session import fill, new_folder, start

        def gather() -> tuple[dict[str, Any], str]:
            raw, where = gather_settings(data, task, dev, settings)
            if seeds is not None:
                raw["train"] = {**raw.get("train", {}), "seeds": seeds}
            if from_run is not None:
                raw["start"] = {**raw.get("start", {}), "run": str(from_run)}
            return raw, where

        with launched_job(stop) as world:
            raw, where = agreed(world, gather, lambda found: found[0]["data"].get("train"))
            if world is not None and world.rank:
                raise typer.Exit(follow(world, stop))
            try:
                with stop.interruptible():
                    config, reason, seen = fill(raw, where)
            except Interrupted:
                say("stopped before there was anything to save: give the same command again")
                raise typer.Exit(EXIT_CODE) from None
            folder = new_folder(config, out)
            say(f"{config.data.train[0]}: {reason}")
            if shared := [name for name in config.data.dev if name in config.data.train]:
                say(f"{shared[0]}: is learned from and measured on: metrics tell what is memorised")
            _follow(start(config, folder, stop, seen), folder)
            _follow_seeds(folder, stop, {"data.root": config.data.root})


def resume(
    run: RunFolder,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A limit to raise, as in --set train.steps=2000: of steps, epochs, minutes, "
            "patience or seeds.",
        ),
    ] = None,
) -> None:
    """Go on with a run that was stopped. With a higher limit one that has ended goes on, too."""
    from saccade.training.stop import Stop

    _quiet_torch()
    with Stop() as stop:
        from saccade.config import assign_text
        from saccade.runs.folder import flat, read_settings
        from saccade.training.launched import agreed, follow, launched_job
        from saccade.training.session import resume as go_on

        def gather() -> tuple[dict[str, Any], Any]:
            previous, _ = read_settings(run)  # is it a run at all?
            raw: dict[str, Any] = {}
            for setting in settings or []:
                assign_text(raw, setting)
            return raw, previous

        with launched_job(stop) as world:
            raw, _ = agreed(world, gather, lambda found: None)
            if world is not None and world.rank:
                raise typer.Exit(follow(world, stop))
            _follow(go_on(run, stop, flat(raw)), run)
            _follow_seeds(run, stop, flat(raw))


def _quiet_torch() -> None:
    """Suppress torch's stack traces of lost connections: our message names the lost process."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported


def _stopped(folder: Path) -> NoReturn:
    say(f"all is saved; go on with: saccade resume {shlex.quote(str(folder))}")
    raise typer.Exit(75)


def _follow(events: Any, folder: Path, resumed: Path | None = None) -> None:
    """Show a training run to its end; if it is stopped, `resumed` is the run to resume."""
    from saccade.training.events import Finished, Prepared
    from saccade.training.report import show

    for event in show(events, folder):
        if isinstance(event, Prepared) and not event.start:
            say(f"all settings are in {folder / 'config.toml'}")
        if isinstance(event, Finished) and event.stopped:
            _stopped(resumed or folder)
        if isinstance(event, Finished):
            for name, value in event.scores.items():
                print(f"{name}\t{value:.4f}")


def _follow_seeds(folder: Path, stop: Any, limits: dict[str, Any] | None = None) -> None:
    """The same with the run's other seeds; then a table, and the next command."""
    from saccade.runs.folder import read_config
    from saccade.training.seeds import compare_seeds, other_seeds

    config, root = read_config(folder), (limits or {}).get("data.root", "")
    for number, (member, events) in enumerate(other_seeds(folder, stop, limits), 2):
        say(f"seed {number} of {config.train.seeds}")
        _follow(events, member, folder)
    if config.train.seeds > 1:
        print("metric\tmean\tdeviation\tensemble")
        for name, mean, spread, ensemble in compare_seeds(folder, config, str(root)).rows():
            print(f"{name}\t{mean:.4f}\t{spread:.4f}\t{ensemble:.4f}")
    say(f"the run is in {folder}; next: saccade predict {shlex.quote(str(folder))} FILE")
