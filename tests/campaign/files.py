#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A campaign against the command: broken files, odd places for results, and too little of what a process needs.

    files.py COMMAND [--plain COMMAND] [--minutes 1] [--seed 0] [--jobs 1]
    files.py COMMAND [--plain COMMAND] --case SEED

COMMAND is built with the address and undefined-behaviour sanitizers; where memory is limited, which those do not
bear, the plain one runs. A case is a function of its seed; a failure prints a line that runs it again. What must hold:
no crash, no report of a sanitizer; an exit code that the manual has for this; on failure one line that names what is
wrong; standard output empty or whole; inputs untouched; OUT as it was or whole, nothing beside it; right numbers."""

import argparse
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import files_mutate
import files_values

ACTIVATIONS = ["none", "none", "none", "relu", "gelu", "silu", "sigmoid", "tanh", "gelu_erf", "softplus", "mish"]
NAMES = r"OUT|IN|\bout\b|--[a-z-]+|\b(a|b|bias|residual|grad|pre|y|d_a|d_a_residual|d_b|d_bias|grad_pre|layer|batch|workspace_limit|size)\b"
LARGEST = 32 << 20  # of any file, and a sixteenth of any allocation
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


class Wrong(Exception):
    pass


@dataclass
class Options:
    activation: str
    is_nk: bool
    accumulate: bool
    common: list = field(default_factory=list)  # of each pass and its plan
    forward: list = field(default_factory=list)
    backward: list = field(default_factory=list)

    @property
    def mode(self):
        """The tensor that act' is taken from; None: from none."""
        return self.backward[self.backward.index("--mode") + 1] if "--mode" in self.backward else None

    def of(self, is_backward):
        return self.common + (self.backward if is_backward else self.forward)


@dataclass
class Result:
    code: int
    out: str
    err: str


