# SPDX-License-Identifier: Apache-2.0
"""The command line: what it takes, and how it refuses the rest."""

import re

import pytest

from conftest import refuse, run, succeed

COMMANDS = ["forward", "backward", "plan", "info", "check", "bench"]


def test_help():
    text = succeed("--help")
    assert text == succeed("-h") == succeed("help")
    for command in COMMANDS:
        assert f"epigrad {command}" in text
        assert succeed(command, "--help") == text
    for option in ("--activation", "--backend", "--dtype", "--out-dtype", "--layout-b", "--mode", "--want", "--accumulate", "--accumulate-into", "--mpi", "--mean",
                   "--save-pre", "--scale", "--nonfinite", "--threads", "--workspace-limit", "--shape", "--batch", "--groups", "--routing", "--json", "--output"):
        assert option in text
    assert max(map(len, text.splitlines())) <= 110


def test_version():
    assert re.fullmatch(r"epigrad \d+\.\d+\.\d+\n", succeed("--version"))


def test_commands():
    refuse(2, says="no command given")
    refuse(2, "train", says=["no command 'train'", *COMMANDS])
    refuse(2, "--json", says="no command '--json'")
    refuse(2, "a\nb\x1b[0m", says="no command 'a?b?[0m'")


@pytest.mark.parametrize(
    "option, value, says",
    [
        ("--activation", "gelu_tanh", ["--activation is 'gelu_tanh'", "none, relu", "mish"]),
        ("--activation", "", "--activation is ''"),
        ("--backend", "rocm", ["--backend is 'rocm'", "cpu, cuda or webgpu"]),
        ("--dtype", "float32", ["--dtype is 'float32'", "f64, f32, f16 or bf16"]),
        ("--out-dtype", "i8", "--out-dtype is 'i8'"),
        ("--layout-b", "mn", ["--layout-b is 'mn'", "kn or nk"]),
        ("--mode", "saved", ["--mode is 'saved'", "recompute, pre or y"]),
        ("--scale", "0", ["--scale is '0'", "other than 0"]),
        ("--scale", "inf", ["--scale is 'inf'", "finite"]),
        ("--nonfinite", "keep", ["--nonfinite is 'keep'", "zero or propagate"]),
        ("--want", "d_c", ["--want is 'd_c'", "d_a,d_b,d_bias,grad_pre"]),
        ("--want", "", "--want is ''"),
        ("--want", "d_a,", "--want is 'd_a,'"),
        ("--want", "d_a,,d_b", "--want is"),
        ("--want", "d_a d_b", "--want is"),
        ("--threads", "0", "--threads is '0'"),
        ("--threads", "-1", "--threads is '-1'"),
        ("--threads", "4097", "--threads is '4097'"),
        ("--threads", "2x", "--threads is '2x'"),
        ("--threads", "99999999999999999999", "--threads is"),
        ("--threads", " 2", "--threads is"),
        ("--workspace-limit", "0", ["--workspace-limit is '0'", "256M"]),
        ("--workspace-limit", "-1", "--workspace-limit is '-1'"),
        ("--workspace-limit", "64k", "--workspace-limit is '64k'"),
        ("--workspace-limit", "64MB", "--workspace-limit is '64MB'"),
        ("--workspace-limit", "M", "--workspace-limit is 'M'"),
        ("--workspace-limit", "9999999999G", "--workspace-limit is"),
        ("--workspace-limit", "3", ["workspace_limit is 3", "expected at least"]),
    ],
)
@pytest.mark.parametrize("command", ["backward", "plan"])
def test_values(tmp_path, layer, command, option, value, says):
    out = ["-o", tmp_path / "out.safetensors"] if command == "backward" else []
    refuse(2, command, layer(), *out, option, value, says=says)


