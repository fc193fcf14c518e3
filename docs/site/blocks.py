# SPDX-License-Identifier: Apache-2.0
"""What pages say in comments, which a code host does not show, and in the C reference by a mark.

<!-- side by side --> puts the two blocks behind it next to each other where there is room."""
import re

from docutils import nodes
from header import WITH_ABOVE
from sphinx import addnodes

NAMES = {"c": "C", "python": "Python"}


def is_code(node):
    return isinstance(node, nodes.literal_block)


def next_of(node):
    """What stands behind it, but for comments, which are taken away."""
    while True:
        following = node.next_node(descend=False, siblings=True)
        if following is None or not (isinstance(following, nodes.comment) or is_comment(following)):
            return following
        following.parent.remove(following)


def is_comment(node):
    return isinstance(node, nodes.raw) and re.fullmatch(r"<!--.*-->", node.astext().strip(), re.S) is not None


def put_side_by_side(doctree):
    for mark in list(doctree.findall(lambda node: is_comment(node) and "side by side" in node.astext())):
        pair = nodes.container(classes=["side-by-side"])
        for _ in range(2):
            block = next_of(mark)
            if not is_code(block):
                raise ValueError(f"{mark.source}:{mark.line}: no two blocks of code behind <!-- side by side -->")
            block.parent.remove(block)
            name = NAMES.get(block.get("language"), block.get("language"))
            pair += nodes.container("", nodes.paragraph("", name, classes=["side-title"]), block, classes=["side"])
        mark.replace_self(pair)


def join_declarations(doctree):
    """Several declarations with one comment between them become one entry with several signatures."""
    for content in list(doctree.findall(addnodes.desc_content)):
        entry = content.parent
        if content.astext().strip() != WITH_ABOVE:
            continue
        at = entry.parent.index(entry) - 1
        while not isinstance(entry.parent[at], addnodes.desc):
            at -= 1  # over targets of the index
        above = entry.parent[at]
        for signature in list(entry.findall(addnodes.desc_signature)):
            above.insert(len(above) - 1, signature)
        entry.parent.remove(entry)


def set_dashes(doctree):
    """Between a parameter and what is said of it."""
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" – "))


def transform(app, doctree):
    set_dashes(doctree)
    put_side_by_side(doctree)
    join_declarations(doctree)


def setup(app):
    app.connect("doctree-read", transform, priority=200)
    return {"version": "1", "parallel_read_safe": True}
