"""Which task class a configuration's task settings belong to."""

from pathlib import Path
from typing import assert_never

from saccade import config as c
from saccade.tasks.classify import Classify
from saccade.tasks.forecast import Forecast
from saccade.tasks.language import LanguageModel
from saccade.tasks.pretrain import Fill, Restore
from saccade.tasks.regress import Regress
from saccade.tasks.series import Series
from saccade.tasks.tag import Tag
from saccade.tasks.task import Task
from saccade.tasks.translate import Translate
from saccade.tasks.vectors import WordVectors


def task_class(config: c.Config) -> type[Task]:
    match config.task:
        case c.LanguageModel():
            return LanguageModel
        case c.Pretrain():
            return _pretraining(config.task.objective)
        case c.Classify():
            return Classify
        case c.Tag():
            return Tag
        case c.Translate():
            return Translate
        case c.Regress():
            return Regress
        case c.Series():
            return Series
        case c.Forecast():
            return Forecast
        case _:
            assert_never(config.task)


def _pretraining(objective: c.Objective) -> type[Task]:
    match objective:
        case c.Causal():
            return LanguageModel
        case c.Masked() | c.Bidirectional() | c.Unilm() | c.Permuted():
            return Fill
        case c.Spans() | c.Denoising():
            return Restore
        case c.SkipGram() | c.Cbow():
            return WordVectors
        case _:
            assert_never(objective)


def load_task(config: c.Config, folder: Path) -> Task:
    """The task of a run, with its vocabularies."""
    return task_class(config).load(config, folder)
