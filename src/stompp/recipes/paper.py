"""The paper's experiments, setting by setting: SGD with Nesterov momentum, lr 0.1 constant, no weight decay, batch 256.

Each function returns the recipes of one table or figure; a recipe that several of them need has one name.
"""

from __future__ import annotations

from typing import Any

from .methods import METHODS
from .schema import Recipe

RESNETS = ("resnet18", "resnet34", "resnet50")
IMAGENET_EPOCHS = {"resnet18": 97, "resnet34": 131, "resnet50": 98}
LEARNING_RATES = (0.001, 0.01, 0.05, 0.1)
SCHEDULE_NAMES = ("cosine", "linear", "quadratic", "cubic", "flipped_quadratic")
REFRESH_RATES = (10, 100, 1_000, 10_000)
EPOCHS = (50, 100, 200, 350, 500)


def recipe(model: str, data: str, method: str, variant: str = "", **fields: Any) -> Recipe:
    """Return one of the paper's runs; `fields` is what the variant changes."""
    name = "-".join(part for part in (model, data, method, variant) if part)
    base: dict[str, Any] = {"model": model, "data": data}
    if data == "imagenet":
        base |= {"epochs": IMAGENET_EPOCHS.get(model, 100), "crop_pad": 0, "resized_crop": True}
    return Recipe(name=name, **(base | METHODS[method] | fields))


def main() -> list[Recipe]:
    """StoMPP against STE on three data sets and three depths (and the float nets, for reference)."""
    methods = ("float-relu", "bwn-ste", "bwn-stompp", "bnn-ste", "bnn-ste-clip", "bnn-ste-approx", "bnn-stompp")
    return [recipe(m, d, k) for d in ("cifar10", "cifar100", "imagenet") for m in RESNETS for k in methods]


def ordering() -> list[Recipe]:
    """Layerwise, global and reverse order; stochastic and, for weights, deterministic policy."""
    found = []
    for model in ("resnet18", "resnet50"):
        for order in ("layerwise", "global", "reverse"):
            variant = "" if order == "layerwise" else order
            found.append(recipe(model, "cifar100", "bnn-stompp", variant, order=order))
            found.append(recipe(model, "cifar100", "bwn-stompp", variant, order=order))
            named = "-".join(part for part in (variant, "deterministic") if part)
            found.append(recipe(model, "cifar100", "bwn-stompp", named, order=order, policy="deterministic"))
    return found


def hybrids() -> list[Recipe]:
    """StoMPP for the one and STE for the other of weights and activations, layerwise and global."""
    methods = ("bnn-hybrid-aw", "bnn-hybrid-wa", "bnn-hybrid-wa-clip")
    layerwise = [recipe(m, "cifar100", k) for m in RESNETS for k in methods]
    return layerwise + [recipe("resnet18", "cifar100", k, "global", order="global") for k in methods]


def refresh() -> list[Recipe]:
    """Schedule and refresh rate, in global and in layerwise order."""
    found = []
    for order in ("global", "layerwise"):
        for schedule in SCHEDULE_NAMES:
            for rate in REFRESH_RATES:
                parts = [] if order == "layerwise" else [order]
                parts += [] if schedule == "cubic" else [schedule]
                parts += [] if rate == 100 else [f"r{rate}"]
                found.append(
                    recipe(
                        "resnet18",
                        "cifar100",
                        "bnn-stompp",
                        "-".join(parts),
                        order=order,
                        schedule=schedule,
                        refresh=rate,
                    )
                )
    return found


def learning_rates() -> list[Recipe]:
    """Learning rate."""
    methods = ("bnn-ste", "bnn-ste-clip", "bnn-ste-approx", "bnn-stompp")
    return [
        recipe("resnet18", "cifar100", k, "" if lr == 0.1 else f"lr{lr:g}", lr=lr)
        for lr in LEARNING_RATES
        for k in methods
    ]


def epochs() -> list[Recipe]:
    """Length of training. ResNet-50 has too many sites for 50 epochs of StoMPP."""
    methods = ("float-relu", "bnn-ste", "bnn-ste-clip", "bnn-ste-approx", "bnn-stompp")
    return [
        recipe(m, "cifar100", k, "" if e == 200 else f"e{e}", epochs=e)
        for m in ("resnet18", "resnet50")
        for e in EPOCHS
        for k in methods
        if not (m == "resnet50" and e == 50 and k == "bnn-stompp")
    ]


def bireal() -> list[Recipe]:
    """Bi-Real nets, from scratch and from a float net with clipped activations."""
    found = []
    settings: dict[str, Any] = {"lr": 0.06, "epochs": 300}
    for model in ("bireal18", "bireal34"):
        pretraining = recipe(model, "cifar100", "float-clip", **settings)
        found.append(pretraining)
        for method in ("bnn-ste", "bnn-ste-clip", "bnn-ste-approx", "bnn-stompp"):
            found.append(recipe(model, "cifar100", method, **settings))
            found.append(recipe(model, "cifar100", method, "pretrained", init_from=pretraining.name, **settings))
    return found


def ovsw() -> list[Recipe]:
    """OvSW alone, and composed with StoMPP."""
    methods = ("bnn-ste-ovsw", "bnn-ste-clip-ovsw", "bnn-stompp-ovsw")
    return [recipe("resnet18", "cifar10", k) for k in methods]


def scaffold() -> list[Recipe]:
    """StoMPP's progression with STE on the frozen entries."""
    return [recipe(m, "cifar100", k) for m in RESNETS for k in ("bnn-stompp-ste", "bnn-stompp-ste-clip")]


TABLES = (main, ordering, hybrids, refresh, learning_rates, epochs, bireal, ovsw, scaffold)
