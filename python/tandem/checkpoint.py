"""Checkpoints: tables as arrays mapped from their files, dense parameters by name, and both in the
formats of other programs."""
from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import struct
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Iterable, Iterator, Optional, Union

import numpy

from tandem._abi import Error, check, library
from tandem.tables import Table, Tables

if TYPE_CHECKING:
    import torch
    from tandem import serving as plain

_HEAD = numpy.dtype([("magic", "S4"), ("format", "<u4"), ("file_bytes", "<u8"), ("dim", "<u4"),
                     ("slots_per_row", "<u4"), ("rows", "<u8"), ("begin", "<u8"), ("end", "<u8"),
                     ("version", "<i8"), ("workers", "<u4"), ("table_bytes", "<u4"),
                     ("optimizer_bytes", "<u4"), ("zero", "<u4"), ("held_bytes", "<u8")])
_WORKER_BYTES = 32
_MANIFEST, _MANIFEST_FORMAT, _LATEST = "MANIFEST", 2, "LATEST"
_PROGRAM = "program-0.part"  # what the script of worker 0 has to find again
_TRIES = 32  # to open a checkpoint of a job that goes on saving: each loses a race against a whole checkpoint


@dataclass
class CheckpointRange:
    """A part of a table, mapped from its file: keys int64 [rows], weights float32 [rows, dim],
    optimizer slots float32 [rows, slots]; row i of each belongs to key i."""
    keys: numpy.ndarray
    weights: numpy.ndarray
    slots: numpy.ndarray


class CheckpointTable(Table):
    """One table. Besides name, dim and fields:

    keys: int64 [rows], as a script's ids are, in no order; weights: float32 [rows, dim]; slots: float32
    [rows, slots]. They are joined of its parts when they are first asked for; of a table that does not
    fit into memory, use the parts.
    parts: CheckpointRange each, mapped. rows: how many. initializer: of rows that it does not have.
    """

    def __init__(self, index: int, entry: dict[str, Any], parts: list[CheckpointRange], seed: int) -> None:
        super().__init__(index, entry["name"], int(entry["dim"]), entry["fields"])
        self.parts = parts
        self._joined: dict[str, numpy.ndarray] = {}
        self.rows = sum(len(part.keys) for part in parts)
        self.initializer = Initializer(entry["initializer"], seed, self.dim)

    def _join(self, what: str) -> numpy.ndarray:
        if what not in self._joined:
            parts = [getattr(part, what) for part in self.parts]
            self._joined[what] = parts[0] if len(parts) == 1 else numpy.concatenate(parts)
        return self._joined[what]

    @property
    def keys(self) -> numpy.ndarray:
        """int64 [rows]."""
        return self._join("keys")

    @property
    def weights(self) -> numpy.ndarray:
        """float32 [rows, dim]."""
        return self._join("weights")

    @property
    def slots(self) -> numpy.ndarray:
        """float32 [rows, slots]."""
        return self._join("slots")


# ---- initial values -----------------------------------------------------------------------------

_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    """Mix64 of base/hash.h."""
    x = ((x ^ x >> 30) * 0xbf58476d1ce4e5b9) & _MASK
    x = ((x ^ x >> 27) * 0x94d049bb133111eb) & _MASK
    return x ^ x >> 31


def _combine(a: int, b: int) -> int:
    """HashCombine of base/hash.h."""
    return _mix((a + 0x9e3779b97f4a7c15 + _mix((b + 0xd1b54a32d192ed03) & _MASK)) & _MASK)


def _hash_name(name: str) -> int:
    """HashName of base/hash.h."""
    h = 0xcbf29ce484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001b3) & _MASK
    return _mix(h)


class Initializer:
    """How a row begins that nobody has touched. kind: ZERO, CONSTANT, UNIFORM or NORMAL; scale; seed: of
    the table's rows (job/job.cc)."""

    def __init__(self, text: str, salt: int, dim: int) -> None:
        words = dict(re.findall(r"(\w+): *(\S+)", text))
        self.kind = words.get("kind", "INITIALIZER_UNSPECIFIED")
        self.scale = float(words.get("scale", 0))
        self.seed = _combine(salt, _hash_name("initial values"))
        if self.kind == "INITIALIZER_UNSPECIFIED":
            self.kind = "UNIFORM"
            self.scale = float(numpy.float32(1) / numpy.sqrt(numpy.float32(dim)))


# ---- files ------------------------------------------------------------------------------------

