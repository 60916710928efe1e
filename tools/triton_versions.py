"""Run the interpreter tests with the Triton that is installed, and keep the result for docs/kernels.md.

    python -P tools/triton_versions.py [PYTEST ARGUMENT ...]

Adds the version to tests/kernels/data/triton_versions.json, or replaces its entry. Exits with pytest's code.
"""

import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "tests" / "kernels" / "data" / "triton_versions.json"


def counts(report: Path) -> dict[str, int]:
    """Tests that passed, failed and were skipped, in a JUnit report."""
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    total, skipped = (sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "skipped"))
    failed = sum(int(suite.get(name, 0)) for suite in suites for name in ("failures", "errors"))
    return {"passed": total - failed - skipped, "failed": failed, "skipped": skipped}


def keep(path: Path, name: str, entry: dict[str, object]) -> None:
    """Put an entry into the file of results."""
    known = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted((known | {name: entry}).items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-P", "-m", "pytest", "-m", "interpreter", f"--junitxml={report}"]
        code = subprocess.run([*command, "tests/kernels", *sys.argv[1:]], cwd=ROOT).returncode
        found = counts(report)
    keep(RESULTS, version("triton"), {"torch": version("torch"), "numpy": version("numpy"), **found})
    return code


if __name__ == "__main__":
    sys.exit(main())
