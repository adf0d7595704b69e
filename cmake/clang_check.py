"""Compiles sources with clang one by one, with warnings as errors and with -Wthread-safety, which
g++ does not have:

    python3 cmake/clang_check.py FOLDER [--compiled FOLDER] [--sample N --draw D]

The first folder is configured without unity builds. Only its generated headers are built. Each
source is compiled without precompiled headers, so that it must include everything it uses. The
objects are thrown away, and the compiler cache remembers which sources have passed.

--compiled: a build with clang. Sources that it has compiled have had their warnings, so they are
left out.
--sample: compiles one of N of the other sources, drawn by D, and always those of the last commit.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import zlib

COMPILER = re.compile(r"(cc|gcc|clang|(c|g|clang)\+\+)(-[0-9]+)?")
DROPPED = {"-c", "-g1", "-Winvalid-pch", "-fpch-preprocess", "-MD"}
# Precompiled headers are left out, so that each source must include everything it uses.
DROPPED_WITH_VALUE = {"-o", "-MT", "-MF", "-include"}


def clang_arguments(entry):
    words = iter(shlex.split(entry["command"]))
    launcher = []
    # Launchers stand before the compiler.
    while not COMPILER.fullmatch(os.path.basename(word := next(words))):
        launcher.append(word)
    out = launcher + ["clang" if entry["file"].endswith(".c") else "clang++"]
    for word in words:
        if word in DROPPED_WITH_VALUE:
            next(words)
        elif word not in DROPPED and not word.startswith("-O"):
            out.append(word)
    return out + ["-O0", "-g0", "-Wthread-safety", "-Wno-unknown-warning-option", "-c"]


def compiled_in(build):
    """The sources that clang has compiled in this folder and that have not changed since."""
    sources = set()
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        if "-Wthread-safety" not in words:
            continue
        made = pathlib.Path(entry["directory"], words[words.index("-o") + 1])
        if not made.exists():
            continue
        source = pathlib.Path(entry["file"]).resolve()
        parts = [source]
        if "Unity" in source.parts:  # CMAKE_UNITY_BUILD: a file that includes some sources
            parts = map(pathlib.Path, re.findall(r'#include "(.*)"', source.read_text()))
        sources.update(p for p in parts if made.stat().st_mtime >= p.stat().st_mtime)
    return sources


def check(entry):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(clang_arguments(entry) + ["-o", os.path.join(folder, "out.o")],
                              cwd=entry["directory"], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
    return entry["file"], done.returncode, done.stdout


def build_generated_headers(folder):
    targets = subprocess.run(["ninja", "-C", folder, "-t", "targets", "all"], text=True, check=True,
                             stdout=subprocess.PIPE).stdout
    headers = re.findall(r"^(.*\.pb\.h): CUSTOM_COMMAND", targets, re.MULTILINE)
    subprocess.run(["ninja", "-C", folder, "--quiet", *headers], check=True)


def last_commit():
    """The files that the last commit has changed; none outside a git checkout."""
    shown = subprocess.run(["git", "show", "--name-only", "--format=", "HEAD"], text=True,
                           check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return {pathlib.Path(line).resolve() for line in shown.stdout.splitlines()}


def drawn(path, sample, draw):
    return zlib.crc32(os.path.relpath(path).encode()) % sample == draw % sample


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("folder")
    flags.add_argument("--compiled")
    flags.add_argument("--sample", type=int, default=1)
    flags.add_argument("--draw", type=int, default=0)
    flags = flags.parse_args()
    folder = pathlib.Path(flags.folder).resolve()
    build_generated_headers(folder)
    entries = json.loads((folder / "compile_commands.json").read_text())
    sources = {pathlib.Path(entry["file"]).resolve(): entry for entry in entries}
    sources = {path: entry for path, entry in sources.items() if folder not in path.parents}
    every = len(sources)
    if flags.compiled:
        compiled = compiled_in(pathlib.Path(flags.compiled).resolve())
        sources = {path: entry for path, entry in sources.items() if path not in compiled}
        print(f"clang has compiled {every - len(sources)} of {every} sources in {flags.compiled}")
    changed = last_commit()
    left = len(sources)
    sources = {path: entry for path, entry in sources.items()
               if path in changed or drawn(path, flags.sample, flags.draw)}
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, code, output in pool.map(check, sources.values()):
            if code != 0:
                failures += 1
                print(f"{path}:\n{output}")
    print(f"clang compiled {len(sources)} of {left} sources, {failures} with errors")
    return 0 if every and failures == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
