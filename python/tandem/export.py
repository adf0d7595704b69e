"""`tandem export CHECKPOINT --to DIR`: a checkpoint in the formats of other programs."""
from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import os
import re
import sys
import traceback
from typing import Any, BinaryIO, Callable, Optional

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
    parser.add_argument("--inputs", metavar="FUNCTION")
    arguments = parser.parse_args()
    if arguments.inputs and not arguments.serve:
        raise ValueError(f"--inputs {arguments.inputs}: of which script? Say --serve SCRIPT:CLASS, "
                         "too")
    return arguments


def _name_of(place: str) -> str:
    """The name of the module SCRIPT of SCRIPT:CLASS."""
    return os.path.basename(place.rpartition(":")[0]).rsplit(".", 1)[0]


def _module_of(place: str) -> Any:
    """The class or function CLASS of SCRIPT:CLASS."""
    script, _, name = place.rpartition(":")
    if not script or not os.path.isfile(script):
        raise ValueError(f"--serve {place}: expected SCRIPT:CLASS, such as ranker.py:Ranker")
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    spec = importlib.util.spec_from_file_location(_name_of(place), script)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # torch.jit looks for sources there
    sys.argv = [script]  # the script may read its own flags
    spec.loader.exec_module(module)
    return _named(module, place, name)


def _named(module: Any, place: str, name: str) -> Any:
    if not hasattr(module, name):
        raise ValueError(f"--serve {place}: {place.rpartition(':')[0]} has no {name}")
    return getattr(module, name)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _run(place: str, function: Callable[[], Any]) -> Any:
    """The result of a function that runs lines of the script. An Error: in one line, why the script
    fails."""
    from tandem.session import place_of
    try:
        return function()
    except (Error, OSError, ImportError, ValueError):  # whose messages are complete
        raise
    except Exception as error:
        script = os.path.abspath(place.rpartition(":")[0])
        at = place_of(traceback.extract_tb(error.__traceback__), script)
        raise Error(f"--serve {place}: {type(error).__name__}: {str(error).partition(chr(10))[0]} "
                    f"({at})") from None


def _shapes(value: Any, rows: Any) -> Any:
    """The dynamic_shapes of torch.export for inputs whose first dimension is `rows`."""
    if isinstance(value, dict):
        return {key: _shapes(part, rows) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_shapes(part, rows) for part in value)
    return {0: rows} if hasattr(value, "shape") else None


def _exported(saved: Checkpoint, place: str, inputs: str) -> Any:
    """The module of SCRIPT:CLASS as a program of torch.export, of which the first dimension of each
    input may change. inputs: the function of SCRIPT that returns them. An Error: in one line, why
    torch.export refuses the module."""
    import torch
    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if found < (2, 3):
        raise Error(f"--inputs {inputs}: this is torch {torch.__version__}, and this needs "
                    "torch.export of 2.3; leave out --inputs for TorchScript")
    from torch.export import Dim, export
    made = _module_of(place)
    model = _run(place, lambda: saved.serving(made))
    module = sys.modules[_name_of(place)]
    values = _run(place, _named(module, place, inputs))
    if not isinstance(values, tuple):
        values = (values,)
    rows = getattr(Dim, "AUTO", None) or Dim("samples", min=2)  # before 2.6 all are alike
    try:
        return export(model, values, dynamic_shapes=_shapes(values, rows), strict=False)
    except Exception as error:  # torch.export has many kinds
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise Error(f"--serve {place}: torch.export does not take the module: "
                    f"{type(error).__name__}: {(lines or ['?'])[0]}") from None


def _scripted(saved: Checkpoint, path: str, place: str) -> Any:
    """The module of SCRIPT:CLASS for TorchServe and C++. An Error: in one line, why TorchScript
    refuses it."""
    from tandem.serving import in_torch_script
    name = place.rpartition(":")[2]
    model = _run(place, lambda: saved.serving(_module_of(place)))
    try:
        return in_torch_script(model)
    except (RuntimeError, TypeError, OSError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        at = re.search(r'File "([^"]+)", line (\d+)', str(error))
        here = next((lines[i - 1] for i, line in enumerate(lines) if "<--- HERE" in line and i > 0),
                    "")
        where = f" ({os.path.basename(at[1])}:{at[2]}{': ' + here if here else ''})" if at else ""
        raise Error(f"--serve {place}: TorchScript does not take the module: "
                    f"{(lines or ['?'])[0].rstrip(':')}{where}; tandem.load({path!r})"
                    f".serving({name}) gives it as a module of plain PyTorch") from None


def _write(saved: Checkpoint, arguments: argparse.Namespace,
           save: Optional[Callable[[str], Any]], name: str) -> list[str]:
    """save: writes the module that serves to the file `name`, if there is one. Returns the paths of
    the files. After an error the folder is as it was."""
    wrote: list[str] = []
    with contextlib.ExitStack() as files:
        def new_file(file: str) -> BinaryIO:
            wrote.append(os.path.join(arguments.to, file))
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
        if save is not None:
            save(new_file(name).name)
    return wrote


def _save_program(program: Any, path: str) -> None:
    import torch
    with open(path, "wb") as file:  # torch refuses other endings than .pt2 of a path
        torch.export.save(program, file)


def main() -> None:
    """Exports by the command line, and prints the written files. After an error there are no new
    files, and those of an earlier export are as they were."""
    arguments = _arguments()
    saved = load(arguments.checkpoint)
    save, name = None, ""
    if arguments.inputs:
        program = _exported(saved, arguments.serve, arguments.inputs)
        save, name = functools.partial(_save_program, program), "serve.pt2"
    elif arguments.serve:
        save, name = _scripted(saved, arguments.checkpoint, arguments.serve).save, "serve.pt"
    there = os.path.isdir(arguments.to)
    os.makedirs(arguments.to, exist_ok=True)
    try:
        wrote = _write(saved, arguments, save, name)
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
