# SPDX-License-Identifier: Apache-2.0
"""The site: docs/ as it is laid out, with the header's and the package's own comments. `make site` builds it.

The source folder is the root of the repository, so that a page's address is its path there, and every relative link
leads to the same place on a code host and on the site."""
import pathlib
import re
import sys
import tempfile
import unittest.mock

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "python")]

import header  # noqa: E402
from hawkmoth.util import compiler  # noqa: E402

INCLUDE = ROOT / "include" / "epigrad"
header_text = (INCLUDE / "epigrad.h").read_text(encoding="utf-8")
activation_text = (INCLUDE / "activation.h").read_text(encoding="utf-8")

project = "epigrad"
author = "the epigrad authors"
copyright = author
version = release = ".".join(re.findall(r"#define EG_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header_text))

extensions = ["myst_parser", "hawkmoth", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sources", "blocks", "manual"]
root_doc = "docs/index"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**.md", "bench/**.md", "examples/**.md"]
exclude_patterns = ["build*", ".git", "fuzz"]
source_suffix = {".md": "markdown"}
nitpicky = True
# The C library's, the standard's and other packages' names have no page here.
nitpick_ignore = [("c:identifier", name) for name in ("size_t", "int64_t", "uint64_t")]
nitpick_ignore += [("py:exc", name) for name in ("a ValueError", "jax.errors.JaxRuntimeError")]

# ---- Markdown -------------------------------------------------------------------------------------

myst_heading_anchors = 4
myst_links_external_new_tab = False

smartquotes = False  # --json begins with two hyphens
highlight_language = "none"  # of blocks that name no language

# ---- The header -----------------------------------------------------------------------------------

_copy = tempfile.TemporaryDirectory()  # removed when the build ends
pathlib.Path(_copy.name, "epigrad.h").write_text(header.documented(header_text, activation_text), encoding="utf-8")
hawkmoth_root = _copy.name
hawkmoth_clang = [*compiler.get_include_args("cc"), f"-I{INCLUDE}", "-std=c17"]  # libclang comes without <stddef.h>

# ---- The package ----------------------------------------------------------------------------------
# It is imported without its shared library, PyTorch and JAX: neither is needed to read a docstring.

autodoc_mock_imports = ["torch", "numpy"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings have the types, and two signatures of one function say less than one
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False


def import_without_libraries():
    """epigrad with a shim that knows the header's table, and epigrad.jax with a JAX that does nothing."""
    functions = unittest.mock.MagicMock()
    table = {name: (int(value), from_y == "1") for _, name, value, from_y, _ in header.activations(activation_text)}
    known = {"version": lambda: release, "activations": lambda: table}
    functions.__getitem__.side_effect = lambda name: known.get(name, unittest.mock.MagicMock())
    shim = unittest.mock.MagicMock()
    shim.eg_py_functions.return_value = functions
    with tempfile.TemporaryDirectory() as folder, unittest.mock.patch("ctypes.PyDLL", return_value=shim):
        xla = pathlib.Path(folder, "xla", "ffi", "api")
        xla.mkdir(parents=True)
        (xla / "c_api.h").write_text("#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 0\n", encoding="utf-8")
        jax = unittest.mock.MagicMock()
        jax.ffi.include_dir.return_value = folder
        jax.Array = type("Array", (), {"__module__": "jax"})
        stands_in = {"jax": jax, "jax.numpy": jax.numpy, "numpy": jax}
        sys.modules.update(stands_in)
        import epigrad.jax  # noqa: F401
        for name in stands_in:
            del sys.modules[name]


import_without_libraries()


def mark_names(app, what, name, obj, options, lines):
    """`linear` in a docstring is code, and a link where it is a name of the package."""
    functions = ("linear", "linear_backward", "patch")
    module = re.match(r"epigrad(\.torch|\.jax)?", name).group() if name.startswith("epigrad") else "epigrad"

    def mark(match):
        word = match.group(1)
        known = word in functions and f"{module}.{word}" != name or word.startswith("epigrad.torch.")
        return f":py:func:`{word} <{word if '.' in word else f'{module}.{word}'}>`" if known else f"``{word}``"
    if what == "module":  # whose indented lines are code
        code = [at for at, line in enumerate(lines) if line.startswith("    ") and not lines[at - 1].strip()]
        for at in reversed(code):
            lines[at:at] = ["::", ""]
    lines[:] = [re.sub(r"(?<![`:\w])`([^`\n]+)`(?!`)", mark, line) for line in lines]


# ---- What it looks like ---------------------------------------------------------------------------

html_theme = "furo"
html_title = f"epigrad {release}"
html_extra_path = ["root"]
html_favicon = "icon.svg"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "github-light"
pygments_dark_style = "github-dark"


def setup(app):
    app.connect("autodoc-process-docstring", mark_names, priority=400)  # before napoleon
