"""Saved models: tables as arrays mapped from their files, dense parameters by name."""
import json
import os
from dataclasses import dataclass

import numpy

_HEAD = numpy.dtype([("magic", "S4"), ("format", "<u4"), ("file_bytes", "<u8"), ("dim", "<u4"),
                     ("slots_per_row", "<u4"), ("rows", "<u8"), ("begin", "<u8"), ("end", "<u8"),
                     ("version", "<i8"), ("workers", "<u4"), ("table_bytes", "<u4"),
                     ("optimizer_bytes", "<u4"), ("zero", "<u4"), ("held_bytes", "<u8")])
_WORKER_BYTES = 32


@dataclass
class SavedTable:
    """One table: keys uint64 [rows], weights float32 [rows, dim], optimizer slots float32 [rows, slots],
    row i of each belonging to key i. Mapped from the file where the table has one, else joined."""
    name: str
    dim: int
    keys: numpy.ndarray
    weights: numpy.ndarray
    slots: numpy.ndarray


def _eight(n):
    return (n + 7) // 8 * 8


def _read_range(path):
    """One file of the layout in server/range_file.md: its name, keys, weights and slots."""
    size = os.path.getsize(path)
    data = numpy.memmap(path, dtype=numpy.uint8, mode="r")
    head = data[:_HEAD.itemsize].view(_HEAD)[0] if size >= _HEAD.itemsize else None
    if head is None or head["magic"] != b"TDRF" or head["format"] != 1:
        raise ValueError(f"{path}: no file of a saved table")
    if head["file_bytes"] != size:
        raise ValueError(f"{path}: {size} bytes, want {head['file_bytes']}: is the copy whole?")
    rows, dim, slots = int(head["rows"]), int(head["dim"]), int(head["slots_per_row"])
    names = _HEAD.itemsize + int(head["workers"]) * _WORKER_BYTES
    keys_at = _eight(names + int(head["table_bytes"]) + int(head["optimizer_bytes"]))
    weights_at = keys_at + 8 * rows
    slots_at = _eight(weights_at + 4 * rows * dim)
    if slots_at + 4 * rows * slots > size:
        raise ValueError(f"{path}: {rows} rows do not fit into {size} bytes")
    table = bytes(data[names:names + int(head["table_bytes"])]).decode()
    return (table, data[keys_at:weights_at].view("<u8"),
            data[weights_at:weights_at + 4 * rows * dim].view("<f4").reshape(rows, dim),
            data[slots_at:slots_at + 4 * rows * slots].view("<f4").reshape(rows, slots))


class Saved:
    """A whole save.

    tables: by name, SavedTable. dense: by name, float32 arrays. manifest: what the file MANIFEST says.
    """

    def __init__(self, folder):
        self.folder = folder
        with open(os.path.join(folder, "MANIFEST"), encoding="utf-8") as file:
            self.manifest = json.load(file)
        self.step = self.manifest["step"]
        pieces = {}
        for entry in self.manifest["files"]:
            name, keys, weights, slots = _read_range(os.path.join(folder, entry["name"]))
            pieces.setdefault(name, []).append((keys, weights, slots))
        join = lambda arrays: arrays[0] if len(arrays) == 1 else numpy.concatenate(arrays)
        self.tables = {}
        for table in self.manifest["tables"]:
            if table["name"] == "dense" or table["name"] not in pieces:
                continue
            keys, weights, slots = (join(list(part)) for part in zip(*pieces[table["name"]]))
            self.tables[table["name"]] = SavedTable(table["name"], weights.shape[1], keys, weights,
                                                    slots)
        self.dense = self._dense(pieces.get("dense", []))

    def _dense(self, pieces):
        blocks = {}
        for keys, weights, _ in pieces:
            for key, block in zip(keys, weights):
                blocks[int(key)] = block
        flat = numpy.concatenate([blocks[i] for i in range(len(blocks))]) if blocks else \
            numpy.empty(0, dtype=numpy.float32)
        dense, at = {}, 0
        for parameter in self.manifest["dense"]:
            size = int(numpy.prod(parameter["shape"], dtype=numpy.int64))
            dense[parameter["name"]] = flat[at:at + size].reshape(parameter["shape"])
            at += size
        return dense

    def state_dict(self):
        """The dense parameters as tensors by name, for module.load_state_dict(..., strict=False)."""
        import torch
        return {name: torch.from_numpy(numpy.array(values)) for name, values in self.dense.items()}

    def save_npz(self, path):
        """One .npz: TABLE.keys and TABLE.weights of each table, and the dense parameters by name."""
        arrays = dict(self.dense)
        for table in self.tables.values():
            arrays[table.name + ".keys"] = table.keys
            arrays[table.name + ".weights"] = table.weights
        numpy.savez(path, **arrays)


def load(path):
    """The save at `path`: a model folder, such as OUT/model, or one save in it."""
    latest = os.path.join(path, "LATEST")
    if os.path.exists(latest):
        with open(latest, encoding="utf-8") as file:
            return Saved(os.path.join(path, file.read().strip()))
    if not os.path.exists(os.path.join(path, "MANIFEST")):
        raise FileNotFoundError(f"{path}: no saved model, which has a file LATEST or MANIFEST; "
                                "is it the folder `model` of a run?")
    return Saved(path)
