"""Streams of Arrow's C interface, made by hand from Python values: for tests without pyarrow."""
import ctypes
import struct
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p


class Schema(Structure):
    pass


class Array(Structure):
    pass


class Stream(Structure):
    pass


_RELEASE = [CFUNCTYPE(None, POINTER(kind)) for kind in (Schema, Array, Stream)]
Schema._fields_ = [("format", c_char_p), ("name", c_char_p), ("metadata", c_char_p),
                   ("flags", c_int64), ("n_children", c_int64),
                   ("children", POINTER(POINTER(Schema))), ("dictionary", POINTER(Schema)),
                   ("release", _RELEASE[0]), ("private_data", c_void_p)]
Array._fields_ = [("length", c_int64), ("null_count", c_int64), ("offset", c_int64),
                  ("n_buffers", c_int64), ("n_children", c_int64), ("buffers", POINTER(c_void_p)),
                  ("children", POINTER(POINTER(Array))), ("dictionary", POINTER(Array)),
                  ("release", _RELEASE[1]), ("private_data", c_void_p)]
Stream._fields_ = [("get_schema", CFUNCTYPE(c_int, POINTER(Stream), POINTER(Schema))),
                   ("get_next", CFUNCTYPE(c_int, POINTER(Stream), POINTER(Array))),
                   ("get_last_error", CFUNCTYPE(c_void_p, POINTER(Stream))),
                   ("release", _RELEASE[2]), ("private_data", c_void_p)]

_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, c_char_p, c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi))
# How struct packs the values of a format.
_PACKED = {b"c": "b", b"C": "B", b"s": "h", b"S": "H", b"i": "i", b"I": "I", b"l": "q", b"L": "Q",
           b"e": "e", b"f": "f", b"g": "d", b"tdD": "i", b"tsu:UTC": "q", b"tDs": "q"}

_ALIVE = []  # tables with streams, whose functions may still be called


