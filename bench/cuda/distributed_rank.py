# SPDX-License-Identifier: Apache-2.0
"""One rank of distributed.py, which starts it. What it has to say goes to stdout, a line of JSON each."""

import ctypes as c
import os
import random
import statistics
import sys
import time

import torch
import torch.distributed as dist

import epigrad_c as eg
from distributed_world import DTYPES, OVERLAPPED, PLAIN_ORDER, Nccl, World, say
from graphs import header


class Value:
    """Numbers in f64, and how far from them a result in finite precision may be."""

    def __init__(self, value, slack=0.0):
        self.value, self.slack = value, slack

    def __add__(self, other):
        return Value(self.value + other.value, self.slack + other.slack)

    def rounded(self, dtype):
        if isinstance(self.slack, float):
            return Value(self.value.to(dtype).double())
        return Value(self.value, self.slack + (self.value.abs() + self.slack) * torch.finfo(dtype).eps / 2)

    def part(self, take):
        return Value(take(self.value), self.slack if isinstance(self.slack, float) else take(self.slack))


def product(a, b, exact):
    a, b = a.double(), b.double()
    if exact:
        return Value(a @ b)
    return Value(a @ b, a.shape[1] ** 0.5 * 2.0 ** -23 * (a.abs() @ b.abs()))


def summed(parts, sums):
    """Over the ranks: exact, or rounded at every addition."""
    total = parts[0]
    if sums == torch.float32:
        for part in parts[1:]:
            total = total + part
        return total
    rounded = [part.rounded(sums) for part in parts]
    total = rounded[0]
    for part in rounded[1:]:
        total = total + part
    if len(parts) == 2:
        return total.rounded(sums)
    eps = torch.finfo(sums).eps  # in whichever order
    return Value(total.value, total.slack + eps * len(parts) * sum(part.value.abs() for part in rounded))


class Check:
    """Of one call: what is wrong with it."""

    def __init__(self, world, name, exact, dtype):
        self.world, self.name, self.exact, self.dtype, self.wrong, self.outs = world, name, exact, dtype, [], {}
        self.random = torch.Generator("cpu").manual_seed(len(name) + 7)

    def input(self, *shape):
        """The same on every rank, which takes its part."""
        if self.exact:
            x = torch.randint(-2, 3, shape, generator=self.random, device="cpu")
        else:
            x = torch.randn(shape, generator=self.random, device="cpu")
        return x.to(self.dtype).to(self.world.tiny.device)

    def out(self, name, *shape):
        self.outs[name] = torch.full(shape, float("nan"), dtype=self.dtype)
        return self.outs[name]

    def run(self, layer, args, want):
        self.world.library.check(self.world.library.call("", layer, args))
        self.world.library.check(self.world.library.lib.eg_sync(self.world.library.context))
        first = {name: out.clone() for name, out in self.outs.items()}
        for out in self.outs.values():
            out.fill_(float("nan"))
        torch.cuda.synchronize()
        self.world.library.check(self.world.library.call("", layer, args))
        self.world.library.check(self.world.library.lib.eg_sync(self.world.library.context))
        for name, out in self.outs.items():
            self.compare(name, out, want[name].rounded(self.dtype))
            if not torch.equal(first[name].view(torch.uint8), out.view(torch.uint8)):
                self.wrong.append(f"{name}: other bits in the second call")
        return [f"rank {self.world.rank}: {self.name}: {what}" for what in self.wrong]

    def compare(self, name, out, want):
        bad = ~((out.double() - want.value).abs() <= want.slack)
        if bad.any():
            place = tuple(bad.nonzero()[0].tolist())
            self.wrong.append(f"{name}: {int(bad.sum())} of {bad.numel()}, the first {place}: {out[place].item()} "
                              f"for {want.value[place].item()}")


def numbers(dtype, sums):
    return f"{str(dtype)[6:]}, sums of {str(sums)[6:]}"


