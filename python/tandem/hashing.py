"""Ids as Tandem's readers make them, so that a model of a job over files can go on in Python."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

import numpy

from tandem._abi import check, library

if TYPE_CHECKING:
    import pandas
    import torch


def hash_ids(values: Any, field: str) -> numpy.ndarray:
    """The ids of `values` in the field of this name, as an int64 array of the same length.

    values: integers (a list, numpy array or tensor) or texts. Texts are hashed as a reader hashes a
    cell of a file; None, NaN and an empty text are the id of a missing value. ValueError: values of more
    than one dimension.
    """
    name = field.encode()
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    values = numpy.asarray(values)
    out = numpy.empty(values.shape, dtype=numpy.int64)
    if values.ndim != 1:
        raise ValueError(f"hash_ids of field '{field}': values of shape {values.shape}, want one "
                         "dimension")
    if numpy.issubdtype(values.dtype, numpy.integer):
        ids = numpy.ascontiguousarray(values, dtype=numpy.int64)
        check(library().tandem_hash_ids(name, ids.ctypes.data, len(ids), out.ctypes.data))
        return out
    texts = ["" if v is None or v != v else str(v) for v in values.tolist()]
    encoded = [t.encode() for t in texts]
    offsets = numpy.zeros(len(encoded) + 1, dtype=numpy.int64)
    numpy.cumsum([len(e) for e in encoded], out=offsets[1:])
    check(library().tandem_hash_texts(name, b"".join(encoded), offsets.ctypes.data, len(encoded),
                                      out.ctypes.data))
    return out


def hash_columns(frame: pandas.DataFrame) -> Union[torch.Tensor, numpy.ndarray]:
    """The ids of a pandas frame's columns, each a field of its own: int64 [rows, columns], a tensor if
    torch is there. A cell is hashed by its text, as in a DELIMITED file: read such columns with
    dtype=str, so that 7 does not become 7.0."""
    columns = [hash_ids(frame[name].astype(object).where(frame[name].notna(), None)
                        .map(lambda v: v if v is None else str(v)).to_numpy(dtype=object), str(name))
               for name in frame.columns]
    ids = numpy.stack(columns, 1) if columns else numpy.empty((len(frame), 0), dtype=numpy.int64)
    try:
        import torch
    except ModuleNotFoundError:
        return ids
    return torch.from_numpy(ids)
