"""Processes that meet at a store and call collectives over two back ends at once, gloo's and ours:
what one gives, the other gives, too.

    groups.py RANKS PART...     # a function below; every rank runs it
"""
import faulthandler
import os
import random
import signal
import socket
import sys
import tempfile
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import tandem
import tandem.distributed

LIMIT = timedelta(seconds=120)  # of anything here; a failure if reached

REDUCED = [torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.uint8,
           torch.int8]
SHAPES = [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (1000,), (33, 41), (70000,)]


def tensors(rank, seed):
    """One of each shape and type, of small numbers, some not contiguous: the same calls on all
    ranks, other values on each."""
    order = random.Random(seed)
    values = torch.Generator().manual_seed(1000 * seed + rank)
    for shape in SHAPES:
        for dtype in REDUCED:
            x = torch.randint(1, 4, shape, generator=values).to(dtype)
            if len(shape) == 2 and order.random() < .5:
                x = x.t().contiguous().t()
            yield x


def same(ours, gloos):
    if isinstance(ours, (list, tuple)):
        assert len(ours) == len(gloos)
        for a, b in zip(ours, gloos):
            same(a, b)
        return
    assert ours.dtype == gloos.dtype and ours.shape == gloos.shape, (ours.shape, gloos.shape)
    assert torch.equal(ours, gloos), (ours, gloos)