def layer_of(dtype, m, k, n, activation="none"):
    return eg.Layer(size=c.sizeof(eg.Layer), m=m, k=k, n=n, dtype=DTYPES[dtype],
                    activation=eg.ACTIVATIONS.index(activation))


def weight(check, k, n, by_columns):
    """Of [k, n], in either layout."""
    return check.input(n, k).T if by_columns else check.input(k, n)


def part_of(x, world, axis):
    return x.chunk(world.ranks, axis)[world.rank].contiguous()


def check_data_call(world, comm, dtype, sums, sharded, by_columns, exact):
    kind = "integers" if exact else "normal"
    check = Check(world, f"data, {numbers(dtype, sums)}, sharded {sharded}, columns {by_columns}, {kind}", exact,
                  dtype)
    k, n, rows = 521 if sharded else 520, 776, [256 + 72 * r for r in range(world.ranks)]
    inputs = [(check.input(m, k), check.input(m, n), check.input(m, n)) for m in rows]
    b, (a, grad, pre) = weight(check, k, n, by_columns), inputs[world.rank]
    grads = [Value(g.double() * (p > 0)) for _, g, p in inputs]
    d_b = summed([product(x.T, g.value, exact) for (x, _, _), g in zip(inputs, grads)], sums)
    d_bias = summed([product(torch.ones(1, len(g.value)), g.value, exact) for g in grads], sums)
    d_bias = d_bias.part(lambda x: x[0])
    if sharded:
        axis = 1 if by_columns else 0
        d_b, d_bias = shard(d_b, world, axis), shard(d_bias, world, 0)
    shape = tuple(d_b.value.shape)
    out = check.out("d_b", *(shape[::-1] if by_columns else shape))
    if by_columns:
        d_b = d_b.part(lambda x: x.T)
    args = eg.BackwardArgs(size=c.sizeof(eg.BackwardArgs), a=eg.matrix(a), b=eg.matrix(b), grad=eg.matrix(grad),
                           source=eg.PRE, pre=eg.matrix(pre), d_a=eg.matrix(check.out("d_a", *a.shape)),
                           d_b=eg.matrix(out.T if by_columns else out),
                           d_bias=eg.vector(check.out("d_bias", *d_bias.value.shape)))
    args.data_parallel.comm = c.addressof(comm)
    args.data_parallel.sharding, args.data_parallel.sums = int(sharded), DTYPES[sums]
    want = {"d_a": product(grads[world.rank].value, b.T, exact), "d_b": d_b, "d_bias": d_bias}
    return check.run(layer_of(dtype, len(a), k, n, "relu"), args, want)


