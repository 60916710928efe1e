"""The page: self-contained, well-formed, accessible, and it shows a hostile name without obeying it."""

import itertools
import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from perfmodel.hwspecs.listing import sources
from perfmodel.hwspecs.load import gpu, system
from perfmodel.reports.html import Section, Table, page
from perfmodel.reports.summary import headline, memory_rows, sentences
from perfmodel.reports.tables import Column
from perfmodel.roofline.analysis import Analysis, analyze, estimate

VOID = {"meta", "link", "br", "img", "hr", "input", "wbr"}
#: Attributes that make a browser fetch or run something.
FETCHING = {"src", "srcset", "data", "action", "formaction", "poster", "background", "ping", "manifest"}


class Page(HTMLParser):
    """Elements, attributes and text of a page; complains about a wrong end tag."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def plain(sharded: Analysis) -> Page:
    """The page of a model that fits."""
    return Page(page([sharded]))


def test_page_is_self_contained(plain: Page) -> None:
    """Nothing is fetched and nothing runs: no script, no image, no style sheet; links are citations or jumps."""
    tags = {tag for tag, _ in plain.tags}
    assert tags.isdisjoint({"script", "img", "iframe", "link", "object", "embed", "video", "base", "form"})
    for tag, attributes in plain.tags:
        assert FETCHING.isdisjoint(attributes)
        assert not any(name.startswith("on") for name in attributes)
        for name in ("href", "xlink:href"):
            target = attributes.get(name, "#")
            assert target.startswith("#") or (tag == "a" and target.startswith("https://")), (tag, target)


def test_page_forbids_what_it_does_not_need(sharded: Analysis) -> None:
    """The content-security policy allows styles in the page and nothing else; style sheets name no address."""
    text = page([sharded])
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text


def test_page_is_accessible(plain: Page) -> None:
    """One title, headings in order, captions and scopes in every table, ids once, a named picture, a language."""
    names = [tag for tag, _ in plain.tags]
    assert names.count("h1") == names.count("main") == 1
    levels = [int(tag[1]) for tag in names if re.fullmatch("h[1-6]", tag)]
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    assert names.count("table") == names.count("caption") == names.count("thead") > 3
    assert all("scope" in a for tag, a in plain.tags if tag == "th")
    ids = [a["id"] for _, a in plain.tags if "id" in a]
    assert len(ids) == len(set(ids))
    jumps = {a["href"][1:] for tag, a in plain.tags if tag == "a" and a.get("href", "").startswith("#")}
    assert jumps <= set(ids)
    assert dict(plain.tags)["svg"]["role"] == "img"
    assert dict(plain.tags)["html"]["lang"] == "en"


def test_page_reads_on_paper_in_the_dark_and_on_a_phone(sharded: Analysis) -> None:
    """The style sheet has variants for dark screens and for print, a viewport, and wide things scroll by themselves."""
    text = page([sharded])
    assert "@media screen and (prefers-color-scheme: dark)" in text
    assert "@media print" in text
    assert 'content="width=device-width, initial-scale=1"' in text
    assert text.count('class="wide') >= 5


def test_page_cites_every_number(sharded: Analysis, plain: Page) -> None:
    """Every number of the GPU and its system is there with its source and what other sources say; the model's too."""
    for spec in (gpu("h100"), system("dgx-h100")):
        for cited in sources(spec):
            for part in (cited.path, cited.text, cited.source, cited.note, *(a.why for a in cited.alternatives)):
                assert re.sub(r"\s+", " ", part) in plain.text
    assert sharded.setup.model.source in plain.text


def test_page_says_what_the_estimate_says(sharded: Analysis, plain: Page) -> None:
    """TTFT, TPOT and throughput are those of the estimate, with definitions."""
    found = estimate("llama3-70b", "h100", tp=4)
    assert (sharded.ttft_s, sharded.tpot_s, sharded.tokens_per_s) == (found.ttft_s, found.tpot_s, found.tokens_per_s)
    for item in headline(sharded):
        assert item["value"] in plain.text
        assert item["meaning"] in plain.text
    assert "≥ 93.5 ms" in plain.text


