"""Recipes: every one by name, the paper's exactly as it says, and what happens to a name when a field is changed."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields
from functools import cache
from typing import Any, get_args, get_type_hints
from unittest import mock

import pytest

from stompp.core.freeze import sites
from stompp.core.freezer import Freezer
from stompp.errors import UsageError
from stompp.recipes import METHODS, Recipe, all_recipes, differences, find, get, mini, paper
from stompp.recipes.grids import GRIDS, Spec
from stompp.recipes.schema import OrderName, ScheduleName
from stompp.training.build import build_freezer, build_model

RECIPES = all_recipes()
PAPER = {recipe.name: recipe for recipe in paper.recipes()}

# Sites of each net: activations, weights. METHOD.md: N = 33 / 65 / 97 for a BNN and 16 / 32 / 48 for a BWN.
SITES = {
    "resnet18": (17, 16),
    "resnet34": (33, 32),
    "resnet50": (49, 48),
    "bireal18": (16, 16),
    "bireal34": (32, 32),
    "cifar_resnet8": (7, 6),
    "cifar_resnet20": (19, 18),
    "cifar_resnet32": (31, 30),
}
STEPS = {"imagenet": 1_281_167, "cifar10": 50_000, "cifar100": 50_000, "cifar10-16": 50_000, "digits": 1_437}


@cache
def prepared(model: str, width: int | None, channels: int, imagenet: bool, weights: Any, activations: Any) -> Any:
    """Build a net once per rule; the number of sites depends neither on the images' size nor on the surrogate."""
    data = "digits" if channels == 1 else "imagenet" if imagenet else "cifar10"
    side = 128 if imagenet else 8
    recipe = Recipe(model=model, width=width, data=data, weights=weights, activations=activations)
    with mock.patch("torch.nn.init.kaiming_normal_"), mock.patch("torch.nn.init.kaiming_uniform_"):  # most of the time
        return build_model(recipe, (channels, side, side), 10, seed=0)


def net_of(recipe: Recipe) -> Any:
    channels = 1 if recipe.data == "digits" else 3
    return prepared(recipe.model, recipe.width, channels, recipe.data == "imagenet", recipe.weights, recipe.activations)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda r: r.name)
def test_recipe_builds_with_the_right_number_of_sites(recipe: Recipe) -> None:
    activations, weights = SITES[recipe.model]
    expected = activations * (recipe.activations == "stompp") + weights * (recipe.weights == "stompp")
    assert len(sites(net_of(recipe))) == expected


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda r: r.name)
def test_recipe_has_a_freezer_and_time_for_it(recipe: Recipe) -> None:
    steps = STEPS[recipe.data] // recipe.batch_size
    assert steps >= 1
    freezer = build_freezer(recipe, net_of(recipe), steps, seed=0)
    assert isinstance(freezer, Freezer)
    assert all(end <= recipe.epochs * steps for _, end in freezer.windows)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda r: r.name)
def test_recipe_name_tells_model_data_mode_and_method(recipe: Recipe) -> None:
    model = recipe.model.removeprefix("cifar_") + (f"w{recipe.width}" if recipe.width else "")
    assert recipe.name.startswith(f"{model}-{recipe.data}-")
    rest = recipe.name.removeprefix(f"{model}-{recipe.data}-")
    method = max((m for m in METHODS if (rest + "-").startswith(m + "-")), key=len)
    assert {k: getattr(recipe, k) for k in METHODS[method]} == METHODS[method]
    assert method.startswith({"clip": "bwn", "relu": "float"}.get(recipe.activations, "bnn")) or "float-clip" in method
    assert recipe.ovsw == ("ovsw" in recipe.name)
    assert re.fullmatch(r"[a-z0-9_.-]+", recipe.name)
    variant = rest.removeprefix(method).strip("-")
    for word in ("global", "reverse"):
        assert (recipe.order == word) == (word in variant.split("-"))
    assert (recipe.policy == "deterministic") == ("deterministic" in variant.split("-"))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda r: r.name)
