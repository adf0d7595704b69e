"""The commands of README.md and docs/*.md run as they are printed.

Each ```sh block of a page is run by bash, the blocks of a page one after the other, in a folder that
looks like the root of the tree after ./quickstart: build/ has only the programs and libraries that it builds, out/
has small data where it puts its own, and all else are links. Blocks in other languages are not run: a ```text block
is the output of a program, and a plain block is for several hosts, or takes long. /tmp stands for a folder of the
test's own. A page whose blocks import PyTorch is skipped, by name, where Debian's python3 has none.

Anchors of links exist, docs/README.md lists every page, and README.md has at most 150 lines.

Run: pages_test.py SOURCE_DIR BUILD_DIR [PAGE...]
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SECONDS = 240  # for the blocks of one page
# Targets that a command needs although it does not name their files: target, pattern of the command.
NEEDS = {"tandem-simulator": r"\btandem simulate\b|\breplay\b.* --serial\b", "tandem_capi": r" --python\b|build/python\b"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)

source, build = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
pages = [source / page for page in sys.argv[3:]] or [source / "README.md", *sorted((source / "docs").glob("*.md"))]


def quickstart_targets():
    """The list in quickstart."""
    lists = "\n".join(re.findall(r"^readonly (?:PROGRAMS|TARGETS)=.*", (source / "quickstart").read_text(), re.M))
    script = lists + "\nprintf '%s\\n' \"${TARGETS[@]}\""
    return subprocess.run(["bash", "-euc", script], check=True, capture_output=True, text=True).stdout.split()


def build_like(folder, targets):
    """What a build of `targets` leaves in `folder`. Programs look for others where their file is, so no symbolic links."""
    for target in targets:
        said = subprocess.run(["ninja", "-C", build, "-t", "query", target], check=True, capture_output=True, text=True).stdout
        file = re.search(r"input: phony\n\s+(\S+)", said)[1]
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(build / file, folder / file)
        except OSError:  # on another file system
            shutil.copy2(build / file, folder / file)
    for made in ("python", "share"):  # when it is configured
        (folder / made).symlink_to(build / made)


def root_like(root):
    """Links in `root` to what is in the tree; out/ is empty."""
    root.mkdir()
    for entry in source.iterdir():
        if entry.name not in ("out", "build", ".git"):
            (root / entry.name).symlink_to(entry)
    build_like(root / "build", quickstart_targets())
    (root / "out").mkdir()


def blocks_of(text):
    return [block for language, block in FENCE.findall(text) if language == "sh"]


def anchors_of(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


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

    def test_quickstart_builds_what_all_blocks_name(self):
        targets, named = quickstart_targets(), 0
        for page in pages:
            for block in (block for _, block in FENCE.findall(page.read_text(encoding="utf-8"))):
                if "ninja -C" in block or page.name == "HACKING.md":
                    continue  # builds itself what it needs
                wanted = set(re.findall(r"build/bin/([\w-]+)", block))
                wanted |= {target for target, command in NEEDS.items() if re.search(command, block)}
                self.assertLessEqual(wanted, set(targets), f"{page.name}: ./quickstart does not build it:\n{block}")
                named += len(wanted)
        self.assertGreater(named, 0)

    def test_index_has_every_page(self):
        index = (source / "docs" / "README.md").read_text(encoding="utf-8")
        for page in (source / "docs").glob("*.md"):
            if page.name != "README.md":
                self.assertIn(f"]({page.name})", index, f"docs/README.md does not list {page.name}")

    def test_anchors_exist(self):
        for page in pages:
            for target, anchor in re.findall(r"\]\(([\w./]*\.md)?#([^)]+)\)", page.read_text(encoding="utf-8")):
                anchors = anchors_of(page.parent / target if target else page)
                self.assertIn(anchor, anchors, f"{page.name} links to {target}#{anchor}")

    def test_readme_is_short(self):
        self.assertLessEqual(len((source / "README.md").read_text(encoding="utf-8").splitlines()), 150)

    def test_only_what_quickstart_builds_is_there(self):
        self.assertEqual(run_page("```sh\nls build/bin | sort\n```\n").stdout.split(),
                         sorted(t for t in quickstart_targets() if t != "tandem_capi"))

    def test_what_fails_is_seen(self):
        self.assertNotEqual(run_page("```sh\nbuild/bin/tandem run no/such/job\n```\n```sh\ntrue\n```\n").returncode, 0)
        self.assertEqual(run_page("```sh\ncat > /tmp/x <<'X'\na\nX\n```\n```\nfalse\n```\n```sh\ntest -s /tmp/x\n```\n").returncode, 0)
        self.assertIsNone(run_page("```\nfalse\n```\n"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)  # says what was skipped
