"""Rows of KEY_VALUE tables: what a program writes and reads itself, on the servers of a running job.

    store = tandem.Store("cache")                 # of the job that this worker is in; or scheduler=
    store.assign(keys, rows)                      # numpy: int64 [n], float32 [n, row_floats]
    rows, found = store.read(keys)
    for keys, rows in store.scan():
        ...

docs/STORE.md says what a KEY_VALUE table is, and what is promised of it.
"""
import ctypes
import os
import queue
import sys
import threading
from types import TracebackType
from typing import Any, Callable, Iterator, Optional, Tuple, Type

import numpy

from tandem._abi import Error, check, library


_SLICE = .1  # seconds; a wait is cut into such pieces, so that Ctrl-C is heard


class _Caller:
    """Makes the calls of the main thread on a thread of its own, so that Ctrl-C is heard while they wait. A call that
    is left in such a way goes on to its end, and later ones wait behind it."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        self._idle = True
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            function, arguments, answer = call
            try:
                answer.put((check(function(*arguments)), None))
            except BaseException as error:  # pylint: disable=broad-except
                # The text of an Error is one that this thread alone can ask for.
                answer.put((None, error))

    def call(self, function: Callable[..., int], *arguments: Any) -> int:
        """What check(function(*arguments)) gives."""
        if threading.current_thread() is not threading.main_thread():
            return check(function(*arguments))
        answer: queue.SimpleQueue = queue.SimpleQueue()
        self._idle = False
        self._calls.put((function, arguments, answer))
        while True:
            try:
                result, error = answer.get(timeout=_SLICE)
                break
            except queue.Empty:
                pass
        self._idle = True
        if error is not None:
            raise error
        return result

    def free(self, function: Callable[..., Any], handle: Any) -> None:
        """function(handle), behind a call that has been left."""
        if self._idle:
            function(handle)
        else:
            self._calls.put((lambda: function(handle) or 0, (), queue.SimpleQueue()))

    def end(self) -> None:
        self._calls.put(None)


def _addresses(keys: numpy.ndarray, *others: numpy.ndarray) -> Tuple[Any, ...]:
    """How many keys, and where the arrays lie. Each pointer keeps its array, as a call that is left needs it."""
    return (len(keys), *[array.ctypes.data_as(ctypes.c_void_p) for array in (keys, *others)])


def _array(values: Any, what: str, dtype: Any, shape: Tuple[Optional[int], ...]) -> numpy.ndarray:
    """`values` as a contiguous array that the library can read; a tensor is taken, too."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    array = numpy.asarray(values)
    if dtype == numpy.int64 and array.size and not numpy.issubdtype(array.dtype, numpy.integer):
        raise ValueError(f"{what}: {array.dtype}, want integers")
    if dtype == numpy.float32 and not numpy.issubdtype(array.dtype, numpy.number):
        raise ValueError(f"{what}: {array.dtype}, want numbers")
    if array.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape)):
        want = ", ".join("n" if n is None else str(n) for n in shape)
        raise ValueError(f"{what}: shape {list(array.shape)}, want [{want}]")
    return numpy.ascontiguousarray(array, dtype=dtype)


def _job_of_this_process() -> Any:
    """What tandem.init() has returned, while it is under way; else None."""
    module = sys.modules.get("tandem.job")  # which a store by itself does not need
    job = module and module._current
    return job if job and not job._ended else None


