# SPDX-License-Identifier: Apache-2.0
"""OUT: it appears whole or not at all, and nothing else is destroyed for it."""

import os
import resource
import stat
import subprocess

import pytest

from conftest import EPIGRAD, read, refuse, succeed

def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_nothing_else_is_left(tmp_path, layer):
    source = layer()
    succeed("forward", source, "-o", tmp_path / "out.safetensors")
    succeed("forward", source, "-o", tmp_path / "out")
    assert left_in(tmp_path) == ["in.safetensors", "out", "out.safetensors"]
    assert left_in(tmp_path / "out") == ["y.npy"]


def test_permissions_are_those_of_any_new_file(tmp_path, layer):
    source = layer()
    command = f"umask 027; {EPIGRAD} forward {source} -o {tmp_path}/out.safetensors; {EPIGRAD} forward {source} -o {tmp_path}/out"
    subprocess.run(["sh", "-ec", command], check=True)
    mode = lambda path: stat.S_IMODE(path.stat().st_mode)
    assert mode(tmp_path / "out.safetensors") == mode(tmp_path / "out" / "y.npy") == 0o640
    assert mode(tmp_path / "out") == 0o750


def test_an_old_file_is_replaced(tmp_path, layer):
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"old")
    succeed("forward", layer(), "-o", out)
    assert read(out)["y"].shape == (5, 3)


def test_an_old_folder_of_results_is_replaced(tmp_path, layer):
    source, out = layer(), tmp_path / "out"
    succeed("backward", source, "-o", out)
    succeed("forward", source, "-o", out)
    assert left_in(out) == ["y.npy"]
    out_of_empty = tmp_path / "empty"
    out_of_empty.mkdir()
    succeed("forward", source, "-o", f"{out_of_empty}/")
    assert left_in(out_of_empty) == ["y.npy"]
    assert left_in(tmp_path) == ["empty", "in.safetensors", "out"]


def test_a_folder_with_anything_else_is_not(tmp_path, layer):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("precious")
    refuse(2, "forward", layer(), "-o", out, says=["out", "notes.txt"])
    assert left_in(out) == ["notes.txt"]
    inputs = layer("inputs")
    refuse(2, "forward", inputs, "-o", inputs, says=["inputs", "it would be lost"])
    assert left_in(inputs) == ["a.npy", "b.npy", "bias.npy", "grad.npy"]


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_the_input_file_is_not_replaced(tmp_path, layer, link):
    """Under whatever name: a link of either kind, as IN and as OUT."""
    source = layer()
    before, other = source.read_bytes(), source
    if link is not None:
        other = tmp_path / "link.safetensors"
        link(source, other)
    for given, out in ((source, other), (other, source), (f"{tmp_path}/./in.safetensors", source)):
        refuse(2, "forward", given, "-o", out, says=[str(given), str(out), "which is IN"])
    assert source.read_bytes() == before
    assert left_in(tmp_path) == sorted({source.name, other.name})


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_an_input_that_a_folder_of_results_holds_is_not_replaced(tmp_path, layer, link):
    """The y of one layer linked as the a of the next one, which would be written over it."""
    source, out = layer("in", n=7, k=7), tmp_path / "out"
    succeed("forward", source, "-o", out)
    (source / "a.npy").unlink()
    link(out / "y.npy", source / "a.npy")
    before = (out / "y.npy").read_bytes()
    refuse(2, "forward", source, "-o", out, says=["OUT", str(out), "in/a.npy", "would be lost"])
    assert (out / "y.npy").read_bytes() == before
    refuse(2, "forward", out, "-o", out, says="which is IN")
    succeed("forward", source, "-o", tmp_path / "next")


@pytest.mark.parametrize("name", ["out.safetensors", "out", "out/"])
@pytest.mark.parametrize("to, says", [("nowhere", "No such file"), ("missing/out.safetensors", "No such file"),
                                      ("out.safetensors", "symbolic links"), ("out", "symbolic links")])
def test_a_link_that_cannot_be_followed_is_not_replaced(tmp_path, layer, name, to, says):
    """As with cp: neither the link is replaced, nor is what it names made."""
    source, link = layer(), tmp_path / name
    os.symlink(to, link)
    if "symbolic" in says and to != name.rstrip("/"):
        os.symlink(name.rstrip("/"), tmp_path / to)
    before = left_in(tmp_path)
    refuse(2, "forward", source, "-o", f"{tmp_path}/{name}", says=["OUT", str(link), "symbolic link", says])
    assert left_in(tmp_path) == before and os.readlink(link) == to


