"""The catalogue of methods: every file loads, every number has a source, and acceptances yield what they cite."""

from itertools import pairwise
from pathlib import Path

import pytest

from perfmodel.base.errors import SpecError, UnknownName, UsageError
from perfmodel.base.yamlio import load_yaml
from perfmodel.roofline.setup import setup
from perfmodel.roofline.speculative.candidates import default_candidate
from perfmodel.roofline.speculative.formulas import alpha_of_tokens
from perfmodel.roofline.speculative.methods import METHODS, Method, method, methods

NAMES = METHODS.names
#: The chapter's twelve, with Medusa and MagicDec in two forms, and what engines run besides.
EXPECTED = {
    "specdec", "speculative-sampling", "online", "staged", "medusa-1", "medusa-2", "parallelspec", "eagle-1", "eagle-2",
    "eagle-3", "mirror", "p-eagle", "magicdec", "magicdec-self", "mtp", "ngram",
}  # fmt: skip


def test_all_methods_are_there() -> None:
    """The catalogue holds the methods that it should, by year."""
    assert set(NAMES) == EXPECTED
    years = [m.year for m in methods()]
    assert years == sorted(years)


@pytest.mark.parametrize("name", NAMES)
def test_every_number_has_a_source(name: str) -> None:
    """Acceptance and every published result name a setting and a document: an arXiv id, a site or a dated blog."""
    m = method(name)
    for words in (m.source, m.acceptance.source, *(r.source for r in m.published)):
        assert any(mark in words for mark in ("arXiv:", "github.com/", "huggingface.co/", "blog")), words
    for words in (m.acceptance.setting, *(r.setting for r in m.published)):
        assert len(words) > 5
        assert "to be" not in words
    assert m.published
    assert m.wins


@pytest.mark.parametrize("name", NAMES)
def test_acceptance_yields_its_published_length(name: str) -> None:
    """The method's own shape yields the published tokens a round to half a percent, where any are published."""
    m = method(name)
    tokens = default_candidate(m, m.acceptance).tokens
    if m.acceptance.tau is None:
        assert m.acceptance.basis in ("stand-in", "measured")
        return
    assert tokens == pytest.approx(m.acceptance.tau, rel=5e-3)


@pytest.mark.parametrize("name", [n for n in NAMES if method(n).acceptance.basis == "bound"])
def test_a_bound_is_the_published_speedup(name: str) -> None:
    """Where the length is bounded by a speedup, it is that of the published results."""
    m = method(name)
    assert m.acceptance.tau in {x for r in m.published for x in (r.speedup, r.speedup_high)}


def test_mtp_positions_follow_from_the_mean_lengths() -> None:
    """1.855, 2.44, 2.73 and 2.77 tokens at 1 to 4 drafted: each ratio of gains is the acceptance of a position."""
    lengths = [1.0, 1.855, 2.44, 2.73, 2.77]
    gains = [1.0] + [b - a for a, b in pairwise(lengths)]
    expected = [b / a for a, b in pairwise(gains)]
    assert method("mtp").acceptance.alphas == pytest.approx(expected, abs=1e-3)


def test_eagle_3_of_other_lengths() -> None:
    """What the entry says of Llama 3.3 70B: tau 5.63 with 48 nodes, 8 deep, is an acceptance of 0.80."""
    m = method("eagle-3")
    strategy = m.strategy.model_copy(update={"nodes": 48})
    other = m.model_copy(update={"strategy": strategy})
    acceptance = m.acceptance.model_copy(update={"alphas": (0.80,)})
    assert default_candidate(other, acceptance).tokens == pytest.approx(5.63, rel=0.005)


def test_magicdec_has_one_acceptance_at_two_lengths() -> None:
    """3.08 tokens at gamma 3 and 3.57 at gamma 4 are one acceptance."""
    assert float(alpha_of_tokens(3.08, 3)) == pytest.approx(float(alpha_of_tokens(3.57, 4)), abs=0.005)


def test_names_and_aliases_resolve() -> None:
    """A name, an alias, and either without its hyphen or in other letters, lead to the method."""
    for name in NAMES:
        for word in (name, name.upper(), *method(name).aliases):
            assert method(word).name == name
    assert method("eagle3") is method("EAGLE-3")
    with pytest.raises(UnknownName, match="eagle-2"):
        method("eagle-22")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draft": {"kind": "oracle"}}, "kind"),
        ({"strategy": {"kind": "tree", "gamma": 4, "nodes": 8}, "acceptance": {"siblings": []}}, "siblings"),
        ({"acceptance": {"alphas": [1.2]}}, "less than or equal to 1"),
        ({"acceptance": {"source": ""}}, "source"),
        ({"published": [{"setting": "somewhere", "source": "arXiv:1"}]}, "a speedup or a tau"),
        ({"published": [{"speedup": 3, "speedup_high": 2, "setting": "somewhere", "source": "arXiv:1"}]}, "upper end"),
        ({"draft": {"kind": "medusa", "heads": 2}}, "no deeper"),
        ({"wins": ""}, "wins"),
        ({"speed": 9}, "speed"),
    ],
)
def test_a_bad_method_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    """A file with a number out of range, an unknown key or no source is refused, naming the key."""
    import yaml

    data = load_yaml(METHODS.folder / "medusa-1.yaml")
    for key, value in change.items():
        data[key] = {**data[key], **value} if isinstance(value, dict) and key != "draft" else value
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(SpecError, match=message):
        method(str(path))


def test_a_method_of_the_users(tmp_path: Path) -> None:
    """A YAML file is a method, named after the file."""
    path = tmp_path / "mine.yaml"
    path.write_text((METHODS.folder / "ngram.yaml").read_text())
    found = method(str(path))
    assert (found.name, found.draft.kind) == ("mine", "lookup")


def test_only_independent_methods_take_a_draft() -> None:
    """A draft model is needed by methods with an independent one and refused by the others."""
    target = setup("llama3-70b", "h100", tp=8)
    with pytest.raises(UsageError, match="needs --draft MODEL"):
        method("speculative-sampling").draft.build(target)
    with pytest.raises(UsageError, match="drafter of its own"):
        method("eagle-3").draft.build(target, "llama3.2-1b")
    with pytest.raises(UsageError, match="draft_tp"):
        method("ngram").draft.build(target, draft_tp=1)


def test_p_eagle_has_four_layers_in_one_pass() -> None:
    """P-EAGLE's head has four layers of the EAGLE-3 head's size and runs once a round."""
    target = setup("llama3-70b", "h100", tp=8)
    parallel, serial = (method(n).draft.build(target) for n in ("p-eagle", "eagle-3"))
    assert parallel.passes == "single"
    assert parallel.ready is not None
    assert serial.ready is not None
    assert parallel.ready.model.num_layers == 4
    d, ffn, kv = 8192, 28672, 1024
    layer = 2 * d * d + 2 * d * kv + 3 * d * ffn
    more = 3 * 2 * (layer / 8 + 2 * d)  # three layers more, with their norms, bf16
    assert parallel.weight_bytes - serial.weight_bytes == more


@pytest.mark.parametrize("m", methods(), ids=lambda m: m.name)
def test_methods_are_hashable_and_plain(m: Method) -> None:
    """An acceptance can be a key (shapes are cached by it) and dumps to plain data."""
    assert hash(m.acceptance) == hash(m.acceptance.model_copy())
    assert set(m.acceptance.model_dump()) == {"alphas", "siblings", "tau", "basis", "setting", "source"}