def _eight(n: int) -> int:
    return (n + 7) // 8 * 8


def _read_range(path: str) -> CheckpointRange:
    """One file of the layout in server/range_file.md."""
    size = os.path.getsize(path)
    data = numpy.memmap(path, dtype=numpy.uint8, mode="r")
    head = data[:_HEAD.itemsize].view(_HEAD)[0] if size >= _HEAD.itemsize else None
    if head is None or head["magic"] != b"TDRF" or head["format"] != 1:
        raise Error(f"{path}: no file of a saved table")
    rows, dim, slots = int(head["rows"]), int(head["dim"]), int(head["slots_per_row"])
    names = _HEAD.itemsize + int(head["workers"]) * _WORKER_BYTES
    keys_at = _eight(names + int(head["table_bytes"]) + int(head["optimizer_bytes"]))
    weights_at = keys_at + 8 * rows
    slots_at = _eight(weights_at + 4 * rows * dim)
    if head["file_bytes"] != size or slots_at + 4 * rows * slots > size:
        raise Error(f"{path}: {size} bytes, and {rows} rows of a file of {head['file_bytes']}: is the "
                    "copy whole?")
    return CheckpointRange(data[keys_at:weights_at].view("<i8"),
                      data[weights_at:weights_at + 4 * rows * dim].view("<f4").reshape(rows, dim),
                      data[slots_at:slots_at + 4 * rows * slots].view("<f4").reshape(rows, slots))


def _read_held(path: str) -> bytes:
    """Of such a file: the bytes behind the rows."""
    part, head = _read_range(path), numpy.fromfile(path, _HEAD, 1)[0]
    end = os.path.getsize(path) - 8  # of the checksum
    begin = end - _eight(int(head["held_bytes"]))
    if len(part.keys) or begin < _HEAD.itemsize:
        raise Error(f"{path}: no file of a worker")
    with open(path, "rb") as file:
        file.seek(begin)
        return file.read(int(head["held_bytes"]))


def _read_manifest(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, _MANIFEST)
    with open(path, encoding="utf-8") as file:
        try:
            manifest = json.load(file)
        except ValueError as error:
            raise Error(f"{path}: {error}: cut short?") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != _MANIFEST_FORMAT:
        raise Error(f"{path}: format {found}, this program reads {_MANIFEST_FORMAT}")
    return manifest


