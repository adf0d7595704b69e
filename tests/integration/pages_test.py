"""The commands of README.md and docs/*.md run as they are printed.

Each ```sh block of a page is run by bash, the blocks of a page one after the other, in a folder that
looks like the root of the tree (all but out/ are links) and with small data where ./quickstart would
have put its own. Blocks in other languages are not run: ```text is what a program prints, and a plain
block is for several hosts, or takes long. /tmp stands for a folder of the test's own. A page whose blocks import
PyTorch is skipped, by name, where Debian's python3 has none.

Run: pages_test.py SOURCE_DIR BUILD_DIR [PAGE...]
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SECONDS = 240  # for the blocks of one page
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)

source, build = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
pages = [source / page for page in sys.argv[3:]] or [source / "README.md", *sorted((source / "docs").glob("*.md"))]


def root_like(root):
    """Links in `root` to what is in the tree; build/ is the build folder, out/ is empty."""
    root.mkdir()
    for entry in source.iterdir():
        if entry.name not in ("out", "build", ".git"):
            (root / entry.name).symlink_to(entry)
    (root / "build").symlink_to(build)
    (root / "out").mkdir()


def blocks_of(text):
    return [block for language, block in FENCE.findall(text) if language == "sh"]


def lacks_torch(text):
    """Whether a page's blocks need PyTorch, and it is not there."""
    if not re.search(r"^(import|from) .*\btorch\b", "".join(blocks_of(text)), re.M):
        return False
    return subprocess.run(["/usr/bin/python3", "-c", "import torch"], capture_output=True, check=False).returncode != 0


def run_page(text):
    """Runs a page's blocks. None if it has none, else the finished bash."""
    blocks = blocks_of(text)
    if not blocks:
        return None
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder, "tree")
        root_like(root)
        subprocess.run(["build/bin/tandem", "datagen", "--out", "out/data/quickstart", "--train-rows", "4000",
                        "--test-rows", "1000"], cwd=root, check=True, capture_output=True)
        script = "".join(blocks).replace("/tmp/", folder + "/")
        return subprocess.run(["bash", "-euxo", "pipefail", "-c", script], cwd=root, text=True,
                              capture_output=True, timeout=SECONDS, check=False)


class PagesTest(unittest.TestCase):
    def test_commands_run(self):
        ran = 0
        for page in pages:
            with self.subTest(page=page.name):
                text = page.read_text(encoding="utf-8")
                if lacks_torch(text):
                    self.skipTest(f"{page.name}: PyTorch is missing: apt-get install python3-torch")
                run = run_page(text)
                if run is None:
                    continue
                self.assertEqual(run.returncode, 0, f"{page.name}:\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}")
                ran += 1
        self.assertGreater(ran, 0)

    def test_what_fails_is_seen(self):
        self.assertNotEqual(run_page("```sh\nbuild/bin/tandem run no/such/job\n```\n```sh\ntrue\n```\n").returncode, 0)
        self.assertEqual(run_page("```sh\ncat > /tmp/x <<'X'\na\nX\n```\n```\nfalse\n```\n```sh\ntest -s /tmp/x\n```\n").returncode, 0)
        self.assertIsNone(run_page("```\nfalse\n```\n"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)  # says what was skipped
