# SPDX-License-Identifier: Apache-2.0
"""What a reader of the site relies on: links lead somewhere, search finds, pages fit, every declaration is there."""

import functools
import html.parser
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import urllib.parse

import pytest
from conftest import ROOT, SITE

PICTURES = pathlib.Path(os.environ.get("EPIGRAD_PICTURES", SITE.with_name("site-pictures")))  # screenshots are kept there


# ---- Links ----------------------------------------------------------------------------------------

class Document(html.parser.HTMLParser):
    """Where a page leads, and what in it may be led to."""

    def __init__(self, path):
        super().__init__()
        self.targets, self.ids, self.path = [], set(), path
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        for name in ("href", "src"):
            if attributes.get(name):
                self.targets.append(attributes[name])


document = functools.cache(Document)


def documents():
    return [document(path) for path in sorted(SITE.rglob("*.html"))]


def leads_nowhere(page, target):
    """What is wrong with a link of a page, or None."""
    parts = urllib.parse.urlsplit(target)
    if parts.scheme or parts.netloc:
        return None
    file = page.path.parent / urllib.parse.unquote(parts.path) if parts.path else page.path
    if not file.resolve().is_relative_to(SITE):
        return "leads out of the site"
    if not file.is_file():
        return "leads nowhere"
    if parts.fragment and file.suffix == ".html" and parts.fragment not in {"", "top"}:
        if urllib.parse.unquote(parts.fragment) not in document(file.resolve()).ids:
            return "has no such place"
    return None


def test_every_link_leads_somewhere():
    pages = documents()
    assert sum(len(page.targets) for page in pages) > 5000  # menus included
    assert [] == sorted({f"{page.path.relative_to(SITE)}: {target} {fault}" for page in pages
                         for target in page.targets if (fault := leads_nowhere(page, target))})


def test_a_dead_link_would_be_seen():
    page = document(SITE / "docs" / "index.html")
    assert leads_nowhere(page, "howto/from-pytorch.html#a-new-model") is None
    assert leads_nowhere(page, "howto/from-nowhere.html") == "leads nowhere"
    assert leads_nowhere(page, "howto/from-jax.html#no-heading") == "has no such place"
    assert leads_nowhere(page, "../../x.html") == "leads out of the site"


