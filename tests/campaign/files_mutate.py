# SPDX-License-Identifier: Apache-2.0
"""Layers in files, and ways to break the files: every choice is drawn from the generator that is passed in."""

import os
import struct
from dataclasses import dataclass

import ml_dtypes
import numpy as np

TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
DESCR = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<V2"}
OTHER_TAGS = ["I64", "U8", "BOOL", "F8_E4M3", "C64", "f32", "F32 ", "", "F16\\u0000", "F128"]
NUMBERS = ["0", "1", "2", "3", "-1", "-0", "0.5", "1.0", "1e0", "1E2", "4e-1", "1e300", "1e999", "-1e999", "2147483648", "4294967296",
           "9007199254740991", "9007199254740992", "9007199254740993", "9223372036854775807", "9223372036854775808",
           "18446744073709551615", "18446744073709551616", "1" + "0" * 400, "0x10", "01", "+1", "1_0", "NaN", "Infinity", "null", "true",
           '"1"', "[1]", "{}", ""]
NAMES = ["a", "b", "bias", "grad", "pre", "y", "residual", "d_b", "d_bias", "__metadata__", "", "a\\u0000", "\\u0061", "\\ud800", "ä",
         "../a", "a" * 300, "\\n", "A"]


@dataclass
class Tensor:
    name: str
    tag: str  # the type, as .safetensors names it
    shape: tuple
    data: bytes


# ---- Layers ----------------------------------------------------------------------------------------------


def make_layer(rng):
    """The tensors of a layer that fits together, and the options that it wants."""
    sizes = [0, 1, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 33]
    m, k, n = (rng.choice(sizes) for _ in range(3))
    batch = rng.choice([None, None, None, 0, 1, 2, 3])
    tag, is_nk = rng.choice(list(TYPES)), rng.random() < 0.25
    stacked = lambda *shape: shape if batch is None or rng.random() < 0.3 else (rng.choice([batch, batch, 1]), *shape)
    shapes = {"a": stacked(m, k), "b": stacked(*((n, k) if is_nk else (k, n)))}
    for name in ("grad", "pre", "y"):
        shapes[name] = stacked(m, n)
    if rng.random() < 0.5:
        shapes["bias"] = rng.choice([(n,), (1, n)])
    if rng.random() < 0.15:
        shapes["residual"] = stacked(m, n)
    if rng.random() < 0.15:
        shapes["d_a_residual"] = shapes["a"]
    if rng.random() < 0.3:
        shapes["d_b"] = shapes["b"]
        shapes["d_bias"] = (n,)
    if rng.random() < 0.2:
        shapes[rng.choice(["step", "ä", "z" * 200, "A"])] = rng.choice([(), (0,), (3,), (1, 2, 3, 1, 2, 1, 1, 1, 1)])
    numbers = np.random.default_rng(rng.getrandbits(64))
    draw = lambda shape: numbers.integers(-16, 17, shape).astype(TYPES[tag]).tobytes()
    return [Tensor(name, tag, tuple(shape), draw(shape)) for name, shape in shapes.items()], is_nk


# ---- .safetensors ----------------------------------------------------------------------------------------


def entry_of(tensor, begin):
    """JSON as text in lists of (key, text), so that keys may come twice and numbers be spelled in any way."""
    shape = [str(size) for size in tensor.shape]
    offsets = [str(begin), str(begin + len(tensor.data))]
    return [["dtype", f'"{tensor.tag}"'], ["shape", shape], ["data_offsets", offsets]]


def text_of_entry(entry):
    if isinstance(entry, str):
        return entry
    part = lambda value: value if isinstance(value, str) else "[" + ",".join(value) + "]"
    return "{" + ",".join(f'"{key}":{part(value)}' for key, value in entry) + "}"


def mutate_number(rng, text):
    if rng.random() < 0.4 and text.isdigit():
        return str(int(text) + rng.choice([-8, -4, -2, -1, 1, 2, 4, 8, 2**31, 2**32, 2**53, 2**63]))
    return rng.choice(NUMBERS)


