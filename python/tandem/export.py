"""`tandem export CHECKPOINT --to DIR`: a checkpoint in the formats of other programs."""
from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import sys
import traceback
from typing import Any, BinaryIO

from tandem._abi import Error
from tandem.checkpoint import Checkpoint, load
from tandem.formats import arrays_of, put_in_place, write_npz, write_parquet, write_safetensors

FILES = {"safetensors": "model.safetensors", "npz": "model.npz"}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tandem export")
    parser.add_argument("checkpoint")
    parser.add_argument("--to", required=True)
    parser.add_argument("--format", action="append", choices=[*FILES, "parquet"])
    parser.add_argument("--serve", metavar="SCRIPT:CLASS")
    return parser.parse_args()


def _module_of(place: str) -> Any:
    """The class or function CLASS of SCRIPT:CLASS."""
    script, _, name = place.rpartition(":")
    if not script or not os.path.isfile(script):
        raise ValueError(f"--serve {place}: expected SCRIPT:CLASS, such as ranker.py:Ranker")
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    spec = importlib.util.spec_from_file_location(os.path.basename(script).rsplit(".", 1)[0],
                                                  script)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # torch.jit looks for sources there
    sys.argv = [script]  # the script may read its own flags
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ValueError(f"--serve {place}: {script} has no {name}")
    return getattr(module, name)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _scripted(saved: Checkpoint, path: str, place: str) -> Any:
    """The module of SCRIPT:CLASS for TorchServe and C++. An Error: in one line, why TorchScript
    refuses it."""
    import torch
    from tandem.session import place_of
    script, _, name = place.rpartition(":")
    try:
        model = saved.serving(_module_of(place))
    except (Error, OSError, ImportError, ValueError):  # whose messages are complete
        raise
    except Exception as error:
        at = place_of(traceback.extract_tb(error.__traceback__), os.path.abspath(script))
        raise Error(f"--serve {place}: {type(error).__name__}: {str(error).partition(chr(10))[0]} "
                    f"({at})") from None
    try:
        return torch.jit.script(model)
    except (RuntimeError, TypeError, OSError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        at = re.search(r'File "([^"]+)", line (\d+)', str(error))
        here = next((lines[i - 1] for i, line in enumerate(lines) if "<--- HERE" in line and i > 0),
                    "")
        where = f" ({os.path.basename(at[1])}:{at[2]}{': ' + here if here else ''})" if at else ""
        raise Error(f"--serve {place}: TorchScript does not take the module: "
                    f"{(lines or ['?'])[0].rstrip(':')}{where}; tandem.load({path!r})"
                    f".serving({name}) gives it as a module of plain PyTorch") from None


def _write(saved: Checkpoint, arguments: argparse.Namespace, scripted: Any) -> list[str]:
    """Returns the paths of the files. After an error the folder is as it was."""
    wrote: list[str] = []
    with contextlib.ExitStack() as files:
        def new_file(name: str) -> BinaryIO:
            wrote.append(os.path.join(arguments.to, name))
            return files.enter_context(put_in_place(wrote[-1]))

        tables = saved.tables.values()
        for form in dict.fromkeys(arguments.format or ["safetensors"]):
            if form == "parquet":
                wrote += write_parquet(arguments.to, tables, files)
            elif form == "npz":
                write_npz(new_file(FILES[form]), arrays_of(tables, saved.dense))
            else:
                write_safetensors(new_file(FILES[form]), arrays_of(tables, saved.dense),
                                  saved.manifest)
        if scripted is not None:
            scripted.save(new_file("serve.pt").name)
    return wrote


def main() -> None:
    """Exports by the command line, and prints the written files. After an error there are no new
    files, and those of an earlier export are as they were."""
    arguments = _arguments()
    saved = load(arguments.checkpoint)
    scripted = _scripted(saved, arguments.checkpoint, arguments.serve) if arguments.serve else None
    there = os.path.isdir(arguments.to)
    os.makedirs(arguments.to, exist_ok=True)
    try:
        wrote = _write(saved, arguments, scripted)
    except BaseException:
        if not there:
            with contextlib.suppress(OSError):
                os.rmdir(arguments.to)
        raise
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