def prepare(limits):
    """In the process to be: what a shell ignores in the background, as nohup does, is not to be ignored here."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    for which, most in limits.items():
        resource.setrlimit(which, (most, most))


# ---- One case --------------------------------------------------------------------------------------------


def draw_options(rng, is_nk):
    sometimes = lambda chance, *words: list(words) if rng.random() < chance else []
    options = Options(rng.choice(ACTIVATIONS), is_nk if rng.random() < 0.95 else not is_nk, rng.random() < 0.15)
    options.common = ["--activation", options.activation, "--layout-b", "nk" if options.is_nk else "kn", "--threads", rng.choice("12")]
    options.common += sometimes(0.2, "--dtype", rng.choice(["f64", "f32", "f16", "bf16"]))
    options.common += sometimes(0.1, "--workspace-limit", rng.choice(["1", "64K", "1M", "1M"]))
    options.forward = sometimes(0.3, "--save-pre")
    options.backward = (["--accumulate"] if options.accumulate else []) + sometimes(0.1, "--nonfinite", "propagate")
    options.backward += sometimes(0.15, "--mode", rng.choice(["pre", "pre", "y"])) + sometimes(0.15, "--out-dtype", rng.choice(["f32", "f64"]))
    want = rng.sample(["d_a", "d_b", "d_bias", "grad_pre"], rng.randint(1, 4))
    if {"--accumulate", "--out-dtype"} & set(options.backward) and not {"d_b", "d_bias"} & set(want):
        want.append("d_b")  # those options are of sums
    options.backward += sometimes(0.3, "--want", ",".join(want))
    return options


class Case:
    """`folder` is empty, and `disk` (or None) a small file system."""

    def __init__(self, seed, folder, disk, sanitized, plain):
        self.rng = rng = random.Random(seed)
        self.folder, self.disk, self.sanitized, self.plain = folder, disk, sanitized, plain
        tensors, is_nk = files_mutate.make_layer(rng)
        self.options = draw_options(rng, is_nk)
        self.is_backward = rng.random() < 0.5
        mutations = rng.choice([0, 0, 0, 0, 1, 1, 1, 1, 2, 3])
        self.input = rng.choice(["in.safetensors", "in"])
        write = files_mutate.write_safetensors if "." in self.input else files_mutate.write_folder
        write(rng, folder / self.input, tensors, mutations)
        self.commands = []

    def pass_of(self, out):
        return ["backward" if self.is_backward else "forward", self.input, "-o", out, *self.options.of(self.is_backward)]

    def plan(self):
        only = "--backward" if self.is_backward else "--forward"
        return ["plan", self.input, only, *self.options.of(self.is_backward)]

    def run(self, arguments, binary=None, limits=None, stdout=subprocess.PIPE, kill=None):
        """Runs the command and checks what must hold of every run."""
        binary = binary or self.sanitized
        logs = Path(tempfile.mkdtemp(dir=self.folder.parent))
        memory = {} if binary == self.sanitized else {resource.RLIMIT_AS: 16 * LARGEST}
        limits = {resource.RLIMIT_FSIZE: LARGEST, resource.RLIMIT_CORE: 0, **memory, **(limits or {})}
        log = f"log_path={logs}/log:exitcode=99"
        environment = {**os.environ, "LC_ALL": "C", "UBSAN_OPTIONS": f"{log}:print_stacktrace=1",
                       "ASAN_OPTIONS": f"{log}:allocator_may_return_null=1:max_allocation_size_mb={16 * LARGEST >> 20}"}
        self.commands.append(" ".join(arguments))
        process = subprocess.Popen([binary, *arguments], cwd=self.folder, stdout=stdout, stderr=subprocess.PIPE, env=environment,
                                   preexec_fn=lambda: prepare(limits))
        if kill is not None:
            time.sleep(kill[0])
            process.send_signal(kill[1])
        try:
            out, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Wrong("took more than two minutes") from None
        result = Result(process.returncode, (out or b"").decode(), err.decode("utf-8", "replace"))
        reports = [file.read_text(errors="replace") for file in logs.iterdir()]
        shutil.rmtree(logs)
        for report in reports:
            if "ERROR" in report or "runtime error" in report:
                raise Wrong("report of a sanitizer:\n" + report)
        self.check_result(result, kill)
        return result

    def check_result(self, result, kill):
        if kill is not None and result.code == -kill[1]:
            if result.out or (result.err and not result.err.startswith("epigrad: ")):
                raise Wrong(f"printed {result.out + result.err!r} and ended by a signal")
            return
        if result.code not in (0, 1, 2):
            if result.code == 127 and "shared libraries" in result.err:
                return
            raise Wrong(f"exit code {result.code}: {result.err}")
        if result.code == 0:
            if result.err:
                raise Wrong(f"succeeded and printed {result.err!r}")
            return
        if result.out:
            raise Wrong(f"exit code {result.code}, and printed {result.out!r}")
        line = result.err[:-1]
        if not result.err.startswith("epigrad: ") or not result.err.endswith("\n") or re.search(r"[\x00-\x1f\x7f]", line):
            raise Wrong(f"not one line: {result.err!r}")
        if not re.search(NAMES, line) and self.input not in line and "standard output" not in line:
            raise Wrong(f"names nothing: {line}")

    def snapshot(self, *, but=None):
        """Everything in the folder and on the disk, but for OUT."""
        found = {}
        for root in filter(None, (self.folder, self.disk)):
            for path in sorted(root.rglob("*")):
                if but is not None and (path == but or but in path.parents):
                    continue
                kind = path.lstat().st_mode
                found[str(path)] = (kind, os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None)
        return found

    def run_to(self, out, **options):
        """A pass, with the state of the files checked: OUT whole on success, all as it was on failure."""
        place = self.folder / out
        before, others = self.snapshot(), self.snapshot(but=place)
        result = self.run(self.pass_of(out), **options)
        after = self.snapshot(but=place)
        if after != others:
            changed = sorted(name for name in after.keys() | others.keys() if after.get(name) != others.get(name))
            raise Wrong(f"exit code {result.code}, and changed: {changed}")
        if result.code == 0 and not place.exists():
            raise Wrong("succeeded without an OUT")
        killed_after_rename = result.code < 0 and self.snapshot() != before
        if result.code == 0 or killed_after_rename:
            try:
                wrong = files_values.compare(self.folder / self.input, place, self.options, self.is_backward)
            except files_values.Unknown as why:
                self.unknown = str(why)
                wrong = None
            if wrong is not None:
                raise Wrong(wrong)
        elif self.snapshot() != before:
            raise Wrong(f"exit code {result.code}, and OUT changed")
        return result

    def clear(self, out):
        place = self.folder / out
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)


# ---- Conditions ------------------------------------------------------------------------------------------


def expect(result, *codes):
    # Kernels say what workspace is the least, and where 1 may come the other build may run, with other kernels.
    if result.code == 2 and "workspace_limit is" in result.err and 1 in codes:
        return
    if result.code not in codes:
        raise Wrong(f"exit code {result.code}, expected {' or '.join(map(str, codes))}: {result.err}")


def alone(case, out, code):
    """The plan of a pass succeeds where the pass does; memory and disk it does not need."""
    plan = case.run(case.plan())
    if code != 1:
        expect(plan, code)
    first = ("backward" if case.is_backward else "forward", "an empty batch")
    if plan.code == 0 and not plan.out.startswith(first):
        raise Wrong(f"plan printed {plan.out!r}")
    both = case.run(["plan", case.input, *case.options.common])
    if both.code == 0 and not both.out.startswith(("forward", "an empty batch")):
        raise Wrong(f"plan printed {both.out!r}")


def standard_output(case, out, code):
    planned = case.run(case.plan())
    with open("/dev/full", "wb") as full:
        expect(case.run(case.plan(), stdout=full), planned.code or 1)


def over_older(case, out, code):
    place = case.folder / out
    if out.endswith(".safetensors"):
        place.write_bytes(b"older")
    else:
        place.mkdir()
        (place / "y.npy").write_bytes(b"older")
    expect(case.run_to(out), code)


def odd_places(case, out, code):
    (case.folder / "precious").mkdir()
    (case.folder / "precious" / "notes").write_text("precious")
    os.symlink("nowhere", case.folder / "dangling.safetensors")
    os.symlink("loop", case.folder / "loop")
    os.symlink(case.input, case.folder / "link.safetensors")
    places = ["precious", "dangling.safetensors", "loop", "link.safetensors", "missing/out", "out.npz", "/dev/null", ".", "x" * 300, case.input]
    expect(case.run_to(case.rng.choice(places)), 2)


def descriptors(case, out, code):
    most = case.rng.randint(4, 9)
    expect(case.run_to(out, binary=case.plain, limits={resource.RLIMIT_NOFILE: most}), code, 1)


def file_size(case, out, code):
    most = case.rng.choice([0, 1, 8, 64, 100, 128, case.rng.randrange(1024), case.rng.randrange(8192)])
    expect(case.run_to(out, limits={resource.RLIMIT_FSIZE: most}, binary=case.plain), code, 1)


def begins(binary, limits):
    """Whether the system's loader gets to the program: where it has no memory it may crash."""
    return subprocess.run([binary, "--version"], capture_output=True, preexec_fn=lambda: prepare(limits), check=False).returncode == 0


