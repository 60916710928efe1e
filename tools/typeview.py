"""Link the rooms into build/typeview/perfmodel, so that tools that follow folders see one package.

The rooms are top-level folders which setuptools maps to `perfmodel.<room>`. mypy, pyright, import-linter and sphinx
look for `perfmodel/<room>` on disk; the links give them that. Run again after a room was added: links that are right
are left alone, and links that no longer belong are removed.
"""

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VIEW = ROOT / "build/typeview/perfmodel"


def wanted(root: Path) -> dict[str, Path]:
    """The links of the view: the contents of src/perfmodel, and each room that pyproject.toml maps into the package."""
    folders = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    face = {path.name: path for path in (root / folders["perfmodel"]).iterdir() if path.name != "__pycache__"}
    rooms = {package.split(".")[1]: root / folder for package, folder in folders.items() if "." in package}
    return face | rooms


def link(view: Path, targets: dict[str, Path]) -> None:
    """Make `view` hold just the links in `targets`; a link changes in one step, so two runs at once do no harm."""
    view.mkdir(parents=True, exist_ok=True)
    for name, target in targets.items():
        path, fresh = view / name, view / f".{name}.{os.getpid()}"
        if not (path.is_symlink() and path.readlink() == target):
            fresh.symlink_to(target)
            fresh.replace(path)
    for path in view.iterdir():
        if path.is_symlink() and path.name not in targets and not path.name.startswith("."):
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    link(VIEW, wanted(ROOT))