def test_every_page_of_the_documents_is_there():
    pages = [path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 40
    assert [] == [page for page in pages if not (SITE / page).with_suffix(".html").exists()]


# ---- The reference --------------------------------------------------------------------------------

def declared():
    """What the header declares, as anchors of its page."""
    text = (ROOT / "include" / "epigrad" / "epigrad.h").read_text(encoding="utf-8")
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    names = set(re.findall(r"^EG_(?:API|CONSTRUCTOR) [^;{(]*?\b(eg_\w+)\(", code, flags=re.M))
    names |= set(re.findall(r"\b(EG_[A-Z0-9_]+) = ", code))
    for struct, body in re.findall(r"^typedef struct (\w+) \{(.*?)^\}", code, flags=re.M | re.S):
        names |= {struct}
        for field in body.split(";")[:-1]:
            pointer = re.search(r"\(\*(\w+)\)", field)
            several = [pointer.group(1)] if pointer else re.findall(r"(\w+)\s*(?:,|$)", field.strip())
            names |= {f"{struct}.{name}" for name in several}
    table = (ROOT / "include" / "epigrad" / "activation.h").read_text(encoding="utf-8")
    return names | {f"EG_ACT_{name}" for name in re.findall(r"^    X\((\w+), \w+, \d", table, flags=re.M)}


def test_every_declaration_of_the_header_is_there():
    names = declared()
    assert len(names) > 150 and {"eg_layer.k", "eg_allocator.free", "EG_ACT_MISH", "eg_download"} <= names
    ids = {name.removeprefix("c.") for name in document(SITE / "docs" / "site" / "c.html").ids}
    ids |= {name.partition(".")[2] for name in ids}  # an enumerator's is behind its type's
    assert [] == sorted(names - ids)


def test_no_mark_of_the_header_is_left():
    text = (SITE / "docs" / "site" / "c.html").read_text(encoding="utf-8")
    assert "with-the-declaration-above" not in text
    assert not re.search(r"(?<!\w):c:\w+:", text)


def test_every_public_name_of_the_package_is_there():
    ids = document(SITE / "docs" / "site" / "python.html").ids
    source = (ROOT / "python" / "epigrad" / "__init__.py").read_text(encoding="utf-8")
    names = {f"epigrad.{name}" for name in re.findall(r'"(\w+)"', re.search(r"__all__ = \[(.*?)\]", source, re.S).group(1))}
    assert len(names) == 14
    names -= {"epigrad.__version__"}
    names |= {f"epigrad.torch.{name}" for name in ("linear", "Linear", "MLP", "patch", "Replaced")} | {"epigrad.jax.linear"}
    assert [] == sorted(names - ids)
    assert "MagicMock" not in (SITE / "docs" / "site" / "python.html").read_text(encoding="utf-8")


# ---- Blocks of other libraries --------------------------------------------------------------------

def test_blocks_of_other_libraries_compile():
    include = pathlib.Path(sysconfig.get_path("data")) / "include"
    check = [sys.executable, str(ROOT / "tests" / "docs" / "check.py"), "foreign", "--include", str(include)]
    run = subprocess.run(check, capture_output=True, text=True, check=False)
    print(run.stdout)
    if run.returncode == 77:
        pytest.skip(run.stdout)
    assert run.returncode == 0, run.stdout
    if (include / "oneapi").exists():
        assert run.stdout.count("docs/howto/from-onednn.md") == run.stdout.count("from-onednn.md:") == 2
        assert not re.search(r"from-onednn.md:\d+: skipped", run.stdout)


# ---- In a browser ---------------------------------------------------------------------------------

@pytest.mark.parametrize("words, expected", [
    ("eg_pack_b", "docs/site/c.html"),
    ("DGELU_BGRAD", "docs/howto/from-cublaslt.html"),
    ("prefetch", "docs/lab/cpu-2026-11-27.html"),
    ("set_num_threads", "docs/site/python.html"),
])
def test_search_finds(open_page, words, expected):
    page = open_page("docs/index.html")
    page.fill(".sidebar-search", words)
    page.press(".sidebar-search", "Enter")
    page.wait_for_selector("#search-results .search li a")
    page.wait_for_function("document.querySelector('.search-summary').textContent.includes('found')")
    found = [urllib.parse.urlsplit(link.get_attribute("href")).path for link in
             page.query_selector_all("#search-results .search li > a")]
    assert any(link.endswith(expected.removeprefix("docs/")) for link in found[:5]), found


def test_search_for_what_is_not_there_finds_nothing(open_page):
    page = open_page("search.html?q=xyzzyplugh")
    page.wait_for_function("document.querySelector('#search-results').textContent.includes('did not match')")
    assert page.query_selector_all("#search-results .search li") == []


def test_the_root_leads_to_the_first_page(open_page):
    page = open_page("index.html")
    page.wait_for_url("**/docs/index.html")
    assert page.inner_text("h1").startswith("epigrad")


WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


def test_pages_fit(open_page, address):
    """On a phone, and where the least desktop has all three columns: nothing but blocks of code and tables scrolls sideways."""
    page = open_page("docs/index.html")
    too_wide = {}
    for path in sorted(SITE.rglob("*.html")):
        name = path.relative_to(SITE).as_posix()
        if name == "index.html":
            continue
        page.goto(f"{address}/{name}", wait_until="domcontentloaded")
        for width in (390, 1320):
            page.set_viewport_size({"width": width, "height": 900})
            beyond = page.evaluate(WIDE)
            if beyond > 0:
                too_wide[name, width] = beyond
    assert too_wide == {}


def test_two_languages_stand_side_by_side_where_there_is_room(open_page):
    places = "() => [...document.querySelectorAll('.side-by-side .side')].slice(0, 2).map((e) => e.getBoundingClientRect().y)"
    wide = open_page("docs/tutorial/two-languages.html", viewport={"width": 1440, "height": 900})
    c, python = wide.evaluate(places)
    assert c == python
    narrow = open_page("docs/tutorial/two-languages.html", viewport={"width": 390, "height": 900})
    c, python = narrow.evaluate(places)
    assert c < python


SHOWN = ["docs/index", "docs/site/c", "docs/site/python", "docs/tutorial/two-languages", "docs/PERFORMANCE",
         "docs/howto/from-cublaslt", "docs/explanation/how-a-call-runs"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(open_page, address, scheme):
    """The contrast of text and paper is at least 4.5 (WCAG AA), code and links included. Pictures are kept."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page = open_page("docs/index.html", color_scheme=scheme, viewport={"width": 1440, "height": 1000})
    faint = set()
    for name in SHOWN:
        page.goto(f"{address}/{name}.html")
        page.screenshot(path=PICTURES / f"{name.replace('/', '-')}-{scheme}.png")
        faint |= {f"{name}: {what}" for what in page.evaluate(CONTRAST)}
    assert faint == set()


# Colours of all text in the article and beside it; the paper is the nearest background that is opaque.
CONTRAST = """() => {
    const numbers = (color) => color.match(/[0-9.]+/g).map(Number);
    const paper = (e) => { for (; e; e = e.parentElement) {
        const c = numbers(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] === 1) return c; }
        return [255, 255, 255]; };
    const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => v / 255).map(
        (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const bad = new Set();
    for (const e of document.querySelectorAll('article *, .toc-tree a, .sidebar-tree a')) {
        if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || e.closest('.headerlink')) continue;
        const style = getComputedStyle(e);
        if (style.visibility === 'hidden' || !e.getClientRects().length) continue;
        const [low, high] = [light(numbers(style.color)), light(paper(e))].sort((a, b) => a - b);
        const ratio = (high + 0.05) / (low + 0.05);
        if (ratio < 4.5) bad.add(`${e.tagName}.${e.className} ${style.color} ${ratio.toFixed(1)}`);
    }
    return [...bad];
}"""