@contextlib.contextmanager
def _put_in_place(path: Union[str, os.PathLike[str]]) -> Iterator[BinaryIO]:
    """A file at PATH.tmp, which is at `path` afterwards if nothing goes wrong. A link stays a link to it, and its mode
    stays. A device, a FIFO and any other file at `path` is written into."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file:
            yield file
        return
    path = os.path.realpath(path)
    temporary = path + ".tmp"
    try:
        with open(temporary, "wb") as file:
            yield file
        if os.path.exists(path):
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


# ---- a checkpoint -----------------------------------------------------------------------------------

class Checkpoint(Tables[CheckpointTable]):
    """A whole checkpoint.

    tables: by name, CheckpointTable. dense: by name, float32 arrays. step: of the job. manifest: what the
    file MANIFEST says. folder: where it lies. verify: as in load(). An Error says which file is not as it was saved.
    """
    _WHO = "the checkpoint"

    def __init__(self, folder: str, verify: bool = True) -> None:
        if verify:
            check(library().tandem_check_checkpoint(os.fspath(folder).encode()))
        self.folder, self.manifest = folder, _read_manifest(folder)
        self.step: int = self.manifest["step"]
        parts: dict[str, list[CheckpointRange]] = {}
        dense_part: list[CheckpointRange] = []
        for entry in self.manifest["files"]:
            part = _read_range(os.path.join(folder, entry["name"]))
            # What else there is of the table `dense` has no rows, but what a fixed delay holds back.
            whose = dense_part if entry["name"] == "dense.part" else \
                parts.setdefault(entry["table"], [])
            whose.append(part)
        entries = [e for e in self.manifest["tables"] if e["name"] != "dense"]
        self._set_tables(CheckpointTable(i, e, parts.get(e["name"], []), int(e["salt"], 16))
                         for i, e in enumerate(entries))
        self.dense = self._read_dense(dense_part)

    def _read_dense(self, parts: list[CheckpointRange]) -> dict[str, numpy.ndarray]:
        """Blocks of the flat buffer, as rows by number."""
        order = [numpy.argsort(part.keys) for part in parts]
        flat = numpy.concatenate([part.weights[o].reshape(-1) for part, o in zip(parts, order)]) \
            if parts else numpy.empty(0, dtype=numpy.float32)
        dense, at = {}, 0
        for parameter in self.manifest["dense"]:
            size = int(numpy.prod(parameter["shape"], dtype=numpy.int64))
            if at + size > len(flat):
                raise Error(f"{self.folder}: {len(flat)} dense floats, and parameter "
                            f"{parameter['name']} ends at {at + size}")
            dense[parameter["name"]] = flat[at:at + size].reshape(parameter["shape"])
            at += size
        return dense

    def buffers(self) -> dict[str, torch.Tensor]:
        """The module's buffers as worker 0 had them, tensors by name; none of a job without a script."""
        from tandem.packing import unpack
        path = os.path.join(self.folder, _PROGRAM)
        if not any(entry["name"] == _PROGRAM for entry in self.manifest["files"]):
            return {}
        try:
            return unpack(_read_held(path))["buffers"]
        except (ValueError, KeyError, TypeError):  # of a program of another kind
            return {}

    def _read_tables(self) -> list[CheckpointTable]:
        """Those that the model reads: all but KEY_VALUE tables, which have no fields."""
        return [table for table in self._table_list if table.fields]

    def __repr__(self) -> str:
        return (f"Checkpoint({self.folder!r}, step={self.step}, tables={self._table_list}, "
                f"{len(self.dense)} dense parameters)")

    # ---- into PyTorch ----

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The dense parameters as float32 tensors by name, for module.load_state_dict(..., strict=False)."""
        import torch
        return {name: torch.from_numpy(numpy.array(values)) for name, values in self.dense.items()}

    def serving(self, model: Union[torch.nn.Module, Callable[[], torch.nn.Module]]) -> torch.nn.Module:
        """`model` as a module of plain PyTorch, with the rows and the dense parameters of this checkpoint, in
        evaluation mode: torch.jit.script(saved.serving(Ranker)).save("serve.pt").

        model: a module, of which a copy is made, or a class or function that makes one. Its
        EmbeddingBagCollection, EmbeddingBag and Embedding become those of tandem.serving; an id that
        the checkpoint has no row for gets the initial value that the servers would give it. An Error: tables or dense
        parameters of the module that are not as in the checkpoint.
        """
        from tandem.serving import serving
        return serving(self, model)

    def embedding_bag_collection(self, tables: Optional[Iterable[str]] = None,
                                 include_last_offset: Optional[bool] = None) -> plain.EmbeddingBagCollection:
        """A plain module in the place of tandem.EmbeddingBagCollection(tables, include_last_offset). tables: names; None:
        all."""
        from tandem.serving import EmbeddingBagCollection, CheckpointRows
        chosen = self._read_tables() if tables is None else [self._table_of(t)[0] for t in tables]
        return EmbeddingBagCollection(self._read_tables(), {t.name: CheckpointRows(t) for t in chosen}, include_last_offset)

    def embedding_bag(self, name: str, mode: str = "sum", include_last_offset: bool = False) -> plain.EmbeddingBag:
        """A plain module in the place of tandem.EmbeddingBag(name, mode)."""
        from tandem.serving import EmbeddingBag, CheckpointRows
        return EmbeddingBag(CheckpointRows(self._table_of(name)[0]), mode, include_last_offset)

    def embedding(self, name: str) -> plain.Embedding:
        """A plain module in the place of tandem.Embedding(name)."""
        from tandem.serving import Embedding, CheckpointRows
        return Embedding(CheckpointRows(self._table_of(name)[0]))

    # ---- into files of other programs ----

    def _arrays(self) -> list[tuple[str, str, tuple[int, ...], list[numpy.ndarray]]]:
        """(name, type, shape, pieces) of all that is exported; one piece at a time is in memory."""
        arrays: list[tuple[str, str, tuple[int, ...], list[numpy.ndarray]]]
        arrays = [(name, "<f4", values.shape, [values]) for name, values in self.dense.items()]
        for table in self._table_list:
            arrays.append((table.name + ".keys", "<i8", (table.rows,), [p.keys for p in table.parts]))
            arrays.append((table.name + ".weights", "<f4", (table.rows, table.dim),
                           [p.weights for p in table.parts]))
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

    def save_npz(self, path: Union[str, os.PathLike[str]]) -> None:
        """One .npz: TABLE.keys and TABLE.weights of each table, of KEY_VALUE tables TABLE.state, too, and the
        dense parameters by name."""
        with _put_in_place(path) as file:
            self._write_npz(file)

    def _write_npz(self, file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
            for name, kind, shape, pieces in self._arrays():
                with archive.open(name + ".npy", "w", force_zip64=True) as member:
                    numpy.lib.format.write_array_header_1_0(
                        member, {"descr": kind, "fortran_order": False, "shape": shape})
                    for piece in pieces:
                        member.write(piece.astype(kind, copy=False).tobytes())

    def save_safetensors(self, path: Union[str, os.PathLike[str]]) -> None:
        """One .safetensors with the arrays of save_npz; its metadata has the manifest as `tandem`."""
        with _put_in_place(path) as file:
            self._write_safetensors(file)

    def _write_safetensors(self, file: BinaryIO) -> None:
        at = 0
        header: dict[str, Any] = {"__metadata__": {"tandem": json.dumps(self.manifest)}}
        for name, kind, shape, pieces in self._arrays():
            size = sum(piece.nbytes for piece in pieces)
            header[name] = {"dtype": "F32" if kind == "<f4" else "I64", "shape": list(shape),
                            "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        file.write(struct.pack("<Q", len(text)) + text)
        for _, kind, _, pieces in self._arrays():
            for piece in pieces:
                file.write(piece.astype(kind, copy=False).tobytes())

    def save_parquet(self, folder: Union[str, os.PathLike[str]]) -> list[str]:
        """TABLE.parquet of each table, with the columns `key` and `weights` (a list of dim floats a
        row). Needs pyarrow. Returns the paths. What fails leaves the files that were there."""
        with contextlib.ExitStack() as files:
            return self._write_parquet(folder, files)

    def _write_parquet(self, folder: Union[str, os.PathLike[str]], files: contextlib.ExitStack) -> list[str]:
        """The files are in place once `files` ends."""
        try:
            import pyarrow
            import pyarrow.parquet
        except ModuleNotFoundError:
            raise ImportError("Parquet needs pyarrow (pip install pyarrow); save_npz and "
                              "save_safetensors need nothing") from None
        paths = []
        for table in self._table_list:
            schema = pyarrow.schema([("key", pyarrow.int64()),
                                     ("weights", pyarrow.list_(pyarrow.float32(), table.dim))])
            paths.append(os.path.join(folder, table.name + ".parquet"))
            file = files.enter_context(_put_in_place(paths[-1]))
            with pyarrow.parquet.ParquetWriter(file, schema) as writer:
                for part in table.parts:
                    weights = pyarrow.FixedSizeListArray.from_arrays(
                        pyarrow.array(part.weights.reshape(-1)), table.dim)
                    writer.write_table(pyarrow.table([pyarrow.array(part.keys), weights],
                                                     schema=schema))
        return paths


def _resolve(path: Union[str, os.PathLike[str]]) -> str:
    """The folder of the checkpoint at `path`, which may be that of the run."""
    of_run = os.path.join(path, "model")
    if any(os.path.exists(os.path.join(of_run, name)) for name in (_LATEST, _MANIFEST)):
        path = of_run
    latest = os.path.join(path, _LATEST)
    if os.path.exists(latest):
        with open(latest, encoding="utf-8") as file:
            return os.path.join(path, file.read().strip())
    if not os.path.exists(os.path.join(path, _MANIFEST)):
        raise FileNotFoundError(f"{path}: no checkpoint, which has a file LATEST or MANIFEST; "
                                "is it the folder of a run, made without --no-checkpoint?")
    return os.fspath(path)


def load(path: Union[str, os.PathLike[str]], verify: bool = True) -> Checkpoint:
    """The checkpoint at `path`: a run's folder OUT, its OUT/model, or one checkpoint in that.

    verify: all files are read once and must have the checksums that the manifest lists, so that what
    is damaged, or a mixture of two checkpoints, is refused with a tandem.Error that names the file. Without
    it a table is read only where it is looked at. FileNotFoundError: there is no checkpoint.
    """
    for left in reversed(range(_TRIES)):
        folder = _resolve(path)
        try:
            return Checkpoint(folder, verify)
        except (Error, OSError):
            # A job that checkpoints has named its next checkpoint in LATEST before it removes this one.
            if left == 0 or _resolve(path) == folder:
                raise