def test_names_as_long_as_they_may_be(tmp_path, layer):
    source = layer()
    for name in ("x" * 243 + ".safetensors", "x" * 255):
        succeed("forward", source, "-o", tmp_path / name)
        assert set(read(tmp_path / name)) == {"y"}
        refuse(2, "forward", source, "-o", tmp_path / ("x" + name), says="name too long")
    assert len(left_in(tmp_path)) == 3


@pytest.mark.parametrize("given", ["in.safetensors", "in"])
@pytest.mark.parametrize("name", ["out.safetensors", "out"])
@pytest.mark.parametrize("old", [False, True])
def test_too_few_descriptors(tmp_path, layer, given, name, old):
    """None of the arguments is at fault: exit code 1, the file that could not be opened by its name, nothing left."""
    source, out = layer(given), tmp_path / name
    if old:
        succeed("forward", source, "-o", out)
    before = left_in(tmp_path)
    codes = []
    for most in range(4, 12):  # the loader of programs opens one at a time, as number 3
        limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        command = [EPIGRAD, "backward", source, "-o", out, "--threads", "1"]
        result = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
        codes.append(result.returncode)
        if result.returncode == 0:
            break
        assert result.returncode == 1 and result.stdout == ""
        assert len(result.stderr.splitlines()) == 1 and "Too many open files" in result.stderr
        assert str(tmp_path) in result.stderr
        assert left_in(tmp_path) == before
    assert codes[0] == 1 and codes[-1] == 0


def test_closed_standard_descriptors(tmp_path, layer):
    """A file that took the number of one of them would get what is printed."""
    source = layer()
    for name in ("out.safetensors", "out"):
        for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
            command = f"{EPIGRAD} backward {source} -o {tmp_path / name} {closed}"
            assert subprocess.run(["sh", "-c", command], capture_output=True).returncode == 0
            assert set(read(tmp_path / name)) == {"d_a", "d_b", "d_bias"}
    assert subprocess.run(["sh", "-c", f"{EPIGRAD} plan {source} >&-"]).returncode == 1


def test_a_link_is_followed(tmp_path, layer):
    source = layer()
    (tmp_path / "far").mkdir()
    for name in ("out.safetensors", "out"):
        os.symlink(tmp_path / "far" / name, tmp_path / name)
    (tmp_path / "far" / "out.safetensors").write_bytes(b"old")
    (tmp_path / "far" / "out").mkdir()
    for name in ("out.safetensors", "out"):
        succeed("forward", source, "-o", tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert read(tmp_path / name)["y"].shape == (5, 3)
    assert left_in(tmp_path / "far") == ["out", "out.safetensors"]


@pytest.mark.parametrize("name", ["out.safetensors", "out"])
def test_bad_input_leaves_an_old_result(tmp_path, layer, name):
    out = tmp_path / name
    succeed("forward", layer(), "-o", out)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (tmp_path / "bad").write_bytes(b"not tensors at all")
    refuse(2, "forward", tmp_path / "bad", "-o", out)
    (tmp_path / "bad").unlink()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["out.safetensors", "out"])
def test_a_write_that_fails_leaves_an_old_result(tmp_path, layer, name):
    """A limit on the size of files stands for a full disk."""
    source, out = layer(m=300, n=300), tmp_path / name
    succeed("forward", source, "-o", out)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    command = [EPIGRAD, "forward", source, "-o", out, "--activation", "relu"]
    result = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert result.returncode == 1, result
    assert len(result.stderr.splitlines()) == 1 and "cannot write" in result.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert left_in(tmp_path) == sorted(["in.safetensors", name])


@pytest.mark.parametrize(
    "out, says",
    [
        ("", "empty name"),
        ("missing/out.safetensors", "no folder"),
        ("in.safetensors/out", "no folder"),
        ("out.npz", "ends in .safetensors"),
        ("text.txt", "ends in .safetensors"),
        (".", "by its name"),
        ("x" * 5000, "path of more than"),
    ],
)
def test_places_that_cannot_be(tmp_path, layer, out, says):
    source = layer()
    (tmp_path / "text.txt").write_text("precious")
    refuse(2, "forward", source, "-o", os.path.join(tmp_path, out) if out else out, says=says)
    assert left_in(tmp_path) == ["in.safetensors", "text.txt"]
    assert (tmp_path / "text.txt").read_text() == "precious"


def test_devices_are_not_replaced(tmp_path, layer):
    refuse(2, "forward", layer(), "-o", "/dev/null", says="/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    (tmp_path / "folder.safetensors").mkdir()
    refuse(2, "forward", layer(), "-o", tmp_path / "folder.safetensors", says="not a regular file")


def test_standard_output_that_cannot_be_written(layer):
    with open("/dev/full", "w") as full:
        result = subprocess.run([EPIGRAD, "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1 and "standard output" in result.stderr
