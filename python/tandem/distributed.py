"""A back end of torch.distributed named "tandem", for scripts that keep DistributedDataParallel.

    import tandem.distributed                              # registers it
    torch.distributed.init_process_group("tandem")         # as with gloo, under torchrun
    tandem.distributed.join()                              # also under mpirun, srun, Kubernetes

The back end has every collective of torch.distributed for tensors in memory of the host, `send`
and `recv` with tags, `new_group` and asynchronous works. Members find each other by the store of
init_process_group. Then they use shared memory on one host, and RDMA or TCP between hosts.

Threads of C++ do the works without the interpreter lock. Errors are tandem.Error with one line that
names the failed rank; invalid tensors are a ValueError or TypeError at once.

TANDEM_GROUP_HOST: the address of this machine for the other ranks. The default is the address with
a route to MASTER_ADDR, or without that (tcp:// and file://) the address of the machine's own name.
TANDEM_GROUP_LINK: "shm", "tcp", "rdma", "zmq" or "auto", the same on all ranks.
"""
from __future__ import annotations

import atexit
import collections
import ctypes
import inspect
import os
import socket
import threading
import time
import weakref
from ctypes import c_int32, c_int64, c_void_p
from datetime import timedelta
from typing import Any, Callable, Iterable, Optional, Sequence, Union

import torch
import torch.distributed as dist
from tandem import _abi
from tandem._abi import Error
from tandem.worker import SLICE_MS, Uninterrupted

__all__ = ["ProcessGroup", "join"]

_TYPES = {torch.float32: _abi.F32, torch.float64: _abi.F64, torch.float16: _abi.F16,
          torch.bfloat16: _abi.BF16, torch.int32: _abi.I32, torch.int64: _abi.I64,
          torch.uint8: _abi.U8}
# Integers that the C interface lacks, and a wider type that it has.
_WIDER = {torch.int8: torch.int32, torch.int16: torch.int32}
# The type that the other ranks compare, for types that travel as another one.
_CALLED = {torch.bool: _abi.CALLED_BOOL, torch.int8: _abi.CALLED_I8, torch.int16: _abi.CALLED_I16,
           torch.complex64: _abi.CALLED_C64, torch.complex128: _abi.CALLED_C128}
# The same types where they are only moved: a type of the C interface, and its elements in one.
_MOVED = {torch.bool: (_abi.U8, 1), torch.int8: (_abi.U8, 1), torch.int16: (_abi.F16, 1),
          torch.complex64: (_abi.F64, 1), torch.complex128: (_abi.F64, 2)}

_OPS = {dist.ReduceOp.SUM: _abi.SUM, dist.ReduceOp.PRODUCT: _abi.PRODUCT,
        dist.ReduceOp.MIN: _abi.MIN, dist.ReduceOp.MAX: _abi.MAX, dist.ReduceOp.AVG: _abi.AVERAGE,
        dist.ReduceOp.BAND: _abi.BIT_AND, dist.ReduceOp.BOR: _abi.BIT_OR,
        dist.ReduceOp.BXOR: _abi.BIT_XOR}
# Operations on truth values, which are bytes of 0 and 1: their sum is their maximum, their product
# their minimum.
_BOOL_OPS: dict[int, Optional[int]] = {_abi.SUM: _abi.MAX, _abi.PRODUCT: _abi.MIN,
                                       _abi.AVERAGE: None}

_LOOKS = 4  # at older works when one begins
_LOOK_MS = 2  # between two looks whether a work with a future has ended before an older one
_MOST_HELD = 1024  # works that nobody waits for


def _name_of(op: Any) -> str:
    """The name of a torch.distributed.ReduceOp, which is an object of one of two classes; some have
    no repr."""
    return getattr(getattr(op, "op", op), "name", None) or str(op)


def _op_of(op: Any) -> int:
    """The number of a torch.distributed.ReduceOp."""
    for known, number in _OPS.items():
        if op == known:
            return number
    raise ValueError(f"tandem: the reduction {_name_of(op)} is not one of SUM, PRODUCT, MIN, MAX, "
                     "AVG, BAND, BOR and BXOR")


def _check(tensor: torch.Tensor, what: str) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"tandem: {what}: expected a tensor, got a {type(tensor).__name__}")
    if tensor.is_sparse or tensor.layout != torch.strided:
        raise ValueError(f"tandem: {what}: expected a dense tensor; hint: tensor.to_dense()")
    if tensor.device.type != "cpu":
        raise ValueError(f"tandem: {what}: the tensor is on {tensor.device}; give tensor.cpu(), or "
                         "use a back end for that device")
    if tensor.is_conj() or tensor.is_neg():  # whose memory does not hold their values
        raise ValueError(f"tandem: {what}: the tensor is conjugated or negated lazily; give "
                         f"tensor.resolve_{'conj' if tensor.is_conj() else 'neg'}()")
    return tensor


