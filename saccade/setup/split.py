"""The split into training and dev examples: two files, or one that is split."""

from collections import deque
from collections.abc import Callable, Iterator

from saccade import config as c
from saccade.data.lines import Example
from saccade.data.sources import examples
from saccade.errors import DataError
from saccade.setup.survey import Survey, by_source, source_hash, survey

IsDev = Callable[[int, Example], bool]  # by the number and the source of an example


class Split:
    """The training and the dev examples of a configuration.

    Without a dev file a share of the training file is split off: by source, so that no source is on
    both sides; by example where a source is no more than a label; of plain text the end. The first
    pass over the training examples also collects the dev examples.
    """

    def __init__(self, config: c.Config, seen: Survey | None = None):
        """`seen` is the survey of the training file, if there is one: it is not read again."""
        self._data, self._kind = config.data, config.task.kind
        self._has_labels = config.task.target_type in ("label", "labels")
        self._label_columns = [  # of the sources
            source.columns[0]
            for source in config.task.sources(config.data.source)
            if isinstance(source.reader, c.Label)
        ]
        self._dev: list[Example] | None = None
        self._is_dev: IsDev = _never
        if self._data.dev:
            self._dev = list(examples(self._data.dev, self._data, self._kind))
        elif config.task.target_type == "none":
            self._is_dev = _by_position(config, seen or survey(self._rows()))
        else:
            key = by_source
            if not self._has_labels and config.task.only_labels(self._data.source):
                key, seen = _by_example, None
            if seen is None or seen.seed != config.seed:
                seen = survey(self._rows(), config.seed, key=key)
            if seen.hashed < seen.count and not _splits(_usual_share(config, seen), seen):
                seen = survey(self._rows(), config.seed, seen.count, key)
            self._is_dev = _by_hash(config, seen, key)

    def train(self) -> Iterator[Example]:
        """The training examples, to be read as often as wanted."""
        first = self._dev is None
        dev: list[Example] = []
        labels: set[str] = set()
        of_column: dict[int, set[str]] = {i: set() for i in self._label_columns}
        for number, row in enumerate(self._rows()):
            if self._is_dev(number, row):
                if first:
                    dev.append(row)
                continue
            if first and self._has_labels:
                labels.update(row.labels)
            for i, values in of_column.items():
                values.add(row.source[i])
            yield row
        if first:  # no error for a label that only dev has: the split is not the user's
            dev = [row for row in dev if all(row.source[i] in of_column[i] for i in of_column)]
            known = (row for row in dev if labels.issuperset(row.labels))
            self._dev = list(known) if self._has_labels else dev

    @property
    def dev(self) -> list[Example]:
        """The dev examples; without a dev file they are read if `train` was not read to its end."""
        if self._dev is None:
            deque(self.train(), maxlen=0)
        assert self._dev is not None
        return self._dev

    def _rows(self) -> Iterator[Example]:
        return examples(self._data.train, self._data, self._kind)


def _never(number: int, row: Example) -> bool:
    return False


def _by_example(row: Example) -> tuple[str, ...]:
    return (*row.source, str(row.target))


def _by_hash(config: c.Config, seen: Survey, key: Callable[[Example], tuple[str, ...]]) -> IsDev:
    """About a share of the sources, doubled until dev is not empty."""
    _refuse_single(config, seen)
    share = _usual_share(config, seen)
    while not _below(seen.lowest_hash, share):
        share *= 2
    if not _splits(share, seen):
        first = config.data.train[0]
        raise DataError(f"{first}: too few different sources to cut a dev set; give one")
    return lambda _, row: is_dev(key(row), share, config.seed)


def _usual_share(config: c.Config, seen: Survey) -> float:
    return min(config.data.dev_share, config.data.dev_max / seen.count)


def _splits(share: float, seen: Survey) -> bool:
    """Whether the known hashes leave examples on both sides."""
    return _below(seen.lowest_hash, share) and not _below(seen.highest_hash, share)


def _by_position(config: c.Config, seen: Survey) -> IsDev:
    """The last lines of plain text, at least one of them not blank."""
    data, total = config.data, seen.count
    _refuse_single(config, seen)
    cut = max(round(total * (1 - data.dev_share)), total - data.dev_max)
    cut = min(cut, seen.last_full)
    if cut < 1:
        raise DataError(f"{data.train[0]}: too few lines to cut a dev set; give a dev file")
    return lambda number, _: number >= cut


def _refuse_single(config: c.Config, seen: Survey) -> None:
    if seen.count < 2:
        what = "line" if config.task.target_type == "none" else "example"
        raise DataError(
            f"{config.data.train[0]}: one {what} is too few to learn from and to measure on: "
            f"give a dev file, or more {what}s"
        )


def is_dev(source: tuple[str, ...], share: float, seed: int) -> bool:
    """Whether a source belongs to the dev set: by a stable hash, so never to both sets."""
    return _below(source_hash(source, seed), share)


def _below(number: int, share: float) -> bool:
    return number < share * 2**64
