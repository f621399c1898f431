"""The command line: one function per command. Flags, types and help come from the dataclasses they fill (tyro)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from stompp import recipes
from stompp._version import __version__
from stompp.errors import UsageError
from stompp.recipes.schema import Recipe, differences
from stompp.training.options import RunOptions

BAD_INPUT = 2


@dataclass(frozen=True)
class _TrainArguments:
    recipe: tyro.conf.OmitArgPrefixes[Recipe]
    options: tyro.conf.OmitArgPrefixes[RunOptions]


def train(arguments: list[str]) -> int:
    """train NAME [--field value ...]      train a recipe, or go on with a run that was stopped"""
    from stompp.training.loop import train as run

    recipe, options = _recipe_and_options("train", arguments)
    outcome = run(recipe, options)
    return 128 + outcome.stopped_by if outcome.stopped_by is not None else 0


def list_(arguments: list[str]) -> int:
    """list [WORD ...]                     list the recipes whose names hold all the words"""
    words = tuple(_positional("list", arguments, list_))
    found = recipes.find(*words)
    if not found:
        raise UsageError(f"no recipe's name holds all of {', '.join(words)}; `stompp list` shows them all")
    if not sys.stdout.isatty():
        print("\n".join(recipe.name for recipe in found))
        return 0
    table = Table("recipe", "model", "data", "rule", "epochs", "lr", title=f"{len(found)} recipes")
    for recipe in found:
        rule = f"{recipe.weights} / {recipe.activations}"
        table.add_row(recipe.name, recipe.model, recipe.data, rule, str(recipe.epochs), f"{recipe.lr:g}")
    Console().print(table)
    return 0


def show(arguments: list[str]) -> int:
    """show NAME                           print a recipe's fields, and what differs from the default"""
    (name,) = _positional("show", arguments, show, count=1)
    recipe = recipes.get(name)
    special = differences(Recipe(), recipe)
    table = Table("field", "value", "default", title=name)
    for field in fields(Recipe):
        if field.name != "name":
            default = str(special[field.name][0]) if field.name in special else ""
            style = "bold" if default else "dim"
            table.add_row(field.name, str(getattr(recipe, field.name)), default, style=style)
    Console().print(table)
    return 0


def summary(arguments: list[str]) -> int:
    """summary NAME                        print a recipe's net layer by layer: bits, size, multiply-accumulates"""
    import torch

    from stompp.core.freeze import sites
    from stompp.core.summary import summary as summarise
    from stompp.data.catalog import shape_of
    from stompp.training.build import build_model

    (name,) = _positional("summary", arguments, summary, count=1)
    recipe = recipes.get(name)
    image_shape, num_classes = shape_of(recipe.data)
    model = build_model(recipe, image_shape, num_classes, seed=0)
    print(summarise(model, torch.zeros(1, *image_shape)))
    print(f"{len(sites(model))} sites are frozen progressively")
    return 0


@dataclass(frozen=True)
class _EvalArguments:
    run: tyro.conf.Positional[Path]
    """folder of a finished run"""
    options: tyro.conf.OmitArgPrefixes[RunOptions]


def eval_(arguments: list[str]) -> int:
    """eval RUN                            score a finished run's net, and prove that it is binary"""
    import torch

    from stompp.core.proof import assert_binary
    from stompp.training.build import evaluation_batches, open_run
    from stompp.training.evaluate import both_views

    given = _parse("eval", _EvalArguments, arguments, options=RunOptions())
    device = _ready(given.options)
    recipe, _, data, model = open_run(given.run, given.options, device)
    table = Table("images", "view", "loss", "accuracy", title=str(given.run))
    for split, batches in evaluation_batches(recipe, data).items():
        for view, score in both_views(model, batches).items():
            table.add_row(split, view, f"{score.loss:.4f}", f"{score.accuracy:.2f} %")
    Console().print(table)
    if recipe.weights != "float":
        proof = assert_binary(model, torch.zeros(2, *data.image_shape, device=device))
        print(f"{proof.layers} layers, {proof.weights:,} weights: all ±1, and so is all they saw")
    return 0


