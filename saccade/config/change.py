"""Per-request settings: the table `decode` of a run with some keys changed."""

from collections.abc import Mapping
from typing import Any

from saccade.config.decoding import Beam, Decode, Exact, Sample
from saccade.config.legacy import modern_keys
from saccade.config.readers import Strict
from saccade.config.toml import validate
from saccade.errors import ConfigError


class _Table(Strict):
    decode: Decode


class _ExactTable(Strict):
    decode: Exact


def change_decode(decode: Decode, settings: Mapping[str, Any]) -> Decode:
    """The same search with these keys changed.

    With another `kind`, or `sample = True`, keys that both kinds have are kept, and the others have
    the new kind's defaults.
    """
    if not settings:
        return decode
    changes = modern_keys(dict(settings))
    kinds: dict[str, type[Beam | Sample]] = {"beam": Beam, "sample": Sample}
    kind = changes.setdefault("kind", decode.kind)
    model = kinds.get(kind if isinstance(kind, str) else "", type(decode))
    for name, other in kinds.items():
        misplaced = sorted(changes.keys() & other.model_fields.keys() - model.model_fields.keys())
        if misplaced:
            hint = "a setting of sampling; set decode.kind to 'sample', or add --sample to predict"
            if name == "beam":
                hint = "a setting of beam search; leave out --sample or decode.kind = 'sample'"
            if name == "beam" and decode.kind == "sample":  # the run's own
                hint = "a setting of beam search; set decode.kind to 'beam'"
            raise ConfigError(f"settings: decode.{misplaced[0]} is {hint}")
    return validate(_Table, {"decode": _shared(decode, model) | changes}, "settings").decode


def exact_decode(decode: Decode, settings: Mapping[str, Any]) -> Exact:
    """Exact search with the constraints of a run's own search, and these keys changed."""
    changes = modern_keys(dict(settings))
    known = Beam.model_fields.keys() | Sample.model_fields.keys()
    if unsupported := sorted(changes.keys() & known - Exact.model_fields.keys()):
        raise ConfigError(f"decode.{unsupported[0]} is not supported by exact search: leave it out")
    raw = {"decode": _shared(decode, Exact) | changes | {"kind": "exact"}}
    return validate(_ExactTable, raw, "settings").decode


def _shared(decode: Decode, model: type[Beam | Sample | Exact]) -> dict[str, Any]:
    """The settings of a search that another kind has, too."""
    raw = decode.model_dump(mode="json", exclude_none=True)
    return {key: value for key, value in raw.items() if key in model.model_fields}
