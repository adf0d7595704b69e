"""What somebody does who has the wheel alone: PYTHON try.py PAGE FOLDER.

PYTHON has the wheel installed; PAGE is docs/PYTHON.md, whose job and script are run; FOLDER is new. The commands are those
beside PYTHON. Steps that need torch are left out where PYTHON has none. Prints a line a step; exits 1 if one has failed."""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

SECONDS = 600  # for a step
page, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
bin_folder = pathlib.Path(sys.executable).parent
has_torch = importlib.util.find_spec("torch") is not None
failed = []

COMPILED = """
cluster { workers: 1 servers: 1 }
data { format: DELIMITED train: "train.csv" columns { delimiter: "," header: true label: "label" categorical: "city" } }
table { name: "ids" dim: 1 field: "city" optimizer { kind: SGD learning_rate: 0.1 } }
dense { optimizer { kind: SGD learning_rate: 0.1 } }
policy { kind: ASP }
model { logistic_regression {} }
train { batch_size: 4 epochs: 1 max_steps: 20 }
"""
STUDY = """
name: "policies"
job: "clicks.textproto"
python: "clicks.py"
seed: [1, 2]
set: "train.epochs=1"
variation { name: "SSP(1)" set: "policy.bound=1" }
variation { name: "SSP(4)" set: "policy.bound=4" }
"""
# As the cells of a notebook do: two jobs one after the other.
NOTEBOOK = """
import sys
import torch, tandem
from torch.utils.data import DataLoader
import clicks
for out in sys.argv[1:]:
    job = tandem.init("clicks.textproto", out=out)
    torch.manual_seed(0)
    model = clicks.Ranker()
    optimizer = tandem.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=.01), model)
    loader = tandem.DataLoader(DataLoader(clicks.samples(2000, 0), batch_size=128), features=1)
    for epoch in job.epochs():
        for dense, ids, label in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(dense, ids), label)
            loss.backward()
            optimizer.step(loss=loss)
    job.close()
    print("loss", float(loss))
"""


def step(name, command, *expected, code=0):
    """Runs it in the folder. Its output has to have the texts, and its exit status has to be `code`."""
    try:
        ran = subprocess.run([str(word) for word in command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             stdin=subprocess.DEVNULL, text=True, timeout=SECONDS, check=False)
        said, status = ran.stdout, ran.returncode
    except subprocess.TimeoutExpired as late:
        said, status = str(late), "no end"
    right = status == code and all(re.search(text, said) for text in expected)
    print(f"  {'ok    ' if right else 'FAILED'} {name}", flush=True)
    if not right:
        failed.append(name)
        print(f"exit status {status}, expected {code} and {expected}:\n{said[-6000:]}", flush=True)
    return said


def tandem(*words):
    return [bin_folder / "tandem", *words]


def write(name, text):
    (folder / name).write_text(text, encoding="utf-8")


folder.mkdir()
blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
write("clicks.textproto", next(text for kind, text in blocks if "model { program {} }" in text))
write("clicks.py", next(text for kind, text in blocks if kind == "python" and "def main():" in text))
write("compiled.textproto", COMPILED)
write("train.csv", "label,city\n" + "1,a\n0,b\n" * 50)
write("study.textproto", STUDY)
write("notebook.py", NOTEBOOK)

python = [sys.executable]
step("doctor", tandem("doctor"), "versions")
step("simulate --timing-only", tandem("simulate", "compiled.textproto", "--timing-only", "--out", "out/timing"))
step("simulate --problem quadratic", tandem("simulate", "compiled.textproto", "--problem", "quadratic", "--out", "out/quadratic"), "did not diverge")
step("simulate a compiled model", tandem("simulate", "compiled.textproto", "--out", "out/model"), "no LibTorch.*hint", code=1)
step("run a compiled model", tandem("run", "compiled.textproto", "--out", "out/compiled"), "tandem-worker is not there.*TANDEM_WORKER", code=1)
step("the library loads", [*python, "-c", "from tandem import _abi; _abi.library(); import tandem; print(tandem.hash_ids([7], 'city'))"])
if not has_torch:
    step("run --python without torch", tandem("run", "clicks.textproto", "--python", "clicks.py", "--out", "out/none"), "torch", code=2)
else:
    step("doctor JOB", tandem("doctor", "clicks.textproto"), "torch")
    step("run --python", tandem("run", "clicks.textproto", "--python", "clicks.py", "--out", "out/clicks"))
    step("status", tandem("status", "out/clicks"))
    auc = json.loads((folder / "out/clicks/summary.json").read_text()).get("eval", {}).get("auc", 0)
    step(f"AUC {auc:.4f} is above .8", [*python, "-c", f"assert {auc} > .8"])
    step("predict --python", tandem("predict", "clicks.textproto", "--python", "clicks.py", "--init-from", "out/clicks/model", "--out", "scores.txt"))
    step("load", [*python, "-c", "import tandem; print(tandem.load('out/clicks').tables['ids'].rows)"], r"\d+")
    step("tandem.init() in a notebook, twice", [*python, "notebook.py", "out/first", "out/second"], "loss.*\n.*loss")
    step("compare scripts", tandem("compare", "study.textproto", "--out", "out/study"), "report.html")
sys.exit(bool(failed))
