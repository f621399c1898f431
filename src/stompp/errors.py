"""The one exception that means "the user can fix this"."""


class UsageError(ValueError):
    """What was wrong, where, and what to write instead; the command line prints it alone and exits with code 2."""
