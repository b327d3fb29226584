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
from saccade.data.lines import Example, labels_of
from saccade.nn.padded import Padded
from saccade.tasks.task import Task, device_of, in_batches
from saccade.text.vocab import Vocab


class LabelTask(Task):
    """A text field for the source and a set of labels for the target."""

    files = ("tokenizer.json", "labels.json")
    source_field: ClassVar[type[Text]] = Text

    def __init__(self, config: c.Config, source: Text, target: Labels):
        super().__init__(config, (source,), target)
        self.source = source
        self.labels: Vocab = target.labels

    @property
    def metric(self) -> str:
        return "accuracy"

    @classmethod
    def fit(cls, config: c.Config, examples: Callable[[], Iterable[Example]]) -> Self:
        assert isinstance(config.task, c.Classify | c.Tag)
        counts: Counter[str] = Counter()

        def texts() -> Iterable[str]:
            for row in examples():
                for target in row.references:
                    counts.update(labels_of(target))
                yield from row.source

        source = cls.source_field.fit(config.task.tokenizer, texts())
        return cls(config, source, Labels.fit(counts))

    @classmethod
    def load(cls, config: c.Config, folder: Path) -> Self:
        source, target = (folder / name for name in cls.files)
        return cls(config, cls.source_field.load(source), Labels.load(target))

    def _logits(self, network: Any, sources: Sequence[Any], budget: int) -> list[Tensor]:
        """For each source its logits: (labels,), or (words, labels)."""
        column = self.source.encode(sources)

        def work(rows: list[int]) -> list[Tensor]:
            source = padded(column, np.array(rows)).to(device_of(network))
            return self._rows(network.logits((source,)).cpu(), source)

        with torch.inference_mode():
            return in_batches(range(len(column)), column.lengths.tolist(), budget, work)

    def _rows(self, logits: Tensor, source: Padded) -> list[Tensor]:
        """The logits of each row of a batch, without padding."""
        return list(logits)


def log_probs_of(logits: Tensor, gold: Sequence[int]) -> list[float]:
    """log p of the gold label in each row."""
    index = torch.tensor(gold, device=logits.device)
    return logits.log_softmax(-1).gather(1, index[:, None]).squeeze(1).tolist()
