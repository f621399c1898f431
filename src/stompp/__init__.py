"""stompp: train binary neural networks without straight-through estimators, and run them as packed bits.

Names are imported when first used (PEP 562), so that `stompp.load` works where only numpy and the compiled kernels
are installed, and `import stompp` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

from ._version import __version__

_HOME = {
    "Binarize": "stompp.core.prepare",
    "Freezer": "stompp.core.freezer",
    "GradientFlow": "stompp.core.diagnose",
    "OvSW": "stompp.core.ovsw",
    "SignFlips": "stompp.core.diagnose",
    "UsageError": "stompp.errors",
    "assert_binary": "stompp.core.proof",
    "convert": "stompp.core.prepare",
    "fully_binary": "stompp.core.freeze",
    "load": "stompp.deploy.runtime",
    "models": "stompp.models",
    "pack": "stompp.deploy.pack",
    "paper_policy": "stompp.core.prepare",
    "prepare": "stompp.core.prepare",
    "sites": "stompp.core.freeze",
    "summary": "stompp.core.summary",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'stompp' has no attribute {name!r}")
    module = importlib.import_module(home)
    value = module if home == f"stompp.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