@pytest.mark.parametrize(
    "option, value",
    [("--shape", "4x5"), ("--shape", "4x5x6x7"), ("--shape", "4x5x6,"), ("--shape", "-1x2x3"), ("--shape", ""),
     ("--shape", "4X5X6"), ("--shape", "9999999999999999999x1x1"), ("--shape", ",".join(["1x1x1"] * 65)),
     ("--batch", "-1"), ("--batch", "0"), ("--batch", "two"), ("--batch", ""), ("--batch", "2x"), ("--batch", "x3"), ("--batch", "0x3"), ("--batch", "2x0"), ("--batch", "2x3x4"), ("--batch", "2,3"), ("--seconds", "0"), ("--seconds", "nan"), ("--seconds", "inf"),
     ("--seconds", "1e9"), ("--seconds", "1s")],
)
def test_values_of_bench(option, value):
    refuse(2, "bench", option, value, says=option)


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["forward"], "no IN given"),
        (["forward", "in"], "no OUT given"),
        (["forward", "in", "more", "-o", "out"], "unexpected argument 'more'"),
        (["backward", "in", "-o"], "-o needs a value"),
        (["backward", "in", "--activation"], "--activation needs a value"),
        (["backward", "in", "--speed"], "no such option"),
        (["backward", "in", "-x"], "no such option"),
        (["backward", "in", "--accumulate=yes"], "no such option"),
        (["backward", "in", "-o", "out", "--save-pre"], "--save-pre"),
        (["forward", "in", "-o", "out", "--want", "d_a"], "--want"),
        (["forward", "in", "-o", "out", "--mode", "pre"], "--mode"),
        (["forward", "in", "-o", "out", "--accumulate"], "--accumulate"),
        (["backward", "in", "-o", "out", "--mode", "y", "--activation", "gelu"], ["--mode is y", "gelu", "none, relu, sigmoid, tanh"]),
        (["bench", "--mode", "y", "--activation", "silu"], ["--mode is y", "silu"]),
        (["bench", "in"], "unexpected argument 'in'"),
        (["info", "in"], "unexpected argument 'in'"),
        (["info", "--backend", "cpu"], "--backend"),
        (["check", "--dtype", "f32"], "--dtype"),
        (["plan"], "no IN and no --shape"),
        (["plan", "in", "--shape", "1x1x1"], "both IN and --shape"),
    ],
)
def test_usage(arguments, says):
    refuse(2, *arguments, says=says)


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["plan", "in", "-o", "out"], "-o, --output is given with plan; expected it with forward or backward"),
        (["plan", "in", "--output=out"], "--output is given with plan; expected it with forward or backward"),
        (["bench", "-oout"], "--output is given with bench; expected it with forward or backward"),
        (["forward", "in", "-o", "out", "--want=d_a"], "--want is given with forward; expected it with backward or plan"),
        (["forward", "in", "-o", "out", "--nonfinite", "propagate"], "--nonfinite is given with forward; expected it with backward or plan"),
        (["backward", "in", "-o", "out", "--routing", "zipf"], "--routing is given with backward; expected it with bench"),
        (["info", "--threads", "1"], "--threads is given with info; expected it with forward, backward, plan, check or bench"),
        (["plan", "in", "--batch", "2"], "--batch is given with IN; expected it with --shape"),
        (["plan", "in", "--batch", "1"], "--batch is given with IN"),
        (["plan", "in", "--groups", "2"], "--groups is given with IN; expected it with --shape"),
        (["bench", "--routing", "zipf"], "--routing given without --groups; expected both"),
        (["bench", "--routing", "even"], "--routing given without --groups"),
        (["plan", "in", "--forward", "--mode", "recompute"], "--mode is given with --forward; expected it with --backward"),
        (["plan", "in", "--forward", "--want", "d_a"], "--want is given with --forward"),
        (["plan", "in", "--forward", "--accumulate"], "--accumulate is given with --forward"),
        (["plan", "in", "--forward", "--accumulate-into", "d_a"], "--accumulate-into is given with --forward"),
        (["plan", "in", "--forward", "--out-dtype", "f32"], "--out-dtype is given with --forward"),
        (["plan", "--shape", "1x1x1", "--forward", "--nonfinite", "zero"], "--nonfinite is given with --forward"),
        (["plan", "in", "--backward", "--save-pre"], "--save-pre is given with --backward; expected it with --forward"),
        (["check", "--backend", "webgpu", "--threads", "2"], "--threads is given with --backend webgpu; expected it with cpu"),
        (["backward", "in", "-o", "out", "--want", "d_a,d_b", "--accumulate-into", "d_b,d_bias"],
         "--accumulate-into names d_bias, and --want does not; expected it in both"),
        (["backward", "in", "-o", "out", "--want", "d_a,grad_pre", "--accumulate"], ["--accumulate is of d_b", "expected --want with one of them"]),
        (["plan", "in", "--want", "d_a", "--out-dtype", "f32"], ["--out-dtype is of d_b", "expected --want with one of them"]),
    ],
)
def test_an_option_that_is_not_read(arguments, says):
    """Nothing that is given goes without effect."""
    refuse(2, *arguments, says=says)


def test_an_option_of_a_pass_that_IN_is_not_for(layer):
    source = layer(grad=None)
    refuse(2, "plan", source, "--mode", "recompute", says=["--mode is given, and", "has no grad; expected it for a backward pass"])
    succeed("plan", source, "--save-pre")
    both = succeed("plan", layer(), "--save-pre", "--nonfinite", "propagate")
    assert both == succeed("plan", layer(), "--save-pre", "--nonfinite", "propagate", "--forward", "--backward")


def test_options_and_files_in_any_order(tmp_path, layer):
    source = layer()
    succeed("backward", "--activation=relu", "-o", tmp_path / "1.safetensors", source, "--want=d_a")
    succeed("backward", source, f"--output={tmp_path}/2.safetensors", "--want", "d_a", "--activation", "relu")
    succeed("backward", "--want", "d_a", f"-o{tmp_path}/3.safetensors", "--activation", "relu", "--", source)
    files = [(tmp_path / f"{i}.safetensors").read_bytes() for i in (1, 2, 3)]
    assert files[0] == files[1] == files[2]


@pytest.mark.parametrize("backend", ["cuda", "webgpu"])
def test_a_backend_that_is_not_there(tmp_path, layer, backend):
    """Looked for where none can be: no driver, no library."""
    nowhere = {"LD_LIBRARY_PATH": str(tmp_path), "EPIGRAD_WEBGPU_LIBRARY": str(tmp_path / "none.so"), "CUDA_VISIBLE_DEVICES": ""}
    source, out = layer(), tmp_path / "out.safetensors"
    probe = run("forward", source, "-o", out, "--backend", backend, env=nowhere)
    if probe.returncode == 0:
        pytest.skip(f"{backend} is here all the same")
    out.unlink(missing_ok=True)
    for arguments in (["forward", source, "-o", out], ["backward", source, "-o", out], ["plan", source], ["check"], ["bench"]):
        refuse(3, *arguments, "--backend", backend, env=nowhere)
    assert not out.exists()
