# SPDX-License-Identifier: Apache-2.0
"""epigrad.h as Hawkmoth wants it: a copy in which every declaration has a comment of its own, in reStructuredText.

The header is read by people, so its comments are plain text, stand behind fields, and speak for several functions at
once. Hawkmoth shows nothing that has no /** before it. The copy is made anew for each build; nobody edits it."""
import re

# What has this for a comment is shown under the description of what stands before it.
WITH_ABOVE = "with-the-declaration-above"

COMMENT = re.compile(r"/\*.*?\*/", re.S)
SECTION = re.compile(r"/\* -+ (.+?) -+ \*/")


class Names:
    """What the header declares, so that comments can lead to it."""

    def __init__(self, text, activations):
        code = COMMENT.sub("", text)
        functions = re.findall(r"^EG_(?:API|CONSTRUCTOR) [^;{(]*?\b(eg_\w+)\(", code, flags=re.M)
        types = re.findall(r"^typedef (?:struct|enum) (eg_\w+)", code, flags=re.M)
        types += re.findall(r"^typedef [^;{]*\(\*(eg_\w+)\)", code, flags=re.M)
        self.roles = dict.fromkeys(functions, "func") | dict.fromkeys(types, "type")
        self.roles |= dict.fromkeys(re.findall(r"\b(EG_[A-Z0-9_]+) = ", code), "enumerator")
        self.roles |= dict.fromkeys((f"EG_ACT_{row[0]}" for row in activations), "enumerator")
        self.members = {f"{name}.{field}" for name, body in
                        re.findall(r"^typedef struct (\w+) \{(.*?)^\}", code, flags=re.M | re.S)
                        for field in re.findall(r"(\w+)(?=[,;]|\)\()", body)}

    def marked(self, word):
        """A word of a comment as a link, as code, or as it is."""
        if word in self.members:
            return f":c:member:`{word}`"
        if word in self.roles:
            return f":c:{self.roles[word]}:`{word}`"
        return f"``{word}``"


def activations(text):
    """Rows (NAME, name, value, from_y, formula) of the table in activation.h."""
    return re.findall(r"X\((\w+), (\w+), (\d+), ([01]), +\"(.*)\"\)", text)


# ---- Comments -------------------------------------------------------------------------------------

WORDS = re.compile(r"`([^`]+)`"                    # marked in the header
                   r"|\bdocs/([\w/-]+)\.md\b"       # a page
                   r"|((?<![\w*])\*?\b(?:\w+\.)?\w+_[\w.*]*\w(?:\(\))?|(?<![\w*])\*\w+)"  # a name by its looks
                   r"|([\\*|_])")                    # reStructuredText's own


def prose(line, names):
    """A line with its names as links or code, and nothing else that reStructuredText would take for markup."""
    def mark(match):
        quoted, page, name, special = match.groups()
        if special:
            return "\\" + special
        if page:
            return f":doc:`/docs/{page}`"
        return names.marked((quoted or name).removesuffix("()"))
    return WORDS.sub(mark, line)


def rst(comment, names):
    """A plain comment's text as reStructuredText: indented lines are shown as they are, and those that begin with a
    word and two blanks are a list of definitions."""
    body = re.sub(r"\A/\*+|\*/\Z", "", comment)
    lines = [re.sub(r"^\s*\* ?", "", line.rstrip()) if re.match(r"\s*\*(\s|$)", line) else line.strip()
             for line in body.split("\n")]
    made, literal, defining = [], False, False
    for line in lines:
        term = re.match(r"  (\w+) {2,}(\S.*)", line)
        indented = line.startswith("    ")
        if term:
            made += ["", f"**{term.group(1)}**", "    " + prose(term.group(2), names)]
            defining, literal = True, False
        elif defining and indented:
            made.append("    " + prose(line.strip(), names))
        elif indented:
            made += ["", "::", ""] if not literal else []
            made.append("    " + line[4:])
            literal = True
        else:
            if literal and line:
                made.append("")
            literal, defining = literal and not line, defining and not line
            made.append(prose(line, names))
    return made


def documentation(lines):
    text = "\n".join(f" * {line}".rstrip() for line in lines)
    return f"/**\n{text}\n */\n" if any(line.strip() for line in lines) else "/** */\n"


