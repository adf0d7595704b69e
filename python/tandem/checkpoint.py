"""Checkpoints: tables as arrays mapped from their files, dense parameters by name, and both in the
formats of other programs."""
from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, Callable, Iterable, Optional, Union

import numpy

from tandem._abi import Error, check, library
from tandem.formats import arrays_of, put_in_place, write_npz, write_parquet, write_safetensors
from tandem.tables import (BFLOAT16, HEAD, HOT, TYPES, CatchUp, CheckpointRange, CheckpointTable,
                           Tables)

if TYPE_CHECKING:
    import torch
    from tandem import serving as plain

_HEAD = numpy.dtype([("magic", "S4"), ("format", "<u4"), ("file_bytes", "<u8"), ("dim", "<u4"),
                     ("slots_per_row", "<u4"), ("rows", "<u8"), ("begin", "<u8"), ("end", "<u8"),
                     ("version", "<i8"), ("workers", "<u4"), ("table_bytes", "<u4"),
                     ("optimizer_bytes", "<u4"), ("limited", "<u4"), ("held_bytes", "<u8")])
# The rest of the header of format 4. The header of format 3 ends behind `flags`, that of format 2
# behind `candidates`, and that of format 1 before it.
_MORE = numpy.dtype([("candidates", "<u8"), ("stamp", "<i8"), ("step_base", "<i8"),
                     ("row_type", "<u4"), ("state_type", "<u4"), ("numbers_per_row", "<u4"),
                     ("flags", "<u4"), ("hot_rows", "<u8"), ("hot_updates", "<u8"),
                     ("hot_type", "<u4"), ("unused", "<u4")])
_MORE_BYTES = {1: 0, 2: 8, 3: 40, 4: _MORE.itemsize}  # by format
_CANDIDATE = numpy.dtype([("key", "<i8"), ("count", "<u4"), ("age", "<u4")])
_WORKER_BYTES = 32
_MANIFEST, _LATEST = "MANIFEST", "LATEST"
_MANIFEST_FORMATS = (2, 3)
_PROGRAM = "program-0.part"  # the state of worker 0's script
# How often a checkpoint of a running job is opened. Each failed try has lost a race against the
# removal of a whole checkpoint.
_TRIES = 32


# ---- files ------------------------------------------------------------------------------------

def _eight(n: int) -> int:
    return (n + 7) // 8 * 8


def _map(path: str) -> numpy.ndarray:
    """The bytes of a file."""
    if os.path.getsize(path) == 0:  # which cannot be mapped
        raise Error(f"{path}: no bytes, expected a file of a checkpoint: is the copy whole?")
    return numpy.memmap(path, dtype=numpy.uint8, mode="r")


def _bytes_of(file: numpy.ndarray, path: str, entry: dict[str, Any]) -> numpy.ndarray:
    """The part of a mapped file that an entry of the manifest names."""
    begin, size = entry.get("offset", 0), entry.get("length", entry.get("bytes"))
    # Format 2 has a file for each range, and a segment has more bytes than its ranges.
    if begin + size > len(file):
        raise Error(f"{path}: {len(file)} bytes, and the manifest names {size} at offset {begin}: "
                    "is the copy whole?")
    return file[begin:begin + size]


def _values(data: numpy.ndarray, at: int, number: int, rows: int, columns: int) -> numpy.ndarray:
    """[rows, columns] values of type TYPES[number], mapped."""
    kind = TYPES[number]
    return data[at:at + kind.itemsize * rows * columns].view(kind).reshape(rows, columns)


