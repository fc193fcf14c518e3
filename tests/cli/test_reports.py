# SPDX-License-Identifier: Apache-2.0
"""plan, info, check and bench: what people and scripts read."""

import json
import re

import pytest

from conftest import least_limit, refuse, succeed

BENCH_KEYS = ["backend", "device", "dtype", "m", "k", "n", "batch", "activation", "mode", "threads", "median_ms", "min_ms",
              "gflops", "peak_pct", "kernels"]


def kernels(**options):
    """The rows of the CPU's kernel table."""
    backends = json.loads(succeed("info", "--json", **options))["backends"]
    return next(item for item in backends if item["backend"] == "cpu")["kernels"]


# ---- info ------------------------------------------------------------------------------------------------


def test_info_json():
    info = json.loads(succeed("info", "--json"))
    assert set(info) == {"version", "header_version", "cjson_version", "activations", "backends"}
    assert info["version"] in succeed("--version")
    assert len(info["activations"]) >= 12 and info["activations"][0] == "none"
    assert [item["backend"] for item in info["backends"]] == ["cpu", "cuda", "webgpu"]
    cpu = info["backends"][0]
    assert cpu["available"] is True and cpu["threads"] >= 1 and cpu["device"] and "portable" in cpu["features"]
    for item in info["backends"][1:]:
        assert item["available"] or item["reason"]
    for row in cpu["kernels"]:
        assert set(row) == {"name", "compute", "tile", "needs", "usable"}
        assert row["compute"] in ("f32", "f64") and isinstance(row["usable"], bool)
    assert {row["compute"] for row in cpu["kernels"] if row["usable"]} == {"f32", "f64"}


def test_info_text_has_every_kernel():
    text = succeed("info")
    for row in kernels():
        assert re.search(rf"\b{row['name']}\b", text)
    assert "cuda: " in text and "webgpu: " in text and "activations: none relu" in text


def test_info_follows_the_cap_on_instruction_sets():
    info = json.loads(succeed("info", "--json", env={"EPIGRAD_CPU_ISA": "portable"}))
    usable = [row["needs"] for row in info["backends"][0]["kernels"] if row["usable"]]
    assert usable and set(usable) == {"portable"}


# ---- plan ------------------------------------------------------------------------------------------------


def header(text):
    return [line for line in text.splitlines() if line.startswith(("forward", "backward"))]


def test_plan_of_a_shape():
    both = succeed("plan", "--shape", "64x128x32")
    forward, backward = header(both)
    assert "M=64 K=128 N=32 batch=1" in forward and "M=64 K=128 N=32 batch=1" in backward
    assert succeed("plan", "--shape", "64x128x32", "--forward") + succeed("plan", "--shape", "64x128x32", "--backward") == both
    assert any(row["name"] in both for row in kernels())
    assert "workspace" in both


def test_plan_follows_its_options():
    plan = lambda *options: succeed("plan", "--shape", "64x128x32", "--backward", *options)
    assert "bf16 gelu" in plan("--dtype", "bf16", "--activation", "gelu")
    assert "gelu recompute" in plan("--activation", "gelu") and "a.b" in plan("--activation", "gelu")
    assert "a.b" not in plan("--activation", "gelu", "--mode", "pre")
    assert "d_a" in plan() and "d_a" not in plan("--want", "d_b")
    assert "d_b" not in plan("--want", "grad_pre,d_a")
    assert "f64" in plan("--dtype", "f64").splitlines()[0]
    assert "d_b = 0.125 * aT.grad" in plan("--scale", "0.125", "--want", "d_b") and "*" not in plan("--want", "d_b")
    assert len(header(succeed("plan", "--shape", "1x2x3,4x5x6", "--forward"))) == 2


def test_plan_of_a_batch():
    text = succeed("plan", "--shape", "3x4x5", "--batch", "7", "--layout-b", "nk", "--accumulate", "--save-pre")
    # A shared b makes the batch one tall matrix.
    assert all("batch=7" in line or "M=21" in line for line in header(text))


