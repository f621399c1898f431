"""Makes the helpers beside the tests importable, which `--import-mode=importlib` does not; keeps tests to one thread.

Tests run in several processes on few cores, where PyTorch's threads would wait for each other.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; processes that tests start inherit it
sys.path.insert(0, str(Path(__file__).parent))