@dataclass(frozen=True)
class _PredictArguments:
    run: tyro.conf.Positional[Path]
    """folder of a finished run"""
    images: tyro.conf.Positional[tuple[Path, ...]]
    """image files, or .npy files with one uint8 image (H, W) or (H, W, C) or several (N, H, W, C)"""
    options: tyro.conf.OmitArgPrefixes[RunOptions]
    top: int = 3
    """classes to print for each image"""


def predict(arguments: list[str]) -> int:
    """predict RUN IMAGE [IMAGE ...]       classify images with a finished run's binary net"""
    from stompp.training.predict import classify

    given = _parse("predict", _PredictArguments, arguments, options=RunOptions())
    if not given.images:
        raise UsageError("predict needs at least one image file after the run folder")
    for name, ranking in classify(given.run, given.images, given.options, _ready(given.options), given.top):
        print(f"{name}: " + ", ".join(f"{label} {100 * p:.1f} %" for label, p in ranking))
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "list": list_,
    "show": show,
    "summary": summary,
    "eval": eval_,
    "predict": predict,
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command; bad input is one clear line on stderr and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if arguments else BAD_INPUT
    if arguments[0] == "--version":
        print(f"stompp {__version__}")
        return 0
    try:
        if arguments[0] not in COMMANDS:
            raise UsageError(f"there is no command {arguments[0]!r}; commands are {', '.join(COMMANDS)}")
        return COMMANDS[arguments[0]](arguments[1:])
    except UsageError as error:
        print(f"stompp: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("stompp: interrupted", file=sys.stderr)
        return 130


def _usage() -> str:
    lines = ["stompp: train binary neural networks without straight-through estimators", ""]
    lines += [f"  stompp {command.__doc__}" for command in COMMANDS.values()]
    lines += ["", "stompp COMMAND --help tells a command's flags; stompp --version tells the version."]
    return "\n".join(lines)


def _recipe_and_options(command: str, arguments: list[str]) -> tuple[Recipe, RunOptions]:
    """Read NAME and flags that change single fields of the recipe or say how to run it."""
    if not arguments:
        raise UsageError(f"{command} needs the name of a recipe; `stompp list` shows them")
    asks_help = arguments[0] in ("-h", "--help")
    base = recipes.get("resnet18-cifar10-bnn-stompp" if asks_help else arguments[0])
    rest = arguments if asks_help else arguments[1:]
    given = _parse(f"{command} {'NAME' if asks_help else base.name}", _TrainArguments, rest, base, RunOptions())
    changes = {name: new for name, (_, new) in differences(base, given.recipe).items()}
    return (base.changed(**changes) if changes else base), given.options


def _parse(command: str, kind: Any, arguments: list[str], recipe: Recipe | None = None, options: Any = None) -> Any:
    """Fill a dataclass from flags. A mistake ends the program with tyro's message and exit code 2."""
    program = f"stompp {command}"
    if recipe is not None:
        return tyro.cli(kind, args=arguments, prog=program, default=kind(recipe, options))
    return tyro.cli(kind, args=arguments, prog=program)


def _positional(command: str, arguments: list[str], function: Any, count: int | None = None) -> list[str]:
    if any(a in ("-h", "--help") for a in arguments):
        print(f"usage: stompp {function.__doc__}")
        raise SystemExit(0)
    flags = [a for a in arguments if a.startswith("-")]
    if flags:
        raise UsageError(f"{command} has no flag {flags[0]!r}; usage: stompp {function.__doc__}")
    if count is not None and len(arguments) != count:
        raise UsageError(f"{command} takes {count} name, not {len(arguments)}; usage: stompp {function.__doc__}")
    return arguments


def _ready(options: RunOptions) -> Any:
    """Apply the options that concern the whole process, and return the device."""
    import torch

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    return options.resolve_device()


if __name__ == "__main__":
    sys.exit(main())