def test_summary_names_limits_fit_and_remedies(sharded: Analysis, llama: Analysis, deepseek: Analysis) -> None:
    """In words: whether it fits in both units, what limits each phase, the ridge, and what would help."""
    text = " ".join(sentences(sharded))
    assert "It fits" in text
    assert "GiB" in text
    assert "GB)" in text
    assert "limited by BF16 tensor 77.3 %, NVLink4 12.8 %" in text
    assert "the ridge of BF16 tensor over HBM3 is 295" in text
    assert "fewer bits a weight" in text
    assert "FP8 arithmetic, whose peak is 2 times that of BF16" in text
    assert re.search(r"In decode the linear layers turn compute-bound at \d+ tokens a step with bf16 weights", text)
    assert "It does not fit" in " ".join(sentences(llama))
    assert headline(llama)[0]["value"].startswith("hypothetical")
    assert "Collectives over NVLink4" in " ".join(sentences(deepseek))


def test_memory_adds_up(sharded: Analysis) -> None:
    """The parts add up to what is needed, and the shares are of what is usable."""
    *parts, needed, usable = memory_rows(sharded)
    assert sum(float(str(p["bytes"])) for p in parts) == pytest.approx(float(str(needed["bytes"])))
    assert usable["bytes"] == sharded.memory.usable
    assert needed["share"] == pytest.approx(sharded.memory.needed / sharded.memory.usable)


def test_misfit_is_on_top(llama: Analysis) -> None:
    """What does not fit is said before anything else, with what would."""
    text = page([llama])
    assert 0 < text.index('class="notice"') < text.index("<h2")
    assert "--tp 2 or --weights fp8 would fit" in Page(text).text


def test_ids_are_unique_with_twins(llama: Analysis) -> None:
    """Two analyses that are told apart by a number alone leave no id twice."""
    ids = [a["id"] for _, a in Page(page([llama, llama])).tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_several_analyses_share_a_page() -> None:
    """Two GPUs: each has its summary and tables, both have sources, and the picture is one."""
    found = Page(page([analyze("llama3-8b", name) for name in ("h100", "mi300x")]))
    assert [tag for tag, _ in found.tags].count("svg") == 1
    for part in ("h100-sxm", "mi300x", "NVIDIA H100 SXM5 80 GB", "AMD Instinct MI300X 192 GB", "Decode, mi300x"):
        assert part in found.text


def test_later_parts_add_sections(sharded: Analysis) -> None:
    """A section with text and a table appears, with a link to it, and its text is escaped."""
    extra = Section(
        "Speculation & more", ["a < b"], [Table("Gains", [Column("x", "gain")], [{"x": 1.5}, {"x": "<b>"}])]
    )
    found = Page(page([sharded], sections=[extra]))
    assert ("a", {"href": "#speculation-more"}) in found.tags
    for part in ("Speculation & more", "a < b", "Gains", "1.5", "<b>"):
        assert part in found.text


def test_claims_come_last_and_folded(sharded: Analysis) -> None:
    """The ledger stands behind the sources, folded under one line with the verdicts counted; without rows is none."""
    from perfmodel.reports.claims import ledger

    rows = ledger("H")
    text = page([sharded], claims_rows=rows)
    found = Page(text)
    assert all(row["what"] in found.text for row in rows)
    start = text.index("<details>")
    assert text.index("Sources of the numbers</h2>") < text.index("Claims</h2>") < start < text.index("Claim ledger")
    assert "<section" not in text[start:]
    line = text[text.index("<summary>", start) + 9 : text.index("</summary>", start)]
    words = [row["verdict"].partition(":")[0] or "no claim" for row in rows]
    assert line == f"{len(rows)} lines: " + ", ".join(f"{words.count(w)} {w}" for w in dict.fromkeys(words))
    assert "<details" not in page([sharded])
    assert "Claim ledger" not in page([sharded])


def test_a_processor_is_no_datasheet() -> None:
    """The page about this machine's processor says what was derived and measured, and calls it a CPU."""
    found = Page(page([analyze("qwen3-0.6b", "cpu")])).text
    assert "derived from cores, SIMD width and clock" in found
    assert "at datasheet peaks" not in found
    assert "as its documents describe it" not in found
    assert "Memory of one CPU" in found
    assert "one GPU" not in found


def test_hostile_names_are_text(hostile: Analysis, no_traces: Callable[[str], None]) -> None:
    """A hostile name appears as text everywhere: no script, no handler, no link but https, no control character."""
    text = page([hostile, hostile])
    no_traces(text)
    assert "<script" not in text
    assert "onerror" not in {name for _, attributes in Page(text).tags for name in attributes}
    found = Page(text)
    assert {tag for tag, _ in found.tags}.isdisjoint({"script", "img", "b"})
    assert "<script>alert(1)</script>" in found.text
    assert "onerror=alert(2)>" in found.text
    links = [a["href"] for tag, a in found.tags if tag == "a" and not a["href"].startswith("#")]
    assert all(link.startswith("https://") for link in links)
