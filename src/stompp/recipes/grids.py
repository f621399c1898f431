"""The paper's experiments as grids of settings, said once and in the paper's own units.

A `Spec` tells what sets one run apart from the others of its table. The two scales turn it into a recipe: `paper` takes
it literally, `mini` on small images, with small nets and few epochs (see `stompp.recipes.paper` and `.mini`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Scale = Literal["paper", "mini"]

RESNETS = ("resnet18", "resnet34", "resnet50")
BIREALS = ("bireal18", "bireal34")
STES = ("bnn-ste", "bnn-ste-clip", "bnn-ste-approx")  # the paper's, and the stronger ones it has to face as well
ORDERS = ("layerwise", "global", "reverse")
LEARNING_RATES = (0.001, 0.01, 0.05, 0.1)
SCHEDULES = ("cosine", "linear", "quadratic", "cubic", "flipped_quadratic")
REFRESH_RATES = (10, 100, 1_000, 10_000)
EPOCHS = (50, 100, 200, 350, 500)


@dataclass(frozen=True)
class Spec:
    """One setting of the paper, its defaults being those of the paper's ablations."""

    net: str = "resnet18"
    method: str = "bnn-stompp"
    data: str = "cifar100"
    order: str = "layerwise"
    policy: str = "stochastic"
    schedule: str = "cubic"
    refresh: int = 100
    lr: float = 0.1
    epochs: int = 200
    pretrained: bool = False
    wide: bool = False  # only at the small scale: twice the usual width


def main(scale: Scale) -> list[Spec]:
    """StoMPP against STE on three data sets and three depths, and the float nets for reference."""
    methods = ("float-relu", "bwn-ste", "bwn-stompp", *STES, "bnn-stompp")
    if scale == "paper":
        return [Spec(net, method, data) for data in ("cifar10", "cifar100", "imagenet") for net in RESNETS
                for method in methods]  # fmt: skip
    # On narrow nets the identity surrogate fails altogether; at twice the width it need not.
    wide = [Spec(net, method, "cifar10", wide=True) for net in RESNETS for method in methods if "bwn" not in method]
    return [Spec(net, method, "cifar10") for net in RESNETS for method in methods] + wide


def ordering(scale: Scale) -> list[Spec]:
    """Layerwise, global and reverse order; for binary weights alone also the deterministic policy."""
    nets = ("resnet18", "resnet50") if scale == "paper" else RESNETS
    bnn = [Spec(net, "bnn-stompp", order=order) for net in nets for order in ORDERS]
    policies = ("deterministic", "stochastic")
    bwn = [Spec(net, "bwn-stompp", order=order, policy=p) for net in nets for order in ORDERS for p in policies]
    return bnn + bwn


def hybrids(scale: Scale) -> list[Spec]:
    """StoMPP for the one and STE for the other of weights and activations; layerwise, and global on ResNet-18."""
    mixed = ("bnn-hybrid-aw", "bnn-hybrid-wa", "bnn-hybrid-wa-clip")
    layerwise = [Spec(net, method) for net in RESNETS for method in (*STES, "bnn-stompp", *mixed)]
    return layerwise + [Spec("resnet18", method, order="global") for method in mixed]


def refresh_global(scale: Scale) -> list[Spec]:
    """Schedule and refresh rate in global order."""
    return _sweep("global")


def refresh_layerwise(scale: Scale) -> list[Spec]:
    """Schedule and refresh rate in layerwise order."""
    return _sweep("layerwise")


def dynamics(scale: Scale) -> list[Spec]:
    """The runs whose accuracy over time the paper draws: BNNs, BWNs and hybrids; on ResNet-18 in global order too."""
    methods = ("bnn-stompp", *STES, "bnn-hybrid-aw", "bnn-hybrid-wa", "bnn-hybrid-wa-clip", "bwn-stompp", "bwn-ste")
    layerwise = [Spec(net, method) for net in RESNETS for method in methods]
    return layerwise + [Spec(method=m, order="global") for m in methods if "ste" not in m]


def learning_rates(scale: Scale) -> list[Spec]:
    """Learning rate."""
    return [Spec(method=method, lr=lr) for method in (*STES, "bnn-stompp") for lr in LEARNING_RATES]


def epochs(scale: Scale) -> list[Spec]:
    """Length of training. ResNet-50 has too many sites for 50 epochs of StoMPP, says the paper."""
    methods = ("float-relu", *STES, "bnn-stompp")
    grid = [Spec(net, method, epochs=e) for net in ("resnet18", "resnet50") for method in methods for e in EPOCHS]
    return [spec for spec in grid if (spec.net, spec.method, spec.epochs) != ("resnet50", "bnn-stompp", 50)]


def bireal(scale: Scale) -> list[Spec]:
    """Bi-Real nets, from scratch and from a float net with clipped activations."""
    settings = {"lr": 0.06, "epochs": 300}
    found = []
    for net in BIREALS:
        found.append(Spec(net, "float-clip", **settings))  # type: ignore[arg-type]
        for method in (*STES, "bnn-stompp"):
            found += [Spec(net, method, pretrained=p, **settings) for p in (False, True)]  # type: ignore[arg-type]
    return found


def ovsw(scale: Scale) -> list[Spec]:
    """OvSW alone, and composed with StoMPP, beside what each starts from."""
    methods = (*STES, "bnn-ste-ovsw", "bnn-ste-clip-ovsw", "bnn-stompp", "bnn-stompp-ovsw")
    return [Spec(method=method, data="cifar10") for method in methods]


def scaffold(scale: Scale) -> list[Spec]:
    """StoMPP's progression with STE on the frozen entries, against both."""
    methods = (*STES, "bnn-stompp", "bnn-stompp-ste", "bnn-stompp-ste-clip")
    return [Spec(net, method) for net in RESNETS for method in methods]


def _sweep(order: str) -> list[Spec]:
    return [Spec(order=order, schedule=schedule, refresh=rate) for schedule in SCHEDULES for rate in REFRESH_RATES]


GRIDS = {
    "main": main,
    "ordering": ordering,
    "hybrids": hybrids,
    "refresh-global": refresh_global,
    "refresh-layerwise": refresh_layerwise,
    "dynamics": dynamics,
    "lr": learning_rates,
    "epochs": epochs,
    "bireal": bireal,
    "ovsw": ovsw,
    "scaffold": scaffold,
}


def specs(scale: Scale) -> Iterable[Spec]:
    """Return every setting of every grid once."""
    return dict.fromkeys(spec for grid in GRIDS.values() for spec in grid(scale))


def name_of(*parts: str) -> str:
    """Join the parts of a recipe's name, leaving out empty ones.

    >>> name_of("resnet18", "cifar10", "bnn-stompp", "", "r10")
    'resnet18-cifar10-bnn-stompp-r10'
    """
    return "-".join(part for part in parts if part)
