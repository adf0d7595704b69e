"""Rows of batches that no loader has announced, so that a notebook can call its model between two
batches."""
from __future__ import annotations

import ctypes
from typing import Any

import torch

from tandem._abi import library
from tandem.sparse import BatchIds
from tandem.store import addresses, Caller
from tandem.tables import Table

_TIMEOUT_MS = 60_000
_BLOCK = 1 << 16  # rows


class Lookup:
    """Reads rows as they are on the servers at the moment; an untrained row has its initial value.
    scheduler: of the job, which has begun."""

    def __init__(self, scheduler: str) -> None:
        self._reader: Any = ctypes.c_void_p()
        self._caller = Caller()
        try:
            self._caller.call(library().tandem_reader_open, scheduler.encode(), _TIMEOUT_MS,
                              ctypes.byref(self._reader))
        except BaseException:
            self.close()
            raise

    def rows(self, table: Table, ids: torch.Tensor) -> torch.Tensor:
        """float32 [ids, dim], read in blocks."""
        found, which = torch.unique(ids, return_inverse=True)
        rows = torch.empty(found.numel(), table.dim)
        for keys, values in zip(found.split(_BLOCK), rows.split(_BLOCK)):
            self._caller.call(library().tandem_reader_read, self._reader, table.name.encode(),
                              *addresses(keys.numpy(), values.numpy()), _TIMEOUT_MS)
        return rows[which]

    def cells(self, table: Table, ids: BatchIds, unpooled: bool) -> torch.Tensor:
        """Cells as those of a batch at hand: [samples, fields, dim], or [ids, dim] of a table whose
        ids are cells."""
        fields = [ids.rows(name) for name in table.fields]
        if unpooled:
            return torch.cat([torch.empty(0, table.dim),
                              *[self.rows(table, field.ids) for field in fields if field]])
        return torch.stack([field.pooled(self.rows(table, field.ids)) if field else
                            torch.zeros(ids.samples, table.dim) for field in fields], 1)

    def close(self) -> None:
        """Frees the reader, behind a call that was interrupted."""
        self._caller.free(library().tandem_reader_free, self._reader)
        self._caller.end()