def test_plan_of_a_batch_of_two_levels():
    text = succeed("plan", "--shape", "64x16x64", "--batch", "2x12")
    assert [line.split("  ")[1] for line in header(text)] == ["M=64 K=16 N=64 batch=24"] * 2  # each item has a b: no tall matrix
    assert "d_a" in text and "d_b" in text
    refuse(2, "plan", "--shape", "1x2x3", "--groups", "2", "--batch", "1x3", says="layer.batch is 3 with layer.groups 2")
    refuse(2, "plan", "--shape", f"{2**31}x1x1", "--batch", f"{2**31}x{2**31}", says="more bytes than can be addressed")


def test_plan_of_groups(layer):
    text = succeed("plan", "--shape", "100x40x50", "--groups", "6", "--gated", "--backward")
    assert re.match(r"6 groups of 100 rows in all  workspace \d+ bytes\n", text)
    for rows in (1, 2, 4, 8, 16, 32, 64, 100):
        assert f"a group of up to {rows} rows: backward f32 none gated recompute  M={rows} K=40 N=50" in text
    refuse(2, "plan", "--shape", "1x2x3", "--groups", "0", says=["--groups is '0'", "from 1"])
    refuse(2, "plan", "--shape", "1x2x3", "--groups", "2", "--batch", "3", says="layer.batch is 3 with layer.groups 2")
    refuse(2, "plan", layer(), "--groups", "2", says="--groups is given with IN")
    refuse(2, "bench", "--routing", "top", says=["--routing is 'top'", "even, random or zipf"])


@pytest.mark.parametrize("routing", ["even", "random", "zipf"])
def test_bench_of_groups(routing):
    row = json.loads(succeed("bench", "--shape", "96x40x50", "--groups", "7", "--routing", routing, "--seconds", "0.01", "--json"))
    assert row["groups"] == 7 and row["m"] == 96 and row["gflops"] > 0


def test_plan_of_a_file(layer):
    assert len(header(succeed("plan", layer()))) == 2
    assert len(header(succeed("plan", layer(grad=None)))) == 1
    assert header(succeed("plan", layer(dtype="bf16", m=6), "--activation", "tanh"))[1].startswith("backward bf16 tanh recompute  M=6 K=7 N=3")


def test_plan_of_a_shape_too_large():
    refuse(2, "plan", "--shape", "9223372036854775807x2x2", says="9223372036854775807")
    refuse(2, "plan", "--shape", f"{2**40}x{2**40}x1", says=["too large", str(2**40)])


def test_plan_in_chunks():
    """The whole workspace stays within the limit, and a chunk is what the rest of the plan is of."""
    text = succeed("plan", "--shape", "1000000x100x200", "--backward", "--activation", "gelu", "--workspace-limit", "8M")
    first, *rest = text.splitlines()
    rows, count, workspace = map(int, re.fullmatch(r"chunks of (\d+) rows x (\d+)  M=1000000 batch=1  workspace (\d+) bytes",
                                                   first).groups())
    assert rows % 256 == 0 and (count - 1) * rows < 1000000 <= count * rows and workspace <= 8 << 20
    assert any(line.startswith("backward f32 gelu") and f" M={rows} " in line for line in rest)
    same = succeed("plan", "--shape", "1000000x100x200", "--backward", "--activation", "gelu", "--workspace-limit", "8192K")
    assert same == text
    assert "chunks" not in succeed("plan", "--shape", "64x100x200", "--workspace-limit", "1G")


def test_plan_with_sums_in_d_b():
    """Three products a chunk: without d_b, and each half of it. 6 MiB are enough for d_b in one, with every kernel."""
    options = ["--shape", "3000x1000x30", "--dtype", "bf16", "--backward", "--activation", "mish", "--threads", 1]
    text = succeed("plan", *options, "--workspace-limit", least_limit("plan", *options))
    kept = int(re.search(r"\n    (\d+) of 1000 lines of d_b are added up there, the others in its own memory\n", text).group(1))
    half = text[text.index("\nbackward bf16 none") :]
    assert 500 <= kept <= 508 and f" K={kept} N=30 " in half and "sums = aT.grad_pre" in half.replace("+=", "=")
    assert text.count("aT.grad_pre") == 1
    assert "own memory" not in succeed("plan", *options, "--workspace-limit", "6M")


