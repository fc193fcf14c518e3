#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the documentation says holds: check.py CHECK ... [--build BUILD --cc CC]

    links       every relative link of every page leads to something, and an anchor to a heading
    words       none of the words in `old_words.txt` outside of docs/lab, in pages, comments and names
    length      no page of docs/explanation is longer than 150 lines, and each has a picture
    kernels     docs/reference/kernels.md names every kernel row of the CPU and CUDA that BUILD's command lists, and no
                other: of CUDA, where the tests' driver is there
    tutorials   every fenced block of docs/tutorial, and of the pages in RUN: C and Python are files that sh blocks
                compile and run, as a reader would, against an installed copy of BUILD, or quotes of the source;
                text behind a sh block is what it printed
    foreign     every block behind <!-- needs: HEADER [CONDITION] -->, which calls another library, compiles without a
                warning where that library's header is found (--include, and the usual places); else it is skipped, by
                name. Of all blocks: exit status 77

Nothing but Python's own library is needed."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


# Beside the tutorials.
RUN = [os.path.join("docs", "howto", name) for name in ("use-in-a-trainer.md", "from-cublaslt.md", "from-onednn.md")]
# Run by python/tests, where what they need is.
PACKAGE = [os.path.join("docs", *name) for name in (("tutorial", "python.md"), ("tutorial", "two-languages.md"),
                                                    ("howto", "gated-units.md"),
                                                    ("howto", "mixture-of-experts.md"))]
PACKAGE_TORCH = [os.path.join("docs", "howto", "from-pytorch.md")]
PACKAGE_JAX = [os.path.join("docs", "howto", "from-jax.md")]


def pages(*, lab=True):
    """All pages of the project, as paths from its root."""
    found = []
    for folder, folders, files in os.walk(ROOT):
        here = os.path.relpath(folder, ROOT)
        folders[:] = [name for name in folders if not name.startswith("build") and name != ".git"]
        if not lab and here == os.path.join("docs", "lab"):
            continue
        found += [os.path.normpath(os.path.join(here, name)) for name in files if name.endswith(".md")]
    return sorted(found)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def without_code(text):
    """Fenced and indented blocks and code spans become blanks; lines stay where they are."""
    text = re.sub(r"^```.*?^```", lambda m: "\n" * m.group().count("\n"), text, flags=re.M | re.S)
    text = re.sub(r"^(    |\t).*$", "", text, flags=re.M)
    return re.sub(r"`[^`]*`", lambda m: "\n" * m.group().count("\n"), text)


# ---- Links ----------------------------------------------------------------------------------------

def anchors(text):
    """As GitHub makes them of headings."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), flags=re.M):
        name = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = "".join(c for c in name if c.isalnum() or c in "-_ ").replace(" ", "-")
        count = sum(1 for other in found if re.fullmatch(re.escape(name) + r"(-\d+)?", other))
        found.add(name if count == 0 else f"{name}-{count}")
    return found


def in_lab(page):
    return page.startswith(os.path.join("docs", "lab") + os.sep)


def check_links():
    for page in pages():
        text = without_code(read(page))
        for number, line in enumerate(text.splitlines(), 1):
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                if re.match(r"[a-z]+:", target):
                    continue
                path, _, anchor = target.partition("#")
                file = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
                if not os.path.exists(os.path.join(ROOT, file)):
                    yield f"{page}:{number}: {target} leads nowhere"
                elif anchor and file.endswith(".md") and anchor not in anchors(read(file)):
                    yield f"{page}:{number}: {target} has no such heading"
                elif anchor and in_lab(file) and not in_lab(page):
                    yield f"{page}:{number}: {target} leads into the middle of a log, which may move"


# ---- Words ----------------------------------------------------------------------------------------

SOURCES = ["bench", "bindings", "cli", "cmake", "docs/site", "examples", "fuzz", "include", "oracle", "python", "src", "tests", "tools", "web"]
C_LIKE = (".c", ".h", ".cu", ".cuh", ".def", ".wgsl", ".js", ".css", ".rs")
HASHED = (".py", ".sh", ".bash", ".txt", ".cmake")


def sources():
    """All text of code, as paths from the project's root."""
    for top in SOURCES:
        for folder, _, files in os.walk(os.path.join(ROOT, top)):
            here = os.path.relpath(folder, ROOT)
            if here.startswith((os.path.join("bench", "results"), os.path.join("fuzz", "corpus"))):
                continue
            for name in sorted(files):
                if name.endswith(C_LIKE + HASHED) and name != "old_words.txt":
                    yield os.path.join(here, name)


def only_comments(path, text):
    """Everything else becomes blanks; lines stay where they are."""
    comment = r"/\*.*?\*/|//[^\n]*" if path.endswith(C_LIKE) else r"#[^\n]*|\"\"\".*?\"\"\""
    kept, at = [], 0
    for match in re.finditer(comment, text, flags=re.S):
        kept += ["\n" * text.count("\n", at, match.start()), match.group(), " "]
        at = match.end()
    return "".join(kept)


