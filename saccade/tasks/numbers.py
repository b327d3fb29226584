"""What the tasks with numbers as target share: fields of any kind for the sources."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from saccade import config as c
from saccade.data.corpora import Array
from saccade.data.fields import Text
from saccade.data.kinds import Readable, Vocabularies, cell_of, counting, fitted, load_field
from saccade.data.lines import Example, Target
from saccade.data.media import Cell
from saccade.data.targets import TargetFitting, TargetNumbers, target_cell
from saccade.errors import CheckpointError
from saccade.metrics.numbers import mae, r2, rmse
from saccade.nn.distributions import Distribution
from saccade.tasks.task import NO_VOCABULARIES, Task, count_columns


class NumberTask(Task):
    """Fields for the sources, and numbers for the target."""

    higher_is_better = False
    target: TargetNumbers

    def __init__(self, config: c.Config, sources: tuple[Readable, ...], target: TargetNumbers):
        super().__init__(config, sources, target)
        self.log_scale = torch.from_numpy(target.log_scale).float()

    @classmethod
    @abstractmethod
    def field_types(cls, config: c.Config) -> tuple[type[Text], type[TargetNumbers]]:
        """The fields of a source of text, and of the target."""

    @property
    def metric(self) -> str:
        return "loss"

    @property
    def target_spec(self) -> c.Reals:
        return self.target.reals

    @classmethod
    def fit(
        cls,
        config: c.Config,
        examples: Callable[[], Iterable[Example]],
        given: Vocabularies = NO_VOCABULARIES,
    ) -> Self:
        settings, data = config.task, config.data
        assert isinstance(settings, c.NumberTask)
        text, numbers = cls.field_types(config)
        sources = settings.sources(data.source)
        counts = [
            counting(source.reader, data, given.of_source(i)) for i, source in enumerate(sources)
        ]
        targets = TargetFitting(settings, numbers, data.cache_mb << 20)
        for row in examples():
            count_columns(sources, counts, row, data.root)
            targets.look(_cell(row, row.target, data.root))
        fields = tuple(fitted(some, text, data) for some in counts)
        target = targets.field()
        target.root = data.root
        return cls(config, fields, target)

    @classmethod
    def load(cls, config: c.Config, folder: Path) -> Self:
        settings, data = config.task, config.data
        assert isinstance(settings, c.NumberTask)
        text, numbers = cls.field_types(config)
        sources = settings.sources(data.source)
        *names, last = cls.files(len(sources))
        fields = tuple(
            load_field(source.reader, folder / name, text, data)
            for source, name in zip(sources, names, strict=True)
        )
        target = numbers.load(folder / last)
        if target.reader != settings.target:
            raise CheckpointError(f"{folder / last}: does not fit config.toml: its reader differs")
        target.root = data.root
        return cls(config, fields, target)

    def target_cells(self, rows: Sequence[tuple[Example, Target]]) -> Sequence[Cell]:
        return [_cell(row, target, self.config.data.root) for row, target in rows]

    def log_p(self, nll: Tensor, values: Tensor) -> Tensor:
        """log p of rows of numbers in their own units, where -log p of the scaled ones is `nll`."""
        scale = self.log_scale.to(values.device)
        return -(nll + ((~values.isnan()) * scale).sum(-1))

    def own_units(self, values: Tensor) -> Array:
        """Scaled numbers in their own units."""
        return self.target.restored(values.double().cpu().numpy())


def _cell(row: Example, target: Target | None, root: str) -> Cell:
    place = cell_of([""], row.file, row.where, root)
    return target_cell(str(target), place.folder, place.root, place.where)


class Tally:
    """The log-probability of the gold rows of numbers, and the errors of the means."""

    def __init__(self, task: NumberTask, distribution: Distribution):
        self.task, self.distribution = task, distribution
        self.nll, self.log_p, self.count = 0.0, 0.0, 0
        self.means: list[Array] = []
        self.gold: list[Array] = []

    def add(self, raw: Tensor, values: Tensor) -> None:
        """Add rows: the parameters predicted (N, n), and the gold numbers (N, F)."""
        nll = self.distribution.nll(raw, values)
        self.nll += float(nll.sum())
        self.log_p += float(self.task.log_p(nll, values).sum())
        self.count += int((~values.isnan()).any(-1).sum())
        means, gold = map(self.task.own_units, (self.distribution.mean(raw), values))
        self.means.append(self.task.target.beside(means, gold))
        self.gold.append(gold)

    def metrics(self) -> dict[str, float]:
        means, gold = np.concatenate(self.means), np.concatenate(self.gold)
        return {
            "loss": self.nll / max(self.count, 1),
            "nats": -self.log_p / max(self.count, 1),
            "rmse": rmse(means, gold),
            "mae": mae(means, gold),
            "r2": r2(means, gold),
        }
