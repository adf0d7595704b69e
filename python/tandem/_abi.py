"""libtandem.so by ctypes: the functions of capi/tandem.h, tandem_group.h and tandem_store.h. Errors
are exceptions.

ctypes releases the interpreter lock during each call.
"""
from __future__ import annotations

import ctypes
import glob
import os
import sys
from ctypes import (POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int32,
                    c_int64, c_uint8, c_uint64, c_void_p)
from types import TracebackType
from typing import Any, Optional, Type, TypeVar

from tandem import _programs


class Error(RuntimeError):
    """The job, a peer or this worker has failed."""


class Diverged(Error):
    """A loss or a gradient is infinite or NaN."""


class Misuse(Error):
    """The script uses tandem incorrectly; a new attempt would fail in the same way."""


# Messages show the names that scripts use, such as tandem.Error.
for _kind in (Error, Diverged, Misuse):
    _kind.__module__ = "tandem"


class JoinOptions(Structure):
    _fields_ = [("size", c_uint64), ("job", c_char_p), ("set", POINTER(c_char_p)),
                ("scheduler", c_char_p), ("index", c_int32), ("bind", c_char_p),
                ("advertise", c_char_p), ("keeps_state", c_int32)]


class Request(Structure):
    _fields_ = [("kind", c_int32), ("step", c_int64), ("epoch", c_int64), ("samples", c_int64),
                ("first", c_int32), ("last", c_int32)]


class Field(Structure):
    _fields_ = [("ids", c_void_p), ("count", c_int64), ("stride", c_int64), ("offsets", c_void_p),
                ("weights", c_void_p)]


class GroupOptions(Structure):
    _fields_ = [("size", c_uint64), ("rank", c_int32), ("ranks", c_int32), ("host", c_char_p),
                ("link", c_char_p), ("deadline_ms", c_int64), ("reproducible", c_int32)]


class Launch(Structure):
    _fields_ = [("size", c_uint64), ("rank", c_int32), ("ranks", c_int32), ("one_host", c_int32),
                ("port", c_int32)]


F32, F64, F16, BF16, I32, I64, U8 = range(7)
CALLED_BOOL, CALLED_I8, CALLED_I16, CALLED_C64, CALLED_C128 = (256 * n for n in range(1, 6))
SUM, PRODUCT, MIN, MAX, AVERAGE, BIT_AND, BIT_OR, BIT_XOR = range(8)

NOTHING, BATCH, TEST_BATCH, COMPUTE, SCORE, UPDATE, STEP_DONE, END, STATE, VALIDATION_BATCH = \
    range(10)

ARROW_ID, ARROW_IDS, ARROW_RAW_IDS, ARROW_NUMBERS = range(1, 5)

NO_LOSS = float("-inf")

