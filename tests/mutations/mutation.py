"""What a mutation is."""

from typing import NamedTuple


class Mutation(NamedTuple):
    """A change of a file, whose `old` text occurs there once, and the tests to be run.

    The tests are files, or tests of a file (`file::test`), those first that fail soon. What changes
    nothing that a user could see is `equivalent`, with the reason, and not tried.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str | None = None
