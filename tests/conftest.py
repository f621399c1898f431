"""What all tests share: helpers beside them can be imported, PyTorch keeps to one thread, a refused command is checked.

Tests run in several processes on few cores, where PyTorch's threads would wait for each other.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; processes that tests start inherit it
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    """Keep PyTorch to one thread, whatever commands that were tested before have set."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail, and return the one line it says."""
    from stompp.cli import main
    from terminal import CONTROL

    def told(*arguments: object) -> str:
        assert main([str(a) for a in arguments]) == 2
        said = capsys.readouterr().err
        assert said.startswith("stompp: ")
        assert said.endswith("\n")
        assert said.count("\n") == 1, said
        assert "Traceback" not in said
        assert not CONTROL.search(said), said
        return said[len("stompp: ") : -1]

    return told
