"""The published figures of the named sizes: parameters, data, compute.

The figures are the papers'; `difference` says why ours differ by more than 1 %.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Publication:
    """The figures of a paper."""

    source: str
    parameters: float
    context: int  # positions of a sequence
    tokens: float | None = None  # seen in training, of all epochs
    batch: float | None = None  # tokens of a step
    data: str = ""
    compute: float | None = None  # FLOPs of training
    hardware: str = ""
    difference: str = ""  # why our count of the parameters is another


GPT2 = "Radford et al. 2019 (Language Models are Unsupervised Multitask Learners)"
GPT3 = "Brown et al. 2020, arxiv.org/abs/2005.14165"
MEGATRON = "Shoeybi et al. 2019, arxiv.org/abs/1909.08053"
BERT = "Devlin et al. 2019, arxiv.org/abs/1810.04805"
ROBERTA = "Liu et al. 2019, arxiv.org/abs/1907.11692"
T5 = "Raffel et al. 2020, arxiv.org/abs/1910.10683"
VASWANI = "Vaswani et al. 2017, arxiv.org/abs/1706.03762"
COMMON = "499 G tokens, of which 300 G are seen"
CORRECTED = "the figure is the corrected one of the released code; the paper prints {}"


def _gpt2(parameters: float, printed: str) -> Publication:
    return Publication(
        GPT2, parameters, 1024, data="WebText, 40 GB", difference=CORRECTED.format(printed)
    )


def _gpt3(parameters: float, batch: float, compute: float, difference: str = "") -> Publication:
    return Publication(GPT3, parameters, 2048, 300e9, batch, COMMON, compute, "V100", difference)


def _megatron(parameters: float, hardware: str, difference: str = "") -> Publication:
    batch = 512 * 1024
    seen = 1024, 3e5 * batch, batch, "174 GB"
    return Publication(MEGATRON, parameters, *seen, None, hardware, difference)


def _t5(parameters: float, difference: str = "") -> Publication:
    batch = 2048 * 512
    return Publication(T5, parameters, 512, 1e6 * batch, batch, "C4, 750 GB", None, "", difference)


ROUNDED = "the paper rounds"
PUBLICATIONS: dict[str, Publication] = {
    "transformer-base": Publication(
        *(VASWANI, 65e6, 32, 1e5 * 5e4, 5e4, "WMT 2014 English-German, 4.5 M pairs", 3.3e18),
        hardware="8 P100, 12 hours",
        difference="37,000 x 512 of the one table, 18.9 M of the encoder and 25.2 M of the "
        "decoder are 63.1 M; the paper gives no parts of its 65 M",
    ),
    "transformer-big": Publication(
        *(VASWANI, 213e6, 32, 3e5 * 5e4, 5e4, "WMT 2014 English-German, 4.5 M pairs", 2.3e19),
        hardware="8 P100, 3.5 days",
    ),
    "gpt2": _gpt2(124e6, "117 M"),
    "gpt2-medium": _gpt2(355e6, "345 M"),
    "gpt2-large": _gpt2(774e6, "762 M"),
    "gpt2-xl": _gpt2(1558e6, "1542 M"),
    "gpt3-small": _gpt3(125e6, 0.5e6, 2.25e20),
    "gpt3-medium": _gpt3(350e6, 0.5e6, 6.41e20, f"{ROUNDED}: the sizes that it lists are 356 M"),
    "gpt3-large": _gpt3(760e6, 0.5e6, 1.37e21),
    "gpt3-xl": _gpt3(
        *(1.3e9, 1e6, 2.38e21),
        "it prints 24 heads of 128, which are wider than the model (2048); 16 are counted, and "
        "give its 1.3 G",
    ),
    "gpt3-2.7b": _gpt3(2.7e9, 1e6, 4.77e21, f"{ROUNDED}: the sizes that it lists are 2.65 G"),
    "gpt3-6.7b": _gpt3(6.7e9, 2e6, 1.20e22),
    "gpt3-13b": _gpt3(
        *(13e9, 2e6, 2.31e22),
        "it prints a width of 5140, which 40 heads of 128 are not; 5120 is counted",
    ),
    "gpt3-175b": _gpt3(175e9, 3.2e6, 3.14e23),
    "megatron-1.2b": _megatron(1.2e9, "64 V100", f"{ROUNDED}: the sizes that it lists are 1.21 G"),
    "megatron-2.5b": _megatron(2.5e9, "128 V100"),
    "megatron-4.2b": _megatron(4.2e9, "256 V100, 10 days"),
    "megatron-8.3b": _megatron(8.3e9, "512 V100, 9 days"),
    "bert-base": Publication(
        *(BERT, 110e6, 512, 1e6 * 131072, 131072, "13 GB, 3.3 G words"), hardware="16 TPU chips"
    ),
    "bert-large": Publication(
        *(BERT, 340e6, 512, 1e6 * 131072, 131072, "13 GB, 3.3 G words"),
        hardware="64 TPU chips",
        difference=f"{ROUNDED}: its sizes are 335.2 M with the masked head; the pooler and the "
        "head for pairs have 1.1 M more",
    ),
    "roberta-base": Publication(ROBERTA, 125e6, 512, 5e5 * 8192 * 512, 8192 * 512, "160 GB"),
    "roberta-large": Publication(
        *(ROBERTA, 355e6, 512, 5e5 * 8192 * 512, 8192 * 512, "160 GB"),
        hardware="1024 V100, 1 day",
    ),
    "t5-small": _t5(60e6),
    "t5-base": _t5(220e6, f"{ROUNDED}: the released weights are 222.9 M"),
    "t5-large": _t5(
        770e6,
        "it counts the table of the output apart (32,128 x 1024); with one table, as in the "
        "released weights, it is 737.7 M",
    ),
    "t5-3b": _t5(2.8e9, f"{ROUNDED}: the released weights are 2.85 G"),
    "t5-11b": _t5(11e9, f"{ROUNDED}: the released weights are 11.3 G"),
    "bart-large": Publication(
        *("Lewis et al. 2020, arxiv.org/abs/1910.13461", 400e6, 1024),
        *(5e5 * 8000 * 512, 8000 * 512, "160 GB"),
        difference=f"{ROUNDED}: the released weights are 406.3 M",
    ),
    "xlnet-large": Publication(
        *("Yang et al. 2019, arxiv.org/abs/1906.08237", 340e6, 512),
        *(5e5 * 8192 * 512, 8192 * 512, "126 GB"),
        hardware="512 TPU v3, 2.5 days",
        difference="the figure is BERT's, of the same size; positions are T5's here, while "
        "XLNet's own have a matrix more in each layer (25 M, 361 M in all)",
    ),
    "elmo": Publication(
        *("Peters et al. 2018, arxiv.org/abs/1802.05365", 93.6e6, 20),
        *(10 * 0.8e9, 128 * 20 * 3, "1 Billion Word Benchmark, 0.8 G words, 10 epochs"),
        hardware="3 GTX 1080 Ti, 2 weeks",
        difference="it reads characters by a CNN (18.0 M) and has 4096 cells behind projections to "
        "512 (75.6 M), and leaves its output out; here a word has a vector in tables of 793,471, "
        "below and above, and the cells are the 512 themselves (10.5 M)",
    ),
}
ALIASES = {
    "bert": "bert-base",
    "roberta": "roberta-large",
    "bart": "bart-large",
    "xlnet": "xlnet-large",
    "t5": "t5-base",
    "gpt3": "gpt3-175b",
    "megatron": "megatron-8.3b",
    "transformer": "transformer-base",
}
