"""The back end "tandem" of torch.distributed: what it gives is what gloo gives, and ten of PyTorch's own
tests of back ends pass.

    python_groups_test.py SOURCE BUILD
"""
import os
import subprocess
import sys

SOURCE, BUILD = sys.argv[1:3]
SKIPPED = 77
LIMIT = 300  # seconds of one run; a failure if reached

FROM_PYTORCH = ["test_DistributedDataParallelCPU", "test_DistributedDataParallelCPU_grad_is_view", "test_all_gather",
                "test_all_gather_coalesced_simple", "test_all_gather_coalesced_with_empty", "test_all_gather_complex",
                "test_all_reduce_full_group_max", "test_broadcast_full_group", "test_gather_checks",
                "test_destroy_group"]


def run(*command):
    environment = dict(os.environ, PYTHONPATH=os.path.join(BUILD, "python"), OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, *command], env=environment, timeout=LIMIT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


def script(name):
    return os.path.join(SOURCE, "tests", "python", name)


if __name__ == "__main__":
    try:
        import torch.distributed
    except ImportError:
        print("no torch here")
        sys.exit(SKIPPED)
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        print("a torch without gloo")
        sys.exit(SKIPPED)
    assert "agree" in run(script("groups.py"), "2", "collectives", "messages", "futures", "waiting_callbacks",
                          "averages", "wrong", "interrupted", "ddp", "different")
    # The last: the rank that goes takes the test's end with it.
    assert "agree" in run(script("groups.py"), "3", "collectives", "messages", "averages", "different", "gone")
    assert "agree" in run(script("groups.py"), "2", "ddp_gone")
    said = run(script("pytorch_distributed.py"), *[f"TestTandem.{name}" for name in FROM_PYTORCH])
    assert f"Ran {len(FROM_PYTORCH)} tests" in said and "skipped" not in said, said
    print("as gloo, and", len(FROM_PYTORCH), "of PyTorch's own tests")
