"""From the user's files to a trained run: `train`, `start` and `resume`."""

import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from saccade import config as c
from saccade.data.digest import digest
from saccade.data.lines import data_files
from saccade.data.memory import Memory, given
from saccade.distributed.world import joined
from saccade.errors import CheckpointError, ConfigError, DataError
from saccade.models.networks import Network
from saccade.runs import checkpoints, files
from saccade.runs.failures import writing
from saccade.runs.folder import (
    check_changes,
    config_in,
    locked,
    read_settings,
    with_own_copies,
    with_raised_limits,
    write_config,
)
from saccade.runs.guard import (
    check_ids,
    fitting_network,
    new_network,
    own_paths,
    require_loadable,
    require_plain_inputs,
    with_root,
)
from saccade.runs.machine import choose_device, choose_precision, require_memory, tune_malloc
from saccade.runs.run import Run, load
from saccade.runs.start import (
    first_weights,
    pretrained_config,
    pretrained_run,
    save_transferred,
    transfer_weights,
    unknown,
)
from saccade.runs.vectors import initial_embeddings
from saccade.setup.choose import gather, survey_and_fill
from saccade.setup.memory import write_examples
from saccade.setup.paths import refuse_folder, run_folder
from saccade.setup.prepare import Prepared, prepare, reopen
from saccade.setup.start import vocabularies
from saccade.setup.survey import Survey
from saccade.tasks.task import NO_VOCABULARIES
from saccade.training import events
from saccade.training.launched import open_on_all_ranks, require_layout
from saccade.training.loop import train as loop
from saccade.training.preflight import preflight
from saccade.training.probe import BATCHES, PLAIN, Mode, fastest
from saccade.training.report import show
from saccade.training.saving import restore
from saccade.training.share import shared
from saccade.training.stop import Interrupted, Stop
from saccade.training.trainer import Trainer

REPLACED = (  # what a run writes into its folder besides config.toml, overwriting what is there
    *("checkpoints", "data", "model.safetensors", "baselines.safetensors"),
    *("labels.json", "source.json", "target.json", "tokenizer.json", "start.safetensors"),
)
APPENDED = ("metrics.jsonl", "tensorboard")
LARGE_FILES_BYTES = 1 << 25  # of training files: reading more is announced


def train(
    data: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    task: str | None = None,
    dev: Any = None,
    settings: Mapping[str, Any] | None = None,
    from_run: str | os.PathLike[str] | None = None,
    quiet: bool = False,
) -> Run:
    """Train on raw files (or as a configuration file says) and return the finished run.

    In place of files, `data` and `dev` may be examples from memory: tuples of columns, dicts,
    `Example`s, or a table of pandas, polars or datasets. They are kept in the run.

    `settings` are keys of the configuration, as in
    {"train.minutes": 3, "encoder.kind": "transformer"}. `from_run` is a run whose vocabulary
    and weights are reused; the keys of the table `start` say which of them are trained.
    """
    settings = dict(settings or {})
    settings |= {} if from_run is None else {"start.run": os.fspath(from_run)}
    train_data, dev_data = given(data), None if dev is None else given(dev)
    if isinstance(train_data, Memory):
        if isinstance(dev_data, list):
            raise ConfigError("dev is a file, but data is examples: give both in one way")
        raw: dict[str, Any] = {} if task is None else {"task": {"kind": task}}
        for key, value in settings.items():
            c.assign(raw, key, value)
        folder = _new_folder("examples", out, "examples")
        return _train_on_memory(raw, train_data, dev_data, folder, quiet)
    if isinstance(dev_data, Memory):
        raise ConfigError("dev is examples, but data is a file: give both in one way")
    raw, where = gather(train_data, task=task, dev=dev_data)
    for key, value in settings.items():
        c.assign(raw, key, value)
    config, _, seen = fill(raw, where)
    folder = new_folder(config, out)
    return _finished(config, folder, seen, quiet)


def _finished(config: c.Config, folder: Path, seen: Survey, quiet: bool) -> Run:
    """A new run, trained to its end with all its seeds."""
    from saccade.training.seeds import compare_seeds, other_seeds  # which resume runs

    for _ in show(start(config, folder, seen=seen), folder, quiet):
        pass
    for member, steps in other_seeds(folder, settings={"data.root": config.data.root}):
        for _ in show(steps, member, quiet):
            pass
    if config.train.seeds > 1:
        compare_seeds(folder, config, config.data.root)
    return load(folder)


def fill(raw: dict[str, Any], where: str) -> tuple[c.Config, str, Survey]:
    """The whole configuration, how the data was understood, and the survey of its examples."""
    return survey_and_fill(raw, where, pretrained_config(raw, where))


