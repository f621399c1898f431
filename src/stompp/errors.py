"""What the user can fix."""


class UsageError(ValueError):
    """What was wrong, where, and what to write instead; the command line prints it alone and exits with code 2."""


class Diverged(UsageError):
    """Training broke down: the loss or a weight is not finite any more."""
