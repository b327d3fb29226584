"""Named sizes that expand into plain settings; `base` and `big` are Vaswani et al.'s (2017)."""

from typing import Any

from saccade.errors import ConfigError

TRANSFORMER = {
    "tiny": {"dim": 128, "num_layers": 4, "num_heads": 4, "ff_dim": 256, "dropout": 0.1},
    "small": {"dim": 256, "num_layers": 3, "num_heads": 4, "ff_dim": 1024, "dropout": 0.1},
    "base": {"dim": 512, "num_layers": 6, "num_heads": 8, "ff_dim": 2048, "dropout": 0.1},
    "big": {"dim": 1024, "num_layers": 6, "num_heads": 16, "ff_dim": 4096, "dropout": 0.3},
}
ORIGINAL = {"norm_first": False, "activation": "relu", "positions": "sinusoidal"}  # of base and big
RECURRENT = {
    "tiny": {"dim": 128, "num_layers": 1, "dropout": 0.2},
    "small": {"dim": 256, "num_layers": 2, "dropout": 0.2},
    "base": {"dim": 512, "num_layers": 2, "dropout": 0.3},
    "big": {"dim": 1024, "num_layers": 4, "dropout": 0.3},
}
CONVOLUTION = {
    "tiny": {"dim": 128, "num_layers": 4},
    "small": {"dim": 256, "num_layers": 6},
    "base": {"dim": 512, "num_layers": 10},
    "big": {"dim": 768, "num_layers": 15},
}
SIZES = ("tiny", "small", "base", "big")


def expand(size: str, kind: str) -> dict[str, Any]:
    """The plain settings of a named size, for one kind of encoder or decoder."""
    if size not in SIZES:
        raise ConfigError(f"no size '{size}'; choose one of {', '.join(SIZES)}")
    match kind:
        case "recurrent" | "pyramid":
            return dict(RECURRENT[size])
        case "none":
            return {"dim": TRANSFORMER[size]["dim"]}
        case "convolution":
            return dict(CONVOLUTION[size])
        case "transformer":
            return TRANSFORMER[size] | (ORIGINAL if size in ("base", "big") else {})
        case _:
            return {}
