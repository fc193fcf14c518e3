# SPDX-License-Identifier: Apache-2.0
"""The peers: which of them this machine has, and how each is started."""

import glob
import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

from machine import has_avx512

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDERS = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib", sys.prefix + "/lib")
OPENMP = "{folder}/{library}-openmp/lib{library}.so*"  # Debian's flavour that shares its threads with our loop
ANY = ("{folder}/lib{library}.so*", "{folder}/{library}-pthread/lib{library}.so*")
WIDE = {"OPENBLAS_CORETYPE": "SkylakeX", "BLIS_ARCH_TYPE": "0", "ATEN_CPU_CAPABILITY": "avx512"}


@dataclass
class Peer:
    name: str
    label: str
    command: list          # {threads} is filled in
    dtypes: tuple
    environment: dict = field(default_factory=dict)
    base: str = ""         # a variant of this peer: dropped where it turns out to be the same


def library(name, folders, patterns):
    for pattern in patterns:
        for folder in folders:
            found = sorted(glob.glob(pattern.format(folder=folder, library=name)))
            if found:
                return os.path.realpath(found[0])
    return None


def pythons(wanted):
    """The interpreters that may have PyTorch: the one asked for, this one, the system's."""
    return [wanted] if wanted else [sys.executable, shutil.which("python3"), "/usr/bin/python3"]


def python_with_torch(wanted):
    if not wanted and importlib.util.find_spec("torch"):
        return sys.executable
    for python in pythons(wanted):
        probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
        if python and os.path.exists(python) and subprocess.run([python, "-c", probe], check=False).returncode == 0:
            return python
    return None


def blas(name, label, path, program, variable=None, dtypes=("f32", "f64"), **environment):
    peers = [Peer(name, label, [program, path], dtypes, environment)]
    if variable and has_avx512():
        peers.append(Peer(f"{name}-avx512", f"{label}, AVX-512 forced", [program, path], dtypes,
                          {variable: WIDE[variable], **environment}, base=name))
    return peers


def torch_peers(python, compiled):
    command = [python, os.path.join(HERE, "worker_torch.py"), "{threads}"]
    types, peers = ("f32", "f64", "bf16", "f16"), []
    peers.append(Peer("torch", "PyTorch", command, types))
    if has_avx512():
        peers.append(Peer("torch-avx512", "PyTorch, AVX-512 forced", command, types,
                          {"ATEN_CPU_CAPABILITY": WIDE["ATEN_CPU_CAPABILITY"]}, base="torch"))
    if compiled:
        peers.append(Peer("torch-compile", "torch.compile", command + ["compile"], types))
    return peers


def epigrad(programs):
    command = [os.path.join(programs, "peer_epigrad"), "{threads}"]
    return [Peer("epigrad", "epigrad", command + ["default"], ("f32", "f64", "bf16", "f16")),
            Peer("epigrad-strict", "epigrad, math = strict", command + ["strict"], ("f32",), base="epigrad")]


def find(programs, folders, torch_python, compiled):
    """(peers found, names of those not found)"""
    places = list(folders) + list(FOLDERS)
    peers, missing = epigrad(programs), []
    program = os.path.join(programs, "peer_blas")
    wanted = [("openblas", "OpenBLAS", "OPENBLAS_CORETYPE"), ("blis", "BLIS", "BLIS_ARCH_TYPE")]
    for name, label, variable in wanted:
        path = library(name, places, (OPENMP, *ANY))
        peers += blas(name, label, path, program, variable) if path else []
        missing += [] if path else [label]
    mkl = library("mkl_rt", places, ("{folder}/lib{library}.so*",))
    peers += blas("mkl", "MKL", mkl, program, dtypes=("f32", "f64", "bf16"), MKL_THREADING_LAYER="GNU",
                  MKL_INTERFACE_LAYER="LP64", LD_LIBRARY_PATH=os.path.dirname(mkl)) if mkl else []
    missing += [] if mkl else ["MKL"]
    onednn = os.path.join(programs, "peer_onednn")
    peers += [Peer("onednn", "oneDNN", [onednn], ("f32", "bf16"))] if os.path.exists(onednn) else []
    missing += [] if os.path.exists(onednn) else ["oneDNN"]
    python = python_with_torch(torch_python)
    peers += torch_peers(python, compiled) if python else []
    missing += [] if python else ["PyTorch"]
    return peers, missing
