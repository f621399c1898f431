"""The paper's runs at a scale for a CPU: CIFAR-10 averaged to 16×16, CIFAR ResNets of width 16, 12 epochs, batch 128.

ResNet-18, -34 and -50 become CIFAR ResNets of depth 8, 20 and 32; Bi-Real nets keep their depth and get width 16. An
epoch here stands for 200/12 of the paper's. What else the scale decides is the refresh rate, see `refresh`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .grids import Spec, name_of, specs
from .methods import METHODS
from .schema import Recipe

STEPS_PER_EPOCH, PAPER_STEPS_PER_EPOCH = 390, 195  # 50,000 images in batches of 128 and 256, the last one dropped


@dataclass(frozen=True)
class Net:
    """A small net, and the sites of it and of the paper's net that it stands for: of activations, of weights."""

    model: str
    sites: tuple[int, int]
    paper_sites: tuple[int, int]
    width: int | None = None


NETS = {
    "resnet18": Net("cifar_resnet8", (7, 6), (17, 16)),
    "resnet34": Net("cifar_resnet20", (19, 18), (33, 32)),
    "resnet50": Net("cifar_resnet32", (31, 30), (49, 48)),
    "bireal18": Net("bireal18", (16, 16), (16, 16), width=16),
    "bireal34": Net("bireal34", (32, 32), (32, 32), width=16),
}


def epochs(of_paper: int) -> int:
    """Return how many epochs stand for so many of the paper's.

    >>> [epochs(e) for e in (50, 100, 200, 300, 350, 500)]
    [3, 6, 12, 18, 21, 30]
    """
    return round(of_paper * 12 / 200)


def refresh(spec: Spec) -> int:
    """Return the rate that redraws a mask as often over its site's window as the paper's rate does there.

    A small run has fewer steps than the paper's and another number of sites, so its windows are shorter; the same rate
    would hardly refresh a mask before it is frozen. Which sites there are depends on the method: with binary weights
    alone they are fewer, and each has a longer window.

    >>> [refresh(Spec(net)) for net in ("resnet18", "resnet34", "resnet50")], refresh(Spec("resnet34", order="global"))
    ([30, 21, 19], 12)
    """
    net, method = NETS[spec.net], METHODS[spec.method]
    chosen = [i for i, kind in enumerate(("activations", "weights")) if method[kind] == "stompp"]
    count, paper_count = sum(net.sites[i] for i in chosen), sum(net.paper_sites[i] for i in chosen)
    if spec.order == "global" or not chosen:
        count = paper_count = 1
    window = epochs(spec.epochs) * STEPS_PER_EPOCH / count
    paper_window = spec.epochs * PAPER_STEPS_PER_EPOCH / paper_count
    return max(1, round(spec.refresh * window / paper_window))


def recipe(spec: Spec) -> Recipe:
    """Return the run that a setting means at the small scale; its name tells the values it really has.

    >>> recipe(Spec("resnet18", epochs=350, refresh=1000)).name
    'resnet8-cifar10-16-bnn-stompp-r305-e21'
    """
    net = NETS[spec.net]
    width = 32 if spec.wide else net.width
    shown = net.model.removeprefix("cifar_") + (f"w{width}" if width else "")
    usual = Spec(lr=0.06, epochs=300) if spec.net.startswith("bireal") else Spec()
    variant = [
        "" if spec.order == usual.order else spec.order,
        "" if spec.policy == usual.policy else spec.policy,
        "" if spec.schedule == usual.schedule else spec.schedule,
        "" if spec.refresh == usual.refresh else f"r{refresh(spec)}",
        "" if spec.lr == usual.lr else f"lr{spec.lr:g}",
        "" if spec.epochs == usual.epochs else f"e{epochs(spec.epochs)}",
        "pretrained" if spec.pretrained else "",
    ]
    fields: dict[str, Any] = {
        "name": name_of(shown, "cifar10-16", spec.method, *variant),
        "model": net.model,
        "width": width,
        "data": "cifar10-16",
        "crop_pad": 2,
        "batch_size": 128,
        "order": spec.order,
        "policy": spec.policy,
        "schedule": spec.schedule,
        "refresh": refresh(spec),
        "lr": spec.lr,
        "epochs": epochs(spec.epochs),
        "eval_train": 5_000,
        "evals_per_epoch": 8,
    }
    if spec.pretrained:
        fields["init_from"] = name_of(shown, "cifar10-16", "float-clip")
    return Recipe(**fields, **METHODS[spec.method])


def recipes() -> list[Recipe]:
    """Return every run of the experiments, and every rule on every small ResNet."""
    everywhere = [Spec(net, method) for net in NETS if net.startswith("resnet") for method in METHODS]
    return [recipe(spec) for spec in (*specs("mini"), *everywhere)]