def mutate_list(rng, items):
    kind = rng.randrange(6)
    if kind == 0 and items:
        items.pop(rng.randrange(len(items)))
    elif kind == 1:
        items.insert(rng.randint(0, len(items)), rng.choice(["0", "1", "1", *NUMBERS]))
    elif kind == 2:
        items.reverse()
    elif kind == 3:
        items.extend(["1"] * rng.choice([1, 5, 9, 100]))
    elif items:
        at = rng.randrange(len(items))
        items[at] = mutate_number(rng, items[at])


def mutate_entry(rng, entry):
    kind, at = rng.randrange(8), rng.randrange(len(entry)) if entry else 0
    if kind == 0 and entry:
        entry.pop(at)
    elif kind == 1 and entry:
        entry.append(list(entry[at]))
    elif kind == 2:
        entry.append([rng.choice(NAMES), rng.choice(NUMBERS) or "0"])
    elif kind == 3 and entry:
        entry[at][1] = rng.choice(NUMBERS)
    elif kind == 4 and entry:
        entry[at][0] = rng.choice(["dtype", "shape", "data_offsets", "\\u0064type", *NAMES])
    elif kind == 5:
        for field in entry:
            if field[0] == "dtype":
                field[1] = '"' + rng.choice([*TYPES, *OTHER_TAGS]) + '"'
    else:
        lists = [field[1] for field in entry if isinstance(field[1], list)]
        if lists:
            mutate_list(rng, rng.choice(lists))


def nest(rng):
    deep = rng.choice([2, 7, 8, 9, 100, 100000])
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    return opening * deep + rng.choice(["", "1"]) + closing * rng.choice([deep, deep, deep - 1])


def mutate_header(rng, members):
    """`members`: [name, entry] of each tensor."""
    kind, at = rng.randrange(10), rng.randrange(len(members)) if members else 0
    if not members or kind == 0:
        members.insert(rng.randint(0, len(members)), ["__metadata__", rng.choice(['{"format":"pt"}', "{}", "[]", "null", '{"a":1}', nest(rng)])])
    elif kind == 1:
        members.pop(at)
    elif kind == 2:  # twice
        name, entry = members[at]
        copy = entry if isinstance(entry, str) else [[key, value if isinstance(value, str) else list(value)] for key, value in entry]
        members.insert(rng.randint(0, len(members)), [name, copy])
    elif kind == 3:
        members[at][0] = rng.choice(NAMES)
    elif kind == 4:
        members[at][1] = rng.choice([*NUMBERS, nest(rng)])
    elif kind == 5:  # two that change places, with or without their data
        other = rng.randrange(len(members))
        members[at][0], members[other][0] = members[other][0], members[at][0]
    elif not isinstance(members[at][1], str):
        mutate_entry(rng, members[at][1])


