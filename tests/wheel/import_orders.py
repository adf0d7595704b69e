"""tandem and another library in one process, in both orders of import, with a training step of each: Protocol Buffers and
Abseil are in both, and must not bind to each other. Run with the interpreter that has the wheel and the others:

    python import_orders.py CLICKS_FOLDER    (clicks.py and clicks.textproto, as try.py leaves them)

Libraries that the interpreter has not are named and left out. Prints a line a pair; exits 1 if one has failed.

Two things fail without tandem, too, and are kept out. torch 2.15 loads Triton at its first optimizer, whose LLVM ends a process
that has the one of tensorflow-cpu 2.21 ("registered more than once"). And with torch 2.15 and pyarrow 26 a quarter of the processes
abort while they exit."""
import importlib.util
import pathlib
import subprocess
import sys

STEPS = {
    "torch": """
import torch
x = torch.ones(3, requires_grad=True)
(x * x).sum().backward()
assert x.grad.tolist() == [2, 2, 2]
""",
    "tensorflow": """
import tensorflow as tf
x = tf.Variable([1., 1., 1.])
with tf.GradientTape() as tape:
    y = tf.reduce_sum(x * x)
assert tape.gradient(y, x).numpy().tolist() == [2, 2, 2]
print(tf.io.parse_tensor(tf.io.serialize_tensor(x), tf.float32))     # Protocol Buffers
""",
    "pyarrow": """
import io
import pyarrow as pa, pyarrow.parquet
file = io.BytesIO()
pyarrow.parquet.write_table(pa.table({"x": [1, 2, 3]}), file)
assert pyarrow.parquet.read_table(file)["x"].to_pylist() == [1, 2, 3]
""",
}
TANDEM = """
import torch, tandem, clicks
from tandem import _abi
from torch.utils.data import DataLoader
_abi.library()
job = tandem.init("clicks.textproto")
model = clicks.Ranker()
optimizer = tandem.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=.01), model)
loader = tandem.DataLoader(DataLoader(clicks.samples(500, 0), batch_size=128), features=1)
for epoch in job.epochs():
    for dense, ids, label in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(dense, ids), label)
        loss.backward()
        optimizer.step(loss=loss)
job.close()
"""
WITHOUT_TRITON = "import sys\nsys.modules['triton'] = None\n"
AT_ONCE = "import os, sys\nsys.stdout.flush()\nos._exit(0)\n"  # without the destructors of libraries
# The library before torch, which `import tandem` needs for its functions: tandem's own code comes first.
LIBRARY = "from tandem import _abi\n_abi.library()\n"

folder = pathlib.Path(sys.argv[1])
failed = False
for other, step in STEPS.items():
    if importlib.util.find_spec(other) is None:
        print(f"  left out: {other} is not installed")
        continue
    for name, script in ((f"tandem, {other}", LIBRARY + step + TANDEM + step),
                         (f"{other}, tandem", step + TANDEM + step)):
        script = WITHOUT_TRITON + script + AT_ONCE
        ran = subprocess.run([sys.executable, "-c", script], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             stdin=subprocess.DEVNULL, text=True, timeout=600, check=False)
        print(f"  {'ok    ' if ran.returncode == 0 else 'FAILED'} import {name}", flush=True)
        if ran.returncode != 0:
            failed = True
            print(f"exit status {ran.returncode}:\n{ran.stdout[-4000:]}")
sys.exit(failed)