def test_recipe_goes_through_json_unchanged(recipe: Recipe) -> None:
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_names_are_unique_and_no_two_names_mean_the_same() -> None:
    seen: dict[Any, str] = {}
    for name, recipe in RECIPES.items():
        assert recipe.name == name
        content = tuple((f.name, getattr(recipe, f.name)) for f in fields(Recipe) if f.name != "name")
        assert content not in seen, f"{name} and {seen[content]} are the same run"
        seen[content] = name


@pytest.mark.parametrize("recipe", PAPER.values(), ids=lambda r: r.name)
def test_paper_recipe_has_the_papers_hyperparameters(recipe: Recipe) -> None:
    """Appendix tables 'Training configuration'; the variants change one thing each, which their names tell."""
    words = recipe.name.split("-")
    assert (recipe.optimizer, recipe.momentum, recipe.weight_decay) == ("sgd", 0.9, 0.0)
    assert (recipe.batch_size, recipe.label_smoothing, recipe.precision) == (256, 0.0, "fp32")
    assert (recipe.flip, recipe.granularity, recipe.limit_train, recipe.width) == (True, "step", None, None)
    assert (recipe.hold_frozen, recipe.recalibrate_bn, recipe.evals_per_epoch) == (False, False, 1)
    imagenet = recipe.data == "imagenet"
    assert (recipe.crop_pad, recipe.resized_crop) == ((0, True) if imagenet else (4, False))

    bireal = recipe.model.startswith("bireal")
    lr = next((float(w.removeprefix("lr")) for w in words if re.fullmatch(r"lr[\d.]+", w)), 0.06 if bireal else 0.1)
    assert recipe.lr == lr
    usual = {"resnet18": 97, "resnet34": 131, "resnet50": 98}[recipe.model] if imagenet else 300 if bireal else 200
    epochs = next((int(w[1:]) for w in words if re.fullmatch(r"e\d+", w)), usual)
    assert recipe.epochs == epochs
    assert recipe.refresh == next((int(w[1:]) for w in words if re.fullmatch(r"r\d+", w)), 100)
    assert recipe.schedule == next((w for w in words if w in get_args(ScheduleName)), "cubic")
    assert recipe.order == next((w for w in words if w in get_args(OrderName)), "layerwise")
    assert (recipe.init_from is not None) == ("pretrained" in words)


def test_paper_has_every_setting_of_its_tables() -> None:
    """Written out from the paper, table by table."""
    wanted = {
        f"{m}-{d}-{k}"
        for m in ("resnet18", "resnet34", "resnet50")
        for d in ("cifar10", "cifar100", "imagenet")
        for k in ("bwn-ste", "bwn-stompp", "bnn-ste", "bnn-stompp")
    }
    for m in ("resnet18", "resnet50"):
        wanted |= {f"{m}-cifar100-bnn-stompp-{o}" for o in ("global", "reverse")}
        wanted |= {f"{m}-cifar100-bwn-stompp-{o}" for o in ("global", "reverse")}
        wanted |= {f"{m}-cifar100-bwn-stompp{o}-deterministic" for o in ("", "-global", "-reverse")}
        for e in (50, 100, 350, 500):
            wanted |= {f"{m}-cifar100-{k}-e{e}" for k in ("bnn-ste", "bnn-stompp", "float-relu")}
    wanted.remove("resnet50-cifar100-bnn-stompp-e50")
    for m in ("resnet18", "resnet34", "resnet50"):
        wanted |= {f"{m}-cifar100-bnn-hybrid-aw", f"{m}-cifar100-bnn-hybrid-wa"}
    for s in ("cosine", "linear", "quadratic", "", "flipped_quadratic"):
        for r in ("r10", "", "r1000", "r10000"):
            for o in ("global", ""):
                wanted.add("-".join(w for w in ("resnet18-cifar100-bnn-stompp", o, s, r) if w))
    for lr in ("0.001", "0.01", "0.05"):
        wanted |= {f"resnet18-cifar100-{k}-lr{lr}" for k in ("bnn-ste", "bnn-stompp")}
    for m in ("bireal18", "bireal34"):
        wanted |= {f"{m}-cifar100-{k}{p}" for k in ("bnn-ste", "bnn-stompp") for p in ("", "-pretrained")}
    wanted |= {"resnet18-cifar10-bnn-ste-ovsw", "resnet18-cifar10-bnn-stompp-ovsw"}
    assert wanted <= set(PAPER)
    assert not any(name == "resnet50-cifar100-bnn-stompp-e50" for name in PAPER)


