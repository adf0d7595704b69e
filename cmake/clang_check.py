"""Has clang read every source of ours as g++ was told to compile it:

    python3 cmake/clang_check.py build [build-address]

Nothing is built. Warnings are errors, with -Wthread-safety, which g++ does not have. The second folder
is a build with clang, which has those warnings, too: what it compiled is not read again (although
there the precompiled headers hide what a source forgot to include).
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

COMPILER = re.compile(r"(cc|gcc|clang|(c|g|clang)\+\+)(-[0-9]+)?")
DROPPED = {"-c", "-Winvalid-pch", "-fpch-preprocess", "-MD"}
# Without the precompiled headers, so that each source must include what it uses.
DROPPED_WITH_VALUE = {"-o", "-MT", "-MF", "-include"}


def clang_arguments(entry):
    words = iter(shlex.split(entry["command"]))
    while not COMPILER.fullmatch(os.path.basename(next(words))):  # launchers stand before it
        pass
    clang = "clang" if entry["file"].endswith(".c") else "clang++"
    out = [clang, "-fsyntax-only", "-Wthread-safety", "-Wno-unknown-warning-option"]
    for word in words:
        if word in DROPPED_WITH_VALUE:
            next(words)
        elif word not in DROPPED:
            out.append(word)
    return out


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
    done = subprocess.run(clang_arguments(entry), cwd=entry["directory"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return entry["file"], done.returncode, done.stdout


def main(build, with_clang=None):
    build = pathlib.Path(build).resolve()
    entries = json.loads((build / "compile_commands.json").read_text())
    ours = [e for e in entries if build not in pathlib.Path(e["file"]).resolve().parents]
    compiled = compiled_in(pathlib.Path(with_clang).resolve()) if with_clang else set()
    known = [e for e in ours if pathlib.Path(e["file"]).resolve() in compiled]
    if with_clang:
        print(f"clang has compiled {len(known)} of {len(ours)} sources in {with_clang}")
    ours = [e for e in ours if e not in known]
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, code, output in pool.map(check, ours):
            if code != 0:
                failures += 1
                print(f"{path}:\n{output}")
    print(f"clang read {len(ours)} sources, {failures} with errors")
    return 0 if ours + known and failures == 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
