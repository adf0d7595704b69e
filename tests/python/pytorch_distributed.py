"""PyTorch's own tests of back ends (torch.testing._internal.distributed.distributed_test, as the
installed torch has it) against "tandem".

    pytorch_distributed.py                       # all that need no GPU: many minutes
    pytorch_distributed.py TestTandem.test_NAME ...
"""
import inspect
import os
import sys
import tempfile
import types
import unittest

os.environ.setdefault("BACKEND", "tandem")
os.environ.setdefault("WORLD_SIZE", "2")
os.environ.setdefault("USE_LIBUV", "0")  # which Debian's PyTorch 2.6 has not
if "TEMP_DIR" not in os.environ:  # of the parent; the ranks have it from there
    _folder = tempfile.TemporaryDirectory()
    os.environ["TEMP_DIR"] = _folder.name

try:
    import expecttest
except ImportError:
    # Debian has none with its torch. torch's test cases are built on it; those of back ends use
    # nothing of it but its base class (and its flag, which says that no expectation is to be
    # rewritten).
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase
    sys.modules["expecttest"].ACCEPT = False

import tandem.distributed
from torch.testing._internal.common_distributed import DistTestCases

for _tests in ("ddp", "subgroup"):
    DistTestCases.backend_feature[_tests].add("tandem")

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


# A kind of tensor that the tests of PyTorch 1 switch on for all modules: its import fails under
# Python 3.11, whatever the back end.
try:
    from torch.nn.parallel import _replicated_tensor_ddp_utils
    _replicated_tensor_ddp_utils._set_ddp_with_replicated_tensor = lambda wanted: None
except ImportError:
    pass


class TestTandem(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()


def without_gpu():
    """The names of tests that no decorator sends to a GPU."""
    for name in unittest.defaultTestLoader.getTestCaseNames(TestTandem):
        source = inspect.getsource(inspect.unwrap(getattr(DistributedTest._DistTestBase, name)))
        if not any(gpu in source for gpu in ("@skip_if_no_gpu", "@skip_if_lt_x_gpu",
                                             "@require_n_gpus")):
            yield f"TestTandem.{name}"


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=[sys.argv[0], *(sys.argv[1:] or without_gpu())])
