"""What the tasks on plain text share: one tokenizer, and lines of ids that each end with <eos>."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self

from saccade import config as c
from saccade.data.corpora import Column, Corpus
from saccade.data.fields import Lines
from saccade.data.kinds import Vocabularies
from saccade.data.lines import Example
from saccade.tasks.task import NO_VOCABULARIES, Task
from saccade.text.tokenizers import Counts


class PlainText(Task):
    """A task whose examples are the lines of a text, and nothing else."""

    target_name = "tokenizer"
    higher_is_better = False

    def __init__(self, config: c.Config, lines: Lines):
        super().__init__(config, (), lines)
        assert isinstance(config.task, c.LanguageModel | c.Pretrain)
        self.context = config.task.context

    @property
    def metric(self) -> str:
        return "perplexity"

    @classmethod
    def fit(
        cls,
        config: c.Config,
        examples: Callable[[], Iterable[Example]],
        given: Vocabularies = NO_VOCABULARIES,
    ) -> Self:
        assert isinstance(config.task, c.LanguageModel | c.Pretrain)
        if given.target is not None:
            return cls(config, Lines(given.target))
        if config.task.vocabulary:
            return cls(config, Lines.load(Path(config.task.vocabulary)))
        counts = Counts(config.task.tokenizer)
        for row in examples():
            counts.add(row.source[0])
        return cls(config, Lines.fit(counts))

    @classmethod
    def load(cls, config: c.Config, folder: Path) -> Self:
        return cls(config, Lines.load(folder / cls.files(0)[0]))

    def encode(self, examples: Sequence[Example]) -> Corpus:
        column = self.target.encode([row.source for row in examples])
        assert isinstance(column, Column)
        return Corpus((), column)
