"""Published architectures: the equivalent networks of ours, and the names of their weights.

`published(values)` reads a config.json of Hugging Face's; the result has the tables of our
configuration and, for each of our parameters, the tensors that it is made of and how. The same
rules are inverted by `split`, so one map serves import and export.

Some differences are in the numbers alone: heads are side by side here, rotary pairs are
interleaved, T5's scores are not divided by sqrt(K), so its queries are multiplied by it.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from saccade.errors import CheckpointError
from saccade.models.pretrained_decoders import gpt2, llama
from saccade.models.pretrained_encoders import bert, distilbert, roberta
from saccade.models.pretrained_parts import Published, Values
from saccade.models.pretrained_seq2seq import bart, marian, pegasus, t5


def published(found: Mapping[str, Any], where: str, tensors: Container[str] = ()) -> Published:
    """The architecture of a config.json as our configuration; `tensors` are the existing names."""
    kind = str(found.get("model_type"))
    if kind not in ARCHITECTURES:
        named = ", ".join(ARCHITECTURES)
        raise CheckpointError(
            f"{where}: model_type '{kind[:40]}' is not an architecture that can be imported; "
            f"there are {named}"
        )
    return ARCHITECTURES[kind](Values(found, where, tensors), head_of(found))


def head_of(found: Mapping[str, Any]) -> str:
    """The head, by the class in the config: classify, tag, masked, or none."""
    names = found.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    for end, head in (
        ("ForSequenceClassification", "classify"),
        ("ForTokenClassification", "tag"),
        ("ForMaskedLM", "masked"),
        ("ForPreTraining", "masked"),
    ):
        if name.endswith(end):
            return head
    return "none"


ARCHITECTURES: dict[str, Callable[[Values, str], Published]] = {
    "bert": bert,
    "roberta": roberta,
    "distilbert": distilbert,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
    "bart": bart,
    "marian": marian,
    "pegasus": pegasus,
}


def alternatives(name: str, prefix: str) -> Iterator[str]:
    """The possible names of a tensor in a file: without its prefix, or those of older files."""
    for one in dict.fromkeys((name, name.removeprefix(prefix))):
        yield one
        yield one.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        )
    others = {"shared.weight": ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")}
    for mine, theirs in others.items():
        if name.endswith(mine):
            yield from (name.removesuffix(mine) + one for one in theirs)