def _read_range(path: str, data: numpy.ndarray, optimizer: str = "") -> CheckpointRange:
    """The bytes of a range file (layout: server/checkpoint/range_file.md). path: for errors.
    optimizer: `catch_up` of the table in the manifest."""
    size = len(data)
    head = data[:_HEAD.itemsize].view(_HEAD)[0] if size >= _HEAD.itemsize else None
    if head is None or head["magic"] != b"TDRF" or head["format"] not in _MORE_BYTES:
        raise Error(f"{path}: expected a file of a table in a checkpoint")
    head_bytes = _HEAD.itemsize + _MORE_BYTES[int(head["format"])]
    if size < head_bytes:
        raise Error(f"{path}: {size} bytes, and a head of {head_bytes}: is the copy whole?")
    more = numpy.zeros(1, _MORE)  # the rest of the head
    more.view(numpy.uint8)[:head_bytes - _HEAD.itemsize] = data[_HEAD.itemsize:head_bytes]
    row_type, state_type = int(more["row_type"][0]), int(more["state_type"][0])
    hot_type, hot_rows = int(more["hot_type"][0]), int(more["hot_rows"][0])
    with_heads = head["format"] == 4
    known = row_type < len(TYPES) - (0 if with_heads else 1) and hot_type < len(TYPES) - 1
    if not known or state_type > BFLOAT16 or more["flags"][0]:
        raise Error(f"{path}: rows of a type, or flags, of a later version of Tandem")
    # The table has admission or eviction.
    limited = bool(head["format"] == 2 or head["limited"])
    rows, dim, slots = int(head["rows"]), int(head["dim"]), int(head["slots_per_row"])
    candidates = int(more["candidates"][0])
    names = head_bytes + int(head["workers"]) * _WORKER_BYTES
    keys_at = _eight(names + int(head["table_bytes"]) + int(head["optimizer_bytes"]))
    heads_at = keys_at + 8 * rows
    weights_at = _eight(heads_at + (HEAD.itemsize * rows if with_heads else 0))
    numbers = int(more["numbers_per_row"][0])
    if numbers > slots:
        raise Error(f"{path}: {numbers} numbers a row of {slots} slots: is the copy whole?")
    if hot_rows > rows:
        raise Error(f"{path}: {hot_rows} hot rows of {rows}: is the copy whole?")
    hot_at = _eight(weights_at + TYPES[row_type].itemsize * (rows - hot_rows) * dim)
    slots_at = _eight(hot_at + TYPES[hot_type].itemsize * hot_rows * dim)
    numbers_at = _eight(slots_at + TYPES[state_type].itemsize * rows * (slots - numbers))
    ages_at = _eight(numbers_at + 4 * rows * numbers)
    candidates_at = _eight(ages_at + (4 * rows if limited else 0))
    end = candidates_at + _CANDIDATE.itemsize * candidates
    if head["file_bytes"] != size or end > size:
        raise Error(f"{path}: {size} bytes, and {rows} rows of a file of {head['file_bytes']}: is "
                    "the copy whole?")
    weights = _values(data, weights_at, row_type, rows - hot_rows, dim)
    heads = hot = None
    if with_heads:
        heads = data[heads_at:heads_at + HEAD.itemsize * rows].view(HEAD)
        hot = _values(data, hot_at, hot_type, hot_rows, dim)
        if numpy.count_nonzero(heads["updates"] == HOT) != hot_rows:
            raise Error(f"{path}: the heads of its rows do not name {hot_rows} hot rows: is the "
                        "copy whole?")
    slots_of = [_values(data, slots_at, state_type, rows, slots - numbers)]
    if numbers:
        slots_of.append(_values(data, numbers_at, 0, rows, numbers))
    ages = data[ages_at:ages_at + 4 * rows].view("<u4") if limited else None
    taken = int(more["stamp"][0] - more["step_base"][0])
    return CheckpointRange(data[keys_at:heads_at].view("<i8"), weights, slots_of, ages,
                           data[candidates_at:end].view(_CANDIDATE) if limited else None,
                           CatchUp(optimizer, taken) if optimizer else None, heads, hot)