def test_pretrained_recipe_starts_from_the_float_net_of_its_model() -> None:
    for recipe in find("pretrained"):
        assert recipe.init_from is not None
        start = get(recipe.init_from)
        assert (start.model, start.data, start.weights, start.activations) == (
            recipe.model,
            recipe.data,
            "float",
            "clip",
        )
        assert (start.epochs, start.lr) == (recipe.epochs, recipe.lr)


@pytest.mark.parametrize("method", ["bnn-ste", "bnn-ste-clip", "bnn-ste-approx"])
def test_wherever_ste_is_a_baseline_the_stronger_forms_are_too(method: str) -> None:
    for recipe in find("-bnn-ste"):
        if {**METHODS["bnn-ste"], "surrogate": "identity"}.items() <= recipe.to_dict().items() and not recipe.ovsw:
            assert recipe.name.replace("-bnn-ste", f"-{method}") in RECIPES


def test_mini_nets_have_the_sites_that_the_refresh_rate_counts_on() -> None:
    for paper_model, net in mini.NETS.items():
        assert net.sites == SITES[net.model]
        assert net.paper_sites == SITES[paper_model]


@pytest.mark.parametrize("grid", GRIDS)
def test_mini_redraws_a_mask_as_often_as_the_paper_over_a_window(grid: str) -> None:
    compared = 0
    for spec in GRIDS[grid]("mini"):
        small, large = mini.recipe(spec), paper.recipe(spec)
        if "stompp" not in (small.weights, small.activations) or small.refresh < 10:
            continue  # nothing to redraw, or too coarse a rounding
        redraws = []
        for recipe, steps in ((small, 390), (large, 195)):
            activations, weights = SITES[recipe.model]
            count = activations * (recipe.activations == "stompp") + weights * (recipe.weights == "stompp")
            window = recipe.epochs * steps / (1 if recipe.order == "global" else count)
            redraws.append(window / recipe.refresh)
        assert redraws[0] == pytest.approx(redraws[1], rel=0.05), small.name
        compared += 1
    assert compared


def test_mini_recipes_are_the_small_settings() -> None:
    for recipe in mini.recipes():
        assert (recipe.data, recipe.batch_size, recipe.crop_pad, recipe.flip) == ("cifar10-16", 128, 2, True)
        assert (recipe.optimizer, recipe.momentum, recipe.weight_decay) == ("sgd", 0.9, 0.0)
        assert (recipe.precision, recipe.granularity, recipe.evals_per_epoch) == ("fp32", "step", 8)
        if not re.search(r"-e\d+", recipe.name):
            assert recipe.epochs == (18 if recipe.model.startswith("bireal") else 12)
        if recipe.model.startswith("bireal"):
            assert (recipe.width, recipe.lr) == (16, 0.06)
        elif not re.search(r"-lr", recipe.name):
            assert recipe.lr == 0.1


@pytest.mark.parametrize("grid", GRIDS)
def test_a_scale_names_every_setting_differently(grid: str) -> None:
    """Two settings that a scale cannot tell apart would be one run counted twice."""
    for of, scale in ((paper, "paper"), (mini, "mini")):
        specs = GRIDS[grid](scale)  # type: ignore[arg-type]
        assert len(set(specs)) == len(specs) == len({of.recipe(spec).name for spec in specs})  # type: ignore[attr-defined]


def test_spec_is_the_papers_ablation_setting() -> None:
    recipe = paper.recipe(Spec())
    assert (recipe.model, recipe.data, recipe.lr, recipe.epochs) == ("resnet18", "cifar100", 0.1, 200)
    assert (recipe.order, recipe.schedule, recipe.refresh, recipe.policy) == ("layerwise", "cubic", 100, "stochastic")


def test_changed_adds_what_differs_to_the_name() -> None:
    base = Recipe(name="demo", lr=0.1)
    assert base.changed(lr=0.1).name == "demo"
    assert base.changed(epochs=3, lr=0.01).name == base.changed(lr=0.01, epochs=3).name == "demo+epochs=3+lr=0.01"
    assert base.changed(hold_frozen=True, limit_train=5).name == "demo+limit_train=5+hold_frozen=True"
    assert base.changed(epochs=3).changed(lr=0.01).name == "demo+epochs=3+lr=0.01"