# ---- Declarations ---------------------------------------------------------------------------------

def fields(kind, body, names):
    """The fields of a struct, or enumerators, each behind its comment. One comment may be split between the line
    before it and the end of its own line."""
    made, lead, at = [], None, 0
    code = "[^;/]+;" if kind == "struct" else "[^,/]+,?"
    parts = re.compile(rf"\s*(?:(/\*.*?\*/)|({code})[ \t]*(/\*.*?\*/)?)", re.S)
    while body[at:].strip():
        match = parts.match(body, at)
        at = match.end()
        alone, code, behind = match.groups()
        if alone:
            lead = alone
            continue
        text = [line for comment in (lead, behind) if comment for line in rst(comment, names)]
        lead = None
        several = re.fullmatch(r"(\w+) (\w+(?:, \w+)+);", code)
        if several:  # "int64_t m, k, n;"
            for i, name in enumerate(several.group(2).split(", ")):
                made.append(documentation(text if i == 0 else [WITH_ABOVE]) + f"{several.group(1)} {name};\n")
        else:
            made.append(documentation(text) + code.strip() + "\n")
    return "".join(made)


def enumerators_of(table):
    return "".join(f"/** ``{formula}``{'; act′ is a function of Y' if from_y == '1' else ''} */\n"
                   f"EG_ACT_{name} = {value},\n" for name, _, value, from_y, formula in table)


PARTS = re.compile(
    r"(?P<section>/\* -+ .+? -+ \*/)"
    r"|(?P<comment>/\*.*?\*/)"
    r"|(?P<extern>#ifdef __cplusplus\n.*?#endif)"
    r"|(?P<directive>#(?:[^\n]*\\\n)*[^\n]*)"
    r"|typedef (?P<kind>struct|enum) (?P<name>\w+) \{(?P<body>.*?)\} \w+;"
    r"|(?P<constructor>EG_CONSTRUCTOR [^{]*\)) \{(?:[^\n]*\}$|.*?^\})"
    r"|(?P<code>(?:typedef|EG_API)[^;]*;)"
    r"|(?P<blank>\n[ \t]*\n)", re.S | re.M)
BEHIND = re.compile(r"[ \t]*(/\*.*?\*/)", re.S)


def documented(text, activation_text):
    """The copy, from the texts of epigrad.h and activation.h."""
    table = activations(activation_text)
    names = Names(text, table)
    made, pending, in_group, at = [], None, False, 0
    while True:
        match = PARTS.search(text, at)
        if match is None:
            return "".join(made)
        skipped = text[at:match.start()].strip()
        assert not skipped, f"epigrad.h has what docs/site/header.py does not know: {skipped!r}"
        at = match.end()
        part = match.lastgroup if match["kind"] is None else "body"
        if part == "section":
            title = SECTION.fullmatch(match["section"]).group(1)
            made.append(documentation([title, "-" * len(title)]))
        elif part == "comment":
            if pending is not None:  # that one was of nothing
                made.append(documentation(pending))
            pending = rst(match["comment"], names) if "SPDX" not in match["comment"] else None
            in_group = False
        elif part in ("directive", "blank"):
            if part == "directive":
                if pending is not None:
                    made.append(documentation(pending) + "/**/\n")
                made.append(match.group() + "\n")
            elif pending is not None:
                made.append(documentation(pending))
            pending, in_group = None, False
            at = match.end() - (part == "blank")  # the blank line's end may begin the next
        elif part != "extern":
            behind = BEHIND.match(text, at)
            if behind:
                at = behind.end()
                pending = (pending or []) + rst(behind.group(1), names)
            said = pending if pending is not None else [WITH_ABOVE] if in_group else []
            made.append(documentation(said))
            if part == "body":
                rows = "EG_ACTIVATION_TABLE" in match["body"]
                inside = enumerators_of(table) if rows else fields(match["kind"], match["body"], names)
                made.append(f"typedef {match['kind']} {match['name']} {{\n{inside}}} {match['name']};\n")
            else:
                made.append(match["constructor"] + ";\n" if part == "constructor" else match["code"] + "\n")
            pending, in_group = None, pending is not None or in_group
