# SPDX-License-Identifier: Apache-2.0
"""What the command tells a shell to offer, and what bash makes of it."""

import os
import re
import shutil
import subprocess

import pytest

from conftest import EPIGRAD, ROOT, refuse, run, succeed
from test_usage import COMMANDS

OPTIONS = {command: succeed("--complete", command).split() for command in COMMANDS}
PAIRS = [(command, option) for command in COMMANDS for option in OPTIONS[command]]


def complete(*words, cwd=None):
    """What bash offers for the last of the words behind the command's name; "=" is a word of its own there."""
    script = """
        source "$1"
        [[ $(complete -p epigrad) == 'complete -F _epigrad epigrad' ]] || exit 1
        COMP_WORDS=("${@:2}")
        COMP_CWORD=$(($# - 2))
        _epigrad "$2" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        ((${#COMPREPLY[@]} == 0)) || printf '%s\\n' "${COMPREPLY[@]}"
    """
    bash = shutil.which("bash") or pytest.skip("no bash")
    result = subprocess.run([bash, "--norc", "-uc", script, "bash", ROOT / "cli" / "epigrad.bash", EPIGRAD, *words],
                            capture_output=True, text=True, cwd=cwd, timeout=60)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    return result.stdout.splitlines()


def test_commands():
    assert complete("") == succeed("--complete").split() == [*COMMANDS, "--help", "--version"]
    assert complete("b") == ["backward", "bench"]
    assert complete("--v") == ["--version"]
    assert complete("train") == []
    assert complete("train", "-") == []


@pytest.mark.parametrize("command", COMMANDS)
def test_options(command):
    assert complete(command, "-") == OPTIONS[command]
    assert complete(command, "--h") == ["--help"]
    assert len(set(OPTIONS[command])) == len(OPTIONS[command])


def test_options_are_those_of_the_manual():
    documented = set(re.findall(r"--[a-z][a-z-]*", (ROOT / "docs/reference/epigrad.1").read_text().replace("\\-", "-")))
    offered = {option for options in OPTIONS.values() for option in options}
    assert documented - {"--version", "--complete"} == offered


@pytest.mark.parametrize("command, option", PAIRS)
def test_every_word_is_taken(command, option):
    """An offered option is one of the command's, and so is each value; another one is refused with all of them."""
    values = run("--complete", command, option)
    if values.returncode:
        refuse(2, "--complete", command, option, says=f"no option '{option}' that takes a value")
        assert succeed(command, option, "--help") == succeed("--help")
        return
    words = values.stdout.split()
    assert complete(command, option, "") == complete(command, option, "=", "") == complete(command, option, "=") or option == "--output"
    for word in words:
        assert succeed(command, option, word, "--help") == succeed("--help")
    if words:
        refuse(2, command, option, "nonsense", says=words)


def test_values():
    assert complete("backward", "--backend", "") == ["cpu", "cuda", "webgpu"]
    assert complete("plan", "in", "--dtype", "=", "b") == ["bf16"]
    assert complete("plan", "--activation", "gelu") == ["gelu", "gelu_erf"]
    table = re.findall(r"X\([A-Z0-9_]+, (\w+), \d+", (ROOT / "include/epigrad/activation.h").read_text())
    assert complete("bench", "--activation", "") == table
    assert complete("bench", "--want", "") == []
    assert complete("bench", "--threads", "") == []


def test_a_list():
    assert complete("backward", "--want", "d_") == ["d_a", "d_b", "d_bias", "d_b_up", "d_bias_up"]
    assert complete("backward", "--want", "d_a,d_b") == ["d_a,d_b", "d_a,d_bias", "d_a,d_b_up", "d_a,d_bias_up"]
    assert complete("backward", "--want", "=", "d_a,d_b,g") == ["d_a,d_b,grad_pre", "d_a,d_b,grad_pre_up"]


def test_a_list_of_sums():
    assert complete("backward", "--accumulate-into", "d_a,d_b_") == ["d_a,d_b_up"]


def test_files(tmp_path):
    for name in ("a layer.safetensors", "a.txt", "b.safetensors"):
        (tmp_path / name).touch()
    os.mkdir(tmp_path / "arrays")
    for words in (["forward"], ["plan", "--json"], ["backward", "--accumulate"], ["forward", "in", "-o"], ["backward", "--output", "="]):
        assert sorted(complete(*words, "", cwd=tmp_path)) == ["a layer.safetensors", "arrays", "b.safetensors"]
        assert sorted(complete(*words, "a", cwd=tmp_path)) == ["a layer.safetensors", "arrays"]
    assert complete("bench", "", cwd=tmp_path) == complete("info", "", cwd=tmp_path) == []


def test_bad_questions():
    refuse(2, "--complete", "train", says="no command 'train'")
    refuse(2, "--complete", "info", "--backend", says="info: no option '--backend' that takes a value")
    refuse(2, "--complete", "bench", "json", says="no option 'json'")
    refuse(2, "--complete", "bench", "--mode", "pre", says="unexpected argument 'pre'")
