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


def test_the_input_file_may_be_replaced(tmp_path, layer):
    source = layer()
    succeed("forward", source, "-o", source)
    assert set(read(source)) == {"y"}


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
