"""Compile the kernels' launch configurations ahead of time, judge and document them, propose table rows.

    python tools/kernels.py compile [FILTER] [--changed] [--jobs N]    compile cases and keep their figures
    python tools/kernels.py check [FILTER] [--anew]                    do the kept figures hold, and are they current?
    python tools/kernels.py doc [--check]                              write docs/kernels.md from them
    python tools/kernels.py prune KERNEL [--arch A] [--top N]          rank candidate configurations of a kernel

No GPU is needed: the public functions are called with tensors on the meta device, and each launch becomes a compilation
for sm_80, sm_90, sm_100 or a GPU that takes the rows of one of these. FILTER is a part of kernel/arch/label. `check`
exits with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "tools" / "kernel_cases"
FIGURES = ROOT / "tests" / "kernels" / "data" / "aot"


def prepare() -> None:
    """Have Triton compile, and keep what it compiles in build/: it reads the environment when it is imported.

    Raises RuntimeError where it was imported before, to interpret.
    """
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET"):
        raise RuntimeError("Triton was imported to interpret kernels; run this in a process of its own")
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ.setdefault("TRITON_CACHE_DIR", str(ROOT / "build" / f"triton-{version('triton')}"))


def main() -> int:
    """Run a subcommand; its return value is the exit code."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--cases", type=Path, default=CASES, help="folder of case files")
    shared.add_argument("--figures", type=Path, default=FIGURES, help="folder of the figures that are kept")
    shared.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="compiling processes")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("compile", parents=[shared])
    one.add_argument("filter", nargs="?", default="")
    one.add_argument("--changed", action="store_true", help="only what has no current figures")
    one.set_defaults(run="compile_cases")
    one = commands.add_parser("check", parents=[shared])
    one.add_argument("filter", nargs="?", default="")
    one.add_argument("--anew", action="store_true", help="compile, and compare with what is kept")
    one.add_argument("--json", type=Path, help="also write the findings here")
    one.set_defaults(run="check")
    one = commands.add_parser("doc", parents=[shared])
    one.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    one.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "kernels.md")
    one.set_defaults(run="doc")
    one = commands.add_parser("prune", parents=[shared])
    one.add_argument("kernel")
    one.add_argument("--arch", default="", help="only this architecture")
    one.add_argument("--top", type=int, default=10, help="how many to print for each problem")
    one.set_defaults(run="prune")
    given = parser.parse_args()
    prepare()
    from kernel_aot import commands as actions  # imports Triton

    code: int = getattr(actions, given.run)(given)
    return code


if __name__ == "__main__":
    sys.exit(main())
