"""Files of other programs with the contents of a checkpoint: .npz, .safetensors, Parquet."""
from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import struct
import zipfile
from typing import Any, BinaryIO, Iterable, Iterator, Union

import numpy

from tandem._abi import Error
from tandem.tables import CheckpointTable

Path = Union[str, os.PathLike]
Array = tuple[str, str, tuple[int, ...], Iterable[numpy.ndarray]]  # name, type, shape, pieces


@contextlib.contextmanager
def put_in_place(path: Path) -> Iterator[BinaryIO]:
    """A file at PATH.tmp, which replaces the file at `path` after the block, if the block raises
    nothing. A link stays a link to the file, and its mode stays. A device, a FIFO and any other
    special file at `path` is written into."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file:
            yield file
        return
    path = os.path.realpath(path)
    temporary = path + ".tmp"
    with contextlib.suppress(FileNotFoundError):  # a crash can have left one
        os.remove(temporary)
    try:
        with open(temporary, "xb") as file:  # never through a link of another user
            yield file
        if os.path.exists(path):
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


def arrays_of(tables: Iterable[CheckpointTable], dense: dict[str, numpy.ndarray]) -> list[Array]:
    """The arrays to export, in pieces: one piece at a time is in memory, and a piece is read once.
    An Error: two arrays have
    one name."""
    arrays: list[Array]
    arrays = [(name, "<f4", values.shape, [values]) for name, values in dense.items()]
    for table in tables:
        arrays.append((table.name + ".keys", "<i8", (table.rows,), [p.keys for p in table.parts]))
        arrays.append((table.name + ".weights", "<f4", (table.rows, table.dim),
                       (p.weights for p in table.parts)))
        if not table.fields and table.parts:  # what programs keep in the rest of a row
            width = table.parts[0].slots.shape[1]
            arrays.append((table.name + ".state", "<f4", (table.rows, width),
                           [p.slots for p in table.parts]))
    names = [name for name, _, _, _ in arrays]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise Error(f"a dense parameter and an array of a table are both called {twice[0]}; save "
                    "saved.dense and saved.tables into files of their own")
    return arrays


def write_npz(file: BinaryIO, arrays: Iterable[Array]) -> None:
    """Writes an .npz."""
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, kind, shape, pieces in arrays:
            with archive.open(name + ".npy", "w", force_zip64=True) as member:
                numpy.lib.format.write_array_header_1_0(
                    member, {"descr": kind, "fortran_order": False, "shape": shape})
                for piece in pieces:
                    member.write(piece.astype(kind, copy=False).tobytes())


def write_safetensors(file: BinaryIO, arrays: Iterable[Array], manifest: dict[str, Any]) -> None:
    """Writes a .safetensors; its metadata has the manifest as `tandem`."""
    at, arrays = 0, list(arrays)
    header: dict[str, Any] = {"__metadata__": {"tandem": json.dumps(manifest)}}
    for name, kind, shape, _ in arrays:
        size = math.prod(shape) * numpy.dtype(kind).itemsize
        header[name] = {"dtype": "F32" if kind == "<f4" else "I64", "shape": list(shape),
                        "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for _, kind, _, pieces in arrays:
        for piece in pieces:
            file.write(piece.astype(kind, copy=False).tobytes())


def write_parquet(folder: Path, tables: Iterable[CheckpointTable],
                  files: contextlib.ExitStack) -> list[str]:
    """Writes TABLE.parquet of each table. Returns the paths; the files are in place once `files`
    ends."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise ImportError("Parquet needs pyarrow (pip install pyarrow); save_npz and "
                          "save_safetensors need nothing") from None
    paths = []
    for table in tables:
        schema = pyarrow.schema([("key", pyarrow.int64()),
                                 ("weights", pyarrow.list_(pyarrow.float32(), table.dim))])
        paths.append(os.path.join(folder, table.name + ".parquet"))
        file = files.enter_context(put_in_place(paths[-1]))
        with pyarrow.parquet.ParquetWriter(file, schema) as writer:
            for part in table.parts:
                weights = pyarrow.FixedSizeListArray.from_arrays(
                    pyarrow.array(part.weights.reshape(-1)), table.dim)
                writer.write_table(pyarrow.table([pyarrow.array(part.keys), weights],
                                                 schema=schema))
    return paths