def _bits(values):
    out = bytearray(len(values) // 8 + 1)
    for place, value in enumerate(values):
        out[place // 8] |= bool(value) << (place % 8)
    return bytes(out)


class Column:
    """A column. values: None is a null. The first `offset` cells of its arrays are no part of it.
    format: of Arrow; a list has `items`, a dictionary `entries`: Columns without values, or its
    values."""

    def __init__(self, name, format, values, offset=0, items=None, entries=None):
        self.name, self.format, self.values = name.encode(), format.encode(), list(values)
        self.offset, self.items, self.entries = offset, items, entries

    def part(self, begin, end):
        return Column(self.name.decode(), self.format.decode(), self.values[begin:end], self.offset,
                      self.items, self.entries)


class Table:
    """Has __arrow_c_stream__: batches of so many rows each. fails: with this text after the last
    batch. opened, released: streams; live: schemas and arrays that were not released."""

    def __init__(self, columns, rows=3, fails=None):
        self.columns, self.rows, self.fails = columns, rows, fails
        self.opened = self.released = self.live = 0
        self._kept = []     # functions and structs of streams
        self._buffers = []  # of the array that is made

    def __len__(self):
        return len(self.columns[0].values)

    # ---- structs, which live until they are released ----

    def _until_released(self, out, place, kept, buffers):
        """Sets out.release, which forgets `kept` and overwrites the buffers."""
        self.live += 1

        def release(address):
            self.live -= 1
            kept.clear()
            for buffer in buffers:
                ctypes.memset(buffer, 0xff, len(buffer))
            ctypes.memset(address, 0, ctypes.sizeof(type(out)))

        out.release = _RELEASE[place](release)
        self._kept.append((out.release, release))

    def _schema(self, out, format, name, children=(), dictionary=None):
        out.format, out.name, out.flags = format, name, 2
        kept = [out.format, out.name]
        parts = [Schema() for _ in children]
        for part, column in zip(parts, children):
            kept.append(self._schema_of(part, column))
        out.n_children = len(parts)
        out.children = (POINTER(Schema) * len(parts))(*map(ctypes.pointer, parts))
        if dictionary is not None:
            inner = Schema()
            kept.append(self._schema_of(inner, dictionary))
            out.dictionary = ctypes.pointer(inner)
            kept.append(inner)
        return kept + [parts, out.children]

    def _schema_of(self, out, column):
        return self._schema(out, column.format, column.name,
                            [column.items] if column.items else [], column.entries)

    def _array_of(self, out, column):
        values, kept = column.values, []
        cells = [None] * column.offset + values
        out.length, out.offset, out.null_count = len(values), column.offset, values.count(None)
        buffers = [_bits([value is not None for value in cells]) if None in values else None]
        of_format, children = column.format, []
        if column.entries is not None:
            inner = Array()
            kept += [self._array_of(inner, column.entries), inner]
            out.dictionary = ctypes.pointer(inner)
        if of_format in _PACKED:
            buffers.append(b"".join(struct.pack("=" + _PACKED[of_format], value or 0)
                                    for value in cells))
        elif of_format == b"b":
            buffers.append(_bits(cells))
        elif of_format.startswith(b"d:"):
            buffers.append(b"".join((value or 0).to_bytes(16, "little", signed=True)
                                    for value in cells))
        elif of_format in (b"u", b"U", b"z"):
            encoded = [value or b"" for value in
                       (value.encode() if isinstance(value, str) else value for value in cells)]
            ends = [sum(map(len, encoded[:place])) for place in range(len(encoded) + 1)]
            buffers += [struct.pack(f"={len(ends)}{'q' if of_format == b'U' else 'i'}", *ends),
                        b"".join(encoded)]
        elif of_format == b"vu":
            views, data = b"", b""
            for value in cells:
                text = (value or "").encode()
                if len(text) <= 12:
                    views += struct.pack("=i12s", len(text), text)
                else:
                    views += struct.pack("=i4sii", len(text), text[:4], 0, len(data))
                    data += text
            buffers += [views, data, struct.pack("=q", len(data))]
        elif of_format == b"+l":
            ends, flat = [0], []
            for value in cells:
                flat += value or []
                ends.append(len(flat))
            buffers.append(struct.pack(f"={len(ends)}i", *ends))
            item = column.items
            children = [Column("item", item.format.decode(), flat, item.offset, item.items,
                               item.entries)]
        else:
            raise NotImplementedError(of_format)
        self._fill(out, buffers, children, kept)
        return kept

    def _fill(self, out, buffers, children, kept):
        held = [None if data is None else ctypes.create_string_buffer(data, max(1, len(data)))
                for data in buffers]
        out.n_buffers = len(held)
        out.buffers = (c_void_p * len(held))(*[None if data is None else ctypes.addressof(data)
                                               for data in held])
        parts = [Array() for _ in children]
        for part, column in zip(parts, children):
            kept.append(self._array_of(part, column))
        out.n_children = len(parts)
        out.children = (POINTER(Array) * len(parts))(*map(ctypes.pointer, parts))
        kept += [held, out.buffers, parts, out.children]
        self._buffers += [data for data in held if data is not None]

    # ---- the stream ----

    def __arrow_c_stream__(self, requested_schema=None):
        self.opened += 1
        state, error = {"next": 0}, ctypes.create_string_buffer((self.fails or "").encode())

        def get_schema(_, out):
            kept = self._schema(out[0], b"+s", b"", self.columns)
            self._until_released(out[0], 0, kept, [])
            return 0

        def get_next(_, out):
            begin = state["next"]
            ctypes.memset(out, 0, ctypes.sizeof(Array))
            if begin >= len(self):
                return 5 if self.fails else 0
            state["next"] = end = min(begin + self.rows, len(self))
            kept, self._buffers = [], []
            out[0].length = end - begin
            self._fill(out[0], [None], [column.part(begin, end) for column in self.columns], kept)
            self._until_released(out[0], 1, kept, self._buffers)
            return 0

        def release(address):
            self.released += 1
            ctypes.memset(address, 0, ctypes.sizeof(Stream))

        functions = [kind(function) for (_, kind), function in
                     zip(Stream._fields_, (get_schema, get_next,
                                           lambda _: ctypes.addressof(error), release))]
        stream = Stream(*functions)
        _ALIVE.append(self)
        self._kept.append((stream, functions, error))
        return _new_capsule(ctypes.addressof(stream), b"arrow_array_stream", None)