_WORKER = c_void_p
_GROUP = c_void_p
_COUNTS = POINTER(c_int64)  # one for each rank
_WORK = POINTER(c_int64)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "tandem_error": (c_char_p, []),
    "tandem_join": (c_int, [POINTER(JoinOptions), POINTER(_WORKER)]),
    "tandem_wait_joined": (c_int, [_WORKER, c_int64]),
    "tandem_rank": (c_int32, [_WORKER]),
    "tandem_world_size": (c_int32, [_WORKER]),
    "tandem_servers": (c_int32, [_WORKER]),
    "tandem_epochs": (c_int32, [_WORKER]),
    "tandem_batch": (c_int32, [_WORKER]),
    "tandem_test_batch": (c_int32, [_WORKER]),
    "tandem_prefetch_steps": (c_int32, [_WORKER]),
    "tandem_seed": (c_uint64, [_WORKER]),
    "tandem_dense_on_servers": (c_int32, [_WORKER]),
    "tandem_program_optimizer": (c_int32, [_WORKER]),
    "tandem_tables": (c_int32, [_WORKER]),
    "tandem_table_name": (c_char_p, [_WORKER, c_int32]),
    "tandem_table_dim": (c_int32, [_WORKER, c_int32]),
    "tandem_table_rate": (c_double, [_WORKER, c_int32]),
    "tandem_table_fields": (c_int32, [_WORKER, c_int32]),
    "tandem_field_name": (c_char_p, [_WORKER, c_int32, c_int32]),
    "tandem_start": (c_int, [_WORKER, c_int32, POINTER(c_char_p), POINTER(c_int32),
                             POINTER(c_int64), c_void_p]),
    "tandem_wait_started": (c_int, [_WORKER, c_int64]),
    "tandem_dense": (c_void_p, [_WORKER, POINTER(c_int64)]),
    "tandem_next": (c_int, [_WORKER, c_int64, POINTER(Request)]),
    "tandem_give": (c_int, [_WORKER, c_int64, POINTER(Field), POINTER(c_uint8)]),
    "tandem_rows": (c_int, [_WORKER, c_int32, c_void_p, c_int64]),
    "tandem_finish": (c_int, [_WORKER, c_double, POINTER(c_void_p), POINTER(c_int64), c_void_p,
                              c_float]),
    "tandem_skip": (c_int, [_WORKER]),
    "tandem_clip_norm": (c_int, [_WORKER, c_float]),
    "tandem_mean_gradient": (c_int, [_WORKER, c_void_p]),
    "tandem_updated": (c_int, [_WORKER]),
    "tandem_score": (c_int, [_WORKER, c_void_p, c_void_p, c_int64]),
    "tandem_checkpoint_state": (c_int, [_WORKER, c_char_p, c_int64]),
    "tandem_resumed_state": (c_int, [_WORKER, c_int32, POINTER(c_void_p), POINTER(c_int64),
                                   POINTER(c_int64)]),
    "tandem_initial_state": (c_int, [_WORKER, POINTER(c_void_p), POINTER(c_int64)]),
    "tandem_enter_barrier": (c_int, [_WORKER]),
    "tandem_wait_barrier": (c_int, [_WORKER, c_int64]),
    "tandem_enter_reduction": (c_int, [_WORKER, c_int32, POINTER(c_char_p), POINTER(c_double),
                                       c_int32, c_double, c_int64, c_int32]),
    "tandem_reduced": (c_int, [_WORKER, c_char_p, POINTER(c_double)]),
    "tandem_evaluation": (c_int, [_WORKER, c_int64, POINTER(c_char_p)]),
    "tandem_deciding_number": (c_char_p, [_WORKER]),
    "tandem_record": (c_int, [_WORKER, POINTER(c_char_p)]),
    "tandem_report": (c_int, [_WORKER, c_int32, POINTER(c_char_p), POINTER(c_double), c_int64,
                              c_int64]),
    "tandem_request_checkpoint": (c_int, [_WORKER, c_int64]),
    "tandem_request_end": (c_int, [_WORKER]),
    "tandem_rest": (c_int, [_WORKER]),
    "tandem_stopped": (c_int32, [_WORKER]),
    "tandem_writes_checkpoints": (c_int32, [_WORKER]),
    "tandem_fail": (None, [_WORKER, c_char_p]),
    "tandem_fail_diverged": (None, [_WORKER, c_char_p]),
    "tandem_fail_again": (None, [_WORKER, c_char_p]),
    "tandem_close": (c_int, [_WORKER]),
    "tandem_free": (None, [_WORKER]),
    "tandem_fail_at_exit": (c_int, []),
    "tandem_hash_ids": (c_int, [c_char_p, c_void_p, c_int64, c_void_p]),
    "tandem_hash_numbers": (c_int, [c_char_p, c_void_p, c_int64, c_void_p]),
    "tandem_hash_texts": (c_int, [c_char_p, c_char_p, c_void_p, c_int64, c_void_p]),
    "tandem_arrow_open": (c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "tandem_arrow_columns": (c_int32, [c_void_p]),
    "tandem_arrow_column": (c_char_p, [c_void_p, c_int32]),
    "tandem_arrow_read": (c_int, [c_void_p, c_int32, c_int32]),
    "tandem_arrow_next": (c_int, [c_void_p, c_int64, POINTER(c_int64)]),
    "tandem_arrow_skip": (c_int, [c_void_p, c_int64, POINTER(c_int64)]),
    "tandem_arrow_values": (c_int, [c_void_p, c_int32, POINTER(c_void_p), POINTER(c_int64),
                                    POINTER(c_void_p)]),
    "tandem_arrow_free": (None, [c_void_p]),
    "tandem_check_checkpoint": (c_int, [c_char_p]),
    "tandem_find_launch": (c_int, [POINTER(Launch)]),
    "tandem_group_open": (c_int, [POINTER(GroupOptions), POINTER(_GROUP)]),
    "tandem_group_address": (c_int, [_GROUP, POINTER(c_void_p), POINTER(c_int64)]),
    "tandem_group_connect": (c_int, [_GROUP, POINTER(c_void_p), _COUNTS, c_int64]),
    "tandem_group_wait_connected": (c_int, [_GROUP, c_int64]),
    "tandem_group_allreduce": (c_int, [_GROUP, c_void_p, c_void_p, c_int64, c_int32, c_int32,
                                       _WORK]),
    "tandem_group_reduce": (c_int, [_GROUP, c_void_p, c_void_p, c_int64, c_int32, c_int32, c_int32,
                                    _WORK]),
    "tandem_group_broadcast": (c_int, [_GROUP, c_void_p, c_int64, c_int32, c_int32, _WORK]),
    "tandem_group_allgather": (c_int, [_GROUP, c_void_p, c_void_p, _COUNTS, c_int32, _WORK]),
    "tandem_group_gather": (c_int, [_GROUP, c_void_p, c_void_p, _COUNTS, c_int32, c_int32, _WORK]),
    "tandem_group_scatter": (c_int, [_GROUP, c_void_p, c_void_p, _COUNTS, c_int32, c_int32, _WORK]),
    "tandem_group_reduce_scatter": (c_int, [_GROUP, c_void_p, c_void_p, _COUNTS, c_int32, c_int32,
                                            _WORK]),
    "tandem_group_alltoall": (c_int, [_GROUP, c_void_p, _COUNTS, c_void_p, _COUNTS, c_int32,
                                      _WORK]),
    "tandem_group_barrier": (c_int, [_GROUP, c_int64, _WORK]),
    "tandem_group_send": (c_int, [_GROUP, c_void_p, c_int64, c_int32, c_int64, c_int64, _WORK]),
    "tandem_group_receive": (c_int, [_GROUP, c_void_p, c_int64, c_int32, c_int64, c_int64, _WORK]),
    "tandem_group_send_elements": (c_int, [_GROUP, c_void_p, c_int64, c_int32, c_int32, c_int64,
                                           c_int64, _WORK]),
    "tandem_group_receive_elements": (c_int, [_GROUP, c_void_p, c_int64, c_int32, c_int32, c_int64,
                                              c_int64, _WORK]),
    "tandem_group_wait": (c_int, [_GROUP, c_int64, c_int64, POINTER(c_int32)]),
    "tandem_group_forget": (c_int, [_GROUP, c_int64]),
    "tandem_group_close": (c_int, [_GROUP]),
    "tandem_group_free": (None, [_GROUP]),
    "tandem_store_open": (c_int, [c_char_p, c_char_p, c_int64, POINTER(c_void_p)]),
    "tandem_store_dim": (c_int32, [c_void_p]),
    "tandem_store_extra_floats": (c_int32, [c_void_p]),
    "tandem_store_row_floats": (c_int32, [c_void_p]),
    "tandem_store_read": (c_int, [c_void_p, c_int64, c_void_p, c_void_p, c_void_p]),
    "tandem_store_assign": (c_int, [c_void_p, c_int64, c_void_p, c_void_p]),
    "tandem_store_insert": (c_int, [c_void_p, c_int64, c_void_p, c_void_p, c_void_p]),
    "tandem_store_erase": (c_int, [c_void_p, c_int64, c_void_p, c_void_p]),
    "tandem_store_free": (None, [c_void_p]),
    "tandem_reader_open": (c_int, [c_char_p, c_int64, POINTER(c_void_p)]),
    "tandem_reader_read": (c_int, [c_void_p, c_char_p, c_int64, c_void_p, c_void_p, c_int64]),
    "tandem_reader_free": (None, [c_void_p]),
    "tandem_scan_open": (c_int, [c_void_p, POINTER(c_void_p)]),
    "tandem_scan_next": (c_int, [c_void_p, c_int64, c_void_p, c_void_p, POINTER(c_int64)]),
    "tandem_scan_free": (None, [c_void_p]),
}


