"""Where the real data sets are, for the tests that read them."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
ROOT = Path(os.environ.get("SACCADE_DATA", BESIDE))

NEEDS_REAL_DATA = [
    pytest.mark.real_data,
    pytest.mark.skipif(not ROOT.is_dir(), reason="no shared/data here; set SACCADE_DATA"),
]
