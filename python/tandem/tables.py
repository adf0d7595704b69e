"""What tables there are, of a job or of a checkpoint: their names, dims and fields."""
from __future__ import annotations

from typing import Generic, Iterable, Optional, TypeVar


class Table:
    """name; dim: floats a row; fields: the names of those that read it."""

    def __init__(self, index: int, name: str, dim: int, fields: Iterable[str]) -> None:
        self.index, self.name, self.dim, self.fields = index, name, dim, tuple(fields)

    def __repr__(self) -> str:
        return f"Table({self.name!r}, dim={self.dim}, fields={list(self.fields)})"


_Kind = TypeVar("_Kind", bound=Table)


class Tables(Generic[_Kind]):
    """tables: by name. What the modules of tandem.nn are made for."""
    _WHO: str  # in errors

    def _set_tables(self, tables: Iterable[_Kind]) -> None:
        self._table_list = list(tables)
        self.tables = {table.name: table for table in self._table_list}
        self._fields = [f for table in self._table_list for f in table.fields]
        self._unpooled: set[str] = set()  # tables whose ids are cells of their own
        self._last_offsets: dict[str, bool] = {}  # by field: include_last_offset, where a module has said so

    def _table_of(self, name: str) -> tuple[_Kind, Optional[int]]:
        """The table of this name, or that of the field; and the field's place in it, or None. ValueError: neither
        is there."""
        for table in self._table_list:
            if name in table.fields:
                return table, table.fields.index(name)
        for table in self._table_list:
            if name == table.name:
                return table, None
        raise ValueError(f"{self._WHO} has no table or field {name!r}; its tables are "
                         + ", ".join(repr(t) for t in self._table_list))
