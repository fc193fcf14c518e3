# SPDX-License-Identifier: Apache-2.0
"""Readers of .safetensors and .npy: what is whole is read, whatever else is refused with a line that says why."""

import json
import os
import resource
import struct
import subprocess

import numpy as np
import pytest

from conftest import EPIGRAD, read, refuse, succeed, write


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


A = entry("F32", [1, 1], 0, 4)
B = entry("F32", [1, 1], 4, 8)
DATA = struct.pack("<2f", 3, 5)


def safetensors(path, header, data=DATA, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


@pytest.fixture
def forward(tmp_path):
    """Runs forward on a file that must be refused."""

    def make(source, says):
        refuse(2, "forward", source, "-o", tmp_path / "out.safetensors", says=[str(source), *([says] if isinstance(says, str) else says)])
        assert not (tmp_path / "out.safetensors").exists()

    return make


# ---- .safetensors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        {"a": A, "b": B},
        {"b": B, "a": A},
        {"__metadata__": {"format": "pt"}, "a": A, "b": B},
        {"a": A, "b": B, "empty": entry("F32", [0, 7], 4, 4), "also": entry("I64", [0], 0, 0)},
        {"a": A | {"more": [1, None, True]}, "b": B},
        b'  {"a":%s,"b":%s}  \n' % (json.dumps(A).encode(), json.dumps(B).encode()),
        b'{"\\u0061":%s,"b":%s}' % (json.dumps(A).encode(), json.dumps(B).encode()),
    ],
)
def test_safetensors_that_are_whole(tmp_path, header):
    succeed("forward", safetensors(tmp_path / "in", header), "-o", tmp_path / "out.safetensors")
    assert read(tmp_path / "out.safetensors")["y"].tolist() == [[15.0]]


def test_misaligned_elements(tmp_path):
    """The format does not ask for alignment: one byte before them moves all the others."""
    header = {"odd": entry("U8", [1], 0, 1), "a": entry("F32", [1, 1], 1, 5), "b": entry("F32", [1, 1], 5, 9)}
    succeed("forward", safetensors(tmp_path / "in", header, b"\0" + DATA), "-o", tmp_path / "out.safetensors")
    assert read(tmp_path / "out.safetensors")["y"].tolist() == [[15.0]]


JSON_A = json.dumps(A).encode()

