"""Ids as Tandem's readers make them, so that Python can use a model that was trained on files."""
from __future__ import annotations

import datetime
import numbers
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy

from tandem._abi import ARROW_ID, check, library
from tandem.arrow import ArrowStream, is_arrow, kind_of

if TYPE_CHECKING:
    import torch

_ROWS_AT_ONCE = 1 << 16  # of a stream

_NCF_MOST = 2 ** 32 - 2  # as data/ncf.cc reads ids


def hash_ids(values: Any, field: str,
             format: str = "DELIMITED"  # pylint: disable=redefined-builtin
             ) -> numpy.ndarray:
    """The ids of `values` in the field of this name, as an int64 array of the same length. The
    reader of files of this format gives the same ids to the same cells.

    values: integers, texts or other contents of a column (a list, array, pandas column or tensor).
    A value has one id, whatever its type: 7, 7.0, numpy.uint8(7), "7" and b"7" are the cell `7`;
    True is `True`. None, NaN, NaT, pandas.NA and an empty text are a missing value. A number with a
    fraction has its shortest text.

    format: data.format of the job whose file readers the model is trained with. "DELIMITED" and
    "CRITEO" hash the text of a cell; "NCF" hashes the number. Ids of "LIBSVM" files are the numbers
    themselves.

    ValueError: values of more than one dimension, dates and times, a format that hashes nothing, or
    for "NCF" a value that is no number of an NCF file.
    """
    name = field.encode()
    values = _array(_from_tensor(values))
    if values.ndim != 1:
        raise ValueError(f"hash_ids of field '{field}': values of shape {values.shape}, expected "
                         "one dimension")
    if format not in ("DELIMITED", "CRITEO", "NCF"):
        hint = "; ids of LIBSVM files are the numbers themselves" if format == "LIBSVM" else ""
        raise ValueError(f"hash_ids of field '{field}': format {format!r}, expected \"DELIMITED\", "
                         f"\"CRITEO\" or \"NCF\"{hint}")
    if values.dtype.kind in "Mm" or (values.dtype.kind == "O" and any(map(_is_time, values))):
        raise ValueError(f"hash_ids of field '{field}': dates and times have no text of their own; "
                         "make it as it is in the data's files, in pandas "
                         "column.dt.strftime(\"%Y-%m-%d\")")
    whole, missing = _whole_numbers(values)
    if format == "NCF":
        whole = _ncf_numbers(values if whole is None or missing is not None else whole, field)
        missing = None
    if whole is not None:
        out = numpy.empty(len(whole), dtype=numpy.int64)
        function = library().tandem_hash_numbers if format == "NCF" else library().tandem_hash_ids
        check(function(name, whole.ctypes.data, len(whole), out.ctypes.data))
        if missing is not None:
            out[missing] = _hash_cells(name, [b""])
        return out
    listed = values.tolist() if values.dtype.kind in "bOSU" else values
    return _hash_cells(name, [_cell(value) for value in listed])


def _hash_cells(name: bytes, cells: list[bytes]) -> numpy.ndarray:
    out = numpy.empty(len(cells), dtype=numpy.int64)
    offsets = numpy.zeros(len(cells) + 1, dtype=numpy.int64)
    numpy.cumsum([len(cell) for cell in cells], out=offsets[1:])
    check(library().tandem_hash_texts(name, b"".join(cells), offsets.ctypes.data, len(cells),
                                      out.ctypes.data))
    return out


def _array(values: Any) -> numpy.ndarray:
    """An array of `values`. numpy would convert mixed types of a list (a 7 and a text, an integer
    and a NaN) to one; they become objects."""
    if isinstance(values, numpy.ma.MaskedArray):
        return _without_masked(values)
    dtype = getattr(values, "dtype", numpy.dtype(object))
    if hasattr(values, "isna") and not isinstance(dtype, numpy.dtype):
        return _of_pandas(values)
    if hasattr(values, "__array__") or isinstance(values, (str, bytes)) or \
            not hasattr(values, "__iter__"):
        return numpy.asarray(values)
    values = [_from_tensor(value[()] if isinstance(value, numpy.ndarray) else value)
              for value in values]
    values = [None if value is numpy.ma.masked else value for value in values]
    if any(isinstance(value, (list, tuple, numpy.ndarray)) for value in values):
        return numpy.asarray(values)
    array = numpy.empty(len(values), dtype=object)
    array[:] = values
    return array


def _without_masked(values: numpy.ma.MaskedArray) -> numpy.ndarray:
    """None in masked places. The others stay numpy's own, because only a float32 knows its shortest
    text."""
    known = ~numpy.ma.getmaskarray(values)
    if known.all() or values.dtype.kind in "Mm":  # dates are refused by their type
        return values.data
    array = numpy.full(values.shape, None, dtype=object)
    array[known] = list(values.data[known])
    return array