def _check_written(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """Checks a tensor for results: each element has a place of its own."""
    _check(tensor, what)
    if tensor.numel() > 1 and any(n > 1 and step == 0
                                  for n, step in zip(tensor.shape, tensor.stride())):
        raise ValueError(f"tandem: {what}: elements of the tensor share memory (expand); give "
                         "tensor.clone()")
    return tensor


def _one(tensors: Any, what: str,
         check: Callable[[Any, str], torch.Tensor] = _check_written) -> torch.Tensor:
    """The only tensor of a list. Lists of several are c10d's calls for several devices."""
    if isinstance(tensors, torch.Tensor):
        return check(tensors, what)
    if len(tensors) != 1:
        raise ValueError(f"tandem: {what}: expected one tensor a process, got {len(tensors)}")
    return check(tensors[0], what)


def _same(tensors: Sequence[torch.Tensor], like: torch.Tensor, what: str) -> Sequence[torch.Tensor]:
    for tensor in tensors:
        _check(tensor, what)
        if tensor.dtype != like.dtype:
            raise ValueError(f"tandem: {what}: {tensor.dtype} beside {like.dtype}; give all one "
                             "type")
    return tensors


def _same_size(tensors: Sequence[torch.Tensor], like: torch.Tensor,
               what: str) -> Sequence[torch.Tensor]:
    _same(tensors, like, what)
    for tensor in tensors:
        if tensor.numel() != like.numel():
            raise ValueError(f"tandem: {what}: a tensor of {tensor.numel()} elements beside one of "
                             f"{like.numel()}; give tensors of one size (all_to_all takes "
                             "different ones)")
    return tensors


def _room_for(output: torch.Tensor) -> torch.Tensor:
    """The output itself, or contiguous memory of its size."""
    return output.detach() if output.is_contiguous() else \
        torch.empty(output.shape, dtype=output.dtype)


def _pointer(tensor: torch.Tensor) -> c_void_p:
    return c_void_p(tensor.data_ptr() or None)


def _counts(values: Sequence[int]) -> Any:
    return (c_int64 * len(values))(*values)


def _moved(tensor: torch.Tensor) -> tuple[int, int]:
    """How the C interface moves the elements: as which type, and how many of it for each."""
    kind, times = _MOVED.get(tensor.dtype) or (_TYPES.get(tensor.dtype, _abi.U8), 1)
    # Bytes, also of a type that is not known here.
    if kind == _abi.U8 and tensor.dtype not in _CALLED:
        times = tensor.element_size()
    return kind + _CALLED.get(tensor.dtype, 0), times


class _Reduced:
    """A tensor as the C interface reduces it: itself, or its elements in a type that holds them."""

    def __init__(self, tensor: torch.Tensor, op: Any) -> None:
        self.op: Optional[int] = _op_of(op)
        self.tensor = tensor.contiguous()
        dtype = tensor.dtype
        if dtype == torch.bool:
            self.op = _BOOL_OPS.get(self.op, self.op)
            self.tensor = self.tensor.view(torch.uint8)
        elif dtype in _WIDER:
            self.tensor = self.tensor.to(_WIDER[dtype])
        elif tensor.is_complex():
            if self.op not in (_abi.SUM, _abi.AVERAGE):
                raise ValueError(f"tandem: {_name_of(op)} is not defined for {dtype}; SUM and AVG "
                                 "are")
            self.tensor = torch.view_as_real(self.tensor)
        elif dtype not in _TYPES:
            raise ValueError(f"tandem: tensors of {dtype} are not reduced; give one of "
                             "float16, bfloat16, float32, float64, int8, int16, int32, int64, "
                             "uint8, bool")
        self.type = _TYPES[self.tensor.dtype] + _CALLED.get(dtype, 0)
        floating = self.tensor.dtype.is_floating_point
        if self.op is None or (self.op == _abi.AVERAGE and not floating):
            raise ValueError(f"tandem: AVG is not defined for {dtype}; take SUM and divide")
        if floating and self.op in (_abi.BIT_AND, _abi.BIT_OR, _abi.BIT_XOR):
            raise ValueError(f"tandem: {_name_of(op)} is not defined for {dtype}; give integers")

    def room(self) -> torch.Tensor:
        """Room for a result of the same size."""
        return torch.empty_like(self.tensor)


def _put(target: torch.Tensor, result: torch.Tensor) -> None:
    """Copies the result of an operation to `target`, in its type."""
    if target.data_ptr() == result.data_ptr() and target.is_contiguous():
        return
    if target.is_complex() and not result.is_complex():
        result = torch.view_as_complex(result)
    elif target.dtype == torch.bool and result.dtype == torch.uint8:
        result = result.view(torch.bool)
    # Under no_grad: a result is written into tensors that take part in autograd, as gloo does.
    with torch.no_grad():
        target.detach().view(target.shape).copy_(result.view(target.shape))


class _Work(dist._Work):
    """A running operation. kept: the tensors that it works on; then: puts results in place."""

    def __init__(self, group: _Member, number: int, result: list[Any], kept: tuple[Any, ...] = (),
                 then: Optional[Callable[[], None]] = None) -> None:
        super().__init__()
        self._group = group
        self._number = number
        self._result = result
        self._kept = kept
        self._then = then
        self._lock = threading.Lock()   # of the thread that waits; others wait for it
        self._done = threading.Event()
        self._error: Optional[Exception] = None
        self._from = c_int32(-1)
        self._inner: Any = None
        self._future: Any = None

    def drop(self) -> bool:
        """Whether it has ended; then it releases its tensors, and wait() still works."""
        return self._look(0, release=False)

    def _look(self, milliseconds: int, release: bool = True) -> bool:
        """Whether it has ended, after a wait of at most so long. Ctrl-C is heard afterwards, so
        that the end is not lost."""
        with Uninterrupted():
            return self._look_once(milliseconds, release)

    def _look_once(self, milliseconds: int, release: bool) -> bool:
        if self._done.is_set():
            if release:
                self._group.release(self)
            return True
        if self._group.process != os.getpid():  # whose lock might stay locked
            raise Error(f"rank {self._group.rank}: the operation belongs to process "
                        f"{self._group.process} and cannot be used after fork()")
        if not self._lock.acquire(timeout=milliseconds / 1000):
            return self._done.is_set()
        try:
            if self._done.is_set():
                return True
            try:
                ended = _abi.check(_abi.library().tandem_group_wait(
                    self._group.handle, self._number, milliseconds, ctypes.byref(self._from)))
                if not ended:
                    return False
                if self._then is not None:
                    self._then()
            except Exception as error:  # of the operation, for wait()
                self._error = error
            self._then, self._kept = None, ()
            self._done.set()
            if release:
                self._group.release(self)
            return True
        finally:
            self._lock.release()

    def wait(self, timeout: Union[timedelta, float] = timedelta(0)) -> bool:
        """Waits for the end. An error: the operation has failed, or not ended within `timeout`."""
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        until = time.monotonic() + seconds if seconds > 0 else None
        while not self._look(SLICE_MS):
            if until is not None and time.monotonic() > until:
                raise Error(f"rank {self._group.rank}: the operation has not ended within "
                            f"{seconds} s")
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._look(0)

    def is_success(self) -> bool:
        return self._look(0) and self._error is None

    def exception(self) -> Optional[Exception]:
        return self._error

    def result(self) -> list[Any]:
        return self._result

    def source_rank(self) -> int:
        return self._from.value

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        """A torch.futures.Future of the list of results, or of the error."""
        if self._future is None:
            def results(_: Any) -> list[Any]:
                if self._error is not None:
                    raise self._error
                return self._result
            # C++, where DistributedDataParallel waits, gets the error only from a callback that
            # raises it. C++ would take the value of Future.set_exception for a result.
            self._inner = torch.futures.Future()
            self._future = self._inner.then(results)
            self._group.finish(self)
        return self._future

    def end_future(self) -> None:
        """Runs the callbacks of the future, once the work has ended."""
        self._inner.set_result(None)


class _Futures:
    """Threads that complete the futures of operations, in the order in which the operations end.
    One thread at a time is the waiter: it waits for the operations. Callbacks run where their
    future completes, and may wait for the future of another operation. The waiter therefore has
    another thread wait before it runs callbacks, if there are more operations, or if one comes
    meanwhile."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: list[_Work] = []
        self._leads = False     # there is a waiter, or a thread was called to be it
        self._called = False    # the called thread has not come yet
        self._idle = 0          # threads that can be called
        self._closed = False

    def add(self, work: _Work) -> None:
        with self._changed:
            self._running.append(work)
            if not self._leads:
                self._call()

    def close(self) -> None:
        """The threads end once all works have."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _call(self) -> None:
        self._leads = self._called = True
        if self._idle > 0:
            self._changed.notify()
        else:
            threading.Thread(target=self._run, daemon=True, name="tandem futures").start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._called and not self._closed:
                    self._changed.wait()
                self._idle -= 1
                if not self._called:
                    return
                self._called = False
            work = self._wait_for_one()
            with self._changed:
                self._running.remove(work)
                self._leads = False
                if self._running:
                    self._call()
            work.end_future()

    def _wait_for_one(self) -> _Work:
        while True:
            with self._changed:
                running = list(self._running)
            # The oldest will most likely end next: wait for it, and look at the others.
            for i, work in enumerate(running):
                if work._look(_LOOK_MS if i == 0 else 0):
                    return work


class _Member:
    """A member of a group of the C interface, and the threads that end futures."""

    def __init__(self, rank: int, ranks: int, timeout_ms: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.process = os.getpid()
        self.handle = c_void_p()
        self.closed = False
        self._futures: Optional[_Futures] = None
        # DistributedDataParallel holds only the C++ side of a work. Works stay here until they have
        # been waited for.
        self._works: dict[int, _Work] = {}
        # The works that may still run; each is looked at in turn.
        self._running: collections.deque[_Work] = collections.deque()
        options = _abi.GroupOptions()
        options.size = ctypes.sizeof(options)
        options.rank, options.ranks = rank, ranks
        self.host = _own_host()
        options.host = self.host.encode()
        options.link = os.environ.get("TANDEM_GROUP_LINK", "auto").encode()
        options.deadline_ms = timeout_ms
        _abi.check(_abi.library().tandem_group_open(ctypes.byref(options),
                                                    ctypes.byref(self.handle)))

    def address(self) -> bytes:
        at, count = c_void_p(), c_int64()
        _abi.check(_abi.library().tandem_group_address(self.handle, ctypes.byref(at),
                                                       ctypes.byref(count)))
        return ctypes.string_at(at, count.value)

    def connect(self, addresses: list[bytes], timeout_ms: int) -> None:
        at = (c_void_p * len(addresses))(
            *[ctypes.cast(ctypes.c_char_p(a), c_void_p).value for a in addresses])
        _abi.check(_abi.library().tandem_group_connect(self.handle, at,
                                                       _counts([len(a) for a in addresses]),
                                                       timeout_ms))
        try:
            while not _abi.check(_abi.library().tandem_group_wait_connected(self.handle, SLICE_MS)):
                pass
        except Error as error:
            raise Error(f"{error}; rank {self.rank} is at {self.host} for the others: if a host is "
                        "not reached so, set TANDEM_GROUP_HOST there") from None

    def hold(self, work: _Work) -> None:
        self._works[work._number] = work
        for _ in range(min(_LOOKS, len(self._running))):  # so that ended works keep no tensors
            try:
                old = self._running.popleft()
            except IndexError:  # another thread was here
                break
            if not old.drop():
                self._running.append(old)
        self._running.append(work)
        if len(self._works) > _MOST_HELD:  # works that nobody waits for end by themselves
            for old in list(self._works.values())[:_MOST_HELD // 2]:
                old.is_completed()

    def release(self, work: _Work) -> None:
        self._works.pop(work._number, None)

    def finish(self, work: _Work) -> None:
        if self._futures is None:
            self._futures = _Futures()
        self._futures.add(work)

    def close(self) -> None:
        if self._futures is not None:
            self._futures.close()
            self._futures = None
        if self.handle and not self.closed and self.process == os.getpid():
            self.closed = True
            _abi.library().tandem_group_close(self.handle)

    # When no work is left that could be waited for. At exit, modules may be gone before.
    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        if self.handle and self.process == getpid():
            _abi.library().tandem_group_free(self.handle)


def _own_host() -> str:
    """The address of this machine for the others."""
    told = os.environ.get("TANDEM_GROUP_HOST")
    if told:
        return told
    master = os.environ.get("MASTER_ADDR")
    port = int(os.environ.get("MASTER_PORT") or 9) if master else 0
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            master or socket.gethostname(), port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            if master:  # sends nothing for a datagram socket; it only looks up the route
                probe.connect(address)
            else:
                probe.bind(address)  # the own name's, if that is an address of this machine
            host = probe.getsockname()[0]
            return f"[{host}]" if family == socket.AF_INET6 else host
    except OSError:
        return "127.0.0.1"


def _milliseconds(timeout: timedelta) -> int:
    return max(1, int(timeout.total_seconds() * 1000)) if timeout.total_seconds() > 0 else 0


class ProcessGroup(dist.ProcessGroup):
    """The group of init_process_group("tandem") and new_group.

    torch.distributed's functions call its methods. Lists have one tensor a process, as in c10d, and
    opts are c10d's options. Tensors are dense, on the CPU. A ValueError or TypeError names an
    invalid tensor at once; later failures are an Error of the returned work.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        timeout_ms = _milliseconds(timeout) or 1
        self._member = _Member(rank, size, timeout_ms)
        self._waited = 0   # monitored barriers so far: the tag of their messages
        _open.add(self._member)
        weakref.finalize(self, _close, self._member)
        store.set(f"tandem/{rank}", self._member.address())
        store.wait([f"tandem/{r}" for r in range(size)], timeout)
        self._member.connect([store.get(f"tandem/{r}") for r in range(size)], timeout_ms)

    def getBackendName(self) -> str:
        """As init_process_group calls it."""
        return "tandem"

    name = _get_backend_name = getBackendName

    def _set_group_name(self, name: str) -> None:
        """As PyTorch 2 calls it, whose own class remembers a name only for its own back ends."""
        self._group_name = name

    @property
    def group_name(self) -> str:
        """As PyTorch 2 reads it."""
        return self._group_name

    def _begin(self, function: str, *arguments: Any, result: Iterable[Any] = (),
               kept: tuple[Any, ...] = (), then: Optional[Callable[[], None]] = None) -> _Work:
        number = c_int64()
        if self._member.closed:
            raise Error("tandem: the process group was destroyed")
        with Uninterrupted():  # so that a work that has begun is held
            _abi.check(getattr(_abi.library(), function)(self._member.handle, *arguments,
                                                         ctypes.byref(number)))
            work = _Work(self._member, number.value, list(result), kept, then)
            self._member.hold(work)
        return work

    # ---- reductions ----

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> _Work:
        """Each tensor, of one shape on all ranks, becomes the reduction of all."""
        tensor = _one(tensors, "all_reduce")
        reduced = _Reduced(tensor, _op(opts))
        return self._begin("tandem_group_allreduce", _pointer(reduced.tensor),
                           _pointer(reduced.tensor),
                           reduced.tensor.numel(), reduced.type, reduced.op, result=[tensor],
                           kept=(tensor, reduced), then=lambda: _put(tensor, reduced.tensor))

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> _Work:
        """allreduce of several tensors of one dtype in one operation."""
        if not tensors:
            raise ValueError(
                "tandem: all_reduce_coalesced: expected a list of at least one tensor")
        _same(tensors, tensors[0], "all_reduce_coalesced")
        flat = torch.cat([t.detach().reshape(-1) for t in tensors])
        reduced = _Reduced(flat, _op(opts))

        def then():
            _put(flat, reduced.tensor)
            for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors])):
                _put(tensor, part)
        return self._begin("tandem_group_allreduce", _pointer(reduced.tensor),
                           _pointer(reduced.tensor),
                           reduced.tensor.numel(), reduced.type, reduced.op, result=tensors,
                           kept=(tensors, reduced), then=then)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> _Work:
        """The tensor of rank opts.rootRank becomes the reduction of all; the others' stay."""
        tensor = _one(tensors, "reduce")
        reduced = _Reduced(tensor, opts.reduceOp)
        root = opts.rootRank
        room = reduced.room()  # the others' tensors stay as they are
        then = (lambda: _put(tensor, room)) if self.rank() == root else None
        return self._begin("tandem_group_reduce", _pointer(reduced.tensor), _pointer(room),
                           room.numel(), reduced.type, reduced.op, root, result=[tensor],
                           kept=(tensor, reduced, room), then=then)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: Sequence[Any],
                       opts: Any = None) -> _Work:
        """The output becomes the reduction of all ranks' inputs for this rank; of any sizes."""
        output = _one(outputs, "reduce_scatter")
        parts = inputs[0] if inputs and not isinstance(inputs[0], torch.Tensor) else inputs
        self._check_parts(parts, "reduce_scatter: the input list")
        if parts[self.rank()].numel() != output.numel():
            raise ValueError(f"tandem: reduce_scatter: the output has {output.numel()} elements, "
                             f"and part {self.rank()} of the input has "
                             f"{parts[self.rank()].numel()}")
        _same([output], parts[0], "reduce_scatter")
        return self._reduce_scatter(output, torch.cat([p.detach().reshape(-1) for p in parts]),
                                    [p.numel() for p in parts], opts)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor,
                             opts: Any = None) -> _Work:
        _same([_check_written(output, "reduce_scatter_tensor: the output")],
              _check(input, "reduce_scatter_tensor: the input"), "reduce_scatter_tensor")
        self._check_multiple(output, input, "reduce_scatter_tensor", "input", "output")
        return self._reduce_scatter(output, input, [output.numel()] * self.size(), opts)

    def _reduce_scatter(self, output: torch.Tensor, flat: torch.Tensor, counts: list[int],
                        opts: Any) -> _Work:
        reduced = _Reduced(flat, _op(opts))
        times = 2 if flat.is_complex() else 1
        counts = [times * n for n in counts]
        begin = sum(counts[:self.rank()])
        room = reduced.tensor.new_empty(counts[self.rank()])
        if flat.is_complex():
            room = room.view(-1, 2)
        return self._begin("tandem_group_reduce_scatter", _pointer(reduced.tensor), _pointer(room),
                           _counts(counts), reduced.type, reduced.op, result=[output],
                           kept=(output, reduced, room, begin), then=lambda: _put(output, room))

    # ---- moves of bytes ----

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> _Work:
        """The tensor becomes that of rank opts.rootRank, of the same shape."""
        tensor = _one(tensors, "broadcast")
        data = tensor.detach().contiguous()
        kind, times = _moved(data)
        return self._begin("tandem_group_broadcast", _pointer(data), times * data.numel(), kind,
                           opts.rootRank,
                           result=[tensor], kept=(tensor, data), then=lambda: _put(tensor, data))

    def allgather(self, outputs: Sequence[Any], inputs: list[torch.Tensor],
                  opts: Any = None) -> _Work:
        """The outputs, one for each rank, become their inputs, all of one size."""
        tensor = _one(inputs, "all_gather", _check)
        parts = outputs[0] if outputs and not isinstance(outputs[0], torch.Tensor) else outputs
        self._check_parts(parts, "all_gather: the output list")
        _same_size(parts, tensor, "all_gather")
        flat = tensor.new_empty(self.size() * tensor.numel())
        return self._allgather(flat, tensor, parts, lambda: _put_parts(parts, flat))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Work:
        _same([_check_written(output, "all_gather_into_tensor: the output")],
              _check(input, "all_gather_into_tensor: the input"), "all_gather_into_tensor")
        self._check_multiple(input, output, "all_gather_into_tensor", "output", "input")
        flat = _room_for(output)
        return self._allgather(flat, input, [output], lambda: _put(output, flat))

    def _allgather(self, flat: torch.Tensor, tensor: torch.Tensor, result: Sequence[torch.Tensor],
                   then: Callable[[], None]) -> _Work:
        data = tensor.detach().contiguous()
        kind, times = _moved(data)
        return self._begin("tandem_group_allgather", _pointer(data), _pointer(flat),
                           _counts([times * data.numel()] * self.size()), kind, result=result,
                           kept=(data, flat, result), then=then)

    def allgather_coalesced(self, output_lists: list[list[torch.Tensor]],
                            inputs: list[torch.Tensor], opts: Any = None) -> _Work:
        """allgather of several tensors of one dtype in one operation: a list of outputs for each
        rank."""
        if not inputs or any(len(parts) != len(inputs) for parts in output_lists):
            raise ValueError("tandem: all_gather_coalesced: expected as many outputs of each "
                             "rank as there are inputs, and at least one")
        self._check_parts(output_lists, "all_gather_coalesced: the output lists")
        for parts in output_lists:
            for part, tensor in zip(parts, inputs):
                _same_size([part], tensor, "all_gather_coalesced")
        _same(inputs, inputs[0], "all_gather_coalesced")
        data = torch.cat([t.detach().reshape(-1) for t in inputs])
        flat = data.new_empty(self.size() * data.numel())
        parts = [part for parts in output_lists for part in parts]
        return self._allgather(flat, data, parts, lambda: _put_parts(parts, flat))

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor],
               opts: Any) -> _Work:
        """On rank opts.rootRank the outputs become the inputs of all, of one size; elsewhere there
        are none."""
        tensor = _one(inputs, "gather", _check)
        root = opts.rootRank
        data = tensor.detach().contiguous()
        kind, times = _moved(data)
        flat, parts, then = None, [], None
        if self.rank() == root:
            parts = outputs[0] if outputs else []
            self._check_parts(parts, "gather: the output list")
            _same_size(parts, tensor, "gather")
            flat = tensor.new_empty(self.size() * tensor.numel())
            then = lambda: _put_parts(parts, flat)
        elif outputs and outputs[0]:
            raise ValueError(f"tandem: gather: an output list is for rank {root} alone, which "
                             "gathers")
        return self._begin("tandem_group_gather", _pointer(data),
                           _pointer(flat) if flat is not None else c_void_p(),
                           _counts([times * data.numel()] * self.size()), kind, root, result=parts,
                           kept=(data, flat, parts), then=then)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]],
                opts: Any) -> _Work:
        """The output becomes this rank's part of the inputs of rank opts.rootRank, which alone
        gives some."""
        output = _one(outputs, "scatter")
        root = opts.rootRank
        room = _room_for(output)
        kind, times = _moved(room)
        data = None
        if self.rank() == root:
            parts = inputs[0] if inputs else []
            self._check_parts(parts, "scatter: the input list")
            _same_size(parts, output, "scatter")
            data = torch.cat([p.detach().reshape(-1) for p in parts])
        elif inputs and inputs[0]:
            raise ValueError(f"tandem: scatter: an input list is for rank {root} alone, which "
                             "scatters")
        return self._begin("tandem_group_scatter",
                           _pointer(data) if data is not None else c_void_p(), _pointer(room),
                           _counts([times * room.numel()] * self.size()), kind, root,
                           result=[output], kept=(output, room, data),
                           then=lambda: _put(output, room))

    def alltoall_base(self, output: torch.Tensor, input: torch.Tensor,
                      output_split_sizes: Sequence[int],
                      input_split_sizes: Sequence[int], opts: Any = None) -> _Work:
        """Rows of the input go to the ranks, those of the output come from them. Splits: rows for
        (of) each; empty: as many for each."""
        _same([_check_written(output, "all_to_all_single: the output")],
              _check(input, "all_to_all_single: the input"), "all_to_all_single")
        kind, times = _moved(input)
        sent = self._splits(input, input_split_sizes, "input", times)
        received = self._splits(output, output_split_sizes, "output", times)
        size = input.element_size() // times
        self._check_own(size * sent[self.rank()], size * received[self.rank()], "all_to_all_single")
        data = input.detach().contiguous()
        room = _room_for(output)
        if data.data_ptr() == room.data_ptr() and data.numel() > 0:
            data = data.clone()
        return self._begin("tandem_group_alltoall", _pointer(data), _counts(sent), _pointer(room),
                           _counts(received), kind, result=[output], kept=(data, room, output),
                           then=lambda: _put(output, room))

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor],
                 opts: Any = None) -> _Work:
        """Input r goes to rank r, output r comes from it; of any sizes and one dtype."""
        self._check_parts(outputs, "all_to_all: the output list")
        self._check_parts(inputs, "all_to_all: the input list")
        _same(outputs, inputs[0], "all_to_all")
        _same(inputs, inputs[0], "all_to_all")
        data = torch.cat([t.detach().reshape(-1) for t in inputs])
        flat = data.new_empty(sum(t.numel() for t in outputs))
        kind, times = _moved(data)
        size = data.element_size()
        self._check_own(size * inputs[self.rank()].numel(), size * outputs[self.rank()].numel(),
                        "all_to_all")
        return self._begin("tandem_group_alltoall", _pointer(data),
                           _counts([times * t.numel() for t in inputs]), _pointer(flat),
                           _counts([times * t.numel() for t in outputs]), kind, result=outputs,
                           kept=(data, flat, outputs), then=lambda: _put_parts(outputs, flat))

    # ---- barriers ----

    def barrier(self, opts: Any = None) -> _Work:
        """Ends when all ranks have come. An Error names a rank that is not there within
        opts.timeout."""
        timeout = getattr(opts, "timeout", timedelta(0))
        return self._begin("tandem_group_barrier", _milliseconds(timeout))

    def monitored_barrier(self, timeout: timedelta = timedelta(0),
                          wait_all_ranks: bool = False) -> None:
        """A barrier. Rank 0 names the first rank that is late, or all if `wait_all_ranks`."""
        self._waited += 1
        late_ms = _milliseconds(timeout)
        token = torch.zeros(1, dtype=torch.uint8)
        message = lambda way, peer: self._message(way, token, peer, _MONITORED + self._waited,
                                                  late_ms)
        if self.rank() != 0:
            message("send", 0).wait()
            message("receive", 0).wait()
            return
        works = [(r, message("receive", r)) for r in range(1, self.size())]
        missing = []
        for rank, work in works:
            try:
                work.wait()
            except Error as error:
                missing.append((rank, error))
                if not wait_all_ranks:
                    break
        if missing:
            who = ", ".join(str(rank) for rank, _ in missing)
            raise Error(f"rank 0: rank{'s' if len(missing) > 1 else ''} {who} did not come to "
                        f"monitored_barrier: {missing[0][1]}")
        for rank in range(1, self.size()):
            message("send", rank).wait()

    # ---- messages ----

    def send(self, tensors: list[torch.Tensor], to: int, tag: int = 0) -> _Work:
        """To the receive of rank `to` with this tag, of the same size and type."""
        return self._message("send", _one(tensors, "send", _check), to, tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> _Work:
        """From the send of rank `source` with this tag."""
        return self._message("receive", _one(tensors, "recv"), source, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> _Work:
        """From any rank's send with this tag; the work's source_rank() is that rank."""
        return self._message("receive", _one(tensors, "recv"), -1, tag)

    def _message(self, way: str, tensor: torch.Tensor, peer: int, tag: int,
                 deadline_ms: int = 0) -> _Work:
        data = tensor.detach().contiguous()
        then = (lambda: _put(tensor, data)) if way == "receive" else None
        kind, times = _moved(data)
        return self._begin(f"tandem_group_{way}_elements", _pointer(data), times * data.numel(),
                           kind, peer, tag, deadline_ms, result=[tensor] if then else [],
                           kept=(tensor, data), then=then)

    # ---- checks ----

    def _check_parts(self, parts: Sequence[Any], what: str) -> None:
        if len(parts) != self.size():
            raise ValueError(f"tandem: {what} has {len(parts)} entries, expected one "
                             f"for each of {self.size()} ranks")
        for part in parts:
            if isinstance(part, torch.Tensor):
                (_check_written if "output" in what else _check)(part, what)

    def _check_multiple(self, small: torch.Tensor, large: torch.Tensor, what: str, large_name: str,
                        small_name: str) -> None:
        if small.numel() * self.size() != large.numel():
            raise ValueError(f"tandem: {what}: the {large_name} has {large.numel()} elements, "
                             f"expected {self.size()} times the {small.numel()} of the "
                             f"{small_name}")

    def _check_own(self, sent: int, received: int, what: str) -> None:
        if sent != received:
            raise ValueError(f"tandem: {what}: rank {self.rank()} sends itself {sent} bytes and "
                             f"expects {received} of itself; give both one size")

    def _splits(self, tensor: torch.Tensor, sizes: Sequence[int], name: str,
                times: int) -> list[int]:
        """Elements for (or of) each rank, times `times`, of sizes along the first dimension."""
        rows = tensor.size(0) if tensor.dim() else tensor.numel()
        if not sizes:
            if rows % self.size():
                raise ValueError(f"tandem: all_to_all_single: {rows} rows of the {name} are not "
                                 f"divisible by {self.size()} ranks; give {name}_split_sizes")
            sizes = [rows // self.size()] * self.size()
        if len(sizes) != self.size() or sum(sizes) != rows:
            raise ValueError(f"tandem: all_to_all_single: {name}_split_sizes {list(sizes)}, "
                             f"expected one for each of {self.size()} ranks, {rows} together")
        row = tensor.numel() // rows * times if rows else 0
        return [row * n for n in sizes]

    # The names that PyTorch 2.15 calls.
    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base
    all_to_all_single = alltoall_base

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: the group numbers operations itself, and finds ranks that differ."""

    def _get_sequence_number_for_group(self) -> int:
        return 0


def join(**options: Any) -> None:
    """init_process_group("tandem", **options) for all ranks of a launch. torchrun sets the
    variables that it reads. mpirun, srun and Kubernetes set variables of their own, and the rank
    comes from these. On several hosts MASTER_ADDR and MASTER_PORT say where rank 0 is."""
    # Debian's PyTorch 2.6 has no libuv, although its store asks for it by default.
    os.environ.setdefault("USE_LIBUV", "0")
    if all(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        dist.init_process_group("tandem", **options)
        return
    launch = _abi.Launch(size=ctypes.sizeof(_abi.Launch))
    if not _abi.check(_abi.library().tandem_find_launch(ctypes.byref(launch))):
        raise Error("tandem.distributed.join: no launcher has told the rank of this process; start "
                    "it by mpirun, srun, torchrun or Kubernetes")
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if launch.one_host and launch.port:
        host, port = "127.0.0.1", str(launch.port)
    if not host or not port:
        raise Error("tandem.distributed.join: the ranks are on several hosts; export MASTER_ADDR "
                    "and MASTER_PORT, the host of rank 0 and a free port there")
    if launch.one_host:
        os.environ.setdefault("TANDEM_GROUP_HOST", "127.0.0.1")
    dist.init_process_group("tandem", init_method=f"tcp://{host}:{port}", rank=launch.rank,
                            world_size=launch.ranks, **options)


_MONITORED = 1 << 32  # above all tags of torch.distributed, which are 32-bit


def _op(opts: Any) -> Any:
    if opts is None:
        return dist.ReduceOp.SUM
    return opts.reduceOp if hasattr(opts, "reduceOp") else opts


def _put_parts(parts: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    for part, piece in zip(parts, flat.split([p.numel() for p in parts])):
        _put(part, piece)


# Members that are open: closed in order when the process ends, so that the others hear a goodbye.
_open: set[_Member] = set()


def _close(member: _Member) -> None:
    _open.discard(member)
    member.close()


@atexit.register
def _close_all() -> None:
    for member in list(_open):
        _close(member)


# PyTorch 2 asks for the devices.
_devices = {"devices": ["cpu", "cuda"]} \
    if "devices" in inspect.signature(dist.Backend.register_backend).parameters else {}
dist.Backend.register_backend("tandem", ProcessGroup, **_devices)
