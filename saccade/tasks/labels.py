"""What `classify` and `tag` share: a set of labels, and a loss over rows of logits."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from saccade import config as c
from saccade.data.batches import Corpus, Epoch, epoch_of
from saccade.models.build import Network, build_meta
from saccade.nn.loss import Loss
from saccade.tasks.task import Pair, Task
from saccade.text.tokenizers import Tokenizer
from saccade.text.vocab import Vocab


class LabelTask(Task):
    """A tokenizer for the input and a set of labels for the output."""

    def __init__(self, config: c.Config, tokenizer: Tokenizer, labels: Vocab):
        super().__init__(config)
        self.tokenizer = tokenizer
        self.labels = labels

    @property
    def metric(self) -> str:
        return "accuracy"

    @classmethod
    def fit(cls, config: c.Config, pairs: Callable[[], Iterable[Pair]]) -> Self:
        assert isinstance(config.task, c.Classify | c.Tag)
        counts: Counter[str] = Counter()

        def texts() -> Iterable[str]:
            for source, target in pairs():
                counts.update([target] if isinstance(target, str) else target or ())
                yield from source

        tokenizer = Tokenizer.train(config.task.tokenizer, texts())
        return cls(config, tokenizer, Vocab(counts))

    @classmethod
    def load(cls, config: c.Config, folder: Path) -> Self:
        return cls(
            config, Tokenizer.load(folder / "tokenizer.json"), Vocab.load(folder / "labels.json")
        )

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder / "tokenizer.json")
        self.labels.save(folder / "labels.json")

    def build_meta(self) -> Network:
        return build_meta(self.config, len(self.tokenizer), len(self.labels))

    def epoch(self, corpus: Corpus, number: int) -> Epoch:
        return epoch_of(corpus, self.config.train.batch_tokens, self.config.seed, number)


def label_loss(logits: Float[Tensor, "N labels"], gold: Int[Tensor, "N"], smoothing: float) -> Loss:
    """The summed cross-entropy of rows of logits."""
    total = F.cross_entropy(logits, gold, reduction="sum", label_smoothing=smoothing)
    nll = total if smoothing == 0.0 else F.cross_entropy(logits, gold, reduction="sum")
    return Loss(total, nll.detach(), gold.numel())


def log_probs_of(logits: Tensor, gold: Sequence[Any]) -> list[float]:
    """log p of the gold label in each row."""
    index = torch.tensor(gold, device=logits.device)
    return logits.log_softmax(-1).gather(1, index[:, None]).squeeze(1).tolist()
