"""The model that a table names: a built-in one, or a Hugging Face configuration of the user's folder."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from perfmodel.base.errors import SpecError, UsageError
from perfmodel.base.text import printable
from perfmodel.modelspecs.load import MODELS, from_file, model
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.validate.rows import Skip

UNKNOWN = "no built-in model and no configuration of that name"
#: Endings of the files of a folder of configurations, ``<org>__<name>.json``.
ENDINGS = (".json", ".yaml", ".yml")
MAX_FILES = 100_000
#: Marks the names of files that name no organisation.
PLAIN = "__"

#: Words of a GGUF file's name for a model that say nothing about its shape.
_WORDS = re.compile(
    r"(?i)^(?:unsloth|opensourcerelease)[_ -]|[_ -](?:bf16|f16|hf|safetensors|gguf|qat|128k)(?=$|[_ -])"
)


@dataclass(frozen=True)
class Found:
    """A model and where it was found."""

    model: ModelSpec
    source: str


class Models:
    """Models by the names of tables. What was found, and what was not, is remembered.

    Parameters
    ----------
    configs : Path, optional
        A folder of configurations, ``<org>__<name>.json`` (or ``.yaml`` specs; or ``<name>`` alone).

    Raises
    ------
    UsageError
        When it is not a folder.
    """

    def __init__(self, configs: Path | str | None = None) -> None:
        self._files = _files(Path(configs)) if configs is not None else {}
        self._ids = {alias.casefold(): name for alias, name in MODELS.aliases.items()}
        spellings = {**{name: name for name in MODELS.names}, **MODELS.aliases}
        self._names = {squeezed(spelling): name for spelling, name in spellings.items()}
        self._known: dict[str, Found | str] = {}

    def find(self, name: str) -> Found:
        """The model of a Hugging Face id, or of a built-in name.

        A built-in model answers to its own ids and names only; a configuration to the id in its file's name, and to the
        name without the organisation where just one file has it. A file that names no organisation stands for any.

        Raises
        ------
        Skip
            When there is none, or its configuration is refused, with the refusal.
        """
        name = name.strip()
        if name not in self._known:
            self._known[name] = self._look(name)
        known = self._known[name]
        if isinstance(known, str):
            raise Skip(known)
        return known

    def printed(self, name: str) -> Found:
        """The model that a GGUF file's ``general.name`` means, words such as ``BF16`` or ``unsloth_`` aside.

        >>> Models().printed("unsloth_DeepSeek R1 BF16").model.name
        'deepseek-r1'
        """
        short = _WORDS.sub("", name.strip())
        return self.find(
            re.sub(r"(?i)(?<=\d[bm])[_ -]it$", "-Instruct", short) if "gemma" not in short.casefold() else short
        )

    def _look(self, name: str) -> Found | str:
        builtin = self._ids.get(name.casefold())
        if builtin is None and "/" not in name:
            builtin = self._names.get(squeezed(name))
        if builtin is not None:
            return Found(model(builtin), f"built-in {builtin}")
        key = name.casefold().replace("/", "__")
        path = self._files.get(key) or self._files.get(PLAIN + key.rpartition("__")[2])
        if path is None:
            return UNKNOWN
        try:
            return Found(from_file(path), f"configuration {printable(path.name, 200)}")
        except SpecError as error:
            where = f"{error.key}: " if error.key else ""
            return printable(f"configuration refused: {where}{error.problem}", 300)


def _files(folder: Path) -> dict[str, Path]:
    """Names in lower case -> files; a name without its organisation where it is unique."""
    try:
        with os.scandir(folder) as entries:
            paths = sorted(Path(entry.path) for entry in entries if entry.name.endswith(ENDINGS) and entry.is_file())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--configs {printable(str(folder), 200)}: {reason}; give a folder of configurations"
        ) from error
    if len(paths) > MAX_FILES:
        raise UsageError(f"--configs {printable(str(folder), 200)} holds {len(paths):,} files; at most {MAX_FILES:,}")
    found = {path.stem.casefold(): path for path in paths}
    found |= {PLAIN + name: path for name, path in found.items() if "__" not in name}
    short: dict[str, list[Path]] = {}
    for path in paths:
        short.setdefault(path.stem.casefold().rpartition("__")[2], []).append(path)
    return {name: same[0] for name, same in short.items() if len(same) == 1} | found


def squeezed(name: str) -> str:
    """A name without case and punctuation; a dot between digits stays, for 1.3B is not 13B.

    >>> squeezed("Meta_Llama_3.1_8B") == squeezed("meta-llama 3.1-8b"), squeezed("opt-1.3b") == squeezed("opt-13b")
    (True, False)
    """
    return re.sub(r"(?<![0-9])\.|\.(?![0-9])|[^a-z0-9.]+", "", name.casefold())


def same_name(one: str, other: str) -> bool:
    """Whether two spellings are one name.

    >>> same_name("LLaMA v2", "llama-v2")
    True
    """
    return squeezed(one) == squeezed(other)
