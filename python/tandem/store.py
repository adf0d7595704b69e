"""Rows of KEY_VALUE tables, which a program writes and reads on the servers of a running job.

    store = tandem.Store("cache")                 # of the job of this process; or scheduler=
    store.assign(keys, rows)                      # numpy: int64 [n], float32 [n, row_floats]
    rows, found = store.read(keys)
    for keys, rows in store.scan():
        ...

docs/STORE.md describes KEY_VALUE tables and their guarantees.
"""
import contextlib
import ctypes
import os
import queue
import threading
from typing import Any, Callable, Iterator, Optional, Tuple

import numpy

from tandem import current
from tandem._abi import Error, Handle, check, library


_SLICE = .1  # seconds; a wait is cut into such pieces, so that Ctrl-C is heard


class Caller:
    """Makes the calls of the main thread on a thread of its own, so that Ctrl-C is heard while they
    wait. A call that Ctrl-C has interrupted runs to its end, and later ones wait behind it."""

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
        """Returns check(function(*arguments))."""
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
        """Calls function(handle), behind a call that was interrupted."""
        if self._idle:
            function(handle)
        else:
            self._calls.put((lambda: function(handle) or 0, (), queue.SimpleQueue()))

    def end(self) -> None:
        """Ends the thread, behind the calls."""
        self._calls.put(None)


def addresses(keys: numpy.ndarray, *others: numpy.ndarray) -> Tuple[Any, ...]:
    """The number of keys, and the addresses of the arrays. Each pointer keeps its array for a call
    that was interrupted."""
    return (len(keys), *[array.ctypes.data_as(ctypes.c_void_p) for array in (keys, *others)])


def _array(values: Any, what: str, dtype: Any, shape: Tuple[Optional[int], ...]) -> numpy.ndarray:
    """`values`, an array or a tensor, as a contiguous array that the library can read."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    array = numpy.asarray(values)
    if dtype == numpy.int64 and array.size and not numpy.issubdtype(array.dtype, numpy.integer):
        raise ValueError(f"{what}: {array.dtype}, expected integers")
    if dtype == numpy.float32 and not numpy.issubdtype(array.dtype, numpy.number):
        raise ValueError(f"{what}: {array.dtype}, expected numbers")
    if array.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape)):
        want = ", ".join("n" if n is None else str(n) for n in shape)
        raise ValueError(f"{what}: shape {list(array.shape)}, expected [{want}]")
    return numpy.ascontiguousarray(array, dtype=dtype)


class Store(Handle):
    """The KEY_VALUE table `table` of a running job.

    scheduler: the address of the job's scheduler, tcp://HOST:PORT; None: of the job of this
    process, else TANDEM_SCHEDULER. A worker opens the store after tandem.DistributedOptimizer(...),
    with which the job begins. timeout: seconds that this call, and each later one, may wait.
    dim, extra_floats: of a row; row_floats: both together. Threads may share a store; a forked
    process must not use it. Close the store, or use it in a `with` block.
    """

    def __init__(self, table: str, scheduler: Optional[str] = None, timeout: float = 60.0) -> None:
        self._store: Any = None
        worker, own = current.worker, None
        if worker and not worker.ended and scheduler in (None, worker.scheduler):
            if worker.optimizer is None:
                raise Error("tandem.Store: the job begins with tandem.DistributedOptimizer(...); "
                            "open the store after it")
            scheduler, own = worker.scheduler, worker.cluster
        scheduler = scheduler or os.environ.get("TANDEM_SCHEDULER")
        if not scheduler:
            raise Error("tandem.Store: which job? Say scheduler=, or set TANDEM_SCHEDULER; a run "
                        "has the address in the file `address` of its folder")
        store = ctypes.c_void_p()
        self._caller = Caller()
        try:
            with own.token() if own else contextlib.nullcontext():
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
            raise Error(f"the store of table '{self.table}' was opened by another process; open "
                        "one in each")
        return self._store

    def _keys(self, keys: Any) -> numpy.ndarray:
        return _array(keys, f"keys of table '{self.table}'", numpy.int64, (None,))

    def _rows(self, keys: Any, rows: Any) -> numpy.ndarray:
        return _array(rows, f"rows of table '{self.table}'", numpy.float32,
                      (len(keys), self.row_floats))

    def read(self, keys: Any) -> Tuple[numpy.ndarray, numpy.ndarray]:
        """The rows of `keys`, float32 [n, row_floats], zeros for missing ones; and which are there,
        bool [n]."""
        handle, keys = self._handle(), self._keys(keys)
        rows = numpy.zeros((len(keys), self.row_floats), dtype=numpy.float32)
        found = numpy.zeros(len(keys), dtype=numpy.uint8)
        self._caller.call(library().tandem_store_read, handle, *addresses(keys, rows, found))
        return rows, found.astype(bool)

    def assign(self, keys: Any, rows: Any) -> None:
        """Writes rows, float32 [n, row_floats]. If a key repeats, its last row counts."""
        handle, keys = self._handle(), self._keys(keys)
        rows = self._rows(keys, rows)
        self._caller.call(library().tandem_store_assign, handle, *addresses(keys, rows))

    def insert(self, keys: Any, rows: Any) -> numpy.ndarray:
        """Writes the rows of the missing keys. Returns which were missing, bool [n]."""
        handle, keys = self._handle(), self._keys(keys)
        rows = self._rows(keys, rows)
        inserted = numpy.zeros(len(keys), dtype=numpy.uint8)
        self._caller.call(library().tandem_store_insert, handle, *addresses(keys, rows, inserted))
        return inserted.astype(bool)

    def erase(self, keys: Any) -> numpy.ndarray:
        """Removes the rows of keys. Returns which were there, bool [n]."""
        handle, keys = self._handle(), self._keys(keys)
        erased = numpy.zeros(len(keys), dtype=numpy.uint8)
        self._caller.call(library().tandem_store_erase, handle, *addresses(keys, erased))
        return erased.astype(bool)

    def scan(self, most: int = 65536) -> Iterator[Tuple[numpy.ndarray, numpy.ndarray]]:
        """All rows, while others write: keys and rows, at most `most` of them at a time. A row that
        is there all the time comes once; a row that is written or erased meanwhile, once or not at
        all."""
        if most < 1:
            raise ValueError(f"scan of table '{self.table}': {most} rows at a time, expected 1 or "
                             "more")
        scan = ctypes.c_void_p()
        try:
            self._caller.call(library().tandem_scan_open, self._handle(), ctypes.byref(scan))
            keys = numpy.empty(most, dtype=numpy.int64)
            rows = numpy.empty((most, self.row_floats), dtype=numpy.float32)
            count = ctypes.c_int64()
            while self._handle() and self._caller.call(
                    library().tandem_scan_next, scan, *addresses(keys, rows), ctypes.byref(count)):
                yield keys[:count.value].copy(), rows[:count.value].copy()
        finally:
            self._caller.free(library().tandem_scan_free, scan)

    def close(self) -> None:
        """Closes the store, once no other call is in flight; the rows stay."""
        store, self._store = self._store, None
        if store is not None and os.getpid() == self._owner:
            self._caller.free(library().tandem_store_free, store)
            self._caller.end()
