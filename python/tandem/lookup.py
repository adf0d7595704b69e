"""Rows of batches that no loader has announced, so that a notebook can call its model between two
batches."""
from __future__ import annotations

import ctypes
from typing import Any

import torch

from tandem._abi import library
from tandem.sparse import BatchIds, FieldIds
from tandem.store import addresses, Caller
from tandem.tables import Table

_TIMEOUT_MS = 60_000


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
        """float32 [ids, dim]."""
        found, which = torch.unique(ids, return_inverse=True)
        rows = torch.empty(found.numel(), table.dim)
        self._caller.call(library().tandem_reader_read, self._reader, table.name.encode(),
                          *addresses(found.numpy(), rows.numpy()), _TIMEOUT_MS)
        return rows[which]

    def cells(self, table: Table, ids: BatchIds, unpooled: bool) -> torch.Tensor:
        """Cells as those of a batch at hand: [samples, fields, dim], or [ids, dim] of a table whose
        ids are cells."""
        if unpooled:
            rows = [self.rows(table, ids.fields[name].ids)
                    for name in table.fields if name in ids.fields]
            return torch.cat(rows or [torch.empty(0, table.dim)])
        cells = torch.zeros(ids.samples, len(table.fields), table.dim)
        for place, name in enumerate(table.fields):
            if name in ids.fields:
                self._pool(table, ids.fields[name], cells[:, place])
        return cells

    def _pool(self, table: Table, field: FieldIds, cells: torch.Tensor) -> None:
        rows, bounds = self.rows(table, field.ids), field.bounds()
        if field.weights is not None:
            rows = rows * field.weights.unsqueeze(1)
        sample = torch.repeat_interleave(torch.arange(len(bounds) - 1),
                                         bounds[1:] - bounds[:-1])
        cells.index_add_(0, sample, rows)

    def close(self) -> None:
        """Frees the reader, behind a call that was interrupted."""
        self._caller.free(library().tandem_reader_free, self._reader)
        self._caller.end()
