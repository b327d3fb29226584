"""What all tests share: shapes are checked, the random numbers are the same, torch is quiet."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from jaxtyping import config, install_import_hook

# The shapes in signatures are checked at every call, in tests only.
install_import_hook(["saccade.nn", "saccade.models", "saccade.decoding"], "beartype.beartype")
CHECKED = {"laws", "nn", "decoding", "lectures", "parity", "inspect"}  # where calls are the matter

import torch  # noqa: E402

settings.register_profile("saccade", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("saccade")

torch.set_num_threads(1)  # for fixtures of modules, too, which are made before those below

DATA = Path(os.environ.get("SACCADE_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the tests run side by side, one core each


@pytest.fixture(autouse=True)
def _checked_shapes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Elsewhere the same calls are made, many times over: there a check is only slow."""
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    again = request.node.get_closest_marker("shapes_checked_elsewhere") is not None
    config.update("jaxtyping_disable", again or folder not in CHECKED)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture
def real_data() -> Path:
    if not DATA.is_dir():
        pytest.skip(f"the real data sets are not in {DATA}; set SACCADE_DATA")
    return DATA
