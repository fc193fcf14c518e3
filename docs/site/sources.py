# SPDX-License-Identifier: Apache-2.0
"""Links to files that are no pages (a header, a script, a folder) lead to a page that shows the file.

There is no public address of the repository to lead to. A copy on the site works without one, of the same commit, and
offline. Its address is the file's path with .html behind it."""
import os
import pathlib

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.util.osutil import relative_uri

AS_PAGES = {"docs/reference/epigrad.1": "docs/site/command"}
PICTURES = (".png", ".svg")  # Sphinx copies them


def page_of(path, root):
    return f"{path}/index" if (root / path).is_dir() else str(path)


def lead_to_copies(app, doctree):
    """A link that is no page's, and the file or folder is there: to its copy. Before Sphinx collects downloads."""
    env = app.env
    shown = env.epigrad_shown = getattr(env, "epigrad_shown", {})
    shown[env.docname] = set()
    root = pathlib.Path(env.srcdir)
    for node in list(doctree.findall(addnodes.download_reference)) + list(doctree.findall(addnodes.pending_xref)):
        if node.get("refdomain") or node.get("reftype") != "myst":
            continue
        target = node["reftarget"].partition("#")[0]
        path = os.path.normpath(os.path.join(os.path.dirname(env.docname), target))
        if not target or not (root / path).exists() or path.startswith("..") or path.endswith(PICTURES):
            continue  # Sphinx copies what is there, and warns of what is not
        if path not in AS_PAGES:
            shown[env.docname].add(path)
        page = AS_PAGES.get(path) or page_of(path, root)
        made = nodes.reference("", "", internal=True)
        made["refuri"] = relative_uri(app.builder.get_target_uri(env.docname), app.builder.get_target_uri(page))
        made.extend(child.deepcopy() for child in node.children)
        for child in made.findall(nodes.literal):
            child["classes"] = [name for name in child["classes"] if name not in ("xref", "download")]
        node.replace_self(made)


def body_of(path, root, uri):
    """The file with its lines numbered and coloured, or what a folder has."""
    if (root / path).is_dir():
        names = sorted(name for name in os.listdir(root / path) if not name.startswith((".", "__pycache__")))
        links = {name: uri(f"{path}/{name}") for name in names}
        items = "".join(f'<li><a href="{links[name]}">{name}</a></li>' if links[name] else f"<li>{name}</li>"
                        for name in names)
        return f"<ul>{items}</ul>"
    text = (root / path).read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(str(path), text)
    except ClassNotFound:
        lexer = TextLexer()
    return highlight(text, lexer, HtmlFormatter(linenos="inline", lineanchors="line", anchorlinenos=False))


def pages(app):
    env = app.env
    root = pathlib.Path(env.srcdir)
    paths = set().union(*env.epigrad_shown.values())
    for path in sorted(paths):
        page = page_of(path, root)

        def uri(other, page=page):
            """Where another file of the repository is on the site; None: nowhere."""
            known = other if other in paths else other.removesuffix(".md")
            if known not in paths and known not in env.found_docs:
                return None
            return relative_uri(page + ".html", (page_of(known, root) if known in paths else known) + ".html")
        title = f"<h1><code>{path}</code></h1>"
        yield page, {"title": path, "body": title + body_of(path, root, uri), "parents": []}, "page.html"


def forget(app, env, docname):
    getattr(env, "epigrad_shown", {}).pop(docname, None)


def setup(app):
    app.connect("doctree-read", lead_to_copies, priority=100)
    app.connect("env-purge-doc", forget)
    app.connect("html-collect-pages", pages)
    return {"version": "1", "parallel_read_safe": False}