def shard(value, world, axis):
    lines = -(-value.value.shape[axis] // world.ranks)
    return value.part(lambda x: x.split(lines, axis)[world.rank])


def rows_of(value, world):
    return shard(value, world, 0)


def relu(value):
    return Value(value.value.clamp(min=0), value.slack)


def check_columns(world, comm, dtype, sums, exact):
    """Forward and backward of a layer whose B is divided by columns."""
    wrong, (m, k, n) = [], (2048 * world.ranks, 264, 392)
    for backward in (False, True):
        check = Check(world, f"columns, backward {backward}, {numbers(dtype, sums)}, exact {exact}", exact, dtype)
        a, parts = check.input(m, k), [(check.input(k, n), check.input(n), check.input(m, n), check.input(m, n))
                                       for _ in range(world.ranks)]
        b, bias, grad, pre = parts[world.rank]
        mine = part_of(a, world, 0)
        if backward:
            grads = [g.double() * (p > 0) for _, _, g, p in parts]
            d_a = summed([product(g, part[0].T, exact) for g, part in zip(grads, parts)], sums)
            d_bias = product(torch.ones(1, m), grads[world.rank], exact)
            want = {"d_a": rows_of(d_a, world), "d_b": product(a.T, grads[world.rank], exact),
                    "d_bias": d_bias.part(lambda x: x[0])}
            args = eg.BackwardArgs(size=c.sizeof(eg.BackwardArgs), a=eg.matrix(mine), b=eg.matrix(b),
                                   grad=eg.matrix(grad), source=eg.PRE, pre=eg.matrix(pre),
                                   d_a=eg.matrix(check.out("d_a", *mine.shape)), d_b=eg.matrix(check.out("d_b", k, n)),
                                   d_bias=eg.vector(check.out("d_bias", n)))
        else:
            full = product(a, b, exact) + Value(bias.double())
            want = {"pre": full, "y": relu(full)}
            args = eg.ForwardArgs(size=c.sizeof(eg.ForwardArgs), a=eg.matrix(mine), b=eg.matrix(b),
                                  bias=eg.vector(bias), y=eg.matrix(check.out("y", m, n)),
                                  pre=eg.matrix(check.out("pre", m, n)))
        args.tensor_parallel.comm, args.tensor_parallel.sums = c.addressof(comm), DTYPES[sums]
        wrong += check.run(layer_of(dtype, m, k, n, "relu"), args, want)
    return wrong


def check_rows(world, comm, dtype, sums, exact):
    """Forward and backward of a layer whose B is divided by rows."""
    wrong, (m, k, n) = [], (2048 * world.ranks, 264, 392)
    for backward in (False, True):
        check = Check(world, f"rows, backward {backward}, {numbers(dtype, sums)}, exact {exact}", exact, dtype)
        bias, grad, pre = check.input(n), check.input(m, n), check.input(m, n)
        parts = [(check.input(m, k), check.input(k, n)) for _ in range(world.ranks)]
        a, b = parts[world.rank]
        if backward:
            whole = grad.double() * (pre > 0)
            each = [product(torch.ones(1, m // world.ranks), g, exact) for g in whole.chunk(world.ranks)]
            d_bias = summed(each, sums)
            want = {"d_a": product(whole, b.T, exact), "d_b": product(a.T, whole, exact),
                    "d_bias": d_bias.part(lambda x: x[0])}
            args = eg.BackwardArgs(size=c.sizeof(eg.BackwardArgs), a=eg.matrix(a), b=eg.matrix(b),
                                   source=eg.PRE, d_a=eg.matrix(check.out("d_a", m, k)),
                                   d_b=eg.matrix(check.out("d_b", k, n)), d_bias=eg.vector(check.out("d_bias", n)))
            mine = part_of(grad, world, 0), part_of(pre, world, 0)
            args.grad, args.pre = map(eg.matrix, mine)
        else:
            full = rows_of(summed([product(x, w, exact) for x, w in parts], sums), world) + Value(bias.double())
            want = {"pre": full, "y": relu(full)}
            lines = m // world.ranks
            args = eg.ForwardArgs(size=c.sizeof(eg.ForwardArgs), a=eg.matrix(a), b=eg.matrix(b),
                                  bias=eg.vector(bias), y=eg.matrix(check.out("y", lines, n)),
                                  pre=eg.matrix(check.out("pre", lines, n)))
        args.tensor_parallel.comm, args.tensor_parallel.sums = c.addressof(comm), DTYPES[sums]
        args.tensor_parallel.split = 1
        wrong += check.run(layer_of(dtype, m, k, n, "relu"), args, want)
    return wrong


NUMBERS = [(torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)]


def communicators(world):
    """One whose costs are not known, and one that says them, so that there are groups."""
    told = world.comm(order=OVERLAPPED)
    told.begun = told.now = eg.CommCost(1e-3, 1e3)
    return {"unknown costs": world.comm(), "groups": told, "plain order": world.comm(order=PLAIN_ORDER)}


def finish_check(world, part, wrong, count):
    wrong = sum(world.gather(wrong), [])
    world.row(part=part, calls=count, **({"wrong": "; ".join(wrong[:6]) + f" ({len(wrong)} in all)"} if wrong else {}))


def check_data(world, _):
    wrong, count = [], 0
    for name, comm in communicators(world).items():
        for dtype, sums in NUMBERS:
            for sharded in (False, True):
                for by_columns, exact in ((False, True), (True, True), (False, False)):
                    found = check_data_call(world, comm, dtype, sums, sharded, by_columns, exact)
                    wrong += [f"{name}: {what}" for what in found]
                    count += 1
    finish_check(world, "check data", wrong, count)


def check_tensor(world, _):
    wrong, count = [], 0
    for name, comm in communicators(world).items():
        for dtype, sums in NUMBERS:
            for exact in (True, False):
                for check in (check_columns, check_rows):
                    wrong += [f"{name}: {what}" for what in check(world, comm, dtype, sums, exact)]
                    count += 2
    finish_check(world, "check tensor", wrong, count)


# ---- How fast? ---------------------------------------------------------------------------------------

def turn(world, way, repeats):
    """Milliseconds of a call: the host is ahead when all ranks begin together."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(6000000)
    world.nccl.all_reduce(world.tiny)
    begin.record()
    for i in range(repeats):
        way(i)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


def medians(world, ways, repeats, turns=9):
    """{way: milliseconds, of the slowest rank in each turn}."""
    order, times = random.Random(1), {name: [] for name in ways}
    for way in ways.values():
        way(0)
        way(0)
    torch.cuda.synchronize()
    world.gather(0)
    for _ in range(turns):
        for name in order.sample(list(ways), len(ways)):
            times[name].append(turn(world, ways[name], repeats))
    every = world.gather(times)
    return {name: statistics.median(map(max, zip(*(rank[name] for rank in every)))) for name in ways}


def costs(world, nccl, size):
    """Latency and rate of an all-reduce, the same on all ranks."""
    large, small = torch.zeros(size, dtype=torch.bfloat16), torch.zeros(2048, dtype=torch.bfloat16)
    ms = medians(world, {"large": lambda _: nccl.all_reduce(large), "small": lambda _: nccl.all_reduce(small)}, 20, 5)
    return eg.CommCost(1e3 * ms["small"], 2 * size / (1e3 * max(1e-3, ms["large"] - ms["small"])))


def engines(world, size):
    """eg_comms of bf16 sums to compare, and the communicator of each."""
    few = None
    try:
        few = Nccl(world, most_ctas=8)
    except RuntimeError as why:
        print(why, file=sys.stderr)
    made = {"epigrad": (world.comm(), world.nccl), "epigrad, plain order": (world.comm(order=PLAIN_ORDER), world.nccl)}
    for name, nccl in (("epigrad, costs told", world.nccl), ("epigrad, costs told, 8 CTAs", few)):
        if nccl is not None:
            cost = costs(world, nccl, size)
            made[name] = (world.comm(nccl, now=cost, begun=cost), nccl)
    if few is not None:
        made["epigrad, 8 CTAs"] = (world.comm(few), few)
    return made


def sets_of(bytes_of_one, make):
    """So many operands that a call finds none of them in L2."""
    return [make() for _ in range(min(8, 1 + (256 << 20) // bytes_of_one))]


def randn(*shape):
    return torch.randn(shape, dtype=torch.bfloat16) * 0.05


def repeats_of(m, k, n, products):
    return max(3, min(25, int(4e-3 / (2 * products * m * k * n / 6e14))))


def time_data(world, shapes):
    shapes = [tuple(map(int, shape.split("x"))) for shape in shapes[0].split(",")]
    made = engines(world, 4 << 20)
    for shape in shapes:
        time_layer(world, made, *shape)


def time_layer(world, made, m, k, n):
    def make():
        return randn(m, k), randn(k, n), randn(m, n), torch.empty(m, k, dtype=torch.bfloat16), \
            torch.empty(k, n, dtype=torch.bfloat16)

    sets = sets_of(2 * (2 * m * k + 2 * k * n + m * n), make)
    layer = layer_of(torch.bfloat16, m, k, n)

    def call(comm=None, sums=eg.BF16):
        every = []
        for a, b, grad, d_a, d_b in sets:
            args = eg.BackwardArgs(size=c.sizeof(eg.BackwardArgs), a=eg.matrix(a), b=eg.matrix(b),
                                   grad=eg.matrix(grad), d_a=eg.matrix(d_a), d_b=eg.matrix(d_b))
            if comm is not None:
                args.data_parallel.comm, args.data_parallel.sums = c.addressof(comm), sums
            every.append(args)
        return lambda i: world.library.backward(layer, every[i % len(every)])

    def products(i, reduce=False):
        a, b, grad, d_a, d_b = sets[i % len(sets)]
        torch.mm(a.T, grad, out=d_b)
        work = dist.all_reduce(d_b, async_op=True) if reduce else None
        torch.mm(grad, b.T, out=d_a)
        if work is not None:
            work.wait()

    def sequence(i):
        alone(i)
        reduce_only(i)

    def reduce_only(i):
        world.nccl.all_reduce(sets[i % len(sets)][4])

    alone = call()
    ways = {"alone": alone, "all-reduce": reduce_only, "in sequence": sequence,
            **{name: call(comm) for name, (comm, _) in made.items()},
            "epigrad, sums of f32": call(made["epigrad"][0], eg.F32),
            "torch alone": products, "torch": lambda i: products(i, True)}
    ms = medians(world, ways, repeats_of(m, k, n, 2))
    limit, torch_limit = max(ms["alone"], ms["all-reduce"]), max(ms["torch alone"], ms["all-reduce"])
    ratio = {name: ms[name] / limit for name in ms if name not in ("alone", "all-reduce", "torch alone")}
    world.row(part="data", shape=f"{m}x{k}x{n}", dtype="bf16", ranks=world.ranks, ms=ms, ratio=ratio,
              torch_own=ms["torch"] / torch_limit)


def time_tensor(world, shapes):
    shapes = [tuple(map(int, shape.split("x"))) for shape in shapes[1].split(",")]
    made = engines(world, 4 << 20)
    for m, k, n in shapes:
        for by_rows in (False, True):
            time_split(world, made, m, k, n, by_rows)


def time_split(world, made, m, k, n, by_rows):
    lines = m // world.ranks
    local_k, local_n = (k // world.ranks, n) if by_rows else (k, n // world.ranks)
    empty = lambda *shape: torch.empty(shape, dtype=torch.bfloat16)  # noqa: E731

    def make():
        return randn(m, local_k), randn(local_k, local_n), empty(m, local_n), randn(lines, local_k), \
            empty(lines, local_n)

    sets = sets_of(2 * (m * local_k + local_k * local_n + m * local_n), make)
    layer = layer_of(torch.bfloat16, m, local_k, local_n)

    def call(comm=None):
        every = []
        for a, b, y, my_a, my_y in sets:
            args = eg.ForwardArgs(size=c.sizeof(eg.ForwardArgs), a=eg.matrix(a), b=eg.matrix(b), y=eg.matrix(y))
            if comm is not None:
                args.tensor_parallel.comm, args.tensor_parallel.sums = c.addressof(comm), eg.BF16
                args.tensor_parallel.split = int(by_rows)
                if by_rows:
                    args.y = eg.matrix(my_y)
                else:
                    args.a = eg.matrix(my_a)
            every.append(args)
        return lambda i: world.library.check(world.library.call("", layer, every[i % len(every)]))

    def collective(i):
        a, _, y, my_a, my_y = sets[i % len(sets)]
        if by_rows:
            world.nccl.reduce_scatter(y, my_y)
        else:
            world.nccl.all_gather(my_a, a)

    def sequence(i):
        for step in ((alone, collective) if by_rows else (collective, alone)):
            step(i)

    alone = call()
    ways = {"alone": alone, "collective": collective, "in sequence": sequence,
            "torch alone": lambda i: torch.mm(sets[i % len(sets)][0], sets[i % len(sets)][1],
                                              out=sets[i % len(sets)][2]),
            **{name: call(comm) for name, (comm, _) in made.items()}}
    ms = medians(world, ways, repeats_of(m, local_k, local_n, 1))
    world.row(part="tensor", split="rows" if by_rows else "columns", shape=f"{m}x{k}x{n}", dtype="bf16",
              ranks=world.ranks, ms=ms,
              share={name: ms["alone"] / ms[name] for name in ms
                     if name.startswith("epigrad") or name == "in sequence"})


# ---- Faults ------------------------------------------------------------------------------------------

def small_call(world, comm, n):
    a, b, grad, d_b = randn(256, 256), randn(256, n), randn(256, n), torch.empty(256, n, dtype=torch.bfloat16)
    args = eg.BackwardArgs(size=c.sizeof(eg.BackwardArgs), a=eg.matrix(a), b=eg.matrix(b), grad=eg.matrix(grad),
                           d_b=eg.matrix(d_b))
    args.data_parallel.comm = c.addressof(comm)
    return layer_of(torch.bfloat16, 256, 256, n), args, (a, b, grad, d_b)


def status_of(library, status):
    return status, library.lib.eg_last_error().decode() if status else ""


def report_fault(world, part, seconds, status, text, limit):
    every = world.gather([status, round(seconds, 2), text])
    wrong = [f"rank {rank}: status {got}, {took} s" for rank, (got, took, _) in enumerate(every)
             if got != 5 or took > limit]
    if part == "absent":
        wrong = [what for what in wrong if not what.startswith(f"rank {world.ranks - 1}:")]
    world.row(part=part, said=every, **({"wrong": "; ".join(wrong)} if wrong else {}))


def mismatch(world, _):
    """The last rank has other columns."""
    os.environ["EPIGRAD_CUDA_CHECK"] = "1"
    library = world.open()
    comm = world.comm(Nccl(world), timeout=5.0)
    layer, args, _keep = small_call(world, comm, 264 if world.rank == world.ranks - 1 else 256)
    torch.cuda.synchronize()
    world.gather(0)
    begin = time.monotonic()
    status, text = status_of(library, library.call("", layer, args))
    report_fault(world, "mismatch", time.monotonic() - begin, status, text, 6)


def absent(world, _):
    """The last rank does not make the second call. NCCL connects in the first one, and then the host waits for the
    others without an end."""
    os.environ.pop("EPIGRAD_CUDA_CHECK", None)
    library = world.open()
    comm = world.comm(Nccl(world), timeout=3.0)
    layer, args, _keep = small_call(world, comm, 256)
    library.check(library.call("", layer, args))
    library.check(library.lib.eg_sync(library.context))
    world.gather(0)
    begin, status, text = time.monotonic(), 0, ""
    if world.rank != world.ranks - 1:
        status, text = status_of(library, library.call("", layer, args))
        if status == 0:
            status, text = status_of(library, library.lib.eg_sync(library.context))
    report_fault(world, "absent", time.monotonic() - begin, status, text, 6)


RUN = {"check data": check_data, "check tensor": check_tensor, "data": time_data, "tensor": time_tensor,
       "mismatch": mismatch, "absent": absent}


def main():
    library, rank, ranks, port, seed, shapes, parts = sys.argv[1:]
    world = World(library, int(rank), int(ranks), int(port))
    torch.manual_seed(int(seed) + world.rank)
    if world.rank == 0:
        head = header("distributed.py build/src/libepigrad.so", int(seed))
        say(head={**head, "ranks": world.ranks, "nccl": ".".join(map(str, torch.cuda.nccl.version()))})
    for part in parts.split(","):
        say(begin=part)
        RUN[part](world, shapes.split("/"))
        torch.cuda.empty_cache()
        say(end=part)
    world.leave()
    os._exit(0)  # communicators that were given up have nothing left to say


if __name__ == "__main__":
    main()
