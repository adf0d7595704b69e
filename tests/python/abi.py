"""Wrong calls of the C interface, made through ctypes: each is an error with its text, and the job
goes on to its end as if it had not been made."""
import ctypes

import numpy

import tandem
from tandem import _abi

job = tandem.init()
lib, handle = _abi.library(), job._worker.handle
DIM, FIELDS, SAMPLES = 8, 2, 6


def refused(text, code):
    error = lib.tandem_error().decode()
    assert code == -1 and text in error and "\n" not in error, (code, text, error)


def longs(*numbers):
    return (ctypes.c_int64 * len(numbers))(*numbers)


def ints(*numbers):
    return (ctypes.c_int32 * len(numbers))(*numbers)


def texts(*values):
    return (ctypes.c_char_p * len(values))(*values)


def join(size):
    """By a program that knows so many bytes of the options."""
    options = _abi.JoinOptions(size, b"/nowhere/job", None, b"tcp://127.0.0.1:1", 0, None, None, 1)
    return lib.tandem_join(ctypes.byref(options), ctypes.byref(ctypes.c_void_p()))


refused("options of another version", join(_abi.JoinOptions.keeps_state.offset - 1))
refused("/nowhere/job", join(_abi.JoinOptions.keeps_state.offset))
refused("/nowhere/job", join(ctypes.sizeof(_abi.JoinOptions) + 8))
values = numpy.zeros(6, dtype=numpy.float32)
at = values.ctypes.data
refused("names and dims: a null", lib.tandem_start(handle, 1, None, ints(1), longs(3), at))
refused("names and dims: a null", lib.tandem_start(handle, 1, texts(b"w"), None, longs(3), at))
refused("parameter 0: a null", lib.tandem_start(handle, 1, texts(None), ints(1), longs(3), at))
refused("-1 dense parameters", lib.tandem_start(handle, -1, texts(b"w"), ints(1), longs(3), at))
refused("w with -1 extents", lib.tandem_start(handle, 1, texts(b"w"), ints(-1), longs(3), at))
refused("shapes: a null", lib.tandem_start(handle, 1, texts(b"w"), ints(1), None, at))
refused("a negative extent, -3", lib.tandem_start(handle, 1, texts(b"w"), ints(2), longs(-3, -1),
                                                  at))
refused("w: more floats", lib.tandem_start(handle, 1, texts(b"w"), ints(2), longs(2**33, 2**33),
                                           at))
refused("b: more floats", lib.tandem_start(handle, 2, texts(b"a", b"b"), ints(1, 1),
                                           longs(2**40, 2**40), at))
refused("values: a null", lib.tandem_start(handle, 1, texts(b"w"), ints(1), longs(3), None))
_abi.check(lib.tandem_start(handle, 2, texts(b"w", b"v"), ints(1, 0), longs(5), at))
while not _abi.check(lib.tandem_wait_started(handle, 100)):
    pass

ids = numpy.arange(SAMPLES, dtype=numpy.int64)
cells = numpy.zeros(SAMPLES * FIELDS * DIM, dtype=numpy.float32)
scores = numpy.zeros(SAMPLES, dtype=numpy.float32)


def fields(count=SAMPLES, stride=1, offsets=None):
    return (_abi.Field * FIELDS)(*[_abi.Field(ids.ctypes.data, count, stride, offsets, None)]
                                 * FIELDS)


def give(left):
    refused("a batch of 1099511627776 samples, and", lib.tandem_give(handle, 2**40, fields(), None))
    refused("-1 samples", lib.tandem_give(handle, -1, fields(), None))
    refused("a batch without fields", lib.tandem_give(handle, SAMPLES, None, None))
    refused("-5 ids", lib.tandem_give(handle, SAMPLES, fields(count=-5), None))
    refused(" ids", lib.tandem_give(handle, SAMPLES, fields(count=2**62), None))
    refused("a stride of", lib.tandem_give(handle, SAMPLES, fields(stride=2**61), None))
    refused("a stride of 0 for 6 ids; expected 1", lib.tandem_give(handle, SAMPLES,
                                                                   fields(stride=0), None))
    refused("a stride of", lib.tandem_give(handle, SAMPLES, fields(stride=-2**63), None))
    _abi.check(lib.tandem_give(handle, SAMPLES if left else 0, fields(), None))


def compute():
    refused("rows of table 7", lib.tandem_rows(handle, 7, cells.ctypes.data, cells.size))
    refused("-1 floats of rows", lib.tandem_rows(handle, 0, cells.ctypes.data, -1))
    refused("cells: a null", lib.tandem_rows(handle, 0, None, cells.size))
    _abi.check(lib.tandem_rows(handle, 0, cells.ctypes.data, cells.size))
    own = (ctypes.c_void_p * 1)(cells.ctypes.data)
    refused("without its number", lib.tandem_finish(handle, 1, own, None, None, 1))
    refused("without its number", lib.tandem_finish(handle, 1, own, longs(-1), None, 1))
    _abi.check(lib.tandem_finish(handle, 1, own, longs(cells.size), at, 1))


