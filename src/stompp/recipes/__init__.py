"""Recipes by name: `<model>-<data>-<mode>-<method>[-<variant>]`."""

from __future__ import annotations

import difflib
import shlex
from functools import lru_cache

from stompp.errors import UsageError

from . import digits, mini, paper
from .methods import METHODS
from .schema import Recipe, differences


@lru_cache(maxsize=1)
def all_recipes() -> dict[str, Recipe]:
    """Return every recipe by name.

    >>> all_recipes()["resnet18-cifar10-bnn-stompp"].epochs
    200
    """
    found: dict[str, Recipe] = {}
    for recipe in (*paper.recipes(), *mini.recipes(), *digits.recipes()):
        if found.setdefault(recipe.name, recipe) != recipe:
            raise AssertionError(f"two recipes are named {recipe.name!r}: {differences(found[recipe.name], recipe)}")
    return found


def get(name: str) -> Recipe:
    """Return the recipe of that name, or suggest the nearest."""
    known = all_recipes()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = "see them all with `stompp list`."
        if near:
            hint = f"did you mean {' or '.join(near)}?"
        elif name and (holding := find(name)):
            hint = f"`stompp list {shlex.quote(name)}` shows the {len(holding)} whose names hold that."
        raise UsageError(f"there is no recipe {name!r}; {hint}")
    return known[name]


def find(*words: str) -> list[Recipe]:
    """Return the recipes whose names hold all the words.

    >>> [r.name for r in find("bireal18", "cifar100", "float")]
    ['bireal18-cifar100-float-clip']
    """
    return [recipe for name, recipe in all_recipes().items() if all(word in name for word in words)]


def base_of(recipe: Recipe) -> Recipe:
    """Return the recipe by name that this one is, or was before fields of it were changed.

    >>> base_of(get("resnet8-digits-bnn-ste").changed(epochs=3)) == get("resnet8-digits-bnn-ste")
    True
    """
    return all_recipes().get(recipe.name.split("+")[0], recipe)


def train_command(recipe: Recipe) -> str:
    """Return the command that trains a recipe, also one whose fields were changed.

    >>> train_command(get("resnet8-digits-bnn-ste").changed(epochs=3, flip=True))
    'stompp train resnet8-digits-bnn-ste --flip --epochs 3'
    """
    base = base_of(recipe)
    words = ["stompp", "train", base.name]
    for field, (_, value) in differences(base, recipe).items():
        flag = field.replace("_", "-")
        words += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return shlex.join(words)


__all__ = ["METHODS", "Recipe", "all_recipes", "base_of", "differences", "find", "get", "train_command"]