@pytest.mark.parametrize(
    "value",
    [
        "runs/a b/seed0",
        "../../../etc",
        "/",
        "..",
        "a\nb",
        "tab\there",
        "*?[x]",
        "$(touch boom)",
        "`x`;&|<>",
        "'\"\\",
        "naïve/наука/数",
        "x" * 5000,
        "\udcff",  # what Python makes of a byte that is not UTF-8
        "-rf",
    ],
)
def test_changed_name_is_safe_as_one_folder(value: str) -> None:
    name = Recipe(name="resnet8-digits-bnn-stompp").changed(init_from=value).name
    assert re.fullmatch(r"[A-Za-z0-9._=+,~-]+", name)
    assert name not in (".", "..")
    assert len(name) < 200
    assert name.startswith("resnet8-digits-bnn-stompp+init_from=")


def test_changed_name_tells_long_values_apart() -> None:
    names = {Recipe(name="demo").changed(init_from="a" * 100 + end).name for end in "xyz"}
    assert len(names) == 3


@pytest.mark.parametrize("field", [f.name for f in fields(Recipe)])
def test_every_field_refuses_a_value_of_another_type(field: str) -> None:
    wrong: Any = object()
    with pytest.raises(UsageError, match=f"^{field} is <object"):
        Recipe(**{field: wrong})


@pytest.mark.parametrize(
    "field, value, told",
    [
        ("epochs", 2.5, "a whole number"),
        ("epochs", True, "a whole number"),
        ("epochs", "3", "a whole number"),
        ("epochs", None, "a whole number"),
        ("flip", 1, "True or False"),
        ("lr", "0.1", "a number"),
        ("lr", float("inf"), "a finite number above 0"),
        ("lr", -0.1, "a finite number above 0"),
        ("lr", 0, "a finite number above 0"),
        ("momentum", 1.0, "below 1"),
        ("weight_decay", float("nan"), "finite"),
        ("label_smoothing", 1.0, "below 1"),
        ("refresh", 0, "at least 1"),
        ("crop_pad", -1, "at least 0"),
        ("width", 0, "at least 1"),
        ("limit_train", 0, "at least 1"),
        ("weights", "binary", "stompp, ste, float"),
        ("order", "sideways", "layerwise, global, reverse"),
        ("model", "resnet19", "resnet18"),
        ("data", "mnist", "digits"),
        ("width", 8, "CIFAR ResNets and Bi-Real"),
        ("evals_per_epoch", 0, "at least 1"),
    ],
)
def test_recipe_refuses_a_bad_value(field: str, value: Any, told: str) -> None:
    with pytest.raises(UsageError, match=f"{field}.*{told}") as caught:
        Recipe(**{field: value})
    assert "\n" not in str(caught.value)


def test_recipe_takes_whole_numbers_for_fractions() -> None:
    assert Recipe(lr=1, weight_decay=0) == Recipe(lr=1.0, weight_decay=0.0)


def test_from_dict_refuses_a_field_it_does_not_know() -> None:
    with pytest.raises(UsageError, match="no field 'colour'"):
        Recipe.from_dict({**Recipe().to_dict(), "colour": "red"})


def test_every_field_has_a_help_text() -> None:
    """tyro shows the string below each field."""
    source = inspect.getsource(Recipe)
    for field in get_type_hints(Recipe):
        if field != "name":
            assert re.search(rf"\n    {field}: .*\n    \"\"\"[a-z0-9]", source), field


def test_get_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean resnet18-cifar10-bnn-stompp"):
        get("resnet18-cifar10-bnn-stomp")
    with pytest.raises(UsageError, match="`stompp list`"):
        get("zzz")


def test_find_needs_every_word() -> None:
    assert find("bireal34-", "pretrained", "stompp") == [get("bireal34-cifar100-bnn-stompp-pretrained")]
    assert find() == list(RECIPES.values())
    assert find("bireal18", "imagenet") == []


def test_differences_leaves_the_name_out() -> None:
    assert differences(Recipe(name="a"), Recipe(name="b")) == {}