class Store:
    """The KEY_VALUE table `table` of a running job.

    scheduler: where the job's scheduler listens, tcp://HOST:PORT; without it that of the job that this
    process is in, else TANDEM_SCHEDULER. A worker opens it after tandem.DistributedOptimizer(...), with
    which the job begins. timeout: seconds that this call, and each later one, may wait. dim, extra_floats: of a row; row_floats: both together. Threads may share a store; a process
    that is forked must not use it. Close it, or use it in a `with` block.
    """

    def __init__(self, table: str, scheduler: Optional[str] = None, timeout: float = 60.0) -> None:
        self._store: Any = None
        job = _job_of_this_process()
        if job and scheduler in (None, job.scheduler):
            if not job._started:
                raise Error("tandem.Store: the job begins with tandem.DistributedOptimizer(...); open "
                            "the store after it")
            scheduler = job.scheduler
        scheduler = scheduler or os.environ.get("TANDEM_SCHEDULER")
        if not scheduler:
            raise Error("tandem.Store: which job? Say scheduler=, or set TANDEM_SCHEDULER; a run has "
                        "the address in the file `address` of its folder")
        store = ctypes.c_void_p()
        self._caller = _Caller()
        try:
            self._caller.call(library().tandem_store_open, scheduler.encode(), table.encode(),
                              int(timeout * 1000), ctypes.byref(store))
        except BaseException:
            self._caller.free(library().tandem_store_free, store)
            self._caller.end()
            raise
        self._store, self._owner, self.table = store, os.getpid(), table
        self.dim: int = library().tandem_store_dim(store)
        self.extra_floats: int = library().tandem_store_extra_floats(store)
        self.row_floats: int = self.dim + self.extra_floats

    def _handle(self) -> Any:
        if self._store is None:
            raise Error(f"the store of table '{self.table}' is closed")
        if os.getpid() != self._owner:
            raise Error(f"the store of table '{self.table}' was opened by another process; open one "
                        "in each")
        return self._store

    def _keys(self, keys: Any) -> numpy.ndarray:
        return _array(keys, f"keys of table '{self.table}'", numpy.int64, (None,))

    def _rows(self, keys: Any, rows: Any) -> numpy.ndarray:
        return _array(rows, f"rows of table '{self.table}'", numpy.float32,
                      (len(keys), self.row_floats))

    def read(self, keys: Any) -> Tuple[numpy.ndarray, numpy.ndarray]:
        """The rows of `keys`, float32 [n, row_floats], zeros where there is none; and which there are,
        bool [n]."""
        handle, keys = self._handle(), self._keys(keys)
        rows = numpy.zeros((len(keys), self.row_floats), dtype=numpy.float32)
        found = numpy.zeros(len(keys), dtype=numpy.uint8)
        self._caller.call(library().tandem_store_read, handle, *_addresses(keys, rows, found))
        return rows, found.astype(bool)

    def assign(self, keys: Any, rows: Any) -> None:
        """Writes rows, float32 [n, row_floats]. Of a key that repeats the last row stays."""
        handle, keys = self._handle(), self._keys(keys)
        rows = self._rows(keys, rows)
        self._caller.call(library().tandem_store_assign, handle, *_addresses(keys, rows))

    def insert(self, keys: Any, rows: Any) -> numpy.ndarray:
        """Writes the rows of those keys that are absent; which they were, bool [n]."""
        handle, keys = self._handle(), self._keys(keys)
        rows = self._rows(keys, rows)
        inserted = numpy.zeros(len(keys), dtype=numpy.uint8)
        self._caller.call(library().tandem_store_insert, handle, *_addresses(keys, rows, inserted))
        return inserted.astype(bool)

    def erase(self, keys: Any) -> numpy.ndarray:
        """Removes the rows of keys; which there were, bool [n]."""
        handle, keys = self._handle(), self._keys(keys)
        erased = numpy.zeros(len(keys), dtype=numpy.uint8)
        self._caller.call(library().tandem_store_erase, handle, *_addresses(keys, erased))
        return erased.astype(bool)

    def scan(self, most: int = 65536) -> Iterator[Tuple[numpy.ndarray, numpy.ndarray]]:
        """All rows, while others write: keys and rows, at most `most` of them at a time. A row that is
        there all the time comes once, one that is made or erased meanwhile once or not at all."""
        if most < 1:
            raise ValueError(f"scan of table '{self.table}': {most} rows at a time, want 1 or more")
        scan = ctypes.c_void_p()
        try:
            self._caller.call(library().tandem_scan_open, self._handle(), ctypes.byref(scan))
            keys = numpy.empty(most, dtype=numpy.int64)
            rows = numpy.empty((most, self.row_floats), dtype=numpy.float32)
            count = ctypes.c_int64()
            while self._handle() and self._caller.call(library().tandem_scan_next, scan,
                                                       *_addresses(keys, rows), ctypes.byref(count)):
                yield keys[:count.value].copy(), rows[:count.value].copy()
        finally:
            self._caller.free(library().tandem_scan_free, scan)

    def close(self) -> None:
        """Once no other call is under way; the rows stay."""
        store, self._store = self._store, None
        if store is not None and os.getpid() == self._owner:
            self._caller.free(library().tandem_store_free, store)
            self._caller.end()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except (AttributeError, TypeError):  # the interpreter is ending
            pass