def collectives(rank, ranks, ours, gloo):
    """Each collective on random shapes and types, with and without waiting."""
    order = random.Random(7)
    empty = False

    def both(call, *arguments):
        """Calls with copies of the arguments over each back end; what they have become is the
        same."""
        copy = lambda x: [copy(y) for y in x] if isinstance(x, list) else \
            x.clone(memory_format=torch.preserve_format) if isinstance(x, torch.Tensor) else x
        straight = lambda x: [straight(y) for y in x] if isinstance(x, list) else \
            x.contiguous() if isinstance(x, torch.Tensor) else x
        nothing = lambda x: all(map(nothing, x)) if isinstance(x, list) else x.numel() == 0
        results = []
        later = order.random() < .5
        for group in (ours, gloo):
            mine = [copy(x) for x in arguments]
            if group is gloo:  # which takes elements as they lie in memory
                mine = [straight(x) for x in mine]
            if group is gloo and nothing(mine):  # of which gloo ends the process (SIGFPE)
                results.append(mine)             # what was given: there is nothing to change
                break
            work = call(*mine, group=group, async_op=later)
            if later:
                work.wait()
                assert work.is_completed()
            results.append(mine)
        for a, b in zip(*results):
            if isinstance(a, (list, torch.Tensor)):
                same(a, b)

    for x in tensors(rank, seed=3):
        root, empty = order.randrange(ranks), x.numel() == 0
        ops = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
        if not x.is_floating_point() and x.dtype != torch.int8:
            ops += [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
        op = order.choice(ops)
        like = lambda n=ranks: [torch.zeros_like(x) for _ in range(n)]
        both(lambda t, **how: dist.all_reduce(t, op, **how), x)
        both(lambda t, **how: dist.broadcast(t, root, **how), x)
        both(lambda out, t, **how: dist.all_gather(out, t, **how), like(), x)
        both(lambda out, t, **how: dist.gather(t, out if rank == root else None, root, **how),
             like(), x)
        both(lambda t, parts, **how: dist.scatter(t, parts if rank == root else None, root, **how),
             torch.zeros_like(x), [x + i for i in range(ranks)])
        if x.dtype != torch.int8:  # gloo's reduce leaves what it likes on other ranks
            mine, gloos = x.clone(), x.contiguous().clone()
            dist.reduce(mine, root, op, group=ours)
            if not empty:
                dist.reduce(gloos, root, op, group=gloo)
            same(mine, gloos if rank == root else x)
        # Of gloo there is no list of all_to_all, and no reduce_scatter: from what it has.
        flat = x.flatten()
        sizes = [(rank + r) % 3 + len(flat) % 2 for r in range(ranks)]
        whole = torch.arange(100 * rank, 100 * rank + sum(sizes)).to(x.dtype)
        both(lambda out, t, **how: dist.all_to_all_single(out, t, sizes, sizes, **how),
             torch.zeros(sum(sizes), dtype=x.dtype), whole)
        parts = list(whole.split(sizes))
        received, wanted = [torch.zeros_like(p) for p in parts], torch.zeros_like(whole)
        dist.all_to_all(received, parts, group=ours)
        dist.all_to_all_single(wanted, whole, sizes, sizes, group=gloo)
        same(torch.cat(received), wanted)
        summed = [x.contiguous() + i for i in range(ranks)]
        mine = torch.zeros_like(x)
        dist.reduce_scatter(mine, summed, op, group=ours)
        for part in summed:
            if not empty:
                dist.all_reduce(part, op, group=gloo)
        same(mine, summed[rank])


def messages(rank, ranks, ours, gloo):
    """send and recv in rings, by tags, from anybody; objects; barriers; groups of some ranks."""
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    for x in tensors(rank, seed=5):
        got = torch.zeros_like(x)
        works = [dist.irecv(got, before, group=ours, tag=3),
                 dist.isend(x, after, group=ours, tag=3)]
        for work in works:
            work.wait()
        wanted = [torch.zeros(x.shape, dtype=x.dtype) for _ in range(ranks)]
        if x.numel() > 0:
            dist.all_gather(wanted, x.contiguous(), group=gloo)
        same(got, wanted[before])
    if rank == 0:
        froms = []
        for _ in range(1, ranks):
            x = torch.zeros(2)
            froms.append(dist.recv(x, group=ours))
            assert x[0] == froms[-1]
        assert sorted(froms) == list(range(1, ranks))
    else:
        dist.send(torch.full((2,), float(rank)), 0, group=ours)
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank}, group=ours)
    assert objects == [{"rank": r, "text": "x" * r} for r in range(ranks)]
    told = [("from", 0, rank)]
    dist.broadcast_object_list(told, 0, group=ours)
    assert told == [("from", 0, 0)]
    for _ in range(3):
        dist.barrier(group=ours)
    ours.monitored_barrier(LIMIT)
    part = dist.new_group([0, ranks - 1], backend="tandem", timeout=LIMIT)
    if rank in (0, ranks - 1):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=part)
        assert x == ranks - 1
    # Truth values, brain floats, complex numbers and averages, which gloo has not.
    x = torch.tensor([rank == 0, True, False])
    dist.all_reduce(x, dist.ReduceOp.SUM, group=ours)
    assert x.tolist() == [True, True, False]
    x = torch.full((5,), 1.5, dtype=torch.bfloat16)
    dist.all_reduce(x, group=ours)
    assert x.tolist() == [1.5 * ranks] * 5
    x = torch.full((5,), complex(1, rank))
    dist.all_reduce(x, group=ours)
    assert x.tolist() == [complex(ranks, ranks * (ranks - 1) // 2)] * 5
    x = torch.full((5,), float(rank))
    dist.all_reduce(x, dist.ReduceOp.AVG, group=ours)
    assert torch.allclose(x, torch.full((5,), (ranks - 1) / 2))


def refused(text, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except (ValueError, TypeError, RuntimeError) as error:
        assert text in str(error) and "\n" not in str(error), (text, str(error))
    else:
        raise AssertionError(f"not refused: {text}")


def wrong(rank, ranks, ours, gloo):
    """Calls that cannot be right are refused with one line, and the group goes on."""
    x = torch.ones(4)
    refused("hint: tensor.to_dense()", dist.all_reduce, x.to_sparse(), group=ours)
    refused("give tensor.cpu()", dist.all_reduce, torch.empty(4, device="meta"), group=ours)
    refused("BAND is not defined for torch.float32", dist.all_reduce, x, dist.ReduceOp.BAND,
            group=ours)
    refused("the reduction PREMUL_SUM is not one of", dist.all_reduce, x,
            torch._C._distributed_c10d._make_nccl_premul_sum(2.), group=ours)
    refused("take SUM and divide", dist.all_reduce, x.long(), dist.ReduceOp.AVG, group=ours)
    refused("beside", ours.allgather, [[torch.ones(4).long()] * ranks], [x])
    refused("entries, expected one for", dist.all_gather, [x], x, group=ours)
    refused("one size", dist.all_gather, [torch.ones(5)] * ranks, x, group=ours)
    refused("not divisible by", dist.all_to_all_single, torch.ones(ranks + 1),
            torch.ones(ranks + 1), group=ours)
    refused("input_split_sizes", dist.all_to_all_single, x, x, [4] + [0] * (ranks - 1), [3] * ranks,
            group=ours)
    y = torch.tensor([1 + 2j, 3 + 4j]).conj()
    refused("resolve_conj()", dist.broadcast, y, 0, group=ours)
    refused("give tensor.resolve_neg()", dist.all_reduce, y.imag, group=ours)
    refused("give tensor.clone()", dist.all_reduce, torch.ones(1).expand(4), group=ours)
    refused("give tensor.clone()", dist.all_gather, [torch.ones(1).expand(4)] * ranks, x,
            group=ours)
    own = [4 if r == rank else 0 for r in range(ranks)]
    refused("sends itself 16 bytes and expects 0", dist.all_to_all_single, x.clone(), x,
            own[1:] + own[:1], own, group=ours)
    refused("sends itself 16 bytes and expects 4", ours.alltoall, [torch.ones(1)] * ranks,
            [x] * ranks)
    held = [weakref.ref(t) for t in map(torch.ones, [4] * 20)]
    for step in range(20):  # works that nobody waits for do not keep what has left
        t = torch.ones(4)
        held[step] = weakref.ref(t)
        (dist.isend if rank == 0 else dist.irecv)(t, 1 - rank, group=ours, tag=8) if rank < 2 \
            else None
        del t
        dist.barrier(group=ours)
    if rank == 0:
        assert sum(t() is not None for t in held) < 8
    host, name = os.environ.pop("MASTER_ADDR", None), socket.gethostname
    socket.gethostname = lambda: "127.0.0.2"
    alone, absent = (tandem.distributed._Member(r, 2, 100) for r in range(2))
    refused("at 127.0.0.2 for the others: if a host is not reached so, set TANDEM_GROUP_HOST there",
            alone.connect, [alone.address(), absent.address()], 100)
    socket.gethostname = name
    if host is not None:
        os.environ["MASTER_ADDR"] = host
    refused(f"send to rank {rank} on rank {rank} of {ranks}: a rank cannot send to itself",
            ours.send, [x], rank, 0)
    refused(
        f"receive from rank {ranks} on rank {rank} of {ranks}: expected another rank, from 0 to",
        ours.recv, [x], ranks, 0)
    for late in False, True:  # which comes first, the message or who wants it
        if rank == 0:
            for tag, dtype in ((10, torch.float32), (11, torch.bool), (12, torch.complex64)):
                dist.send(torch.ones(4).to(dtype), 1, group=ours, tag=tag)
            dist.barrier(group=ours) if late else None
        elif rank == 1:
            dist.barrier(group=ours) if late else None
            for tag, dtype, words in ((10, torch.int32, "a message of f32 came from rank 0 with "
                                                        "tag 10, and rank 1 receives "
                                       "i32"), (11, torch.uint8, "receives u8"),
                                      (12, torch.float64, "receives f64")):
                refused(words, dist.recv, torch.ones(4).to(dtype), 0, group=ours, tag=tag)
        elif late:
            dist.barrier(group=ours)
    refused("no message with tag 9", ours._message("receive", x, (rank + 1) % ranks, 9, 20).wait)
    dist.all_reduce(x, group=ours)
    assert x.tolist() == [float(ranks)] * 4


def futures(rank, ranks, ours, gloo):
    """A future ends when its work does, whatever was asked for before it."""
    x, got = torch.ones(1), torch.zeros(1)
    first = dist.irecv(got, 1, group=ours, tag=5).get_future() if rank == 0 else None
    dist.all_reduce(x, group=ours, async_op=True).get_future().wait()
    assert x.item() == ranks
    if rank == 0:
        assert not first.done()
        dist.send(x, 1, group=ours, tag=6)  # without which the first does not come
        first.wait()
        assert got.item() == 2
    elif rank == 1:
        dist.recv(got, 0, group=ours, tag=6)
        dist.send(torch.full((1,), 2.), 0, group=ours, tag=5)


def interrupted(rank, ranks, ours, gloo):
    """A Ctrl-C as an operation begins or ends loses neither it nor its tensors."""
    check, x = tandem._abi.check, torch.ones(4, dtype=torch.int8)

    def interrupts(code):
        if code > 0 or not begun:
            os.kill(os.getpid(), signal.SIGINT)
        return check(code)

    def is_left(call):
        tandem._abi.check = interrupts
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            tandem._abi.check = check
        return False
    begun: list = []
    assert is_left(lambda: dist.all_reduce(x, group=ours, async_op=True))
    begun += ours._member._works.values()
    assert len(begun) == 1 and is_left(begun[0].wait)
    assert begun[0].is_completed() and begun[0].wait() and x.tolist() == [ranks] * 4
    dist.barrier(group=ours)


def waiting_callbacks(rank, ranks, ours, gloo):
    """A callback of a future may wait for other futures of the group: that of a work which it
    begins, as PowerSGD's do, and that of one which was there before."""
    def begins(_):
        return dist.all_reduce(torch.ones(1), group=ours, async_op=True).get_future().wait()[0]
    chain = dist.all_reduce(torch.ones(1), group=ours,
                            async_op=True).get_future().then(begins).then(begins)
    # Ranks must begin operations in the same order, and `begins` runs on another thread.
    assert chain.wait().tolist() == [ranks]
    later = dist.all_reduce(torch.ones(2), group=ours, async_op=True)
    earlier = dist.all_reduce(torch.ones(1), group=ours, async_op=True).get_future()
    waits = earlier.then(lambda _: later.get_future().wait()[0])
    assert waits.wait().tolist() == [ranks] * 2
    for hook, state in ((default_hooks.fp16_compress_hook, ours),
                        (powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(
                            ours, matrix_approximation_rank=1, start_powerSGD_iter=2))):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(64, 64), process_group=ours)
        model.register_comm_hook(state, hook)
        for _ in range(4):
            model.zero_grad()
            model(torch.full((2, 64), float(rank + 1))).sum().backward()
        gradient = model.module.weight.grad
        assert torch.allclose(gradient, torch.full_like(gradient, ranks + 1.), rtol=1e-2), gradient


def averages(rank, ranks, ours, gloo):
    """An average is there where the sum would be beyond the type, and is rounded once."""
    for dtype, large in ((torch.float16, 60000.), (torch.bfloat16, 3e38), (torch.float32, 3e38),
                         (torch.float64, 1.7e308)):
        one = torch.full((3,), large, dtype=dtype)
        tiny = torch.full((3,), torch.finfo(dtype).tiny if dtype != torch.float16 else 2 ** -24,
                          dtype=dtype)
        for x in one, -one, tiny if ranks == 2 or dtype == torch.float16 \
            else one, torch.full((3,), 1.001, dtype=dtype):
            near = dict(rtol=4 * torch.finfo(dtype).eps if dtype in (torch.float32, torch.float64)
                        else 0, atol=0)
            y = x.clone()
            dist.all_reduce(y, dist.ReduceOp.AVG, group=ours)
            torch.testing.assert_close(y, x, **near)
            y = x.clone()
            dist.reduce(y, ranks - 1, dist.ReduceOp.AVG, group=ours)
            torch.testing.assert_close(y, x, **near)
            y, parts = torch.zeros_like(x), [x.clone() for _ in range(ranks)]
            dist.reduce_scatter(y, parts, dist.ReduceOp.AVG, group=ours)
            torch.testing.assert_close(y, x, **near)
            assert all(torch.equal(part, x) for part in parts)


# What ranks may call differently, by the words that both sides of the error have.
def _different(name, rank, ranks, group):
    here, x = rank == 0, torch.ones(4)
    other = torch.ones(4, dtype=torch.float32 if here else torch.int32)
    own = [torch.ones(4) for _ in range(ranks)]
    return {
        "count": (lambda: dist.all_reduce(torch.ones(5 if here else 4), group=group), "of 5 f32",
                  "of 4 f32"),
        "type": (lambda: dist.all_reduce(other, group=group), "f32", "i32"),
        "operation": (lambda: dist.all_reduce(x, dist.ReduceOp.MAX if here else dist.ReduceOp.MIN,
                                              group=group), "max", "min"),
        "function": (lambda: dist.all_reduce(x, group=group) if here
                     else dist.broadcast(x, 0, group=group), "allreduce", "broadcast"),
        "root of broadcast": (lambda: dist.broadcast(x, min(rank, 1), group=group), "root 0",
                              "root 1"),
        "root of reduce": (lambda: dist.reduce(x, min(rank, 1), group=group), "root 0", "root 1"),
        "root of gather": (lambda: dist.gather(x, own if rank == min(rank, 1) else None,
                                               min(rank, 1), group=group),
                           "root 0", "root 1"),
        "root of scatter": (lambda: dist.scatter(x, own if rank == min(rank, 1) else None,
                                                 min(rank, 1), group=group),
                            "root 0", "root 1"),
        "type of broadcast": (lambda: dist.broadcast(other, ranks - 1, group=group), "4 f32",
                              "4 i32"),
        "type of nothing": (lambda: dist.broadcast(other[:0], 0, group=group), "0 f32", "0 i32"),
        "type of gather": (lambda: dist.gather(other, [torch.ones_like(other) for _ in range(ranks)]
                                               if here else None, 0, group=group), "f32", "i32"),
        "type of all_gather": (lambda: dist.all_gather([torch.ones_like(other)
                                                        for _ in range(ranks)], other, group=group),
                               "f32", "i32"),
        "type of all_to_all": (lambda: dist.all_to_all_single(torch.ones(ranks, dtype=other.dtype),
                                                              torch.ones(ranks, dtype=other.dtype),
                                                              group=group), "f32", "i32"),
        "truth": (lambda: dist.broadcast(torch.ones(4, dtype=torch.bool if here else torch.uint8),
                                         0, group=group),
                  "4 bool", "4 u8"),
        "bytes": (lambda: dist.all_reduce(torch.ones(4, dtype=torch.int8 if here else torch.int32),
                                          group=group), "i8", "i32"),
        "complex": (lambda: dist.broadcast(torch.ones(4, dtype=torch.complex64 if here
                                                      else torch.float64), 0, group=group),
                    "8 f32" if hasattr(dist.ProcessGroup, "all_gather_single") else "4 c64",  # 2.15
                    "4 f64"),
        "average": (lambda: dist.all_reduce(torch.ones(4, dtype=torch.float16 if here
                                                       else torch.float32),
                                            dist.ReduceOp.AVG, group=group), "4 f16", "4 f32"),
    }[name]


def different(rank, ranks, ours, gloo):
    """Ranks whose calls differ all have an error of that call, which names both."""
    for name in ("count", "type", "operation", "function", "root of broadcast", "root of reduce",
                 "root of gather",
                 "root of scatter", "type of broadcast", "type of nothing", "type of gather",
                 "type of all_gather",
                 "type of all_to_all", "truth", "bytes", "complex", "average"):
        group = dist.new_group(backend="tandem", timeout=LIMIT)
        dist.barrier(group=gloo)  # PyTorch 2 returns while others still join
        call, one, other = _different(name, rank, ranks, group)
        try:
            call()
        except tandem.Error as error:
            assert all(part in str(error) for part in ("ranks disagree", one, other)), \
                (name, str(error))
        else:
            raise AssertionError(f"{name}: rank {rank} has no error")


def gone(rank, ranks, ours, gloo):
    """Rank 1 exits in the middle: all other ranks name it and end normally."""
    dist.barrier(group=ours)
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:  # the others' barrier may still wait for messages of this rank
        store.wait([f"{other} is past the barrier" for other in range(ranks) if other != rank])
        os._exit(0)
    store.set(f"{rank} is past the barrier", "")
    x = torch.ones(100000)
    refused("rank 1 is lost", lambda: dist.all_reduce(x, group=ours, async_op=True).wait())
    refused("rank 1 is lost", dist.barrier, group=ours)


def ddp_gone(rank, ranks, ours, gloo):
    """A rank that ends in the middle of a training: the others' backward says so."""
    model = DistributedDataParallel(torch.nn.Linear(8, 1), process_group=ours)
    for _ in range(4):
        model(torch.ones(2, 8)).sum().backward()
    token = torch.ones(1)
    if rank == 1:
        dist.recv(token, 0, group=ours, tag=7)
        os._exit(0)
    hold = ours._member.hold

    def begun(work):  # the other goes when the gradients are on their way
        ours._member.hold = hold
        hold(work)
        ours.send([token], 1, 7)
    loss = model(torch.ones(2, 8)).sum()
    ours._member.hold = begun
    try:
        loss.backward()
    except RuntimeError as error:
        assert "Error: rank 1 is lost" in str(error).splitlines()[0], str(error)
    else:
        raise AssertionError("nothing was said of a rank that is gone")


def ddp(rank, ranks, ours, gloo):
    """The same module and data with DistributedDataParallel over either back end."""
    ended = []
    for group in (ours, gloo):
        torch.manual_seed(rank)  # rank 0's initial values are taken
        module = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(),
                                     torch.nn.BatchNorm1d(64),
                                     torch.nn.Linear(64, 64), torch.nn.ReLU(),
                                     torch.nn.Linear(64, 1))
        model = DistributedDataParallel(module, process_group=group, bucket_cap_mb=.01)
        optimizer = torch.optim.Adam(model.parameters(), lr=.01)
        data = torch.Generator().manual_seed(100 + rank)
        for _ in range(20):
            x = torch.randn(32, 20, generator=data)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()
        ended.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    all_ours = [torch.zeros_like(ended[0]) for _ in range(ranks)]
    dist.all_gather(all_ours, ended[0], group=gloo)
    same(all_ours, [all_ours[0]] * ranks)  # replicas are equal, bit by bit
    assert torch.allclose(*ended, rtol=1e-6, atol=1e-6), (ended[0] - ended[1]).abs().max()


def run(rank, ranks, parts, folder):
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(LIMIT.total_seconds() / 2)
    dist.init_process_group("tandem", init_method=f"file://{folder}/store", rank=rank,
                            world_size=ranks, timeout=LIMIT)
    gloo = dist.new_group(backend="gloo", timeout=LIMIT)
    for what in parts:
        globals()[what](rank, ranks, dist.new_group(backend="tandem", timeout=LIMIT), gloo)
    if any(what.endswith("gone") for what in parts):
        os._exit(0)  # gloo's own end would wait for the lost one
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks, parts = int(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(run, (ranks, parts, folder), nprocs=ranks)
    print("all", ranks, "ranks agree:", *parts)
