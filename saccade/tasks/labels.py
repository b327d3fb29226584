"""What `classify` and `tag` share: a text field, a label field, and logits for batches of rows."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from saccade import config as c
from saccade.data.batches import padded
from saccade.data.fields import Labels, Text
from saccade.data.kinds import Readable, Vocabularies, counting, fitted, load_field
from saccade.data.lines import UNSCORED, Example, labels_of
from saccade.errors import DataError
from saccade.nn.padded import Padded
from saccade.tasks.task import (
    NO_VOCABULARIES,
    Query,
    Task,
    count_columns,
    device_of,
    in_batches,
)
from saccade.text.vocab import Vocab


class LabelTask(Task):
    """Fields for the sources and a set of labels for the target."""

    source_name, target_name = "tokenizer", "labels"
    source_field: ClassVar[type[Text]] = Text
    target: Labels

    def __init__(self, config: c.Config, sources: tuple[Readable, ...], target: Labels):
        super().__init__(config, sources, target)
        self.labels: Vocab = target.labels

    @property
    def metric(self) -> str:
        return "accuracy"

    @classmethod
    def fit(
        cls,
        config: c.Config,
        examples: Callable[[], Iterable[Example]],
        given: Vocabularies = NO_VOCABULARIES,
    ) -> Self:
        labels: Counter[str] = Counter()
        sources = config.task.sources(config.data.source)
        counts = [
            counting(source.reader, config.data, given.of_source(i))
            for i, source in enumerate(sources)
        ]
        for row in examples():
            for target in row.references:
                labels.update(labels_of(target))
            count_columns(sources, counts, row, config.data.root)
        del labels[UNSCORED]
        if not labels:
            raise DataError(
                f"{config.data.train[0]}: no label is scored; look at data.mask and data.ignore"
            )
        if len(labels) == 1 and config.task.target_type == "label":
            raise DataError(
                f"{config.data.train[0]}: all examples have the label {next(iter(labels))!r}: "
                "there is nothing to learn; add other labels, or set data.target"
            )
        fields = tuple(fitted(some, cls.source_field, config.data) for some in counts)
        return cls(config, fields, Labels.fit(labels))

    @classmethod
    def load(cls, config: c.Config, folder: Path) -> Self:
        sources = config.task.sources(config.data.source)
        *names, target = cls.files(len(sources))
        fields = tuple(
            load_field(source.reader, folder / name, cls.source_field, config.data)
            for source, name in zip(sources, names, strict=True)
        )
        return cls(config, fields, Labels.load(folder / target))

    def problems(self, queries: Sequence[Query]) -> dict[int, str]:
        return super().problems(queries) | self.too_long(queries)

    def logits(self, network: Any, sources: Sequence[Any], budget: int) -> list[Tensor]:
        """For each example its logits: (labels,), or (words, labels)."""
        cells = self.read(sources)
        columns = [f.encode(some) for f, some in zip(self.sources, cells, strict=True)]

        def work(rows: list[int]) -> list[Tensor]:
            index, device = np.array(rows), device_of(network)
            batch = tuple(padded(column, index).to(device) for column in columns)
            return self._rows(network.logits(batch).cpu(), batch)

        lengths = np.sum([column.lengths for column in columns], 0)
        with torch.inference_mode():
            return in_batches(range(len(sources)), lengths.tolist(), budget, work)

    def _rows(self, logits: Tensor, sources: tuple[Padded, ...]) -> list[Tensor]:
        """The logits of each row of a batch, without padding."""
        return list(logits)


def log_probs_of(logits: Tensor, gold: Sequence[int]) -> list[float]:
    """log p of the gold label in each row."""
    index = torch.tensor(gold, device=logits.device)
    return logits.log_softmax(-1).gather(1, index[:, None]).squeeze(1).tolist()