def _read_held(path: str) -> bytes:
    """The bytes behind the rows of the file of a worker."""
    data = _map(path)
    part = _read_range(path, data)
    held = int(data[:_HEAD.itemsize].view(_HEAD)[0]["held_bytes"])
    begin = len(data) - 8 - _eight(held)  # before the checksum
    if len(part.keys) or begin < _HEAD.itemsize:
        raise Error(f"{path}: no file of a worker")
    return data[begin:begin + held].tobytes()


def _read_manifest(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, _MANIFEST)
    with open(path, encoding="utf-8") as file:
        try:
            manifest = json.load(file)
        except ValueError as error:
            raise Error(f"{path}: {error}: cut short?") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found not in _MANIFEST_FORMATS:
        raise Error(f"{path}: format {found}, this program reads {_MANIFEST_FORMATS}")
    return manifest


def _file_of(entry: dict[str, Any]) -> str:
    """The file of an entry of the manifest."""
    return entry["file"] if "file" in entry else entry["name"]


# ---- a checkpoint --------------------------------------------------------------------------------

class Checkpoint:
    """A whole checkpoint.

    tables: a CheckpointTable each, by name. dense: float32 arrays by name. step: of the job.
    manifest: the contents of the file MANIFEST. folder: its path. verify: as in load(). An Error
    names the file that is not as the job wrote it.
    """

    def __init__(self, folder: str, verify: bool = True) -> None:
        if verify:
            check(library().tandem_check_checkpoint(os.fsencode(folder)))
        self.folder, self.manifest = folder, _read_manifest(folder)
        self.step: int = self.manifest["step"]
        parts: dict[str, list[CheckpointRange]] = {}
        dense_part: list[CheckpointRange] = []
        mapped: dict[str, numpy.ndarray] = {}
        catch_up = {e["name"]: e.get("catch_up", "") for e in self.manifest["tables"]}
        for entry in self.manifest["files"]:
            name = _file_of(entry)
            path = os.path.join(folder, name)
            if name not in mapped:
                mapped[name] = _map(path)
            place = f"{path} at offset {entry['offset']}" if entry.get("offset") else path
            part = _read_range(place, _bytes_of(mapped[name], path, entry),
                               catch_up.get(entry["table"], ""))
            # Either rank 0 has written the dense parameters, or servers have, as rows of the table
            # `dense`.
            whose = dense_part if name == "dense.part" else \
                parts.setdefault(entry["table"], [])
            whose.append(part)
        entries = [e for e in self.manifest["tables"] if e["name"] != "dense"]
        self._tables = Tables("the checkpoint", (
            CheckpointTable(i, e, parts.get(e["name"], []), int(e["salt"], 16))
            for i, e in enumerate(entries)))
        self.tables: dict[str, CheckpointTable] = self._tables.by_name
        self.dense = self._read_dense(dense_part or parts.get("dense", []))

    def _read_dense(self, parts: list[CheckpointRange]) -> dict[str, numpy.ndarray]:
        """Blocks of the flat buffer, as rows by number."""
        flat = numpy.empty(0, dtype=numpy.float32)
        if parts:
            order = numpy.argsort(numpy.concatenate([part.keys for part in parts]))
            flat = numpy.concatenate([part.weights for part in parts])[order].reshape(-1)
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
        """The module's buffers on worker 0, tensors by name; empty for a job without a script."""
        from tandem.packing import unpack
        path = os.path.join(self.folder, _PROGRAM)
        if not any(_file_of(entry) == _PROGRAM for entry in self.manifest["files"]):
            return {}
        try:
            return unpack(_read_held(path))["buffers"]
        except (ValueError, KeyError, TypeError):  # of a program of another kind
            return {}

    def __repr__(self) -> str:
        return (f"Checkpoint({self.folder!r}, step={self.step}, tables={self._tables.all}, "
                f"{len(self.dense)} dense parameters)")

    # ---- into PyTorch ----

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The dense parameters as float32 tensors by name, for module.load_state_dict(...,
        strict=False)."""
        import torch
        return {name: torch.from_numpy(numpy.array(values)) for name, values in self.dense.items()}

    def serving(self, model: Union[torch.nn.Module, Callable[[], torch.nn.Module]]
                ) -> torch.nn.Module:
        """`model` as a module of plain PyTorch, with the rows and the dense parameters of this
        checkpoint, in evaluation mode: torch.jit.script(saved.serving(Ranker)).save("serve.pt").

        model: a module, which is copied, or a class or function that makes one. Modules of
        tandem.serving replace its EmbeddingBagCollection, EmbeddingBag and Embedding. An id without
        a row in the checkpoint gets the initial value that the servers would give it. An Error:
        tables or dense parameters of the module that are not as in the checkpoint.
        """
        from tandem.serving import serving
        return serving(self._tables, self.dense, self.buffers(), model)

    def embedding_bag_collection(self, tables: Optional[Iterable[str]] = None,
                                 include_last_offset: Optional[bool] = None
                                 ) -> plain.EmbeddingBagCollection:
        """A plain module in the place of tandem.EmbeddingBagCollection(tables,
        include_last_offset). tables: names; None: all."""
        from tandem.serving import EmbeddingBagCollection, CheckpointRows
        read = self._tables.with_fields
        chosen = read if tables is None else [self._tables.find(t)[0] for t in tables]
        return EmbeddingBagCollection(read, {t.name: CheckpointRows(t) for t in chosen},
                                      include_last_offset)

    def embedding_bag(self, name: str, mode: str = "sum", include_last_offset: bool = False
                      ) -> plain.EmbeddingBag:
        """A plain module in the place of tandem.EmbeddingBag(name, mode)."""
        from tandem.serving import EmbeddingBag, CheckpointRows
        return EmbeddingBag(CheckpointRows(self._tables.find(name)[0]), mode, include_last_offset)

    def embedding(self, name: str) -> plain.Embedding:
        """A plain module in the place of tandem.Embedding(name)."""
        from tandem.serving import Embedding, CheckpointRows
        return Embedding(CheckpointRows(self._tables.find(name)[0]))

    # ---- into files of other programs ----

    def save_npz(self, path: Union[str, os.PathLike[str]]) -> None:
        """One .npz with TABLE.keys and TABLE.weights of each table, TABLE.state of each KEY_VALUE
        table, and the dense parameters by name."""
        with put_in_place(path) as file:
            write_npz(file, arrays_of(self._tables.all, self.dense))

    def save_safetensors(self, path: Union[str, os.PathLike[str]]) -> None:
        """One .safetensors with the arrays of save_npz; its metadata has the manifest as
        `tandem`."""
        with put_in_place(path) as file:
            write_safetensors(file, arrays_of(self._tables.all, self.dense), self.manifest)

    def save_parquet(self, folder: Union[str, os.PathLike[str]]) -> list[str]:
        """TABLE.parquet of each table, with the columns `key` and `weights` (a list of dim floats a
        row). Needs pyarrow. Returns the paths. After an error the files are as they were."""
        with contextlib.ExitStack() as files:
            return write_parquet(folder, self._tables.all, files)


def _resolve(path: Union[str, os.PathLike[str]]) -> str:
    """The folder of the checkpoint at `path`, which may be the folder of the run."""
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
    """The checkpoint at `path`: a run's folder OUT, its OUT/model, or one checkpoint in it.

    verify: reads all files once and compares them with the checksums of the manifest. A damaged
    file, or a mixture of two checkpoints, is a tandem.Error that names the file. Without verify
    only the used parts of a table are read. FileNotFoundError: there is no checkpoint.
    """
    for left in reversed(range(_TRIES)):
        folder = _resolve(path)
        try:
            return Checkpoint(folder, verify)
        except (Error, OSError):
            # A running job names its next checkpoint in LATEST before it removes this one.
            if left == 0 or _resolve(path) == folder:
                raise
