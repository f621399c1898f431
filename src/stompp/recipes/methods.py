"""The training rules by name: each is a few fields of a recipe."""

from __future__ import annotations

from typing import Any

# A name is `<mode>-<method>`: bnn has binary weights and activations, bwn binary weights and clipped activations.
METHODS: dict[str, dict[str, Any]] = {
    "float-relu": {"weights": "float", "activations": "relu"},
    "float-clip": {"weights": "float", "activations": "clip"},
    "bnn-stompp": {"weights": "stompp", "activations": "stompp"},
    "bnn-ste": {"weights": "ste", "activations": "ste"},
    "bnn-ste-clip": {"weights": "ste", "activations": "ste", "surrogate": "clip"},
    "bnn-ste-approx": {"weights": "ste", "activations": "ste", "surrogate": "approxsign"},
    "bnn-hybrid-aw": {"weights": "ste", "activations": "stompp"},
    "bnn-hybrid-wa": {"weights": "stompp", "activations": "ste"},
    "bnn-hybrid-wa-clip": {"weights": "stompp", "activations": "ste", "surrogate": "clip"},
    "bnn-stompp-ste": {"weights": "stompp", "activations": "stompp", "frozen_grad": "ste"},
    "bnn-stompp-ste-clip": {
        "weights": "stompp",
        "activations": "stompp",
        "frozen_grad": "ste",
        "surrogate": "clip",
    },
    "bnn-ste-ovsw": {"weights": "ste", "activations": "ste", "ovsw": True},
    "bnn-ste-clip-ovsw": {"weights": "ste", "activations": "ste", "surrogate": "clip", "ovsw": True},
    "bnn-stompp-ovsw": {"weights": "stompp", "activations": "stompp", "ovsw": True},
    "bwn-stompp": {"weights": "stompp", "activations": "clip"},
    "bwn-ste": {"weights": "ste", "activations": "clip"},
}
