"""Sample lines cut by the tokenizers, and tokens of dev that are not in train."""

from collections import Counter
from collections.abc import Collection, Sequence

from saccade import config as c
from saccade.check.characters import visible
from saccade.check.findings import Group
from saccade.check.scan import Block
from saccade.data.lines import Example, counted, place
from saccade.text.tokenizers import Tokenizer, alphabet
from saccade.text.vocab import SPECIALS

SHOWN_ROWS = 5
SAMPLE_ROWS = 20_000  # for training the tokenizers, evenly spaced in the file
SAMPLE_CHARACTERS = 4_000_000  # limit of the sample where rows are long
MANY_UNSEEN_WORDS = 0.20  # threshold for a warning, as a share of the words of dev
MANY_UNSEEN_CHARACTERS = 0.03
MIN_DEV_UNITS = 100  # words or characters of dev, before their share is judged


def reader_of(column: int, texts: Sequence[c.Source]) -> int:
    """The index of the tokenizer that reads a column of text."""
    return next((i for i, text in enumerate(texts) if column in text.columns), 0)


class UnseenTokens:
    """Words (or characters) of dev that occur fewer than `min_count` times in train."""

    def __init__(self, settings: c.Reader):
        assert isinstance(settings, c.Tokenizer)
        self.settings = settings
        self.dev: Counter[str] = Counter()
        self.first: dict[str, tuple[str, str]] = {}  # where it occurs first, and the text
        self.missing: dict[str, int] = {}  # how many occurrences in train are still lacking

    def add_dev(self, where: str, text: str) -> None:
        """Count the units of a text of dev."""
        units = alphabet(self.settings, text)
        self.dev.update(units)
        for unit in set(units) - self.first.keys():
            self.first[unit] = where, text
            self.missing[unit] = self.settings.min_count

    def add_train(self, texts: Sequence[str]) -> None:
        """Count the units of texts of train."""
        if not self.missing:
            return
        units = alphabet(self.settings, "\n".join(texts))
        occurrences = set(units) if self.settings.min_count == 1 else units
        for unit, count in Counter(filter(self.missing.__contains__, occurrences)).items():
            self.missing[unit] -= count
            if self.missing[unit] <= 0:
                del self.missing[unit]

    def group(self) -> tuple[Group, bool]:
        """The unseen units, most frequent first, each at its first place; and whether they are too
        many."""
        words = self.settings.kind == "word"
        ignored = {unit for unit in self.dev if unit.isspace() or unit in SPECIALS}
        total = sum(n for unit, n in self.dev.items() if unit not in ignored)
        unseen = {unit: self.dev[unit] for unit in self.missing if unit not in ignored}
        share = sum(unseen.values()) / max(total, 1)
        thing, group = "words" if words else "characters", Group()
        least = self.settings.min_count
        seldom = "never" if least == 1 else f"fewer than {least} times"
        for unit, n in sorted(unseen.items(), key=lambda pair: (-pair[1], pair[0])):
            where, text = self.first[unit]
            message = f"{share:.2%} of dev's {thing} are {seldom} in train, as {unit!r} ({n:,})"
            group.add(where, message, visible(text, max(text.find(unit), 0)))
        many = share > (MANY_UNSEEN_WORDS if words else MANY_UNSEEN_CHARACTERS)
        return group, many and total >= MIN_DEV_UNITS


class TokenizerSample:
    """A sample of the training texts, cut by tokenizers that are trained on it."""

    def __init__(
        self,
        task: c.Task,
        texts: Sequence[c.Source],
        skipped: Collection[int],
        rows: int,
        characters: int,
    ):
        """`skipped` are the source columns that hold no text."""
        self.task, self.texts, self.skipped, self.rows = task, texts, skipped, rows
        self.stride = max(1, -(-rows // SAMPLE_ROWS), -(-characters // SAMPLE_CHARACTERS))
        self.shown: list[Example] = []  # spread over the file
        self.sample: list[list[str]] = [[] for _ in texts]

    def add(self, block: Block) -> None:
        """Take every `stride`-th row into the sample."""
        for i, texts in enumerate(block.columns):
            sample = self.sample[reader_of(i, self.texts)]
            sample += texts[-block.start % self.stride :: self.stride]
        stop = block.start + len(block.rows)
        shown = range(self.rows // (2 * SHOWN_ROWS), self.rows, -(-self.rows // SHOWN_ROWS))
        self.shown += [block.rows[i - block.start] for i in shown if block.start <= i < stop]

    def group(self) -> Group:
        """A place for each tokenizer, and one for each shown example, as tokens."""
        tokenizers = [
            Tokenizer.train(text.reader, lines)
            for text, lines in zip(self.texts, self.sample, strict=True)
            if isinstance(text.reader, c.Tokenizer)
        ]
        group = Group()
        rows = -(-self.rows // self.stride)
        of = f"{rows:,} of {self.rows:,}" if self.stride > 1 else f"{self.rows:,}"
        read = [text.columns for text in self.texts if isinstance(text.reader, c.Tokenizer)]
        names = [self._name(number, read) for number in range(len(read))]
        for name, tokenizer in zip(names, tokenizers, strict=True):
            what = f"{tokenizer.config.kind}, {counted(len(tokenizer), 'piece')}"
            group.add(place(self.shown[0].file), f"{name}: {what} from {of} rows")
        for row in self.shown:
            texts: list[tuple[str, ...]] = [(text,) for text in row.source]
            if self.task.target_type == "labels":
                texts = [row.source]
            if self.task.target_type == "text":
                texts.append((str(row.target),))
            cut = []
            for i, words in enumerate(texts):
                if i in self.skipped:
                    continue
                tokenizer = tokenizers[reader_of(i, self.texts)]
                [(ids, _)] = tokenizer.encode_words([words])
                unknown = ids.count(tokenizer.specials.unk)
                pieces = " ".join(piece.replace(" ", "␣") for piece in tokenizer.tokens(ids))
                cut.append((len(ids), unknown, pieces))
            count = " + ".join(str(size) for size, _, _ in cut)
            unknown = sum(unknown for _, unknown, _ in cut)
            message = f"{count} piece{'' if count == '1' else 's'}" + (
                f", {unknown} unknown" if unknown else ""
            )
            group.add(row.where, message, visible(" → ".join(p for _, _, p in cut), width=200))
        return group

    def _name(self, number: int, read: Sequence[Sequence[int]]) -> str:
        """The name of a tokenizer, by the columns that each of them reads."""
        nth = f" {number + 1}" if number else ""
        if self.task.target_type != "text" or len(read) == 1:
            return f"text{nth}"
        target = max(map(max, filter(None, read)))
        if target not in read[number]:
            return f"source{nth}"
        return "target" if len(read[number]) == 1 else "source and target"