def _above(path: str, levels: int) -> str:
    for _ in range(levels):
        path = os.path.dirname(path)
    return path


def roots() -> list[str]:
    """Folders that may have lib/ and bin/: of a build (build/python is a link to the package's
    folder), of the source tree's build, of an installed Tandem, or of a wheel."""
    tree = _above(os.path.abspath(__file__), 3)        # of ROOT/python/tandem/_abi.py
    # PREFIX, if this file is PREFIX/share/tandem/python/tandem/_abi.py.
    prefix = _above(os.path.realpath(__file__), 5)
    wheel = os.path.join(_above(os.path.abspath(__file__), 1), "_prefix")
    return [tree, os.path.join(tree, "build"), prefix, wheel]


def _places() -> list[str]:
    """Paths at which the library may be."""
    told = os.environ.get("TANDEM_LIBRARY")
    if told:
        return [told]
    name = "libtandem.so"
    return [place for root in roots() for place in
            [os.path.join(root, "lib", name), os.path.join(root, "lib64", name),
             *sorted(glob.glob(os.path.join(root, "lib", "*", name)))]]


_library: Optional[ctypes.CDLL] = None


def library() -> ctypes.CDLL:
    """libtandem.so; the first call loads it."""
    global _library
    if _library is None:
        build = "build it (ninja -C build tandem_capi)"
        path = next((p for p in _places() if os.path.exists(p)), None)
        if path is None:
            raise ImportError(f"libtandem.so is not there; {build}, or say in TANDEM_LIBRARY where "
                              "it is; looked at: " + ", ".join(_places()))
        _programs.check_processor()
        found = ctypes.CDLL(path)
        for symbol, (result, arguments) in _FUNCTIONS.items():
            function = getattr(found, symbol, None)
            if function is None:
                raise ImportError(f"{path} is of another version than this package, without "
                                  f"{symbol}; {build}")
            function.restype, function.argtypes = result, arguments
        _library = found
    return _library


def check(code: int) -> int:
    """Returns the result of a function; -1 raises an Error with its text."""
    if code < 0:
        raise Error(library().tandem_error().decode("utf-8", "replace"))
    return code


def preload_blas() -> None:
    """Makes a torch that is imported later use OpenBLAS's OpenMP build. The threads of the pthread
    build, the system's default, would compete with torch's (see docs/HACKING.md)."""
    if "torch" in sys.modules:
        return
    for path in glob.glob("/usr/lib/*/openblas-openmp/libblas.so.3"):
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return


_Handle = TypeVar("_Handle", bound="Handle")


class Handle:
    """Something of the library that is closed by close(), at the end of a with statement, or when
    the object is no longer used."""

    def close(self) -> None:
        """Frees it; later calls do nothing."""
        raise NotImplementedError

    def __enter__(self: _Handle) -> _Handle:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except (AttributeError, TypeError):  # the interpreter is ending
            pass