HOSTILE = {
    "no bytes": (b"", b"", None, "header"),
    "length past the end": ({}, b"", 10**6, "header would have"),
    "length of 2^64 - 1": ({}, b"", 2**64 - 1, "header would have"),
    "length of 2^63": ({}, b"", 2**63, "header would have"),
    "a header cut short": (b'{"a":', b"", None, "header"),
    "no JSON": (b"hello", b"", None, "not valid JSON"),
    "an array": (b"[]", b"", None, "not a JSON object"),
    "a number": (b"7", b"", None, "not a JSON object"),
    "two objects": (b"{}{}", b"", None, "not valid JSON"),
    "text after the object": (b"{} x", b"", None, "not valid JSON"),
    "a NUL after the object": (b"{}\0", b"", None, "header"),
    "a NUL in a name": (b'{"a\0b":1}', b"", None, "control character"),
    "an escaped NUL in a name": (b'{"a\\u0000":%s}' % JSON_A, DATA, None, "NUL"),
    "a newline in a name": (b'{"a\nb":1}', b"", None, "control character"),
    "bytes that are no UTF-8": (b'{"\xff":1}', b"", None, "UTF-8"),
    "an overlong encoding": (b'{"\xc0\xaf":1}', b"", None, "UTF-8"),
    "a surrogate": (b'{"\xed\xa0\x80":1}', b"", None, "UTF-8"),
    "a string without end": (b'{"a', b"", None, "without an end"),
    "deep nesting": (b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}", b"", None, "nested too deeply"),
    "unbalanced brackets": (b"{", b"", None, "unbalanced"),
    "a name twice": (b'{"a":%s,"a":%s}' % (JSON_A, JSON_A), DATA[:4], None, "a is there twice"),
    "a name twice, escaped": (b'{"a":%s,"\\u0061":%s}' % (JSON_A, JSON_A), DATA[:4], None, "a is there twice"),
    "a dtype twice": (b'{"a":{"dtype":"F32","dtype":"F32","shape":[1,1],"data_offsets":[0,4]}}', DATA[:4], None, "one dtype"),
    "metadata twice": (b'{"__metadata__":{},"__metadata__":{}}', b"", None, "__metadata__"),
    "metadata that is a list": (b'{"__metadata__":[]}', b"", None, "__metadata__"),
    "an entry that is a list": ({"a": [1, 2]}, b"", None, "a is not an object"),
    "an entry that is null": ({"a": None}, b"", None, "a is not an object"),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, DATA[:4], None, "a is not an object with"),
    "a dtype that is a number": ({"a": A | {"dtype": 32}}, DATA[:4], None, "a is not an object with"),
    "three offsets": ({"a": A | {"data_offsets": [0, 4, 8]}}, DATA[:4], None, "data_offsets of a"),
    "offsets as text": ({"a": A | {"data_offsets": ["0", "4"]}}, DATA[:4], None, "data_offsets of a"),
    "a negative offset": ({"a": A | {"data_offsets": [-4, 0]}}, DATA[:4], None, "data_offsets of a"),
    "a fractional offset": ({"a": A | {"data_offsets": [0, 4.5]}}, DATA[:4], None, "data_offsets of a"),
    "an offset of 2^53": ({"a": A | {"data_offsets": [0, 2**53]}}, DATA[:4], None, "data_offsets of a"),
    "an offset of 1e300": (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1e300]}}', DATA[:4], None, "data_offsets of a"),
    "an infinite offset": (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1e999]}}', DATA[:4], None, "data_offsets of a"),
    "offsets reversed": ({"a": A | {"data_offsets": [4, 0]}}, DATA[:4], None, "data_offsets of a"),
    "an end past the file": ({"a": entry("F32", [2, 1], 0, 8)}, DATA[:4], None, ["data_offsets of a", "4 bytes"]),
    "data cut short": ({"a": A, "b": B}, DATA[:7], None, "data_offsets of b"),
    "an overlap": ({"a": A, "b": entry("F32", [1, 1], 2, 6)}, DATA[:6], None, "overlaps"),
    "the same bytes": ({"a": A, "b": A}, DATA[:4], None, "overlaps"),
    "a gap": ({"a": A, "b": entry("F32", [1, 1], 6, 10)}, DATA + b"xx", None, "gap"),
    "a gap before the first": ({"a": entry("F32", [1, 1], 4, 8)}, DATA, None, "gap"),
    "bytes at the end": ({"a": A, "b": B}, DATA + b"x", None, "1 bytes at its end"),
    "a shape larger than its data": ({"a": A | {"shape": [1, 2]}}, DATA[:4], None, ["a has shape [1, 2]", "4 bytes"]),
    "a shape whose product overflows": ({"a": A | {"shape": [2**32, 2**31, 2]}}, DATA[:4], None, "a has shape"),
    "a shape that overflows to 0": ({"a": entry("F32", [2**31, 2**31], 0, 0)}, b"", None, "a has shape"),
    "a negative size": ({"a": A | {"shape": [-1, -1]}}, DATA[:4], None, "shape[0] of a"),
    "a fractional size": ({"a": A | {"shape": [1, 0.5]}}, DATA[:4], None, "shape[1] of a"),
    "a size of 10^30": ({"a": A | {"shape": [1, 10**30]}}, DATA[:4], None, "shape[1] of a"),
    "a nested shape": ({"a": A | {"shape": [[1]]}}, DATA[:4], None, "shape[0] of a"),
    "more values than is sensible": (b'{"a":[' + b"1," * 1100000 + b"1]}", b"", None, "million values"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_safetensors_that_are_not(tmp_path, forward, case):
    header, data, length, says = HOSTILE[case]
    forward(safetensors(tmp_path / "in", header, data, length), says)


@pytest.mark.parametrize("bytes_", [0, 1, 7])
def test_safetensors_too_short_for_a_length(tmp_path, forward, bytes_):
    (tmp_path / "in").write_bytes(b"\1" * bytes_)
    forward(tmp_path / "in", "no .safetensors file")


def test_every_truncation(tmp_path, layer):
    """No prefix of a good file is one."""
    whole = layer().read_bytes()
    for length in range(0, len(whole), 7):
        (tmp_path / "cut").write_bytes(whole[:length])
        refuse(2, "forward", tmp_path / "cut", "-o", tmp_path / "out.safetensors")


def test_a_name_cannot_forge_output(tmp_path, forward):
    """Control characters in quoted names do not reach the terminal."""
    line = refuse(2, "forward", safetensors(tmp_path / "in", {"\x1b[31mepigrad\n: fine": [1]}, b""), "-o", tmp_path / "o.safetensors")
    assert "\x1b" not in line


def test_little_memory_for_large_claims(tmp_path):
    """A header that claims 2^52 elements is refused with 64 MiB of address space to spare."""
    if b"__asan_init" in EPIGRAD.read_bytes():
        pytest.skip("the address sanitizer takes terabytes of address space for itself")
    claims = {"a": entry("F32", [2**26, 2**26], 0, 2**54 // 4)}
    source = safetensors(tmp_path / "in", claims, b"")
    limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (64 << 20, 64 << 20))
    result = subprocess.run(
        [EPIGRAD, "forward", source, "-o", tmp_path / "out.safetensors", "--threads", "1"],
        capture_output=True, text=True, preexec_fn=limit,
    )
    assert result.returncode == 2 and "data_offsets of a" in result.stderr


# ---- .npy ------------------------------------------------------------------------------------------------


def npy(descr="'<f4'", order="False", shape="(1, 1)", data=DATA[:4], version=1, header=None):
    text = (header or f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}").encode() + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def folder(path, a, b=npy(data=DATA[4:])):
    path.mkdir()
    (path / "a.npy").write_bytes(a)
    (path / "b.npy").write_bytes(b)
    return path


@pytest.mark.parametrize(
    "a",
    [
        npy(),
        npy(version=2),
        npy(version=3),
        npy('"<f4"'),
        npy(shape="(1,1)"),
        npy(shape="( 1 , 1 , )"),
        npy(shape="(1, 1, 1)"),
        npy(header="{'shape': (1, 1), 'fortran_order': False, 'descr': '<f4'}   "),
    ],
)
def test_npy_that_are_whole(tmp_path, a):
    succeed("forward", folder(tmp_path / "in", a), "-o", tmp_path / "out")
    assert read(tmp_path / "out")["y"].ravel().tolist() == [15.0]


@pytest.mark.parametrize("descr", ["'<V2'", "'|V2'", "'bfloat16'"])
def test_npy_of_bf16(tmp_path, descr):
    a, b = (npy(descr, data=struct.pack("<f", value)[2:]) for value in (3, 5))
    succeed("forward", folder(tmp_path / "in", a, b), "-o", tmp_path / "out")
    y = read(tmp_path / "out")["y"]
    assert y.dtype.name == "bfloat16" and y.tolist() == [[15.0]]


HOSTILE_NPY = {
    "no bytes": (b"", "no .npy file"),
    "another magic": (b"\x89NUMPY" + npy()[6:], "no .npy file"),
    "magic alone": (b"\x93NUMPY", "no .npy file"),
    "version 4": (b"\x93NUMPY\4" + npy()[7:], "version 4.0"),
    "version 1.7": (b"\x93NUMPY\1\7" + npy()[8:], "version 1.7"),
    "a header past the end": (b"\x93NUMPY\1\0\xff\x0f{}", "header would have 4095 bytes"),
    "a header of 4 GiB": (b"\x93NUMPY\2\0\xff\xff\xff\xff{}", "header would have 4294967295 bytes"),
    "an empty header": (b"\x93NUMPY\1\0\0\0", "header is not a dict"),
    "no dict": (npy(header="[]"), "header is not a dict"),
    "a dict without end": (npy(header="{'descr': '<f4'"), "header is not a dict"),
    "a string without end": (npy(header="{'descr"), "header is not a dict"),
    "a key twice": (npy(header="{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)}"), "header is not a dict"),
    "a key missing": (npy(header="{'descr': '<f4', 'shape': (1, 1)}"), "header is not a dict"),
    "another key": (npy(header="{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1), 'x': 1}"), "header is not a dict"),
    "text after it": (npy(header="{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)} + {}"), "header is not a dict"),
    "a NUL in it": (npy(header="{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)}\0"), "header is not a dict"),
    "no commas": (npy(header="{'descr': '<f4' 'fortran_order': False 'shape': (1, 1)}"), "header is not a dict"),
    "a record": (npy("[('x', '<f4')]"), "header is not a dict"),
    "a shape that is a number": (npy(shape="(1)"), "header is not a dict"),
    "a negative size": (npy(shape="(1, -1)"), "header is not a dict"),
    "a size of 10^30": (npy(shape="(1" + "0" * 30 + ", 1)"), "header is not a dict"),
    "big endian": (npy("'>f4'"), ["'>f4'", "expected '<f8'"]),
    "integers": (npy("'<i4'"), ["'<i4'", "expected '<f8'"]),
    "objects": (npy("'|O'"), ["'|O'", "expected '<f8'"]),
    "a long type": (npy("'" + "f" * 500 + "'"), "expected '<f8'"),
    "Fortran order": (npy(order="True", shape="(1, 1)"), ["Fortran order", "ascontiguousarray"]),
    "too few bytes": (npy(shape="(1, 2)"), ["shape [1, 2]", "4 bytes"]),
    "too many bytes": (npy(data=DATA), ["shape [1, 1]", "8 bytes"]),
    "a shape whose product overflows": (npy(shape="(4294967296, 4294967296, 4)", data=b""), "has shape [4294967296"),
    "a shape of 9 dimensions": (npy(shape="(1, 1, 1, 1, 1, 1, 1, 1, 1)"), "header is not a dict"),
}


@pytest.mark.parametrize("case", HOSTILE_NPY)
def test_npy_that_are_not(tmp_path, forward, case):
    data, says = HOSTILE_NPY[case]
    source = folder(tmp_path / "in", data)
    forward(source, ["a.npy", *([says] if isinstance(says, str) else says)])


def test_arrays_of_numpy_in_fortran_order(tmp_path, layer):
    source = layer("in", a=np.asfortranarray(np.ones((5, 7), np.float32)))
    refuse(2, "forward", source, "-o", tmp_path / "out", says=["a.npy", "Fortran order"])


# ---- What is no file -------------------------------------------------------------------------------------


def test_inputs_that_are_not_there(tmp_path):
    refuse(2, "forward", tmp_path / "none", "-o", tmp_path / "out", says=["none", "No such file"])
    (tmp_path / "empty").mkdir()
    refuse(2, "forward", tmp_path / "empty", "-o", tmp_path / "out", says="has no tensor a")
    os.symlink(tmp_path / "none", tmp_path / "link.safetensors")
    refuse(2, "forward", tmp_path / "link.safetensors", "-o", tmp_path / "out", says="No such file")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_tensors_that_are_no_files(tmp_path, make):
    source = folder(tmp_path / "in", npy())
    (source / "a.npy").unlink()
    make(source / "a.npy")
    refuse(2, "forward", source, "-o", tmp_path / "out", says="not a regular file", timeout=10)


def test_an_input_that_is_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refuse(2, "forward", tmp_path / "pipe", "-o", tmp_path / "out", says="not a regular file", timeout=10)
    refuse(2, "forward", "/dev/zero", "-o", tmp_path / "out", says="not a regular file", timeout=10)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_input_that_may_not_be_read(tmp_path, layer):
    source = layer()
    source.chmod(0)
    refuse(2, "forward", source, "-o", tmp_path / "out", says="Permission denied")


# ---- Writers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("name", ["out.safetensors", "out"])
def test_results_are_inputs_again(tmp_path, layer, dtype, name):
    """What is written is read back: by the official readers, and by the command."""
    succeed("backward", layer(dtype=dtype), "-o", tmp_path / name)
    results = read(tmp_path / name)
    assert {key: value.shape for key, value in results.items()} == {"d_a": (5, 7), "d_b": (7, 3), "d_bias": (3,)}
    again = write(tmp_path / "again.safetensors", {"a": results["d_a"], "b": results["d_b"]})
    succeed("forward", again, "-o", tmp_path / "y.safetensors")


def test_written_safetensors_are_aligned(tmp_path, layer):
    source = layer(dtype="f16", m=3, k=3, n=3)
    succeed("backward", source, "-o", tmp_path / "out.safetensors", "--out-dtype", "f32")
    raw = (tmp_path / "out.safetensors").read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    assert length % 8 == 0
    widths = {"F32": 4, "F16": 2}
    for name, item in json.loads(raw[8 : 8 + length]).items():
        assert item["data_offsets"][0] % widths[item["dtype"]] == 0, name


def test_written_npy_are_as_numpy_writes_them(tmp_path, layer):
    succeed("backward", layer(), "-o", tmp_path / "out")
    for path in (tmp_path / "out").iterdir():
        ours = path.read_bytes()
        np.save(tmp_path / "numpy.npy", np.load(path))
        assert ours == (tmp_path / "numpy.npy").read_bytes()


def test_a_folder_and_a_file_give_the_same(tmp_path, layer, random):
    shapes = {"a": (5, 7), "b": (7, 3), "bias": (3,), "grad": (5, 3)}
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for name in ("one", "one.safetensors"):
        succeed("backward", layer(name, **tensors), "-o", tmp_path / name.replace("one", "two"), "--activation", "mish")
    npys, tensors = read(tmp_path / "two"), read(tmp_path / "two.safetensors")
    assert npys.keys() == tensors.keys()
    for name in npys:
        assert np.array_equal(npys[name], tensors[name])


