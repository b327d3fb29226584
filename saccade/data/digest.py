"""The SHA-256 of a file, by which manifests and exports are checked."""

import hashlib
from pathlib import Path


def digest(path: Path) -> str:
    """The SHA-256 of a file, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
