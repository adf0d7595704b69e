"""What `store.py` left, as arrays and in exported files: `store_checkpoint.py CHECKPOINT`."""
import os
import sys
import tempfile

import numpy

import tandem

table = tandem.load(sys.argv[1]).tables["cache"]
assert (table.rows, table.weights.shape, table.slots.shape) == (3333, (3333, 3), (3333, 2))
want = (table.keys[:, None] + numpy.arange(5)[None, :] / 8).astype(numpy.float32)
assert (numpy.hstack([table.weights, table.slots]) == want).all()
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.npz")
    tandem.load(sys.argv[1]).save_npz(path)
    arrays = numpy.load(path)
    order = numpy.argsort(arrays["cache.keys"])
    assert sorted(table.keys) == arrays["cache.keys"][order].tolist()
    rows = numpy.hstack([arrays["cache.weights"], arrays["cache.state"]])[order]
    assert (rows == want[numpy.argsort(table.keys)]).all()
    assert "ids.state" not in arrays
