# SPDX-License-Identifier: Apache-2.0
"""The man page as a page of the site: the few macros that it is written in, as nodes of a document."""
import re

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

ESCAPES = {r"\-": "-", r"\(aq": "'", r"\(pc": "·", r"\&": "", r"\e": "\\"}
FONTS = {"B": nodes.strong, "I": nodes.emphasis}
FONT_MACROS = ("B", "I", "BR", "RB", "BI", "IB", "RI", "IR")


def plain(text):
    return re.sub(r"\\(?:\(..|[^f])", lambda match: ESCAPES[match.group()], text)


def styled(font, text):
    """Text that begins in a font and may change it."""
    parts = re.split(r"\\f([BIR])", text)
    for font, part in zip([font, *parts[1::2]], parts[::2]):
        if part:
            yield FONTS[font]("", plain(part)) if font in FONTS else nodes.Text(plain(part))


def styled_macro(fonts, arguments):
    """`.BR word word`: fonts in turn, nothing between the words; `.B word word`: one font."""
    words = [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|(\S+)', arguments)]
    if len(fonts) == 1:
        words = [" ".join(words)]
    for at, word in enumerate(words):
        yield from styled(fonts[at % len(fonts)], word)


class Page:
    """Sections, and in each paragraphs, lists of definitions and literal blocks, as the lines of the source come."""

    def __init__(self, document):
        self.document, self.top = document, []
        self.section = self.subsection = self.items = self.paragraph = self.literal = None
        self.is_term = False

    def add(self, node):
        place = self.subsection if self.subsection is not None else self.section
        place.append(node)

    def begin_section(self, name, title):
        section = nodes.section("", nodes.title("", title.capitalize()), names=[nodes.fully_normalize_name(title)])
        self.document.note_implicit_target(section, section)
        if name == "SH":
            self.top.append(section)
            self.section, self.subsection = section, None
        else:
            self.section.append(section)
            self.subsection = section
        self.items = self.paragraph = None

    def begin_item(self):
        if self.items is None:
            self.items = nodes.definition_list()
            self.add(self.items)
        self.is_term, self.paragraph = True, None

    def text(self, inline):
        if self.is_term:
            self.paragraph = nodes.paragraph()
            term = nodes.term("", "", *inline)
            self.items.append(nodes.definition_list_item("", term, nodes.definition("", self.paragraph)))
            self.is_term = False
            return
        if self.paragraph is None:
            self.paragraph = nodes.paragraph()
            self.add(self.paragraph)
        if len(self.paragraph):
            self.paragraph.append(nodes.Text(" "))
        self.paragraph.extend(inline)

    def read(self, line):
        request = re.match(r"\.(\S+) ?(.*)", line)
        name, arguments = request.groups() if request else (None, "")
        if name in ("SH", "SS"):
            self.begin_section(name, plain(arguments))
        elif name == "TP":
            self.begin_item()
        elif name == "PP":
            self.items = self.paragraph = None
        elif name == "nf":
            self.literal = []
        elif name == "fi":
            text = "\n".join(self.literal)
            self.add(nodes.literal_block(text, text, language="none"))
            self.literal = self.paragraph = None
        elif self.literal is not None:
            self.literal.append(plain(re.sub(r"\\f[BIR]", "", line)))
        elif name in FONT_MACROS:
            self.text(styled_macro(name, arguments))
        elif name is None:
            self.text(styled("R", line))
        elif name not in ('\\"', "TH", "RS", "RE"):
            raise ValueError(f"docs/site/manual.py does not know .{name}")


class Manual(SphinxDirective):
    required_arguments = 1

    def run(self):
        relative, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(relative)
        page = Page(self.state.document)
        with open(path, encoding="utf-8") as file:
            for line in file:
                page.read(line.rstrip("\n"))
        return page.top


def setup(app):
    app.add_directive("manual", Manual)
    return {"version": "1", "parallel_read_safe": True}
