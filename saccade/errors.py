"""What a user can cause, and only that.

Each message says what was wrong, where, and what to do; the command line prints it and exits
with 2.
"""


class SaccadeError(Exception):
    """A mistake that the user can fix; its text is all the user sees."""


class ConfigError(SaccadeError):
    """A choice that does not exist, is of the wrong type, or contradicts another."""


class DataError(SaccadeError):
    """A file that is missing, empty, undecodable or misshapen."""

    defect: object = None  # what a reader found, where it was one thing


class CheckpointError(SaccadeError):
    """A run directory that is incomplete, damaged, or of another version."""


class TrainingError(SaccadeError):
    """Training cannot continue: the disk is full, memory ran out, or the loss is not finite."""