def old_words():
    """Lines of `old_words.txt`: a regular expression; what is said instead; and of names the files."""
    for line in read("tests/docs/old_words.txt").splitlines():
        if line and not line.startswith("#"):
            pattern, instead, *files = [part for part in line.split("\t") if part]
            yield re.compile(pattern, re.I), instead.strip(), re.compile(files[0]) if files else None


def find_words(path, text, words):
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, instead, _ in words:
            match = pattern.search(line)
            if match:
                yield f"{path}:{number}: \"{match.group()}\" is now called: {instead}"


def check_words():
    words = list(old_words())
    prose = [word for word in words if word[2] is None]
    # What was measured is in the words of its day.
    for page in pages(lab=False) + [os.path.join("docs", "reference", "epigrad.1")]:
        if not page.startswith(os.path.join("bench", "results")):
            yield from find_words(page, without_code(read(page)), prose)
    for path in sources():
        text = read(path)
        yield from find_words(path, only_comments(path, text), prose)
        yield from find_words(path, text.replace("_", " "), [word for word in words if word[2] and word[2].search(path)])


# ---- Length ---------------------------------------------------------------------------------------

def check_length():
    for page in pages():
        if not page.startswith(os.path.join("docs", "explanation")):
            continue
        text = read(page)
        if len(text.splitlines()) > 150:
            yield f"{page}: {len(text.splitlines())} lines, of 150"
        if not re.search(r"^!\[[^]]+\]\([^)]+\.svg\)", text, flags=re.M):
            yield f"{page}: no picture"
        if re.search(r"\b20\d\d-\d\d-\d\d\b|\b(January|February|October|November|December) 20\d\d\b", text):
            yield f"{page}: a date; dated results belong to docs/lab"


# ---- Tutorials ------------------------------------------------------------------------------------

def blocks(text):
    """(line, language, what the comment before it says, text) of each fenced block: ("quote", a file), ("needs", a
    header and a condition of the preprocessor) or None."""
    said = None
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        mark = re.fullmatch(r"<!-- (quote|needs): (.+?) -->", line)
        fence = re.fullmatch(r"```(\S*).*", line)
        if mark:
            said = mark.groups()
        elif fence:
            body = []
            for _, inside in lines:
                if inside == "```":
                    break
                body.append(inside)
            yield number, fence.group(1), said, "\n".join(body) + "\n"
            said = None
        elif line:
            said = None


def same_line(expected, got):
    """The same words; numbers may differ by 2%, as kernels round differently."""
    a, b = expected.split(), got.split()
    if len(a) != len(b):
        return False
    for x, y in zip(a, b):
        if x == y:
            continue
        try:
            p, q = float(x.rstrip(",:%")), float(y.rstrip(",:%"))
        except ValueError:
            return False
        if abs(p - q) > 0.02 * abs(p) + 0.0100001:
            return False
    return True


def same_text(expected, got):
    """Line by line; a line of three dots stands for any number of lines."""
    if not expected:
        return not got
    if expected[0] == "...":
        return any(same_text(expected[1:], got[i:]) for i in range(len(got) + 1))
    return bool(got) and same_line(expected[0], got[0]) and same_text(expected[1:], got[1:])