def memory(case, out, code):
    if case.plain == case.sanitized:
        return
    most = case.rng.choice([case.rng.randrange(2 << 20, 32 << 20), case.rng.randrange(2 << 20, 256 << 20)])
    most += Path(case.plain).stat().st_size  # with less, the system kills it before it is loaded
    limits = {resource.RLIMIT_AS: most}
    if begins(case.plain, limits):
        expect(case.run_to(out, binary=case.plain, limits=limits), code, 1, 127)


def full_disk(case, out, code):
    """The rest of a small file system but for some bytes is taken."""
    if case.disk is None:
        return
    free = case.rng.choice([0, 4096, 8192, 12288])
    filler = case.disk / "filler"
    status = os.statvfs(case.disk)
    filler.write_bytes(b"x" * max(0, status.f_bavail * status.f_bsize - free))
    expect(case.run_to(str(case.disk / out)), code, 1)


def signals(case, out, code):
    if case.rng.random() < 0.5:
        over_older(case, out, code)
    for _ in range(4):
        kill = (case.rng.uniform(0, 0.04), case.rng.choice(SIGNALS))
        binary = case.rng.choice([case.plain, case.sanitized])
        # A limit may be enough for the kernels of one build, and not for those of the other.
        either = binary == case.plain and "--workspace-limit" in case.options.common
        expect(case.run_to(out, binary=binary, kill=kill), code, -kill[1], *((0, 2) if either else ()))


