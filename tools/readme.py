"""Fill in the outputs of the README's `console` blocks by running their commands, and draw its picture.

Usage: python tools/readme.py          rewrites README.md and docs/roofline.png
       python tools/readme.py --check  exits 1 when README.md does not say what the commands print
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"```console\n\$ (?P<command>perfmodel [^\n]+)\n.*?```", re.DOTALL)
PICTURE = "perfmodel roofline --gpu h100 --model llama3-70b -o"


def run(command: str) -> str:
    """Output of a command, with perfmodel run by this interpreter."""
    arguments = [sys.executable, "-P", "-m", *shlex.split(command)]
    result = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT.parent)
    return result.stdout.rstrip("\n")


def filled(text: str) -> str:
    """The README with every `console` block showing what its command prints now."""
    return BLOCK.sub(lambda m: f"```console\n$ {m['command']}\n{run(m['command'])}\n```", text)


def main() -> int:
    path = ROOT / "README.md"
    text = path.read_text()
    new = filled(text)
    if "--check" in sys.argv:
        return int(new != text)
    path.write_text(new)
    run(f"{PICTURE} {ROOT / 'docs/roofline.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