def _train_on_memory(
    raw: dict[str, Any], train: Memory, dev: Memory | None, folder: Path, quiet: bool
) -> Run:
    """The same with examples from memory, which are first written into the run."""
    stored = folder / "examples"
    try:
        with writing(folder):
            raw = write_examples(raw, "settings", stored, train, dev)
        config, _, seen = fill(raw, "settings")
        return _finished(config, folder, seen, quiet)
    except (ConfigError, DataError):
        if not (folder / "config.toml").exists():  # there is no run
            shutil.rmtree(stored, ignore_errors=True)
        raise


def new_folder(config: c.Config, out: str | os.PathLike[str] | None) -> Path:
    """The run's directory, made; one that holds a run already is refused."""
    return _new_folder(config.data.train[0], out)


def _new_folder(first: str, out: str | os.PathLike[str] | None, *replaced: str) -> Path:
    """The directory of a new run, made; one that holds what a run would overwrite is refused.

    `replaced` are names beside those that every run writes.
    """
    folder = run_folder(first, out)
    refuse_folder(folder)
    for name in (*REPLACED, *replaced):
        if os.path.lexists(folder / name):
            raise ConfigError(
                f"{folder}: has '{name}' in it, which a run would overwrite; "
                "choose another folder (--out)"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made: {error.strerror}") from None
    return folder


def _discard(folder: Path, kept: Collection[str]) -> None:
    """Remove what a failed run has written, except `kept` names, and its folder if it is empty."""
    for name in {*REPLACED, *APPENDED, "config.toml", ".lock"}.difference(kept):
        with suppress(OSError):
            (folder / name).unlink()
        shutil.rmtree(folder / name, ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()


def start(
    config: c.Config, folder: Path, stop: Stop | None = None, seen: Survey | None = None
) -> Iterator[events.Event]:
    """Prepare the data, build the network and train it, in a new run.

    `seen` is the survey of the training data by which the configuration was chosen, if any.
    """
    try:
        choose_precision(config.train, choose_device(config.train.device))  # before any work
        require_layout(config)
    except ConfigError:
        with suppress(OSError):
            folder.rmdir()
        raise
    with locked(folder):
        refuse_folder(folder)
        with writing(folder):
            before = {*os.listdir(folder)} - {".lock"}
            write_config(folder, config, prepared=False)
            files.sync(folder.parent)
        try:
            yield from _prepare(config, folder, stop or Stop(), seen)
        except (ConfigError, DataError):
            if not read_settings(folder)[1].prepared:  # there is no run: the name is free
                _discard(folder, before)
            raise


def resume(
    folder: Path, stop: Stop | None = None, settings: Mapping[str, Any] | None = None
) -> Iterator[events.Event]:
    """Continue from a run's newest sound checkpoint as if training had never stopped.

    `settings` are limits to raise, as in {"train.steps": 2000}.
    """
    stop, began = stop or Stop(), perf_counter()
    settings = dict(settings or {})
    root = str(settings.pop("data.root", ""))  # never from the run's file
    read_settings(folder)
    with locked(folder):
        stop.folder = folder
        raw, status = read_settings(folder)
        if not status.prepared:
            require_plain_inputs(raw)
            try:
                with stop.interruptible():
                    config, _, seen = fill(raw, str(folder / "config.toml"))
            except Interrupted:
                yield _stopped()
                return
            config = with_raised_limits(config, settings)
            with writing(folder):
                write_config(folder, config, prepared=False)
            yield from _prepare(with_root(config, root), folder, stop, seen)
            return
        tune_malloc()
        old = config_in(raw, folder)
        config = with_raised_limits(old, settings)
        saves = folder / "checkpoints"
        try:
            with writing(folder), stop.interruptible():
                if saves.is_dir():
                    checkpoints.recover(saves)
                path, problems = checkpoints.latest(saves)
        except Interrupted:
            yield _stopped()
            return
        if problems and path is None:
            raise CheckpointError("\n".join(problems[:5]))
        yield from (events.Noticed(f"{problem}: skipped") for problem in problems)
        saved = files.read_json(path / "state.json").get("config") if path else None
        changes = check_changes(saved or old.model_dump(mode="json"), config, folder)
        if config != old:
            with writing(folder):
                write_config(folder, config, prepared=True)
        yield from (events.Changed(*change) for change in changes)
        try:
            with stop.interruptible():
                ready = _reopened(own_paths(with_root(config, root), folder), folder)
        except Interrupted:
            at = checkpoints.step_of(path) if path else 0
            yield _stopped(at)
            return
        device = choose_device(config.train.device)
        try:  # before memory is allocated for a network that the checkpoint does not fit
            if path is None:
                network = new_network(ready.task, device)
            else:
                network = fitting_network(ready.task, path / "model.safetensors")
                require_memory(network, config, device)
        except ConfigError as error:
            raise CheckpointError(f"{folder / 'config.toml'}: {error}") from None
        yield from _train(ready, network, folder, path, stop, began)


def _stopped(step: int = 0, seconds: float = 0.0) -> events.Finished:
    """The end of a run that is stopped before training begins or is continued."""
    return events.Finished(step, "stopped", {}, seconds, stopped=True)


def _reopened(config: c.Config, folder: Path) -> Prepared:
    """The data of a run, checked against its manifest."""
    data = folder / "data"
    if (data / files.MANIFEST).exists() and (problem := files.damage(data)):
        raise CheckpointError(f"{data}: {problem}: train anew")
    return reopen(config, folder)


def _prepare(
    config: c.Config, folder: Path, stop: Stop, seen: Survey | None
) -> Iterator[events.Event]:
    """Make the data of a run, mark it as prepared, and train."""
    began, report = perf_counter(), list[str]()
    tune_malloc()
    stop.folder = folder
    given_files = filter(os.path.exists, data_files(config.data.train))
    size = sum(os.stat(path).st_size for path in given_files)
    if size > LARGE_FILES_BYTES:
        yield events.Noticed(f"reading {size >> 20:,} MB, which takes a while")
    try:
        with writing(folder), stop.interruptible():
            config = with_own_copies(config, folder)
            given, pretrained = NO_VOCABULARIES, None
            if config.start is not None:
                pretrained, run_digest = pretrained_run(config.start)
                pinned = config.start.model_copy(update={"digest": run_digest})
                config = config.model_copy(update={"start": pinned})
                given = vocabularies(config, pretrained.task)
            ready = prepare(own_paths(config, folder), folder, seen, given)
            network = new_network(ready.task, choose_device(config.train.device))
            require_loadable(folder, network)
            if config.start is not None and pretrained is not None:
                weights, report = transfer_weights(config, pretrained, given, network)
                save_transferred(folder, weights)
                report += unknown(ready.task, given, ready.train, config.start.run)
                del pretrained, weights
            if config.data.vectors:
                weights, report = initial_embeddings(ready.task, network, config.data.vectors)
                save_transferred(folder, weights)
            written = [path for path in sorted((folder / "data").iterdir()) if path.is_file()]
            entries = {path.name: (path.stat().st_size, digest(path)) for path in written}
            for path in (*written, *folder.glob("*.json")):
                files.sync(path)
            files.write_manifest(folder / "data", entries)
            files.sync(folder)  # before the run is marked as prepared
            write_config(folder, config, prepared=True)
    except Interrupted:
        yield _stopped()
        return
    yield from (events.Noticed(line) for line in report)
    yield from _train(ready, network, folder, None, stop, began)


def _train(
    ready: Prepared,
    network: Network,
    folder: Path,
    checkpoint: Path | None,
    stop: Stop,
    began: float,
) -> Iterator[events.Event]:
    """Train a network on the meta device; the command was given at `began`."""
    stop.folder = folder
    config = ready.task.config
    require_layout(config)
    device = choose_device(config.train.device)
    network = first_weights(network, config, folder).to(device)
    for corpus in (ready.train, ready.dev):
        check_ids(ready.task, corpus, folder)
    world = joined()
    ranks = None if world is None else open_on_all_ranks(world, folder, checkpoint, config, network)
    trainer = Trainer(ready.task, network, folder, ranks)
    try:
        mode = _fastest(trainer, ready, stop) if checkpoint is None and world is None else None
    except Interrupted:
        yield _stopped()
        return
    if mode is not None:
        if mode != PLAIN:
            yield events.Noticed(f"computing in {mode} (a probe found this the fastest here)")
        train = config.train.model_copy(update=mode._asdict())
        config = ready.task.config = config.model_copy(update={"train": train})
        with writing(folder):
            write_config(folder, config, prepared=True)
        trainer = Trainer(ready.task, network, folder)
    if checkpoint is not None:
        restore(trainer, checkpoint)
        saved_threads = trainer.at.threads
        threads = 1 if config.train.processes > 1 else torch.get_num_threads()
        if saved_threads and saved_threads != threads and device.type == "cpu":
            yield events.Changed("threads", saved_threads, threads)
    count = sum(p.numel() for p in network.parameters())
    yield events.Prepared(
        len(ready.train), len(ready.dev), ready.left_out, count, str(device), trainer.at.step
    )
    if ranks is not None:
        yield events.Noticed(f"{ranks.size} processes: {ranks}")
    try:
        if world is None:  # it measures a single process
            yield from preflight(trainer, ready, stop)
    except Interrupted:
        yield _stopped(trainer.at.step, trainer.at.seconds)
        return
    if config.train.minutes:  # preparation counts, up to half of them
        trainer.at.seconds += min(perf_counter() - began, 30 * config.train.minutes)
    with nullcontext() if world is not None else shared(trainer, checkpoint):
        yield from loop(trainer, ready.train, ready.dev, ready.dev_examples, stop)


def _fastest(trainer: Trainer, ready: Prepared, stop: Stop) -> Mode | None:
    """The fastest mode of computing a step; None where there is no choice."""
    batches = trainer.task.epoch(ready.train, 0)
    first = [batches[i] for i in range(min(BATCHES, len(batches)))]
    return next(iter(fastest(trainer, first, len(batches), stop)), None)
