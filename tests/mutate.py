#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the library on purpose, one small change at a time, and sees that the tests notice.

    tests/mutate.py [--only WORD]... [--tests REGEX] [--target NAME]... [--cmake OPTION]... [--work DIR]
                    [--list] [--campaign CASES]

Each mutation is a replacement of one piece of source text, in a scratch copy of the tree. The copy is built
and tested; the table printed at the end (Markdown, for docs/lab/mutations.md) names the first test that failed.
With --campaign, only the campaign runs: so many cases as it is, at each level of instruction sets and on the
emulated tiles, one after the other; what it does not look at, such as validation, survives. With --tests only the tests
that ctest -R chooses run, and with --target only their programs are built: minutes for a part of the library. What
survives there is to be run again without them. CUDA and WebGPU are built, and their mutations tried, with
--cmake=-DEPIGRAD_CUDA=ON and --cmake=-DEPIGRAD_WEBGPU=ON.
Exits with 1 if a mutation survives, does not compile, or if its text is no longer in the source exactly once.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from mutations import MUTATIONS

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)


def copy_tree(to):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                            stdout=subprocess.PIPE, text=True).stdout.split("\n")
    for name in filter(None, listed):
        source = ROOT / name
        if source.is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, to / name)
            shutil.copymode(source, to / name)  # and not its date: the build folder may be older


def is_built(name, options):
    """Whether the copy has this file in its build."""
    return all(f"-D{option}=ON" in options for folder, option in (("src/cuda/", "EPIGRAD_CUDA"),
                                                                  ("src/webgpu/", "EPIGRAD_WEBGPU"))
               if name.startswith(folder))


def configure(tree, build, more):
    options = ["-DEPIGRAD_CLI=OFF", "-DEPIGRAD_EXAMPLES=OFF", "-DEPIGRAD_CUDA=OFF", "-DEPIGRAD_WEBGPU=OFF",
               "-DEPIGRAD_WERROR=OFF", *more]
    done = run(["cmake", "-S", tree, "-B", build, "-G", "Ninja", *options])
    if done.returncode != 0:
        sys.exit(done.stdout)


def first_failure(output):
    """The name of the test in a line like  3/20 Test #7: plan ......***Failed."""
    for line in output.splitlines():
        if " Test " in line and "***" in line and "Skipped" not in line:
            return line.split(": ", 1)[1].split()[0]
    return None


def verdict(build, tests, targets):
    """The first test that fails, of those that `tests` chooses, or of all, the cheap and broad ones first; None if all
    pass."""
    built = run(["cmake", "--build", build, "-j", "2", *(["--target", *targets] if targets else [])])
    if built.returncode != 0:
        return "**does not compile**"
    base = ["ctest", "--test-dir", build, "--stop-on-failure", "--timeout", "300"]
    long = "^table_cpu_row_|^table_emulated|^activation$|^concurrency$"
    for chosen in ([["-R", tests]] if tests else [["-E", long], ["-R", long]]):
        tested = run([*base, *chosen])
        if tested.returncode != 0:
            return first_failure(tested.stdout) or "(ctest failed)"
    return None


def campaign_verdict(build, cases):
    """The first program of the campaign that fails, and its case; None if all pass."""
    built = run(["cmake", "--build", build, "-j", "2", "--target", "campaign", "campaign_emulated"])
    if built.returncode != 0:
        return "**does not compile**"
    levels = ("", "avx512", "avx2", "portable")
    programs = [("campaign", level) for level in levels] + [("campaign_emulated", "")]
    for program, level in programs:
        environment = {**os.environ, "EPIGRAD_CPU_ISA": level}
        tested = run([build / "tests/campaign" / program, "--cases", str(cases)], env=environment)
        if tested.returncode != 0:
            case = re.search(r"--case (\S+)", tested.stdout)
            return f"{program} {level}".strip() + (f", case {case.group(1)}" if case else "")
    return None


def apply(tree, mutation):
    """Changes the source; returns what it was, or None where the text is not there exactly once."""
    _, name, old, new = mutation
    path = tree / name
    was = path.read_text() if path.is_file() else ""
    if was.count(old) != 1:
        return None
    path.write_text(was.replace(old, new))
    return was


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", metavar="WORD", help="mutations whose description has this text")
    parser.add_argument("--tests", metavar="REGEX", help="run only these tests")
    parser.add_argument("--target", action="append", metavar="NAME", help="build only these programs")
    parser.add_argument("--cmake", action="append", default=[], metavar="OPTION", help="an option of the build")
    parser.add_argument("--work", help="scratch folder to keep (default: a temporary one)")
    parser.add_argument("--list", action="store_true", help="say which mutations still apply, and build nothing")
    parser.add_argument("--campaign", type=int, metavar="CASES", help="run so many cases of the campaign, no other test")
    options = parser.parse_args()

    def verdict_of(build):
        return campaign_verdict(build, options.campaign) if options.campaign else verdict(build, options.tests, options.target)

    chosen = [m for m in MUTATIONS if not options.only or any(word in m[0] for word in options.only)]
    work = pathlib.Path(options.work or tempfile.mkdtemp(prefix="epigrad-mutate-"))
    tree, build = work / "tree", work / "build"
    shutil.rmtree(tree, ignore_errors=True)
    copy_tree(tree)
    bad, tried = 0, len(chosen)
    if not options.list:
        configure(tree, build, options.cmake)
        clean = verdict_of(build)
        if clean is not None:
            sys.exit(f"the tests do not pass without a mutation: {clean}")
    print("| mutation | file | caught by |\n|---|---|---|", flush=True)
    for mutation in chosen:
        was = apply(tree, mutation)
        if was is None:
            result = "**its text is gone**"
        elif options.list:
            result = "applies"
        elif not is_built(mutation[1], options.cmake):
            result = "not in this build"
            tried -= 1
        else:
            caught = verdict_of(build)
            result = caught if caught is not None else "**survived**"
        bad += result.startswith("**")
        print(f"| {mutation[0]} | {mutation[1]} | {result} |", flush=True)
        if was is not None:
            (tree / mutation[1]).write_text(was)
    if not options.work:
        shutil.rmtree(work)
    print(f"\n{tried - bad} of {tried} {'apply' if options.list else 'caught'}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
