"""Specs are found by name and alias, however they are spelled, and never guessed."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.catalogue import Catalogue, looks_like_path, normalise
from perfmodel.base.errors import SpecError, UnknownName


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    """Two specs; the second one's alias clashes with the first one's name."""
    (tmp_path / "h100-sxm.yaml").write_text("title: H100\naliases: [h100, 'NVIDIA H100 80GB HBM3']\n\nvalue: 1\n")
    (tmp_path / "a100.yaml").write_text(
        "title: A100\naliases: [h100-sxm, ampere]\n\nvalue: 2\naliases_of_body: [body]\n"
    )
    (tmp_path / "notes.txt").write_text("not a spec")
    return Catalogue(tmp_path, "GPU", "gpus")


@pytest.mark.parametrize(
    "name", ["h100-sxm", "H100_SXM", "h100 sxm", "H100", "nvidia h100 80gb hbm3", "NVIDIA-H100-80GB-HBM3"]
)
def test_spelling_does_not_matter(catalogue: Catalogue, name: str) -> None:
    """Case, spaces and punctuation are ignored in names and aliases."""
    assert catalogue.resolve(name) == "h100-sxm"
    assert catalogue.read(name)[0]["value"] == 1


def test_a_name_wins_over_an_alias(catalogue: Catalogue) -> None:
    """An alias of another spec cannot hide a name."""
    assert catalogue.resolve("h100-sxm") == "h100-sxm"
    assert catalogue.resolve("ampere") == "a100"


def test_only_yaml_files_are_specs_and_only_the_header_has_aliases(catalogue: Catalogue) -> None:
    """Other files are not listed; what stands after the first blank line is no alias."""
    assert catalogue.names == ["a100", "h100-sxm"]
    with pytest.raises(UnknownName):
        catalogue.resolve("body")


@pytest.mark.parametrize("name", ["", "   ", "---", "h10", "日本", "../h100-sxm", "h100-sxm.yaml"])
def test_what_nothing_has_is_refused(catalogue: Catalogue, name: str) -> None:
    """Empty, near, foreign and path-like names: nothing is guessed, and no file outside the folder is reached."""
    if normalise(name) == "h100sxm":  # dots and slashes are spelling: the built-in is meant
        assert catalogue.resolve(name) == "h100-sxm"
        return
    with pytest.raises(UnknownName, match=r"^unknown GPU '.*`perfmodel list gpus` shows all$"):
        catalogue.resolve(name)


def test_suggestions_come_from_the_catalogue(catalogue: Catalogue) -> None:
    """A slip of a letter finds the name."""
    with pytest.raises(UnknownName) as caught:
        catalogue.resolve("h10-sxm")
    assert "h100-sxm" in caught.value.suggestions


def test_a_broken_header_is_named(tmp_path: Path) -> None:
    """A spec that is no YAML is a bad spec, by its file."""
    (tmp_path / "bad.yaml").write_text("title: [\n\nvalue: 1\n")
    with pytest.raises(SpecError, match=r"bad\.yaml: is not a valid spec"):
        Catalogue(tmp_path, "GPU", "gpus").resolve("anything")


@given(st.text())
def test_normalising_twice_is_normalising_once(text: str) -> None:
    """The normal form is ASCII letters, digits and points between digits, and does not change again."""
    once = normalise(text)
    assert normalise(once) == once
    assert re.fullmatch(r"([a-z0-9]|(?<=[0-9])\.(?=[0-9]))*", once)


@pytest.mark.parametrize(
    "text", ["a.yaml", "a.yml", "config.json", "m.gguf", "m.safetensors", "./x", "../x", "/x", "~/x"]
)
def test_what_is_written_like_a_file_is_one(text: str) -> None:
    """An extension of a spec, or a path from here, from the root or from home."""
    assert looks_like_path(text)


@pytest.mark.parametrize("text", ["h100", "meta-llama/Llama-3.1-8B", "llama3.1-8b", "a.yaml.txt", ""])
def test_names_and_ids_are_no_files(text: str) -> None:
    """A Hugging Face id has a slash and dots, and is a name all the same."""
    assert not looks_like_path(text)