CONDITIONS = {alone: 8, standard_output: 1, over_older: 2, odd_places: 3, descriptors: 3, file_size: 2, memory: 3, full_disk: 2, signals: 2}


def run_case(seed, folder, disk, sanitized, plain):
    case = Case(seed, folder, disk, sanitized, plain)
    out = case.rng.choice(["out.safetensors", "out"])
    condition = case.rng.choices(list(CONDITIONS), CONDITIONS.values())[0]
    case.unknown, case.condition = None, condition.__name__
    try:
        first = case.run_to(out)
        case.clear(out)
        condition(case, out, first.code)
    except Wrong as wrong:
        return case, None, f"{condition.__name__}: {wrong}\n    " + "\n    ".join(case.commands)
    return case, first.code, None


# ---- Many cases ------------------------------------------------------------------------------------------


def mount_disk(path):
    """A file system of 64 KiB, where this process may make one."""
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", path], capture_output=True, check=False)
    return path if mounted.returncode == 0 else None


def work(arguments, number, results):
    """The seeds number, number + jobs, ... until the time is over."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and so unmount
    end = time.monotonic() + arguments.minutes * 60
    base = Path(tempfile.mkdtemp(prefix="epigrad-files-"))
    disk, tally, seed = mount_disk(base / "disk"), Counter(), arguments.seed + number
    skipped = {} if disk else {"full_disk": " (skipped: may not mount)"}
    if arguments.plain == arguments.command:
        skipped["memory"] = " (skipped: no --plain)"
    if arguments.case is not None:
        seed, end = arguments.case, 0
    try:
        while True:
            folder = base / "case"
            folder.mkdir()
            case, code, failure = run_case(seed, folder, disk, arguments.command, arguments.plain)
            tally["cases"] += 1
            tally[f"exit code {code}"] += failure is None
            tally[case.condition + skipped.get(case.condition, "")] += 1
            tally["values checked"] += code == 0 and case.unknown is None
            if failure is not None:
                tally["failed"] += 1
                print(f"FAILED: {failure}\n  again: {sys.argv[0]} {arguments.command} --plain {arguments.plain} --case {seed}", flush=True)
            if case.unknown and arguments.verbose:
                print(f"unknown {seed}: {case.unknown}", flush=True)
            if arguments.case is not None and arguments.keep:
                print(f"kept: {folder}", "\n".join(case.commands), sep="\n")
                return
            clean(folder, disk)
            seed += arguments.jobs
            if time.monotonic() > end:
                return
    finally:
        results.put(tally)
        if disk:
            subprocess.run(["umount", disk], check=False)
        if not arguments.keep:
            shutil.rmtree(base)


def clean(folder, disk):
    shutil.rmtree(folder)
    for path in disk.iterdir() if disk else []:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", type=Path)
    parser.add_argument("--plain", type=Path)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="with --case: leave its files")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    arguments.command = arguments.command.resolve()
    arguments.plain = (arguments.plain or arguments.command).resolve()
    arguments.jobs = 1 if arguments.case is not None else arguments.jobs
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and so end the workers
    results = multiprocessing.Queue()
    workers = [multiprocessing.Process(target=work, args=(arguments, i, results), daemon=True) for i in range(arguments.jobs)]
    for worker in workers:
        worker.start()
    tally = sum((results.get() for _ in workers), Counter())
    for worker in workers:
        worker.join()
    print("files: " + ", ".join(f"{count} {name}" for name, count in sorted(tally.items(), key=lambda item: -item[1]) if count))
    sys.exit(1 if tally["failed"] or any(worker.exitcode for worker in workers) else 0)


if __name__ == "__main__":
    main()