def score():
    where, strange = scores.ctypes.data, numpy.full(SAMPLES, 2, dtype=numpy.float32)
    refused("scores of 5 samples with 5 labels", lib.tandem_score(handle, where, where,
                                                                  SAMPLES - 1))
    for label in 2, -1, .5, float("nan"):
        strange[3] = label
        strange[:3] = 1
        refused(f"label {label:g} of sample 3; expected labels of 0 or 1",
                lib.tandem_score(handle, where, strange.ctypes.data, SAMPLES))
    # A refused call has not used up the rows.
    _abi.check(lib.tandem_rows(handle, 0, cells.ctypes.data, cells.size))
    refused("one of logits and labels: a null", lib.tandem_score(handle, where, None, SAMPLES))
    refused("one of logits and labels: a null", lib.tandem_score(handle, None, where, SAMPLES))
    refused("-6 scores", lib.tandem_score(handle, where, where, -SAMPLES))
    _abi.check(lib.tandem_score(handle, where, where, SAMPLES))


def update():
    refused("gradient: a null", lib.tandem_mean_gradient(handle, None))
    _abi.check(lib.tandem_mean_gradient(handle, at))
    _abi.check(lib.tandem_updated(handle))


def state():
    refused("bytes: a null", lib.tandem_checkpoint_state(handle, None, 3))
    refused("-3 bytes of state", lib.tandem_checkpoint_state(handle, b"abc", -3))
    refused("no bytes", lib.tandem_checkpoint_state(handle, b"abc", 0))
    _abi.check(lib.tandem_checkpoint_state(handle, b"abc", 3))


refused("bytes, count and epoch: a null", lib.tandem_resumed_state(handle, 0, None, None, None))
refused("a report of 0 values", lib.tandem_report(handle, 0, None, None, 0, 1))
refused("names and values: a null", lib.tandem_report(handle, 1, None, None, 0, 1))
refused("name of reported value 0: a null",
        lib.tandem_report(handle, 1, texts(None), (ctypes.c_double * 1)(1), 0, 1))
refused("the program's state was given, but the worker wants",
        lib.tandem_checkpoint_state(handle, b"abc", 3))
refused("the gradients of a step was given, but the worker wants", lib.tandem_skip(handle))
for norm in -1, float("nan"), float("inf"):
    refused(f"tandem_clip_norm: {norm}, expected 0 or", lib.tandem_clip_norm(handle, norm))
request, given, done = _abi.Request(), {}, set()
refused("request: a null", lib.tandem_next(handle, 1, None))
refused("worker: a null", lib.tandem_next(None, 1, ctypes.byref(request)))
while request.kind != _abi.END:
    if not _abi.check(lib.tandem_next(handle, 100, ctypes.byref(request))):
        continue
    done.add(request.kind)
    if request.kind in (_abi.BATCH, _abi.TEST_BATCH):
        key = (request.kind, request.epoch)
        given[key] = given.get(key, 0) + 1
        give(given[key] < 3)
    if request.kind == _abi.COMPUTE:
        compute()
    if request.kind == _abi.SCORE:
        score()
    if request.kind == _abi.UPDATE:
        update()
    if request.kind == _abi.STATE:
        assert request.last
        state()
assert done >= {_abi.STATE, _abi.BATCH, _abi.TEST_BATCH, _abi.COMPUTE, _abi.SCORE, _abi.UPDATE}, \
    done
out = longs(0, 0)
refused("ids and out: a null", lib.tandem_hash_ids(b"a", None, 2, out))
refused("-2 ids", lib.tandem_hash_ids(b"a", out, -2, out))
_abi.check(lib.tandem_hash_ids(b"a", longs(7, -2**63), 2, out))
hashed = longs(0, 0)
_abi.check(lib.tandem_hash_texts(b"a", b"7-9223372036854775808", longs(0, 1, 21), 2, hashed))
assert list(out) == list(hashed)
_abi.check(lib.tandem_hash_numbers(b"a", longs(7, 7), 2, out))
assert out[0] == out[1] != hashed[0]
refused("-2 ids", lib.tandem_hash_numbers(b"a", out, -2, out))
refused("offsets of texts must rise, at 1", lib.tandem_hash_texts(b"a", b"abc", longs(0, 3, 1), 2,
                                                                  out))
refused("texts: a null", lib.tandem_hash_texts(b"a", None, longs(0, 3), 1, out))
job._end()
print("all refused")
