"""What a command waits for before it does anything."""

import subprocess
import sys
from pathlib import Path

from tests.helpers import GOLDEN

# Each takes a tenth of a second or more to import, and no prediction of one line needs any.
HEAVY = ["sacrebleu", "sympy", "torch._dynamo", "torch._inductor", "matplotlib", "pandas", "rich"]
CODE = """
import sys
import torch
before = set(sys.modules)
from saccade import cli
sys.argv = ["saccade", "predict", sys.argv[1], sys.argv[2]]
try:
    cli.main()
except SystemExit as end:
    assert not end.code, end.code
print(*(set(sys.modules) - before), file=sys.stderr)
"""


def test_a_prediction_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("abc\n")
    command = [sys.executable, "-c", CODE, str(GOLDEN / "attention"), str(tmp_path / "one.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1
    imported = done.stderr.split()
    assert "saccade.runs.run" in imported
    assert not [name for name in HEAVY if name in imported]
