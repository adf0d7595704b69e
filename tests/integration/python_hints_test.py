"""Public functions, methods and classes of python/tandem have hints for all parameters and for what they
return, names in hints are names, each function and method has a docstring, and the package imports without torch.

Hints are read from the sources, without torch. Their names are looked up in the modules as they are imported; without
torch that part is skipped, and the exit status is 77.

Arguments: the source folder, the build folder.
"""
import ast
import importlib
import os
import pathlib
import subprocess
import sys

SOURCE, BUILD = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
PACKAGE = SOURCE / "python" / "tandem"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Without torch, numpy is all that the package may ask for.
ALONE = """
import sys
sys.modules["torch"] = None
import tandem
try:
    tandem.Job
except ImportError as error:
    assert "needs PyTorch" in str(error), error
else:
    raise SystemExit("tandem.Job came without torch")
"""


def is_public(name):
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def public_functions(body, owner=""):
    """(name, node, whether it is a method) of what users may call."""
    for node in body:
        if isinstance(node, FUNCTIONS) and is_public(node.name):
            yield owner + node.name, node, bool(owner)
        elif isinstance(node, ast.ClassDef) and is_public(node.name):
            yield from public_functions(node.body, owner + node.name + ".")


def hints_of(node, is_method):
    """(what, its hint or None) of each parameter and of what is returned."""
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
    given = node.args
    parameters = given.posonlyargs + given.args
    parameters = parameters[1:] if is_method and not static else parameters
    for one in [*parameters, *given.kwonlyargs, given.vararg, given.kwarg]:
        if one is not None:
            yield f"parameter {one.arg}", one.annotation
    yield "what is returned", node.returns


def faults_of_source(path, tree):
    faults = [] if ast.get_docstring(tree) else [f"{path.name}: no docstring"]
    for name, node, is_method in public_functions(tree.body):
        place = f"{path.name}:{node.lineno}: {name}"
        faults += [f"{place}: no hint for {what}" for what, hint in hints_of(node, is_method) if hint is None]
        dunder = node.name.startswith("__")
        forward = node.name == "forward" and path.name == "serving.py"  # its classes say what it is called with
        if not dunder and not forward and path.name != "_abi.py" and not ast.get_docstring(node):
            faults.append(f"{place}: no docstring")
    return faults


def names_of(path, tree):
    """The names that hints of the module may have: its own, and those that only checkers of types import."""
    module = importlib.import_module("tandem" if path.stem == "__init__" else "tandem." + path.stem)
    names = dict(vars(module))
    for node in tree.body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for wanted in node.body:
                if not any(alias.name == "pandas" for alias in wanted.names):  # needed by nobody else here
                    exec(compile(ast.Module([wanted], []), str(path), "exec"), names)
                else:
                    names["pandas"] = type("pandas", (), {"DataFrame": object})
    return names


def faults_of_names(path, tree):
    names, faults = names_of(path, tree), []
    for name, node, is_method in public_functions(tree.body):
        for what, hint in hints_of(node, is_method):
            text = ast.unparse(hint) if hint is not None else "None"
            try:
                value = eval(text, names)
                if isinstance(value, str):
                    eval(value, names)
            except Exception as error:
                faults.append(f"{path.name}:{node.lineno}: {name}: hint {text} for {what}: {error}")
    return faults


def check_itself():
    """That what is missing would be found."""
    tree = ast.parse('def f(a, *, b: int = 0):\n    pass\nclass C:\n    def g(self, x: int) -> None:\n        pass\n')
    found = faults_of_source(pathlib.Path("some.py"), tree)
    wanted = ["some.py: no docstring", "some.py:1: f: no hint for parameter a",
              "some.py:1: f: no hint for what is returned", "some.py:1: f: no docstring",
              "some.py:4: C.g: no docstring"]
    assert found == wanted, found


def main():
    check_itself()
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.glob("*.py"))}
    functions = sum(len(list(public_functions(tree.body))) for tree in trees.values())
    assert functions > 100, f"{functions} public functions in {PACKAGE}"
    faults = [] if (PACKAGE / "py.typed").exists() else ["py.typed is not there"]
    for path, tree in trees.items():
        faults += faults_of_source(path, tree)

    os.environ["TANDEM_LIBRARY"] = str(BUILD / "lib" / "libtandem.so")
    os.environ["PYTHONPATH"] = str(SOURCE / "python")
    sys.path.insert(0, os.environ["PYTHONPATH"])
    skipped = ""
    try:
        import numpy
        alone = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120)
        if alone.returncode:
            faults.append("import tandem without torch: " + alone.stderr.strip())
        import torch
    except ModuleNotFoundError as error:
        skipped = str(error)
    if not skipped:
        for path, tree in trees.items():
            faults += faults_of_names(path, tree)

    for fault in faults:
        print(fault)
    print(f"{functions} public functions and methods, {len(faults)} faults")
    if faults:
        sys.exit(1)
    if skipped:
        print("skipped: names in hints:", skipped)
        sys.exit(77)


main()
