"""A folder of YAML specs, found by file name or alias.

A spec file starts with a header (name-like keys and ``aliases: [..]``) that ends at the first blank line, so that an
alias is found without parsing the rest of every file.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from perfmodel.base.errors import UnknownName
from perfmodel.base.yamlio import load_yaml, parse_yaml, read_text


def normalise(name: str) -> str:
    """Spelling that does not matter: case, and all but letters, digits and the point of a number.

    >>> normalise("Llama-3_70B") == normalise("llama3-70b")
    True
    >>> normalise("opt-1.3b") == normalise("opt-13b")
    False
    """
    return re.sub(r"(?<!\d)\.|\.(?!\d)|[^a-z0-9.]+", "", name.casefold())


class Catalogue:
    """The specs of one folder.

    Parameters
    ----------
    folder : Path
        Where the ``*.yaml`` files are.
    kind : str
        What one is called in messages, such as ``"GPU"``.
    """

    def __init__(self, folder: Path, kind: str, listing: str) -> None:
        self.folder, self.kind, self.listing = folder, kind, listing

    @functools.cached_property
    def names(self) -> list[str]:
        """Names of all specs, sorted."""
        return sorted(path.stem for path in self.folder.glob("*.yaml"))

    @functools.cached_property
    def _files(self) -> dict[str, str]:
        return {normalise(name): name for name in self.names}

    @functools.cached_property
    def aliases(self) -> dict[str, str]:
        """Alias as it is written -> name."""
        table: dict[str, str] = {}
        for name in self.names:
            path = self.folder / f"{name}.yaml"
            header = parse_yaml(read_text(path).split("\n\n", 1)[0], path)
            for alias in header.get("aliases", []):
                table.setdefault(alias, name)
        return table

    @functools.cached_property
    def _aliases(self) -> dict[str, str]:
        return {normalise(alias): name for alias, name in self.aliases.items()}

    def resolve(self, name: str) -> str:
        """Name of the spec that ``name`` (or an alias) means.

        Raises
        ------
        UnknownName
            With the nearest names.
        """
        key = normalise(name)
        found = self._files.get(key) or self._aliases.get(key)
        if found is None:
            raise UnknownName(self.kind, name, [*self.names, *self.aliases], self.listing)
        return found

    def read(self, name: str) -> tuple[dict[str, Any], Path]:
        """Parsed spec of a name or alias, and its file."""
        path = self.folder / f"{self.resolve(name)}.yaml"
        return load_yaml(path), path


def looks_like_path(text: str) -> bool:
    """Whether the user means a file: it exists, or is written like one."""
    return text.endswith((".yaml", ".yml", ".json", ".gguf", ".safetensors")) or text.startswith((".", "/", "~"))
