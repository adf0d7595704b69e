"""`tandem export SAVE --to DIR`: a saved model in the formats of other programs."""
from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from typing import Any

from tandem._abi import Error
from tandem.saved import load

FILES = {"safetensors": "model.safetensors", "npz": "model.npz"}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tandem export")
    parser.add_argument("save")
    parser.add_argument("--to", required=True)
    parser.add_argument("--format", action="append", choices=[*FILES, "parquet"])
    parser.add_argument("--serve", metavar="SCRIPT:CLASS")
    return parser.parse_args()


def _module_of(place: str) -> Any:
    """The class or function CLASS of SCRIPT:CLASS."""
    script, _, name = place.rpartition(":")
    if not script or not os.path.isfile(script):
        raise ValueError(f"--serve {place}: want SCRIPT:CLASS, such as ranker.py:Ranker")
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    spec = importlib.util.spec_from_file_location(os.path.basename(script).rsplit(".", 1)[0], script)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # torch.jit looks for sources there
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ValueError(f"--serve {place}: {script} has no {name}")
    return getattr(module, name)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def main() -> None:
    """Exports as the command line says, and prints what was written."""
    arguments = _arguments()
    saved = load(arguments.save)
    os.makedirs(arguments.to, exist_ok=True)
    wrote = []
    for form in dict.fromkeys(arguments.format or ["safetensors"]):
        if form == "parquet":
            wrote += saved.save_parquet(arguments.to)
            continue
        wrote.append(os.path.join(arguments.to, FILES[form]))
        (saved.save_npz if form == "npz" else saved.save_safetensors)(wrote[-1])
    if arguments.serve:
        import torch
        wrote.append(os.path.join(arguments.to, "serve.pt"))
        scripted = torch.jit.script(saved.serving(_module_of(arguments.serve)))
        scripted.save(wrote[-1] + ".tmp")
        os.replace(wrote[-1] + ".tmp", wrote[-1])
    rows = sum(table.rows for table in saved.tables.values())
    print(f"step {saved.step}: {_count(len(saved.tables), 'table')} with {_count(rows, 'row')}, "
          f"{_count(len(saved.dense), 'dense parameter')}")
    for path in wrote:
        print(f"wrote {path}")


if __name__ == "__main__":
    try:
        main()
    except (Error, OSError, ImportError, ValueError) as problem:
        sys.exit(f"tandem export: {problem}")
