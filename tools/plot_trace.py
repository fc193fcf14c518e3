# SPDX-License-Identifier: Apache-2.0
"""What the traces of bench/processes/trace.c say: a table, and a plot of docs/explanation/several-processes.md.

    python3 tools/plot_trace.py TRACE... [--plot docs/images/trace.svg] [--check]

    products   the calling thread in steps that compute, without what the engine takes of it
    sending    a collective has begun and not been seen to be finished: agreements are left out
    hidden     the part of `sending` that lies under steps that compute
    engine     the engine's part of the time of those steps: it advances what is sent
    waited     the calling thread in steps that send or wait
    call       the whole call, of its slowest rank

--check fails unless sums lie under products in every overlapped call, and nowhere in a plain one, and no collective is
faster than the network. The plot needs matplotlib.
"""
import argparse
import json
import sys

STEP, WAIT, SENT, CALL = "step", "wait", "sent", "call"


def union(spans):
    """Spans that overlap as one."""
    merged = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def length(spans):
    return sum(end - begin for begin, end in spans)


def common(left, right):
    """Of two unions."""
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in left for b in right)


class Process:
    """One rank of one order; rate: bytes a microsecond of the network, 0: whatever it was."""

    def __init__(self, name, rate):
        self.order, _, rank = name.partition(", rank ")
        self.rank, self.rate, self.events = int(rank), rate, []

    def least(self, event):
        """Microseconds that a collective takes at least: an all-gather, a reduce-scatter send half."""
        sent = event["args"]["bytes"] * (1 if event["name"].startswith("all-reduce") else 0.5)
        return sent / self.rate if self.rate > 0 and event["name"] != "agreement" else 0

    def spans(self, kind):
        return [(e["ts"], e["ts"] + e["dur"]) for e in self.events
                if e["cat"] == kind and e["name"] != "agreement"]

    @property
    def call(self):
        return length(self.spans(CALL))

    @property
    def engine(self):
        return sum(e["args"]["engine_us"] for e in self.events if e["cat"] == STEP)

    @property
    def products(self):
        return length(self.spans(STEP)) - self.engine

    @property
    def waited(self):
        return length(self.spans(WAIT))

    @property
    def sending(self):
        return length(union(self.spans(SENT)))

    @property
    def hidden(self):
        return common(union(self.spans(SENT)), union(self.spans(STEP)))


def read(path):
    """(what was called, its processes)."""
    with open(path, encoding="utf-8") as file:
        trace = json.load(file)
    processes = {}
    for event in trace["traceEvents"]:
        if event["name"] == "process_name":
            processes[event["pid"]] = Process(event["args"]["name"], trace["rate"])
        elif event["ph"] == "X":
            processes[event["pid"]].events.append(event)
    return f"{trace['call']} {trace['shape']}", list(processes.values())


def of_order(processes, order):
    return [p for p in processes if p.order == order]


def print_table(traces):
    print("| call | order | products | sending | hidden | engine | waited | call |\n" + "|---" * 8 + "|")
    for title, processes in traces:
        for order in ("plain", "overlapped"):
            ranks = of_order(processes, order)
            products, sending, hidden, engine, waited = (
                sum(getattr(p, key) for p in ranks) / len(ranks)
                for key in ("products", "sending", "hidden", "engine", "waited"))
            print(f"| {title} | {order} | {products:.0f} | {sending:.0f} | {hidden / max(sending, 1e-9):.0%} "
                  f"| {engine:.0f} | {waited:.0f} | {max(p.call for p in ranks):.0f} |")


def check(traces):
    for title, processes in traces:
        for p in processes:
            steps = [e for e in p.events if e["cat"] == STEP]
            if not steps or not p.spans(SENT) or p.call <= 0:
                sys.exit(f"{title}: {p.order}, rank {p.rank} has no steps, or sends nothing")
            if any(e["dur"] < 0 or e["ts"] + e["dur"] > p.call + 1 for e in p.events):
                sys.exit(f"{title}: {p.order}, rank {p.rank} has a step that does not end within the call")
            if any(e["cat"] == SENT and e["dur"] < p.least(e) - 0.1 for e in p.events):
                sys.exit(f"{title}: {p.order}, rank {p.rank} has a collective that is faster than the network")
            if (p.hidden > 0) != (p.order == "overlapped"):
                sys.exit(f"{title}: {p.order}, rank {p.rank} hides {p.hidden:.1f} us of {p.sending:.1f}")


# ---- The plot --------------------------------------------------------------------------------------

COLOURS = (("pack", "#c8d1da"), ("d_b", "#1f6feb"), ("d_a", "#2e8b57"), ("", "#8a6fd1"))
SENDING, WAITING = "#d9622b", "#f3f0ea"


def colour_of(event):
    if event["cat"] == SENT:
        return SENDING
    if event["cat"] == WAIT:
        return WAITING
    return next(colour for start, colour in COLOURS if event["name"].startswith(start))


def draw(axis, title, processes):
    lane = 0
    for p in processes:
        for kinds in ((STEP, WAIT), (SENT,)):
            for event in p.events:
                if event["cat"] in kinds and event["name"] != "agreement":
                    axis.broken_barh([(event["ts"] / 1e3, event["dur"] / 1e3)], (-lane - 0.8, 0.8),
                                     facecolor=colour_of(event), edgecolor="white", linewidth=0.4)
            label = f"{p.order}, {p.rank}" if STEP in kinds else "sent"
            axis.text(-0.01, -lane - 0.4, label, transform=axis.get_yaxis_transform(), ha="right", va="center",
                      fontsize=7)
            lane += 1
        lane += 0.3
    axis.set_xlim(0, max(p.call for p in processes) / 1e3)
    axis.set_ylim(-lane, 0.2)
    axis.set_yticks([])
    axis.set_title(title, fontsize=9)
    axis.set_xlabel("ms", fontsize=7)
    axis.tick_params(labelsize=7)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def plot(traces, path):
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "epigrad"  # the same trace gives the same file
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(len(traces), 1, figsize=(9, 0.4 + 1.75 * len(traces)), squeeze=False)
    for axis, (title, processes) in zip(axes[:, 0], traces):
        draw(axis, title, processes)
    keys = (("packing", COLOURS[0][1]), ("d_b", COLOURS[1][1]), ("d_a", COLOURS[2][1]),
            ("sums to be sent", COLOURS[-1][1]), ("a collective", SENDING), ("waiting", WAITING))
    axes[0, 0].legend([plt.Rectangle((0, 0), 1, 1, facecolor=colour) for _, colour in keys],
                      [name for name, _ in keys], fontsize=7, ncol=len(keys), loc="lower right",
                      bbox_to_anchor=(1, 1.1), frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description="tables and a plot of traces")
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--plot", metavar="SVG")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    traces = [read(path) for path in options.traces]
    print_table(traces)
    if options.check:
        check(traces)
    if options.plot:
        plot(traces, options.plot)


if __name__ == "__main__":
    main()
