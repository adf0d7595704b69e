"""Has clang read every source of ours as g++ was told to compile it: python3 cmake/clang_check.py build

Nothing is built. Warnings are errors, with -Wthread-safety, which g++ does not have.
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

DROPPED = {"-c", "-Winvalid-pch", "-MD"}
DROPPED_WITH_VALUE = {"-o", "-MT", "-MF"}


def clang_arguments(entry):
    words = iter(shlex.split(entry["command"]))
    compiler = next(words)
    while "ccache" in os.path.basename(compiler):
        compiler = next(words)
    out = ["clang++", "-fsyntax-only", "-Wthread-safety", "-Wno-unknown-warning-option"]
    for word in words:
        if word in DROPPED_WITH_VALUE:
            next(words)
        elif word == "-include":
            # Past the driver, which would look for a precompiled header and find that of g++.
            out += ["-Xclang", "-include", "-Xclang", next(words)]
        elif word not in DROPPED:
            out.append(word)
    return out


def check(entry):
    done = subprocess.run(clang_arguments(entry), cwd=entry["directory"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return entry["file"], done.returncode, done.stdout


def main(build):
    build = pathlib.Path(build).resolve()
    entries = json.loads((build / "compile_commands.json").read_text())
    ours = [e for e in entries if build not in pathlib.Path(e["file"]).resolve().parents]
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, code, output in pool.map(check, ours):
            if code != 0:
                failures += 1
                print(f"{path}:\n{output}")
    print(f"clang read {len(ours)} sources, {failures} with errors")
    return 0 if ours and failures == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
