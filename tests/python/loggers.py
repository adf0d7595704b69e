"""The two functions of docs/PYTHON.md that pass records on, over small fakes of MLflow and
TensorBoard. `loggers.py PAGE RECORDS`: RECORDS has those of a job, as JSON."""
import json
import re
import sys
import types

calls = []
numbers = {"mlflow": {}, "tensorboard": {}}  # by name: [(step, value), ...]


class SummaryWriter:
    def __init__(self, folder):
        calls.append(("writer", folder))

    def add_scalar(self, name, value, step):
        numbers["tensorboard"].setdefault(name, []).append((step, value))

    def close(self):
        calls.append("close")


def log_metrics(metrics, step):
    for name, value in metrics.items():
        numbers["mlflow"].setdefault(name, []).append((step, value))


sys.modules["mlflow"] = types.SimpleNamespace(
    start_run=lambda: calls.append("start_run"), log_metrics=log_metrics,
    log_dict=lambda record, name: calls.append((name, record["event"], record["job"])),
    end_run=lambda: calls.append("end_run"))
sys.modules["torch.utils.tensorboard"] = types.SimpleNamespace(SummaryWriter=SummaryWriter)

with open(sys.argv[1], encoding="utf-8") as page:
    snippets = dict(re.findall(r"^`(to_\w+)\.py`[^\n]*\n\n```python\n(.*?)```", page.read(),
                               re.DOTALL | re.MULTILINE))
with open(sys.argv[2], encoding="utf-8") as file:
    records = json.load(file)
for name, arguments in (("to_mlflow", ()), ("to_tensorboard", ("runs/1",))):
    functions = []
    scope = {}
    exec(snippets[name], scope)
    for rank in (1, 0):  # one function, of worker 0
        scope[name](types.SimpleNamespace(rank=rank, on_record=functions.append), *arguments)
    for record in records:
        functions[0](record)
    assert len(functions) == 1

assert calls == ["start_run", ("summary.json", "summary", records[-1]["job"]), "end_run",
                 ("writer", "runs/1"), "close"], calls
assert numbers["mlflow"] == numbers["tensorboard"]
last = records[-1]
own = numbers["mlflow"]["evaluation/own"]
assert own == [(e["step"], e["reported"]["own"]) for e in last["evaluations"]
               if "reported" in e], own
assert numbers["mlflow"]["reported/rows"][-1][1] == last["reported"]["rows"]
assert numbers["mlflow"]["progress/samples"][-1][1] == last["samples"]
assert len(numbers["mlflow"]["evaluation/auc"]) > 1
