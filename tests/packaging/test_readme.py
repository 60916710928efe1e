"""The README says what the commands print."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_readme_outputs_are_what_the_commands_print():
    """Each `console` block of the README is the present output of its command."""
    spec = importlib.util.spec_from_file_location("readme_tool", ROOT / "tools/readme.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    text = (ROOT / "README.md").read_text()
    assert len(tool.BLOCK.findall(text)) >= 3
    assert tool.filled(text) == text
