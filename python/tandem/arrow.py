"""Streams of Arrow's C interface, as pandas, polars, pyarrow and DuckDB give them. Needs none of
these, and no torch."""
from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy

from tandem._abi import ARROW_NUMBERS, Handle, check, library

_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))


def is_arrow(source: Any) -> bool:
    """Whether it can be read as a stream of Arrow."""
    return hasattr(source, "__arrow_c_stream__")


def kind_of(source: Any) -> str:
    """The type of an object for messages, such as polars.DataFrame."""
    kind = type(source)
    return f"{kind.__module__.split('.')[0].strip('_')}.{kind.__name__}"


class ArrowStream(Handle):
    """An open stream of a source, which has __arrow_c_stream__. what: the source, for messages.
    columns: their names. Values are copies, so they stay when the stream is closed.

    ValueError: the source cannot be read, or a column not in this way. An Error: reading has
    failed.
    """

    def __init__(self, source: Any, what: str) -> None:
        self._handle: Any = None
        self.what = what
        self._kinds: dict[int, int] = {}
        self._rows = 0  # at hand
        capsule = source.__arrow_c_stream__()
        handle = ctypes.c_void_p()
        _check(library().tandem_arrow_open(_pointer_of(capsule, b"arrow_array_stream"),
                                           what.encode(), ctypes.byref(handle)))
        self._handle = handle
        self.columns = [library().tandem_arrow_column(handle, column).decode("utf-8", "replace")
                        for column in range(library().tandem_arrow_columns(handle))]

    def read(self, column: int, kind: int) -> None:
        """Reads the column of this number from the first row on. kind: _abi.ARROW_..."""
        _check(library().tandem_arrow_read(self._handle, column, kind))
        self._kinds[column] = kind

    def next(self, most: int) -> int:
        """Reads at most so many rows. Returns how many; 0: the end."""
        rows = ctypes.c_int64()
        check(library().tandem_arrow_next(self._handle, most, ctypes.byref(rows)))
        self._rows = rows.value
        return self._rows

    def skip(self, most: int) -> int:
        """As next, without values."""
        rows = ctypes.c_int64()
        check(library().tandem_arrow_skip(self._handle, most, ctypes.byref(rows)))
        return rows.value

    def values(self, column: int) -> tuple[numpy.ndarray, Optional[numpy.ndarray]]:
        """The values of a column in the rows at hand, int64 ids or float32 numbers; of a list also
        int64 offsets [rows + 1]."""
        values, count, offsets = ctypes.c_void_p(), ctypes.c_int64(), ctypes.c_void_p()
        check(library().tandem_arrow_values(self._handle, column, ctypes.byref(values),
                                            ctypes.byref(count), ctypes.byref(offsets)))
        numbers = self._kinds[column] == ARROW_NUMBERS
        out = _copy(values, count.value, numpy.float32 if numbers else numpy.int64)
        return out, _copy(offsets, self._rows + 1, numpy.int64) if offsets else None

    def close(self) -> None:
        """Releases the stream."""
        handle, self._handle = self._handle, None
        if handle is not None:
            library().tandem_arrow_free(handle)


def _check(code: int) -> None:
    if code < 0:
        raise ValueError(library().tandem_error().decode("utf-8", "replace"))


def _copy(address: ctypes.c_void_p, count: int, dtype: Any) -> numpy.ndarray:
    out = numpy.empty(count, dtype=dtype)
    ctypes.memmove(out.ctypes.data, address, out.nbytes)
    return out