def mutate_bytes(rng, data):
    """Flips, cuts and copies of a few bytes."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randint(0, len(data))
        kind = rng.randrange(6)
        if kind <= 1 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del data[at : at + rng.choice([1, 2, 4, 8, 64])]
        elif kind == 3:
            data[at:at] = rng.choice([b"\0", b" ", b"\n", b'"', b"{", b"]", b",", b"\\", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xef\xbb\xbf"])
        elif kind == 4:
            data[at:at] = data[at : at + rng.choice([1, 8, 32])]
        else:
            del data[at:]
    return bytes(data)


def write_safetensors(rng, path, tensors, mutations):
    tensors = sorted(tensors, key=lambda tensor: rng.random()) if rng.random() < 0.5 else tensors
    members, data = [], b""
    for tensor in tensors:
        members.append([tensor.name, entry_of(tensor, len(data))])
        data += tensor.data
    kinds = [rng.choice(["header", "header", "header", "text", "data", "length", "file"]) for _ in range(mutations)]
    for _ in range(kinds.count("header")):
        mutate_header(rng, members)
    header = ("{" + ",".join(f'"{name}":{text_of_entry(entry)}' for name, entry in members) + "}").encode("utf-8", "surrogatepass")
    header += b" " * rng.choice([0, 0, -len(header) % 8, 3])
    for _ in range(kinds.count("text")):
        header = mutate_bytes(rng, header)
    for _ in range(kinds.count("data")):
        data = mutate_bytes(rng, data)
    length = len(header)
    if "length" in kinds:
        length = rng.choice([0, 1, 7, 8, length - 1, length + 1, length + 8, length + len(data), length + len(data) + 1, 10**8, 10**8 + 1, 2**31,
                             2**32 + length, 2**63, 2**64 - 8, 2**64 - 1])
    whole = struct.pack("<Q", max(length, 0)) + header + data
    for _ in range(kinds.count("file")):
        whole = mutate_bytes(rng, whole)
    path.write_bytes(whole)


# ---- .npy ------------------------------------------------------------------------------------------------

DESCRS = ["'<f8'", "'<f4'", "'<f2'", "'<V2'", "'|V2'", "'bfloat16'", "'>f4'", "'=f4'", "'|f4'", "'f4'", "'<f16'", "'<i4'", "'<c8'", "'|O'", "'<V4'",
          "[('x', '<f4')]", '"<f4"', "'<f4", "'" + "f" * 300 + "'", "'<f4\\x00'", "''", "None", "('<f4', (2,))", "u'<f4'"]
ORDERS = ["True", "False", "0", "1", "None", "'False'", "true", "Falsey"]
VERSIONS = [(1, 0), (2, 0), (3, 0), (4, 0), (0, 0), (1, 1), (255, 255)]


def text_of_shape(rng, shape, mutated):
    sizes = [str(size) for size in shape]
    if mutated:
        mutate_list(rng, sizes)
    if len(sizes) == 1:
        return "(" + sizes[0] + rng.choice([",", ",", "" if mutated else ","]) + ")"
    return rng.choice(["(", "("] + ["["] * mutated) + ", ".join(sizes) + rng.choice([")", ")"] + ["]"] * mutated)


def npy_of(rng, tensor, mutations):
    kinds = [rng.choice(["descr", "order", "shape", "shape", "version", "length", "keys", "text", "data", "file"]) for _ in range(mutations)]
    fields = [["'descr'", rng.choice(DESCRS) if "descr" in kinds else f"'{DESCR.get(tensor.tag, '<i8')}'"],
              ["'fortran_order'", rng.choice(ORDERS) if "order" in kinds else "False"],
              ["'shape'", text_of_shape(rng, tensor.shape, "shape" in kinds)]]
    if "keys" in kinds:
        at = rng.randrange(3)
        change = rng.randrange(4)
        if change == 0:
            fields.pop(at)
        elif change == 1:
            fields.append(list(fields[at]))
        elif change == 2:
            fields.append(["'more'", "1"])
        else:
            fields[at][0] = rng.choice(["descr", '"shape"', "'Shape'", "'fortran_order\\x00'", "1"])
    header = ("{" + ", ".join(f"{key}: {value}" for key, value in fields) + rng.choice([", }", "}"])).encode()
    header += b" " * rng.choice([0, -(len(header) + 11) % 64, *[5000] * bool(kinds)]) + rng.choice([b"\n", b"\n", b""])
    for _ in range(kinds.count("text")):
        header = mutate_bytes(rng, header)
    version = rng.choice(VERSIONS) if "version" in kinds else rng.choice([(1, 0), (1, 0), (2, 0), (3, 0)])
    length = len(header)
    if "length" in kinds:
        length = rng.choice([0, 1, length - 1, length + 1, length + len(tensor.data), 4096, 4097, 65535, 2**32 - 1])
    size = struct.pack("<H", length & 0xFFFF) if version[0] == 1 else struct.pack("<I", length & 0xFFFFFFFF)
    data = mutate_bytes(rng, tensor.data) if "data" in kinds else tensor.data
    whole = b"\x93NUMPY" + bytes(version) + size + header + data
    for _ in range(kinds.count("file")):
        whole = mutate_bytes(rng, whole)
    return whole


def write_folder(rng, path, tensors, mutations):
    path.mkdir()
    hit = [rng.randrange(len(tensors)) for _ in range(mutations)]
    for i, tensor in enumerate(tensors):
        file = path / f"{tensor.name}.npy"
        place = rng.random() if i in hit else 1
        if place < 0.03:
            continue
        if place < 0.05:
            file.mkdir()
        elif place < 0.07:
            os.mkfifo(file)
        elif place < 0.09:
            os.symlink(rng.choice(["nowhere", file.name]), file)
        else:
            file.write_bytes(npy_of(rng, tensor, hit.count(i)))