def test_plan_computes_nothing():
    """Petabytes are planned in no time, and no memory."""
    succeed("plan", "--shape", "10000000x10000000x10000000", timeout=20)


# ---- check -----------------------------------------------------------------------------------------------


def test_check_covers_every_usable_kernel():
    cap = {"EPIGRAD_CPU_ISA": "portable"}  # the tests in C run the same cases on all of them
    text = succeed("check", "--backend", "cpu", env=cap, timeout=600)
    lines = text.splitlines()
    for row in kernels(env=cap):
        (line,) = [line for line in lines if re.search(rf"\b{row['name']}\b", line)]
        assert line.endswith("ok") == row["usable"]
        if row["usable"]:
            assert float(re.search(r"worst error ([\d.]+)", line)[1]) <= 1
            assert int(re.search(r"(\d+) cases", line)[1]) > 100
    assert lines[-1].endswith("all within their bounds")


# ---- bench -----------------------------------------------------------------------------------------------

SHORT = ["--seconds", "0.02"]


def bench(*options):
    lines = succeed("bench", *SHORT, "--json", *options).splitlines()
    return [json.loads(line) for line in lines]


def test_bench_json():
    rows = bench("--shape", "16x32x48,64x64x64", "--threads", "1")
    assert [(row["m"], row["k"], row["n"]) for row in rows] == [(16, 32, 48), (64, 64, 64)]
    names = {row["name"] for row in kernels()}
    for row in rows:
        assert list(row) == BENCH_KEYS
        assert (row["backend"], row["dtype"], row["batch"], row["threads"]) == ("cpu", "f32", 1, 1)
        assert (row["activation"], row["mode"]) == ("gelu", "recompute")
        assert 0 < row["min_ms"] <= row["median_ms"]
        assert 0 < row["peak_pct"] < 150
        assert row["kernels"] and set(row["kernels"].split(",")) <= names


@pytest.mark.parametrize(
    "options, products",
    [
        ([], 6),
        (["--mode", "pre"], 4),
        (["--mode", "y", "--activation", "tanh"], 4),
        (["--activation", "none"], 4),
        (["--activation", "mish", "--batch", "3"], 18),
        (["--mode", "pre", "--batch", "3x2"], 24),
        (["--gated"], 12),
        (["--gated", "--activation", "none"], 12),
        (["--gated", "--mode", "pre"], 8),
    ],
)
def test_bench_counts_the_operations_of_its_mode(options, products):
    (row,) = bench("--shape", "32x48x64", *options)
    expected = products * 32 * 48 * 64 / (row["median_ms"] * 1e-3) * 1e-9
    assert row["gflops"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
def test_bench_types(dtype):
    (row,) = bench("--shape", "32x32x32", "--dtype", dtype)
    assert row["dtype"] == dtype and row["gflops"] > 0


def test_bench_of_a_gated_unit():
    (row,) = bench("--shape", "32x48x64", "--gated", "--dtype", "bf16")
    assert row["gated"] is True and row["activation"] == "gelu"
    assert " silu gated " in succeed("bench", *SHORT, "--shape", "8x8x8", "--gated", "--activation", "silu", "--out-dtype", "f32")


def test_bench_of_two_levels():
    (row,) = bench("--shape", "32x48x64", "--batch", "2x3")
    assert (row["outer_batch"], row["batch"]) == (2, 3)
    assert " 2x3 " in succeed("bench", *SHORT, "--shape", "8x8x8", "--batch", "2x3")


def test_bench_of_nothing():
    (row,) = bench("--shape", "0x4x4")
    assert row["gflops"] == 0


def test_bench_table():
    text = succeed("bench", *SHORT, "--shape", "16x16x16,8x8x8")
    lines = text.splitlines()
    assert len(lines) == 3 and "GFLOP/s" in lines[0] and "16x16x16" in lines[1] and "8x8x8" in lines[2]


def test_bench_too_large_for_memory():
    refuse(2, "bench", *SHORT, "--shape", f"{2**40}x{2**40}x1", "--json", says=f"a would have shape [{2**40}, {2**40}]")
    refuse(1, "bench", *SHORT, "--shape", f"{2**40}x1x1", "--json", says="memory")
