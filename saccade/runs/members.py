"""The members of an ensemble: runs of one configuration with other seeds, inside the first run.

RUN itself is the first; RUN/members/2, RUN/members/3, ... hold the same data and vocabularies, and
are resumed like any run. Of each only the weights are needed to predict.
"""

import os
import shlex
import shutil
from pathlib import Path

from saccade import config as c
from saccade.errors import CheckpointError
from saccade.runs import guard
from saccade.runs.folder import LANGUAGE_MODEL, PERMITTED, write_config

FOLDER = "members"
SHARED_FILES = ("*.json", "start.safetensors", PERMITTED)  # beside the data


def member_folders(folder: Path, config: c.Config) -> list[Path]:
    """Where the other members of a run are, or will be."""
    return [folder / FOLDER / str(number) for number in range(2, config.train.seeds + 1)]


def without_members(config: c.Config) -> c.Config:
    """The configuration of a run that has no other members."""
    return config.model_copy(update={"train": config.train.model_copy(update={"seeds": 1})})


def make_member(folder: Path, member: Path, config: c.Config, number: int) -> None:
    """A run with the data of another, the next seeds, and no weights yet."""
    aside = member.with_name(f"{member.name}.aside")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for path in (p for pattern in SHARED_FILES for p in folder.glob(pattern)):
        _link(path, aside / path.name)
    for name in ("data", LANGUAGE_MODEL):
        if (folder / name).is_dir():
            shutil.copytree(folder / name, aside / name, copy_function=_link)
    seed = (config.seed + number - 1) % 2**63
    write_config(aside, without_members(config).model_copy(update={"seed": seed}), prepared=True)
    aside.rename(member)


def _link(source: str | Path, target: str | Path) -> None:
    """A hard link, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def member_weights(folder: Path, config: c.Config) -> list[Path]:
    """The weights of the other members; CheckpointError if one is not trained yet."""
    found = []
    for number, member in enumerate(member_folders(folder, config), 2):
        if not (member / "model.safetensors").exists():
            raise CheckpointError(
                f"{folder}: {number - 1} of its {config.train.seeds} seeds are trained: go on "
                f"with: saccade resume {shlex.quote(str(folder))}"
            )
        guard.vet(member)
        found.append(member / "model.safetensors")
    return found
