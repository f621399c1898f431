"""Recipes by name: `<model>-<data>-<mode>-<method>[-<variant>]`."""

from __future__ import annotations

import difflib
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
        hint = f"did you mean {' or '.join(near)}?" if near else "see them all with `stompp list`."
        raise UsageError(f"there is no recipe {name!r}; {hint}")
    return known[name]


def find(*words: str) -> list[Recipe]:
    """Return the recipes whose names hold all the words.

    >>> [r.name for r in find("bireal18", "cifar100", "float")]
    ['bireal18-cifar100-float-clip']
    """
    return [recipe for name, recipe in all_recipes().items() if all(word in name for word in words)]


__all__ = ["METHODS", "Recipe", "all_recipes", "differences", "find", "get"]
