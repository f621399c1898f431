"""The command line: one function per command. Flags, types and help come from the dataclasses they fill (tyro)."""

from __future__ import annotations

import difflib
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Column, Table

from stompp import recipes
from stompp.__main__ import BAD_INPUT, guarded
from stompp._version import __version__
from stompp.deploy import commands as deploy
from stompp.errors import UsageError
from stompp.experiments.cluster import SlurmOptions
from stompp.recipes.schema import Recipe, differences
from stompp.training.options import MachineOptions, RunOptions


# tyro would wrap what a dataclass says of its values into a box of its own; these leave the checking to the real ones.
@dataclass(frozen=True)
class _RecipeFlags(Recipe):
    __doc__ = Recipe.__doc__

    def __post_init__(self) -> None:
        pass


@dataclass(frozen=True)
class _MachineFlags(MachineOptions):
    __doc__ = MachineOptions.__doc__

    def __post_init__(self) -> None:
        pass


@dataclass(frozen=True)
class _RunFlags(RunOptions):
    __doc__ = RunOptions.__doc__

    def __post_init__(self) -> None:
        pass


@dataclass(frozen=True)
class _SlurmFlags(SlurmOptions):
    __doc__ = SlurmOptions.__doc__

    def __post_init__(self) -> None:
        pass


@dataclass(frozen=True)
class _TrainArguments:
    recipe: tyro.conf.OmitArgPrefixes[_RecipeFlags]
    run: tyro.conf.OmitArgPrefixes[_RunFlags] = _RunFlags()


def train(arguments: list[str]) -> int:
    """train NAME [--field value ...]      train a recipe, or go on with a run that was stopped"""
    from stompp.training.loop import train as run

    recipe, options = _recipe_and_options("train", arguments)
    _tell_of_idle_fields(recipe)
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
    count = f"{len(found)} recipe{'s' if len(found) > 1 else ''}"
    table = Table(Column("recipe", no_wrap=True), "epochs", "lr", title=count, box=None)
    for recipe in found:
        table.add_row(recipe.name, str(recipe.epochs), f"{recipe.lr:g}")
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
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """folder of a finished run"""
    machine: tyro.conf.OmitArgPrefixes[_MachineFlags] = _MachineFlags()


def eval_(arguments: list[str]) -> int:
    """eval RUN                            score a finished run's net, and prove that it is binary"""
    import torch

    from stompp.core.proof import assert_binary
    from stompp.training.build import autocast, evaluation_batches, open_run
    from stompp.training.evaluate import evaluate

    given = _parse("eval", _EvalArguments, arguments)
    options = _checked(MachineOptions, given.machine)
    device = options.ready()
    recipe, seed, data, model = open_run(given.run, options, device)
    print(f"{recipe.name}, seed {seed}")
    for split, batches in evaluation_batches(recipe, data).items():
        score = evaluate(model, batches.epoch(0), autocast=autocast(recipe))
        print(f"{split:5s}  {len(batches.split):6,d} images  loss {score.loss:.4f}  accuracy {score.accuracy:.2f} %")
    if recipe.weights != "float":
        proof = assert_binary(model, torch.zeros(2, *data.image_shape, device=device))
        seen = ", and so is all that they saw" if recipe.binarize.binary_activations else ""
        print(f"binary: {proof.weights:,} weights in {proof.layers} layers are all ±1{seen}")
    return 0


@dataclass(frozen=True)
class _PredictArguments:
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """folder of a finished run"""
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[IMAGE ...]")]
    """image files, or .npy files with one uint8 image (H, W) or (H, W, C) or several (N, H, W, C)"""
    top: int = 3
    """classes to print for each image"""
    machine: tyro.conf.OmitArgPrefixes[_MachineFlags] = _MachineFlags()


def predict(arguments: list[str]) -> int:
    """predict RUN IMAGE [IMAGE ...]       classify images with a finished run's binary net"""
    from stompp.training.predict import classify

    given = _parse("predict", _PredictArguments, arguments)
    options = _checked(MachineOptions, given.machine)
    if not given.images:
        raise UsageError("predict needs at least one image file after the run folder")
    for name, ranking in classify(given.run, given.images, options, options.ready(), given.top):
        print(f"{name}: " + ", ".join(f"{label} {100 * p:.1f} %" for label, p in ranking))
    return 0


