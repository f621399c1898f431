"""The layout of the package: imports go one way, files stay readable, and deployment needs no PyTorch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import stompp

SOURCE = Path(stompp.__file__).parent
ORDER = ["core", "models", "data", "recipes", "training", "experiments", "deploy", "integrations", "demo", "cli"]
FILES = sorted(SOURCE.rglob("*.py"))


def _imported(path: Path) -> set[str]:
    """Return the parts of stompp that a file imports, wherever in the file: `core`, `models`, ..."""
    module = ("stompp", *path.relative_to(SOURCE).with_suffix("").parts)
    package = module[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = (*base, *(node.module.split(".") if node.module else ()))
            targets = [stem] if len(stem) > 1 else [(*stem, alias.name) for alias in node.names]
        else:
            continue
        found |= {target[1] for target in targets if target[0] == "stompp" and len(target) > 1}
    return found & set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if part not in ORDER:
        return
    above = {other for other in _imported(path) if ORDER.index(other) > ORDER.index(part)}
    assert not above, f"{path} imports {above}, which stand above {part}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_stay_under_400_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_import_check_sees_a_violation(tmp_path: Path) -> None:
    path = SOURCE / "core" / "freeze.py"
    assert _imported(path) == set()
    assert "core" in _imported(SOURCE / "recipes" / "schema.py")
    assert "training" in _imported(SOURCE / "demo.py")


def test_package_imports_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import stompp; stompp.__version__; dir(stompp); "
        "assert not [m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'tyro', 'rich')"
        " and sys.modules[m] is not None]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there() -> None:
    for name in stompp.__all__:
        assert getattr(stompp, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        stompp.nonsense  # noqa: B018
