"""Training by processes that a launcher starts: rank 0 leads, the others follow its commands.

    torchrun --nproc-per-node 4 -m saccade train data.tsv --set parallel.shard=4

The leader prepares the data, decides, reports and writes, as a single process does; the others open
its run and compute their share of every step, every evaluation, and every sharded checkpoint.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

import saccade
from saccade import config as c
from saccade.data.batches import Loader
from saccade.data.corpora import Corpus
from saccade.data.digest import digest
from saccade.data.lines import Example, data_files
from saccade.distributed.ranks import Ranks
from saccade.distributed.world import LostRankError, World, join, joined, leave
from saccade.errors import ConfigError, SaccadeError
from saccade.models.networks import Network
from saccade.runs import files
from saccade.runs.folder import read_config
from saccade.runs.machine import choose_device, choose_precision, tune_malloc
from saccade.runs.start import first_weights
from saccade.setup.choose import paths_of
from saccade.setup.prepare import Prepared, reopen
from saccade.tasks.task import Abandoned, Evaluation, advance, result_of, sharing
from saccade.training.stop import Interrupted, Stop

if TYPE_CHECKING:
    from saccade.training.trainer import Trainer

Made = TypeVar("Made")
ENDS_BYTES = 1 << 20  # hashed at the beginning and the end of each training file
STOP_SECONDS = 60.0  # grace period: a step has to be finished, and a checkpoint written by all


# --- joining the job ------------------------------------------------------------------------------


@contextmanager
def launched_job(stop: Stop) -> Iterator[World | None]:
    """Inside, this process has joined its job, if there is one; at the end rank 0 ends all."""
    world = join()
    if world is None:
        yield None
        return
    world.stop_requested = lambda: stop.requested
    stop.in_job(STOP_SECONDS, prints=world.rank == 0)
    code = 0
    try:
        with world.guarded():  # for collectives outside of `world`, such as gathering a weight
            yield world
    except LostRankError as error:
        if not error.reported:
            os.write(2, f"saccade: {error}\n".encode())
        os._exit(2)  # whatever other threads are still waiting for
    except BaseException as error:
        given = getattr(error, "exit_code", getattr(error, "code", None))
        code = given if isinstance(given, int) else 2
        if world.rank and isinstance(given, int):
            leave()
            os._exit(code)  # gloo's threads do not always end in order with the interpreter
        raise
    finally:
        if world.rank == 0:
            with suppress(LostRankError, RuntimeError):  # the others may have ended
                world.command("end", code)
        leave()


def agreed(world: World | None, make: Callable[[], Made], paths: Callable[[Made], Any]) -> Made:
    """The result of `make`, checked to be the same in all processes, with the same files.

    A user's mistake in any of them is raised in rank 0; the others exit silently.
    """
    if world is None:
        return make()
    made, own = None, {"problem": ""}
    try:
        made = make()
        require_device(world)
        own |= fingerprint(made, paths(made))
    except SaccadeError as error:
        own["problem"] = str(error)
    problems = list(differences(world.all_gather(own)))
    if problems and world.rank:
        raise SystemExit(2)
    if problems:
        raise ConfigError(problems[0])
    assert made is not None
    return made


def fingerprint(made: Any, paths: Any) -> dict[str, str]:
    """Hashes of what has to be the same in all processes."""
    text = json.dumps(made, sort_keys=True, default=str)
    data = hashlib.sha256()
    for path in data_files(paths_of(paths)) if paths else ():
        if os.path.isfile(path):
            size = os.path.getsize(path)
            data.update(f"{path} {size}\n".encode())
            with open(path, "rb") as file:
                data.update(file.read(ENDS_BYTES))
                file.seek(max(0, size - ENDS_BYTES))
                data.update(file.read(ENDS_BYTES))
    return {
        "version": f"saccade {saccade.__version__}, torch {torch.__version__}",
        "configuration": hashlib.sha256(text.encode()).hexdigest(),
        "data": data.hexdigest(),
    }


def differences(fingerprints: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """The problems of the ranks, that of rank 0 first; without any, how their hashes differ."""
    for rank, own in enumerate(fingerprints):
        if own["problem"]:
            yield own["problem"] if rank == 0 else f"rank {rank}: {own['problem']}"
    if any(own["problem"] for own in fingerprints):
        return
    expected = fingerprints[0]
    for rank, own in enumerate(fingerprints):
        for key, value in own.items():
            if value != expected[key]:
                shown = f": {value}, not {expected[key]}" if key == "version" else ""
                yield (
                    f"rank {rank} has a different {key} than rank 0{shown}: start all processes "
                    "with the same command, on the same files"
                )


def require_device(world: World) -> None:
    """ConfigError where a process has no device of its own."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count and world.local_rank >= count:
        raise ConfigError(
            f"{world.host} has {count} CUDA devices, and local rank {world.local_rank} needs one "
            f"of its own: start at most {count} processes there (--nproc-per-node)"
        )


def require_layout(config: c.Config) -> None:
    """ConfigError if the layout does not suit the number of processes, or the network."""
    world = joined()
    if world is None and config.parallel == c.Parallel():
        return
    from saccade.distributed.mesh import layout_of
    from saccade.distributed.parallelize import check

    if world is not None and config.train.seeds > 1:
        raise ConfigError(
            "train.seeds: several seeds are trained one after the other by one process: leave out "
            "torchrun, or start it once for each (--set seed=N)"
        )
    layout = layout_of(config.parallel, 1 if world is None else world.size)
    dtype = choose_precision(config.train, choose_device(config.train.device))
    check(config, layout.shard, layout.tensor, dtype)
    if layout.rows * layout.tensor > 1 and config.train.optimizer == "sparse":
        raise ConfigError("word vectors are trained by one process: start it without torchrun")