@dataclass(frozen=True)
class _ReportArguments:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUNS ...]")] = (Path("runs"),)
    """run folders, or folders with runs in them at any depth"""
    out: Path = Path("report.html")
    """where the page goes"""


def report(arguments: list[str]) -> int:
    """report [RUNS ...] --out FILE        write runs, finished or not, as one HTML page that needs no network"""
    from stompp.experiments.report import write_report

    given = _parse("report", _ReportArguments, arguments)
    out = write_report(list(given.runs), given.out)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB; open it in a browser")
    return 0


@dataclass(frozen=True)
class _ReproduceArguments:
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME ...]")] = ()
    """experiments; all means every one"""
    list: bool = False
    """list the experiments and do nothing else"""
    scale: Literal["mini", "paper"] = "mini"
    """the paper's settings exactly, or small nets on small images for a CPU"""
    seeds: int | None = None
    """seeds of each recipe; None is the experiment's own number"""
    jobs: int = 2
    """runs at once"""
    executor: Literal["local", "slurm"] = "local"
    """train in processes of this machine, or submit to SLURM"""
    slurm: _SlurmFlags = _SlurmFlags()
    minutes: float | None = None
    """stop by itself after so long; the same command goes on from there"""
    dry_run: bool = False
    """say what would be trained and do nothing else"""
    retry_failed: bool = False
    """train those again that failed or broke down before"""
    out: Path = Path("results")
    """folder for tables and figures; they go to OUT/<scale>-tables"""
    run: tyro.conf.OmitArgPrefixes[_RunFlags] = _RunFlags(tensorboard=False)


def reproduce(arguments: list[str]) -> int:
    """reproduce NAME ... [--scale paper]   train a table or figure of the paper, and set it beside the paper's"""
    from stompp.experiments import catalog, grid
    from stompp.experiments import reproduce as experiments

    given = _parse("reproduce", _ReproduceArguments, arguments)
    options = _checked(RunOptions, given.run)
    console = Console()
    if given.list:
        experiments.listing(console)
        return 0
    if not given.names:
        raise UsageError("reproduce needs the name of an experiment, or all; `stompp reproduce --list` shows them")
    if given.seeds is not None and given.seeds < 1:
        raise UsageError(f"seeds is {given.seeds}; it must be at least 1")
    if given.jobs < 1:
        raise UsageError(f"jobs is {given.jobs}; it must be at least 1")
    if given.minutes is not None and not given.minutes > 0:
        raise UsageError(f"minutes is {given.minutes:g}; it must be more than 0")
    if options.seed:
        raise UsageError("reproduce trains the seeds 0, 1, ...; write --seeds for their number")
    names = experiments.chosen(given.names)
    jobs = catalog.jobs_of(names, given.scale, given.seeds)
    if given.dry_run:
        grid.dry_run(jobs, options.runs, console, retry_failed=given.retry_failed)
        return 0
    outcome = grid.run(
        jobs,
        options.runs,
        executor=given.executor,
        parallel=given.jobs,
        slurm=_checked(SlurmOptions, given.slurm),
        options=options,
        retry_failed=given.retry_failed,
        deadline=None if given.minutes is None else 60 * given.minutes,
        console=console,
    )
    out = given.out / f"{given.scale}-tables"
    found = experiments.finished(experiments.on_disk(given.scale, options.runs), options.runs, console)
    files = experiments.write(names, given.scale, found, out, console)
    if files:
        console.print(f"tables are in {out}; `stompp report {options.runs}` shows the runs themselves", highlight=False)
    return outcome.exit_code


@dataclass(frozen=True)
class _DemoArguments:
    out: Path = Path("demo")
    """folder for the runs, the report and the packed net"""


def demo(arguments: list[str]) -> int:
    """demo [--out DIR]                    see float, STE and StoMPP train on bundled digits, explained"""
    from stompp.demo import demo as play

    play(_parse("demo", _DemoArguments, arguments).out)
    return 0


WIDTH, USAGE = 80, 45  # columns of the help, and of them for how to call a command

COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "list": list_,
    "show": show,
    "summary": summary,
    "eval": eval_,
    "predict": predict,
    "report": report,
    "reproduce": reproduce,
    "demo": demo,
    **deploy.COMMANDS,
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command; bad input is one clear line on stderr and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments:
        print(_usage(), file=sys.stderr)
        return BAD_INPUT
    return guarded(lambda: _dispatch(arguments))


def _dispatch(arguments: list[str]) -> int:
    if arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if arguments[0] == "--version":
        print(f"stompp {__version__}")
        return 0
    if arguments[0] not in COMMANDS:
        near = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}? Commands" if near else "commands"
        raise UsageError(f"there is no command {arguments[0]!r}; {hint} are {', '.join(COMMANDS)}")
    return COMMANDS[arguments[0]](arguments[1:])


def _usage() -> str:
    lines = ["stompp: train binary neural networks without straight-through estimators", ""]
    for command in COMMANDS.values():
        usage, _, told = (command.__doc__ or "").partition("  ")
        first, *more = textwrap.wrap(told.strip(), WIDTH - USAGE, break_on_hyphens=False)
        lines += [f"  stompp {usage}".ljust(USAGE) + first, *(" " * USAGE + line for line in more)]
    lines += ["", "stompp COMMAND --help tells a command's flags; stompp --version tells the version."]
    return "\n".join(lines)


def _recipe_and_options(command: str, arguments: list[str]) -> tuple[Recipe, RunOptions]:
    """Read NAME and flags that change single fields of the recipe or say how to run it."""
    if not arguments:
        raise UsageError(f"{command} needs the name of a recipe; `stompp list` shows them")
    asks_help = arguments[0] in ("-h", "--help")
    if arguments[0].startswith("-") and not asks_help:
        raise UsageError(f"the recipe's name comes first: write stompp {command} NAME {arguments[0]} ...")
    base = recipes.get("resnet18-cifar10-bnn-stompp" if asks_help else arguments[0])
    rest = arguments if asks_help else arguments[1:]
    flags = _TrainArguments(_RecipeFlags(**base.to_dict()))
    given = _parse(f"{command} {'NAME' if asks_help else base.name}", _TrainArguments, rest, flags)
    changes = {name: new for name, (_, new) in differences(base, _checked(Recipe, given.recipe)).items()}
    return (base.changed(**changes) if changes else base), _checked(RunOptions, given.run)


def _tell_of_idle_fields(recipe: Recipe) -> None:
    """Say which of the fields that were changed have no effect: the run is the same one under another name."""
    idle = recipe.idle()
    for field in differences(recipes.base_of(recipe), recipe):
        if field in idle:
            print(f"stompp: --{field.replace('_', '-')} has no effect on this run: {idle[field]}", file=sys.stderr)


def _parse(command: str, kind: Any, arguments: list[str], default: Any = None) -> Any:
    """Fill a dataclass from flags. A mistake ends the program with tyro's message and exit code 2."""
    program = f"stompp {command}"
    if default is not None:
        return tyro.cli(kind, args=arguments, prog=program, default=default)
    return tyro.cli(kind, args=arguments, prog=program)


def _checked(kind: Any, flags: Any) -> Any:
    return kind(**{field.name: getattr(flags, field.name) for field in fields(kind)})


def _positional(command: str, arguments: list[str], function: Any, count: int | None = None) -> list[str]:
    if any(a in ("-h", "--help") for a in arguments):
        print(f"usage: stompp {_usage_of(function)}")
        raise SystemExit(0)
    flags = [a for a in arguments if a.startswith("-")]
    if flags:
        raise UsageError(f"{command} has no flag {flags[0]!r}; usage: stompp {_usage_of(function)}")
    if count is not None and len(arguments) != count:
        raise UsageError(f"{command} takes {count} name, not {len(arguments)}; usage: stompp {_usage_of(function)}")
    return arguments


def _usage_of(function: Any) -> str:
    """Return "show NAME: print a recipe's fields, ..." of the line that stands in the list of commands."""
    command, _, told = function.__doc__.partition("  ")
    return f"{command}: {told.strip()}"


if __name__ == "__main__":
    sys.exit(main())
