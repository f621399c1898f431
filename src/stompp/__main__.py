"""The program `stompp`, also `python -m stompp`: commands that run packed nets start without PyTorch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from stompp.errors import UsageError

BAD_INPUT = 2
NEED_NO_TORCH = ("run", "inspect", "bench")  # bench of a run does
PACKAGES = ("torch", "numpy", "tyro", "rich", "safetensors")


def main(arguments: list[str] | None = None) -> int:
    """Run a command."""
    arguments = sys.argv[1:] if arguments is None else arguments
    return guarded(lambda: _dispatch(arguments))


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in NEED_NO_TORCH:
        from stompp.deploy import commands

        return commands.COMMANDS[arguments[0]](arguments[1:])
    from stompp import cli

    return cli.main(arguments)


def guarded(command: Callable[[], int]) -> int:
    """Run a command; bad input is one clear line on stderr and exit code 2."""
    try:
        return command()
    except UsageError as error:
        print(f"stompp: {error}", file=sys.stderr)
        return BAD_INPUT
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES:
            raise
        print(f"stompp: this command needs {error.name}: pip install {error.name}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains when it flushes
        return 0
    except OSError as error:  # a path that the system refuses: forbidden, too long, on a broken disk
        print(f"stompp: {error.filename or 'input or output'}: {error.strerror or error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("stompp: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