def _of_pandas(values: Any) -> numpy.ndarray:
    """A column of a type that numpy does not have. numpy.asarray may convert integers with missing
    ones (nullable ones since pandas 2.2, categories) to 64-bit floats, and 32-bit floats to
    Python's: both have other texts."""
    numbers_of = getattr(values.dtype, "numpy_dtype", None)  # of nullable numbers
    if numbers_of is None and getattr(values.dtype, "categories", None) is not None:
        numbers_of = values.dtype.categories.dtype
    kind = getattr(numbers_of, "kind", "")
    if kind == "f" and hasattr(values.dtype, "numpy_dtype"):
        return values.to_numpy(dtype=numbers_of, na_value=numpy.nan)
    some_missing = kind in ("i", "u") and values.isna().any()
    return numpy.asarray(values.astype(object) if some_missing else values)


def _from_tensor(value: Any) -> Any:
    """The array of a tensor, or its number if it has no dimensions. Returns others unchanged."""
    if not hasattr(value, "detach"):
        return value
    value = value.detach().cpu()
    return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()[()]


def _whole_numbers(values: numpy.ndarray
                   ) -> tuple[Optional[numpy.ndarray], Optional[numpy.ndarray]]:
    """The values as int64, and where one is missing (None: nowhere); Nones: not all are whole
    numbers of 64 bits."""
    kind = values.dtype.kind
    if kind == "i" or (kind == "u" and values.dtype.itemsize < 8):
        return numpy.ascontiguousarray(values, dtype=numpy.int64), None
    if kind != "f" or values.dtype.itemsize > 8:
        return None, None
    missing = numpy.isnan(values)
    known = numpy.where(missing, 0, values)
    if not numpy.all((numpy.abs(known) < 2.0 ** 63) & (known == numpy.trunc(known))):
        return None, None
    return known.astype(numpy.int64), missing if missing.any() else None


def _ncf_numbers(values: numpy.ndarray, field: str) -> numpy.ndarray:
    """The values as int64. ValueError: one that the reader of NCF files refuses."""
    if values.dtype == numpy.int64:
        wrong = [str(value) for value in values[(values < 0) | (values > _NCF_MOST)][:1]]
    else:
        cells = [_cell(value) for value in values]
        wrong = [cell.decode(errors="replace") for cell in cells
                 if not cell.isdigit() or int(cell) > _NCF_MOST][:1]
    if wrong:
        raise ValueError(f"hash_ids of field '{field}': users and items of an NCF file: expected "
                         f"whole numbers from 0 to {_NCF_MOST}, got "
                         f"{repr(wrong[0]) if wrong[0] else 'a missing value'}")
    return values if values.dtype == numpy.int64 else \
        numpy.array([int(cell) for cell in cells], dtype=numpy.int64)


def _is_time(value: Any) -> bool:
    kinds = (datetime.datetime, datetime.timedelta, numpy.datetime64, numpy.timedelta64)
    return isinstance(value, kinds) and value == value


def _cell(value: Any) -> bytes:
    """The text of a value in a file; empty: it is missing."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if value is None or type(value).__name__ in ("NAType", "NaTType") or value != value:
        return b""
    if isinstance(value, (bool, numpy.bool_)):
        return str(bool(value)).encode()
    if isinstance(value, numbers.Real) or type(value).__name__ == "Decimal":
        try:
            if int(value) == value:
                return str(int(value)).encode()
        except OverflowError:  # infinite
            pass
    return str(value).encode()


def hash_columns(frame: Any) -> Union[torch.Tensor, numpy.ndarray]:
    """The ids of a table's columns, each a field of its own: int64 [rows, columns], a tensor if
    torch is there. frame: a pandas frame, or any object with __arrow_c_stream__: of polars, pyarrow
    or DuckDB, none of which is needed.

    Cells are those of a DELIMITED file, as for hash_ids: whole numbers in a column that pandas has
    made float (some are missing) keep their ids. If the text of a number matters ("007", "7.50"),
    read such columns as text, in pandas with dtype=str. ValueError: two columns of one name, dates
    or times, whose text in a file is not known here, or lists."""
    ids = _of_stream(frame) if is_arrow(frame) and not hasattr(frame, "iloc") else _of_frame(frame)
    try:
        import torch
    except ModuleNotFoundError:
        return ids
    return torch.from_numpy(ids)


def _of_frame(frame: Any) -> numpy.ndarray:
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice) > 0:
        raise ValueError(f"hash_columns: there are several columns {str(twice[0])!r}; a field has "
                         "one")
    columns = [hash_ids(frame[name].array if frame[name].dtype.kind in "biuf" else
                        frame[name].astype(object).to_numpy(), str(name)) for name in frame.columns]
    return numpy.stack(columns, 1) if columns else numpy.empty((len(frame), 0), dtype=numpy.int64)


def _of_stream(frame: Any) -> numpy.ndarray:
    with ArrowStream(frame, f"hash_columns of {kind_of(frame)}") as stream:
        columns = range(len(stream.columns))
        for column in columns:
            stream.read(column, ARROW_ID)
        parts = [numpy.empty((0, len(columns)), dtype=numpy.int64)]
        while columns and stream.next(_ROWS_AT_ONCE) > 0:
            parts.append(numpy.stack([stream.values(column)[0] for column in columns], 1))
    return numpy.concatenate(parts)
