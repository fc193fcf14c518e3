# SPDX-License-Identifier: Apache-2.0
"""The machine: which cores to measure on, and whether they are quiet."""

import os
import statistics
import subprocess
import time

SHARE_OF_BEST = 0.88  # of the best ratio seen: a busy neighbour takes it to about a half, nothing else moves it
MOST_WAITING = 0.02   # part of a sample's time that its threads may wait for a processor
TRIES, PAUSE = 5, 0.02
SYSTEM = "/sys/devices/system/cpu"


class Worker:
    """A program that answers one line with one, on some cores only."""

    def __init__(self, command, cores, environment=None, log=os.devnull):
        self.log = log
        with open(log, "w", encoding="utf-8") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
                                            text=True, bufsize=1, env={**os.environ, **(environment or {})},
                                            preexec_fn=lambda: os.sched_setaffinity(0, cores))

    def ask(self, line):
        """(True, text) for "ok text", (False, text) for "no text" and for a program that died."""
        try:
            self.process.stdin.write(line + "\n")
            for reply in self.process.stdout:
                word, _, text = reply.rstrip("\n").partition(" ")
                if word in ("ok", "no"):  # libraries print things of their own
                    return word == "ok", text
        except BrokenPipeError:
            pass
        return False, f"ended with status {self.process.wait()}: {self.last_words()}"

    def last_words(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        return lines[-1] if lines else "no message"

    def tasks(self, name):
        folder = f"/proc/{self.process.pid}/task"
        for task in os.listdir(folder):
            try:
                with open(f"{folder}/{task}/{name}", encoding="ascii") as file:
                    yield file.read()
            except OSError:  # a thread that has just ended, or a kernel without it
                continue

    def waited(self):
        """Seconds that its threads were ready to run and had no processor."""
        return sum(int(text.split()[1]) for text in self.tasks("schedstat")) * 1e-9

    def settle(self):
        """Threads spin for some milliseconds after their work; the next to be measured is not to pay for it."""
        end = time.monotonic() + 1
        while time.monotonic() < end and "R" in [text.rpartition(")")[2].split()[0] for text in self.tasks("stat")]:
            time.sleep(0.002)

    def stop(self):
        try:
            self.process.stdin.close()
            self.process.wait(5)
        except BrokenPipeError:  # it had ended by itself
            self.process.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def processors():
    """One hardware thread of each core that this process may run on."""
    found, seen = [], set()
    for cpu in sorted(os.sched_getaffinity(0)):
        try:
            with open(f"{SYSTEM}/cpu{cpu}/topology/thread_siblings_list", encoding="ascii") as file:
                siblings = file.read()
        except OSError:
            siblings = str(cpu)
        if siblings not in seen:
            seen.add(siblings)
            found.append(cpu)
    return found


class Gate:
    """gate.c's ratio for some cores against the best seen on this machine."""

    def __init__(self, program, enabled=True):
        self.worker = Worker([program], os.sched_getaffinity(0))
        self.enabled, self.best = enabled, 0.0
        self.used, self.limits, self.shared = [], [], False
        self.cores = processors()
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            for core in self.cores:
                self.best = max(self.best, self.read([core])[0])

    def read(self, cores):
        done, text = self.worker.ask(" ".join(map(str, cores)))
        if not done:
            raise RuntimeError(f"gate: {text}")
        return [float(x) for x in text.split()]

    def together(self, cores, tries):
        """The best ratio of each, all measured at once."""
        return [max(ratios) for ratios in zip(*(self.read(cores) for _ in range(tries)))]

    def choose(self, count):
        """`count` cores that do not slow each other down: a virtual machine may hide that two share one.
        The first, which serves interrupts and the driver, is left out where there are others."""
        available = self.cores[1:] + self.cores[:1] if count < len(self.cores) else self.cores
        chosen = []
        for core in available:
            if len(chosen) < count and min(self.together(chosen + [core], 10)) >= SHARE_OF_BEST * self.best:
                chosen.append(core)
        chosen += [core for core in available if core not in chosen][:count - len(chosen)]
        self.use(sorted(chosen))
        return self.used

    def use(self, cores):
        """A core that never reaches the best beside the others shares something by nature: its own best counts."""
        bests = self.together(cores, 200)
        self.used, self.shared = cores, min(bests) < SHARE_OF_BEST * self.best
        self.limits = [SHARE_OF_BEST * (best if best < SHARE_OF_BEST * self.best else self.best) for best in bests]

    def quiet(self, tries=1):
        for i in range(tries):
            if not self.enabled or all(ratio >= limit for ratio, limit in zip(self.read(self.used), self.limits)):
                return True
            if i + 1 < tries:
                time.sleep(PAUSE)
        return False


def sample(gate, worker, warm, count):
    """The median time of `count` runs, and whether the machine was quiet before, during and after."""
    quiet = gate.quiet(TRIES)
    begin, waited = time.monotonic(), worker.waited()
    done, text = worker.ask(f"run {warm} {count}")
    spent, waited = time.monotonic() - begin, worker.waited() - waited
    worker.settle()
    if not done:
        raise RuntimeError(text)
    quiet = quiet and (not gate.enabled or waited <= MOST_WAITING * spent * len(gate.used)) and gate.quiet()
    return statistics.median(float(t) for t in text.split()), quiet


def cache_bytes():
    """Of the last level; 32 MiB where the system does not say."""
    try:
        with open(f"{SYSTEM}/cpu0/cache/index3/size", encoding="ascii") as file:
            return int(file.read().strip().rstrip("K")) << 10
    except (OSError, ValueError):
        return 32 << 20


def processor_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        text = file.read()
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def has_avx512():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return " avx512bw " in file.read()