def run_page(page, scratch, environment):
    printed = None
    for number, language, said, body in blocks(read(page)):
        where = f"{page}:{number}"
        kind, subject = said or (None, None)
        if kind == "quote":
            if body not in read(subject) and textwrap.indent(body, "    ") not in read(subject):
                yield f"{where}: {subject} has no such lines"
        elif kind == "needs":
            continue  # check_foreign's
        elif language in ("c", "python"):
            name = re.match(r"(?:/\*|#) (\S+\.(?:c|h|py))", body)
            if name is None:
                yield f"{where}: neither a file by its first line nor a quote"
            else:
                with open(os.path.join(scratch, name.group(1)), "w", encoding="utf-8") as file:
                    file.write(body)
        elif language == "sh":
            run = subprocess.run(["sh", "-euc", body], cwd=scratch, env=environment, text=True, timeout=300,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            printed = run.stdout
            if run.returncode != 0:
                yield f"{where}: exit status {run.returncode}\n{printed}"
        elif language == "text":
            if not same_text(body.splitlines(), (printed or "").splitlines()):
                yield f"{where}: the block before it printed\n{printed}"
        else:
            yield f"{where}: a block of \"{language}\"; a tutorial has c, python, sh and text"


def installed(build, prefix):
    """The environment in which programs find a copy of BUILD that is installed there."""
    subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
    libraries = [folder for folder, _, files in os.walk(prefix) if "epigrad.pc" in files or
                 any(name.startswith("libepigrad.so") for name in files)]
    return dict(os.environ, PKG_CONFIG_PATH=":".join(libraries), LD_LIBRARY_PATH=":".join(libraries))


def check_tutorials(build, cc):
    with tempfile.TemporaryDirectory() as scratch:
        environment = installed(build, os.path.join(scratch, "installed"))
        bin_folder = os.path.join(scratch, "bin")
        os.mkdir(bin_folder)
        os.symlink(shutil.which(cc), os.path.join(bin_folder, "cc"))
        environment["PATH"] = bin_folder + ":" + environment["PATH"]
        for page in pages():
            if page in PACKAGE or not page.startswith(os.path.join("docs", "tutorial")) and page not in RUN:
                continue
            clone = os.path.join(scratch, os.path.basename(page))  # where a reader would be: a built clone
            os.mkdir(clone)
            os.symlink(build, os.path.join(clone, "build"))
            os.symlink(os.path.join(ROOT, "examples"), os.path.join(clone, "examples"))
            yield from run_page(page, clone, environment)


# ---- Kernel rows -----------------------------------------------------------------------------------

LETTERS = {"TYPE": "(bf16|f16|f32|f64)", "LAYOUT": "(nn|nt|tn)"}  # in the names of kernels.md; others are numbers
OTHER_PROCESSORS = ("neon_",) if os.uname().machine == "x86_64" else ("amx_", "avx512_", "avx2_")


def kernel_pattern(name):
    parts = re.split(r"(TYPE|LAYOUT|[A-Z])", name)
    return re.compile("".join(LETTERS.get(part, r"\d+") if part.isupper() else re.escape(part) for part in parts))


def listed_kernels(build):
    """{backend: names of its rows}. The tests' driver has every kernel of CUDA, and runs none."""
    driver = os.path.join(build, "tests", "cuda")
    environment = dict(os.environ, LD_LIBRARY_PATH=os.path.join(driver, "fake"),
                       EPIGRAD_CUBLASLT=os.path.join(driver, "libfake_lt.so"))
    run = subprocess.run([os.path.join(build, "epigrad"), "info", "--json"], env=environment, check=True,
                         stdout=subprocess.PIPE, text=True)
    return {backend["backend"]: [kernel["name"] for kernel in backend.get("kernels", [])]
            for backend in json.loads(run.stdout)["backends"]}


def check_kernels(build):
    page = os.path.join("docs", "reference", "kernels.md")
    sections = dict(re.findall(r"^## (\w+): .*?\n(.*?)(?=^## |\Z)", read(page), flags=re.M | re.S))
    kernels = listed_kernels(build)
    for backend in ("cpu", "cuda"):
        if not kernels.get(backend):
            continue
        rows = re.findall(r"^\| (`[^|]*) \|", sections[{"cpu": "CPU", "cuda": "CUDA"}[backend]], flags=re.M)
        named = [name for row in rows for name in re.findall(r"`([a-zA-Z0-9_]+)`", row)
                 if not name.startswith(OTHER_PROCESSORS)]
        patterns = [kernel_pattern(name) for name in named]
        for kernel in kernels[backend]:
            if not any(pattern.fullmatch(kernel) for pattern in patterns):
                yield f"{page}: {kernel} is missing"
        for name, pattern in zip(named, patterns):
            if not any(map(pattern.fullmatch, kernels[backend])):
                yield f"{page}: no kernel of {backend} is called {name}"


# ---- Blocks of other libraries ---------------------------------------------------------------------

def compiles(cc, include, text):
    """None, or what the compiler says."""
    flags = ["-std=c17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    run = subprocess.run([cc, *flags, *(part for folder in include for part in ("-isystem", folder)), "-x", "c", "-"],
                         input=text, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return run.stdout if run.returncode != 0 else None


def check_foreign(cc, include, notes):
    """Faults. What was compiled, or for want of a header was not, is added to `notes`."""
    cuda = [os.environ.get("CUDA_HOME", "/usr/local/cuda")]
    cuda += [os.path.dirname(os.path.dirname(os.path.realpath(path))) for path in [shutil.which("nvcc")] if path]
    include = include + [os.path.join(folder, "include") for folder in cuda]
    for page in pages():
        for number, _, said, body in blocks(read(page)):
            if said is None or said[0] != "needs":
                continue
            header, _, condition = said[1].partition(" ")
            there = f"#include <{header}>\n#if !({condition or 1})\n#error\n#endif\n"
            if compiles(cc, include, there) is not None:
                notes.append(f"{page}:{number}: skipped: no {said[1]}")
                continue
            notes.append(f"{page}:{number}: compiled")
            fault = compiles(cc, include, body)
            if fault is not None:
                yield f"{page}:{number}: does not compile\n{fault}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checks", nargs="+", choices=["links", "words", "length", "kernels", "tutorials", "foreign"])
    parser.add_argument("--build")
    parser.add_argument("--include", action="append", default=[], help="a folder with headers of other libraries")
    parser.add_argument("--cc", default="cc")
    options = parser.parse_args()
    faults, notes = [], []
    for check in options.checks:
        if check == "tutorials":
            faults += check_tutorials(os.path.abspath(options.build), options.cc)
        elif check == "kernels":
            faults += check_kernels(os.path.abspath(options.build))
        elif check == "foreign":
            faults += check_foreign(options.cc, options.include, notes)
        else:
            faults += {"links": check_links, "words": check_words, "length": check_length}[check]()
    print("\n".join(notes + (faults or [f"docs: {', '.join(options.checks)} as they should be"])))
    nothing_done = bool(notes) and all(": skipped: " in note for note in notes) and options.checks == ["foreign"]
    return 1 if faults else 77 if nothing_done else 0


if __name__ == "__main__":
    sys.exit(main())
