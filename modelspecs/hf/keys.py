"""A configuration whose every key must be accounted for: read with a type and a range, or known to be harmless."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from perfmodel.base.errors import SpecError

LARGEST = 10**9
MAX_LAYERS = 10_000
LONGEST_NAME, LONGEST_PROBLEM = 200, 1500


class MissingKeys(SpecError):
    """Keys that a configuration lacks: ``shown`` in messages, ``names`` as the reader calls them, in ``prefix``."""

    def __init__(self, file: object, shown: list[str], names: list[str], prefix: str) -> None:
        self.shown, self.names, self.prefix = shown, names, prefix
        more = f", and so are {', '.join(shown[1:41])}" if shown[1:] else ""
        them = "them" if more else "it"
        super().__init__(
            file, shown[0], f"is missing{more}; nothing is guessed: add {them} from the model's own config.json"
        )


class Keys:
    """Reads the keys of a configuration and remembers which were read.

    Parameters
    ----------
    data : dict
        The parsed configuration, or one of its sections.
    file : object
        For messages.
    prefix : str
        Of the section, such as ``"text_config."``.

    Attributes
    ----------
    notes, remarks : list[str]
        Class defaults that were used; and what else a reader of the numbers should know.
    """

    def __init__(self, data: dict[str, Any], file: object, prefix: str = "") -> None:
        self.data, self.file, self.prefix = data, file, prefix
        self.read: set[str] = set()
        self.notes: list[str] = []
        self.remarks: list[str] = []
        self.names: dict[str, str] = {}
        self.root = self

    def alias(self, **names: str | tuple[str, ...]) -> None:
        """Let keys be found under other names: ``alias(hidden_size="n_embd")``. Messages say what the file says.

        Raises
        ------
        SpecError
            When a file has more than one of the names, with different values.
        """
        for key, others in names.items():
            known = (key, *((others,) if isinstance(others, str) else others))
            given = [name for name in known if self.has(name)]
            for name in given[1:]:
                if self.data[name] != self.data[given[0]]:
                    other = _show(self.data[given[0]])
                    raise self.error(name, f"{_show(self.data[name])} contradicts {given[0]} = {other}")
            self.names[key] = given[0] if given else known[1]
            self.read |= set(given)
            if given:
                self.data = {**self.data, key: self.data[given[0]]}

    def shown(self, key: str) -> str:
        """A key as the file at hand calls it, with its section."""
        return self.prefix + self.names.get(key, key)

    def error(self, key: str, problem: str) -> SpecError:
        """The error to raise about a key; long names and texts are cut."""
        return SpecError(self.file, self.shown(key)[:LONGEST_NAME], problem[:LONGEST_PROBLEM])

    def require(self, *names: str) -> None:
        """Refuse the configuration when keys are missing, naming all of them."""
        missing = [self.shown(name) for name in names if self.data.get(name) is None]
        if missing:
            raise MissingKeys(self.file, missing, [name for name in names if self.data.get(name) is None], self.prefix)

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.data.get(key) is not None

    def dim(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number from ``least`` to 10^9; absent or null means ``default``, where the model class has one."""
        self.read.add(key)
        value = self.data.get(key)
        if value is None:
            if default is None:
                self.require(key)
                raise AssertionError("require raises")
            self.notes.append(f"{self.shown(key)} = {default}")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            raise self.error(key, f"must be a whole number from {least} to {LARGEST:,}, not {_show(value)}")
        return value

    def either(self, *names: str) -> int:
        """A whole number under one of several names; under more than one it must be the same."""
        found = {name: self.dim(name) for name in names if self.has(name)}
        if not found:
            raise MissingKeys(
                self.file, [f"{self.shown(names[0])} (or {', '.join(names[1:])})"], [names[0]], self.prefix
            )
        if len(set(found.values())) > 1:
            raise self.error(names[0], f"contradicts itself: {', '.join(f'{k} = {v}' for k, v in found.items())}")
        return next(iter(found.values()))

    def optional(self, key: str, absent: int | None = None) -> int | None:
        """A whole number or null (none); ``absent`` is the model class's default when the key is not there."""
        self.read.add(key)
        if key not in self.data:
            if absent is not None:
                self.notes.append(f"{self.shown(key)} = {absent}")
            return absent
        return None if self.data[key] is None else self.dim(key)

    def number(self, key: str, least: float, most: float) -> float:
        """A finite number, whole or not, between two limits."""
        self.require(key)
        self.read.add(key)
        value = self.data[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self.error(key, f"must be a number from {least:g} to {most:g}, not {_show(value)}")
        return float(value)

    def sections(self, key: str, length: int) -> list[Keys]:
        """A list with a section for each layer."""
        found: list[Keys] = []
        for index, value in enumerate(self._list(key, length) or ()):
            if not isinstance(value, dict):
                raise self.error(key, f"must be a list of mappings, not one with {_show(value)}")
            inner = Keys(value, self.file, f"{self.shown(key)}[{index}].")
            inner.notes, inner.remarks, inner.root = self.notes, self.remarks, self.root
            found.append(inner)
        return found

    def flag(self, key: str, default: bool) -> bool:
        """True or false; absent or null means ``default``, as in the model class, and is noted."""
        self.read.add(key)
        value = self.data.get(key)
        if value is None:
            self.notes.append(f"{self.shown(key)} = {str(default).lower()}")
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {_show(value)}")
        return value

    def flag_given(self, key: str) -> bool | None:
        """True or false, or ``None`` where the file does not say and it matters to no size."""
        return self.flag(key, False) if self.has(key) else None

    def text(self, key: str, allowed: Collection[str], default: str) -> str:
        """One of the words that are understood."""
        self.read.add(key)
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or value not in allowed:
            raise self.error(key, f"{_show(value)} is not understood; one of {', '.join(sorted(allowed))}")
        return value

    def words(self, key: str, length: int, allowed: Collection[str]) -> list[str] | None:
        """A list with a word for each layer, or ``None`` when absent."""
        value = self._list(key, length)
        for word in value or ():
            if not isinstance(word, str) or word not in allowed:
                raise self.error(key, f"{_show(word)} is not understood; one of {', '.join(sorted(allowed))}")
        return value

    def numbers(self, key: str, length: int | None = None) -> list[int] | None:
        """A list of whole numbers from 0, or ``None`` when absent."""
        value = self._list(key, length)
        for number in value or ():
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= LARGEST:
                raise self.error(key, f"must be a list of whole numbers, not one with {_show(number)}")
        return value

    def _list(self, key: str, length: int | None) -> list[Any] | None:
        self.read.add(key)
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > MAX_LAYERS:
            raise self.error(key, f"must be a list, not {_show(value)}")
        if length is not None and len(value) != length:
            raise self.error(key, f"has {len(value)} entries for {length} layers")
        return value

    def expect(self, key: str, *allowed: object) -> None:
        """Refuse any value of a key but those that the formulas hold for; absent or null is fine."""
        self.read.add(key)
        value = self.data.get(key)
        if value is not None and not any(type(value) is type(a) and value == a for a in allowed):
            raise self.error(key, f"{_shown(value)} is not understood; {_only(allowed)}: nothing is guessed")

    def section(self, key: str) -> Keys | None:
        """A nested section, or ``None`` when absent."""
        self.read.add(key)
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"must be a mapping, not {_show(value)}")
        inner = Keys(value, self.file, f"{self.prefix}{key}.")
        inner.notes, inner.remarks, inner.root = self.notes, self.remarks, self.root
        return inner

    def finish(self, harmless: Iterable[str]) -> None:
        """Refuse the configuration when keys are left that were neither read nor known to be harmless.

        A key that is null is as good as absent.
        """
        given = {key for key, value in self.data.items() if value is not None}
        left = sorted(given - self.read - set(harmless))
        if left:
            named = ", ".join(f"{name[:80]} = {_show(self.data[name])}" for name in left[:8])
            more = f" and {len(left) - 8} more" if len(left) > 8 else ""
            raise self.error(
                left[0], f"not understood: {named}{more}; a key that may change sizes or costs is refused, not ignored"
            )


def _shown(value: object) -> str:
    """A value in full where it is short."""
    text = repr(value)
    return text if len(text) <= 60 else _show(value)


def _only(allowed: tuple[object, ...]) -> str:
    """What may stand there, in at most 120 characters or so."""
    text = " or ".join(map(_shown, allowed))
    return f"only {text if len(text) <= 120 else text[:117] + '...'} is" if allowed else "leave it out"


def _show(value: object) -> str:
    if isinstance(value, dict | list):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."