# --- opening a run --------------------------------------------------------------------------------


def open_on_all_ranks(
    world: World, folder: Path, checkpoint: Path | None, config: c.Config, network: Network
) -> Ranks:
    """Have all ranks open the run, and distribute the network over them."""
    manifest = folder / "data" / files.MANIFEST
    world.resume_command = f"saccade resume {folder}"
    world.command("open", str(folder.absolute()), str(checkpoint or ""), digest(manifest))
    problems = [problem for problem in world.all_gather("") if problem]
    if problems:
        raise ConfigError(problems[0])
    return distribute(world, config, network)


def distribute(world: World, config: c.Config, network: Network) -> Ranks:
    """Distribute the network in place; returns this process's rank in the layout."""
    from saccade.distributed.mesh import MeshRanks, layout_of
    from saccade.distributed.parallelize import parallelize

    world.set_timeout(config.parallel.timeout)
    device = choose_device(config.train.device)
    ranks = MeshRanks(world, layout_of(config.parallel, world.size), device)
    parallelize(network, ranks.mesh, config.parallel, choose_precision(config.train, device))
    return ranks


def follow(world: World, stop: Stop) -> int:
    """Carry out the leader's commands to the end; returns the exit code it sends."""
    opened: tuple[Prepared, Network] | None = None
    trainer: Trainer | None = None
    loader: Loader | None = None
    for name, *arguments in world.commands():
        if name == "end":
            if loader is not None:
                loader.close()
            return int(arguments[0])
        if name == "open":
            folder, checkpoint, manifest = arguments
            problem, opened = "", None
            try:
                opened = open_run(Path(folder), manifest)
            except (SaccadeError, OSError) as error:
                problem = f"rank {world.rank} ({world.host}) cannot open the run: {error}"
            if any(world.all_gather(problem)) or opened is None:
                continue  # the leader reports it, and ends all
            world.resume_command = f"saccade resume {folder}"
            trainer, loader = build_trainer(world, *opened, Path(folder), checkpoint)
        elif trainer is not None and loader is not None and opened is not None:
            carry_out(trainer, loader, opened[0], name, *arguments)
    return 0


def open_run(folder: Path, manifest: str) -> tuple[Prepared, Network]:
    """The data and the network of the leader's run; ConfigError if they are not the same here."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not there: it has to be on a disk that all hosts share")
    if digest(folder / "data" / files.MANIFEST) != manifest:
        raise ConfigError(f"{folder} holds other data than rank 0 sees: share one disk")
    tune_malloc()
    ready = reopen(read_config(folder), folder)
    device = choose_device(ready.task.config.train.device)
    network = first_weights(ready.task.build_meta(), ready.task.config, folder).to(device)
    return ready, network


def build_trainer(
    world: World, ready: Prepared, network: Network, folder: Path, checkpoint: str
) -> tuple["Trainer", Loader]:
    """The trainer of a follower, at the leader's checkpoint, and the loader of its rows."""
    from saccade.training.saving import restore_or_reset
    from saccade.training.trainer import Trainer

    ranks = distribute(world, ready.task.config, network)
    trainer = Trainer(ready.task, network, folder, ranks)
    if checkpoint:
        restore_or_reset(trainer, Path(checkpoint))
    make = partial(ready.task.epoch, ready.train)
    return trainer, Loader(make, trainer.config.workers, ranks.row_range)


def carry_out(trainer: "Trainer", loader: Loader, ready: Prepared, *command: Any) -> None:
    """Carry out one command of the leader."""
    from saccade.training import saving

    match command:
        case "step", step:
            trainer.follow(step, loader.take(step.epoch, step.batch, step.batches))
        case "restore", path:
            saving.restore_or_reset(trainer, Path(path) if path else None)
        case ("gather",):
            trainer.full_prediction_weights()
        case "save", path:
            saving.write_shards(trainer, Path(path))
        case "evaluate", count, quick:
            evaluate_share(trainer, ready.dev, ready.dev_examples[:count], quick)
        case _:
            raise AssertionError(command)


# --- evaluation -----------------------------------------------------------------------------------


def evaluating(
    trainer: "Trainer", corpus: Corpus, examples: Sequence[Example], quick: bool, stop: Stop
) -> Evaluation:
    """The metrics, computed by all ranks; for the leader."""
    trainer.ranks.command("evaluate", len(examples), quick)
    try:
        with trainer.prediction_network(quick) as network:
            evaluation = trainer.task.evaluating(network, corpus, examples, quick)
            while True:
                if stop.requested or trainer.ranks.stopping:
                    stop.requested = True
                    raise Interrupted
                with sharing(trainer.ranks):
                    share, scores = advance(evaluation)
                if scores is not None:
                    break
                yield share
    except (Interrupted, GeneratorExit):
        trainer.ranks.all_gather(Abandoned)
        raise
    trainer.ranks.all_gather(None)
    return scores


def evaluate_share(
    trainer: "Trainer", corpus: Corpus, examples: Sequence[Example], quick: bool
) -> None:
    """The same for a follower, whose metrics are not used."""
    with trainer.prediction_network(quick) as network:
        evaluation = trainer.task.evaluating(network, corpus, examples, quick)
        try:
            with sharing(trainer.ranks):
                result_of(evaluation)
        except Abandoned:
            return
    trainer.ranks.all_gather(None)
