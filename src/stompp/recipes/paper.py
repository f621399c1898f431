"""The paper's runs, setting by setting: SGD with Nesterov momentum, lr 0.1 constant, no weight decay, batch 256."""

from __future__ import annotations

from typing import Any

from .grids import Spec, name_of, specs
from .methods import METHODS
from .schema import Recipe

IMAGENET_EPOCHS = {"resnet18": 97, "resnet34": 131, "resnet50": 98}


def recipe(spec: Spec) -> Recipe:
    """Return the run that a setting means at the paper's scale.

    >>> recipe(Spec("resnet50", order="global", refresh=10)).name
    'resnet50-cifar100-bnn-stompp-global-r10'
    """
    fields: dict[str, Any] = {
        "name": name_of(spec.net, spec.data, spec.method, *_variant(spec)),
        "model": spec.net,
        "data": spec.data,
        "order": spec.order,
        "policy": spec.policy,
        "schedule": spec.schedule,
        "refresh": spec.refresh,
        "lr": spec.lr,
        "epochs": spec.epochs,
    }
    if spec.data == "imagenet":
        fields |= {"epochs": IMAGENET_EPOCHS[spec.net], "crop_pad": 0, "resized_crop": True}
    if spec.pretrained:
        fields["init_from"] = name_of(spec.net, spec.data, "float-clip")
    return Recipe(**fields, **METHODS[spec.method])


def _variant(spec: Spec) -> list[str]:
    """Name what is not as in the paper's main results (for Bi-Real nets: not as in their table)."""
    usual = Spec(lr=0.06, epochs=300) if spec.net.startswith("bireal") else Spec()
    return [
        "" if spec.order == usual.order else spec.order,
        "" if spec.policy == usual.policy else spec.policy,
        "" if spec.schedule == usual.schedule else spec.schedule,
        "" if spec.refresh == usual.refresh else f"r{spec.refresh}",
        "" if spec.lr == usual.lr else f"lr{spec.lr:g}",
        "" if spec.epochs == usual.epochs else f"e{spec.epochs}",
        "pretrained" if spec.pretrained else "",
    ]


def recipes() -> list[Recipe]:
    """Return every run of the paper."""
    return [recipe(spec) for spec in specs("paper")]
