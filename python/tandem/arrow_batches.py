"""Batches of a table: of a pandas, polars or pyarrow table, a DuckDB relation, or any other object
with __arrow_c_stream__."""
from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Union

import torch

from tandem import _abi
from tandem.arrow import ArrowStream, is_arrow, kind_of
from tandem.sparse import JaggedTensor
from tandem.tables import Tables

_INDEX = "__index_level_"  # pandas exports its index under such names


class ArrowSource:
    """The batches of `rows` rows of a source: a table, or a function that returns one, which is
    called for each epoch. A batch is a dict with a tensor for each column.

    columns: the names of those that are read; None: all. ids: "hashed" or "raw", or a dict from
    field to one of them; others are hashed.
    """

    def __init__(self, source: Any, tables: Tables[Any], rows: int,
                 columns: Optional[Iterable[str]],
                 ids: Union[str, Mapping[str, str]]) -> None:
        if rows < 1:
            raise ValueError(f"tandem.DataLoader: batch_size={rows}, expected 1 or more rows")
        if isinstance(columns, str):
            raise ValueError(f"tandem.DataLoader: columns={columns!r}, expected a list of names")
        self.source, self._tables, self.rows = source, tables, rows
        self._columns = None if columns is None else list(columns)
        by_field = ids if isinstance(ids, Mapping) else dict.fromkeys(tables.fields, ids)
        for field, how in by_field.items():
            if field not in tables.fields or how not in ("hashed", "raw"):
                raise ValueError(f"tandem.DataLoader: ids={ids!r}, expected \"hashed\", \"raw\", "
                                 f"or a dict from fields, of {tables.fields}, to one of these")
        self._raw = {field for field, how in by_field.items() if how == "raw"}

    @property
    def once(self) -> bool:
        """Whether the source can be read once only."""
        return hasattr(self.source, "__next__")

    def __iter__(self) -> ArrowBatches:
        return ArrowBatches(self)

    def __len__(self) -> int:
        return -(-len(self.source) // self.rows)

    def open(self) -> tuple[ArrowStream, dict[str, int]]:
        """A stream that reads the columns, and the columns by name."""
        source = self.source if is_arrow(self.source) else self.source()
        if not is_arrow(source):
            raise ValueError("tandem.DataLoader: its function has returned an object of type "
                             f"{kind_of(source)}, expected one with __arrow_c_stream__, such as a "
                             "DuckDB relation or a pyarrow.RecordBatchReader")
        stream = ArrowStream(source, f"tandem.DataLoader of {kind_of(source)}")
        try:
            return stream, self._places(stream)
        except BaseException:
            stream.close()
            raise

    def _places(self, stream: ArrowStream) -> dict[str, int]:
        names = [name for name in stream.columns if not name.startswith(_INDEX)] \
            if self._columns is None else self._columns
        places = {}
        for name in names:
            if name not in stream.columns:
                raise ValueError(f"{stream.what}: there is no column {name!r}; its columns are "
                                 f"{stream.columns}")
            places[name] = stream.columns.index(name)
            stream.read(places[name], self._kind(name))
        return places

    def _kind(self, name: str) -> int:
        if name not in self._tables.fields:
            return _abi.ARROW_NUMBERS
        return _abi.ARROW_RAW_IDS if name in self._raw else _abi.ARROW_IDS

    def ids_of(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The ids in a batch. ValueError: it has none."""
        found = {field: batch[field] for field in self._tables.loaded if field in batch}
        if not found:
            raise ValueError(f"which columns are ids? None of {list(batch)} is a field of the job; "
                             f"its fields are {self._tables.loaded}; give the columns these names, "
                             "or say features=FUNCTION to tandem.DataLoader")
        return found


class ArrowBatches:
    """An iterator over the batches. The stream is opened by the first batch, and released after the
    last one or an error."""

    def __init__(self, source: ArrowSource) -> None:
        self.source = source
        self._stream: Optional[ArrowStream] = None
        self._places: dict[str, int] = {}
        self._ended = False

    @property
    def kind(self) -> str:
        """The type of the source, for messages."""
        return kind_of(self.source.source)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        if self._advance(ArrowStream.next, self.source.rows) == 0:
            raise StopIteration
        assert self._stream is not None
        batch: dict[str, Any] = {}
        for name, place in self._places.items():
            values, offsets = self._stream.values(place)
            batch[name] = torch.from_numpy(values)
            if offsets is not None:
                batch[name] = JaggedTensor(batch[name], offsets=torch.from_numpy(offsets))
        return batch

    def skip(self, batches: int) -> int:
        """Passes over batches without making their ids. Returns how many there were."""
        rows = self.source.rows
        return -(-self._advance(ArrowStream.skip, batches * rows) // rows) if batches > 0 else 0

    def _advance(self, function: Callable[[ArrowStream, int], int], most: int) -> int:
        if self._ended:
            return 0
        if self._stream is None:
            self._stream, self._places = self.source.open()
        rows = function(self._stream, most)
        if rows == 0:
            self._ended = True
            self._stream.close()
        return rows
