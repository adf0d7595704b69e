"""MLP, DLRM and GMF as plain nn.Modules beside the compiled models. `models.py gradients CASE`
compares one step with what the compiled model has computed (a JSON file of python_models_test.cc);
`models.py train CASE TRAIN.csv TEST.csv` is a worker that begins with the same values and reads the
same rows; `models.py export CASE FILE` writes the module as TorchScript."""
import csv
import json
import sys
from typing import Dict, List

import torch
from torch import nn

import tandem


class Layers(nn.ModuleList):
    """A stack of linear layers with ReLU between them, and behind the last one if so said."""

    def __init__(self, widths, relu_last=False):
        super().__init__([nn.Linear(a, b) for a, b in zip(widths, widths[1:])])
        self.without_relu = -1 if relu_last else len(widths) - 2

    def forward(self, x):
        for number, layer in enumerate(self):
            x = layer(x)
            if number != self.without_relu:
                x = x.relu()
        return x


class Mlp(nn.Module):
    def __init__(self, numbers, vectors, dim, hidden):
        super().__init__()
        self.mlp = Layers([vectors * dim + numbers, *hidden, 1])

    def forward(self, numbers, cells):
        return self.mlp(torch.cat([cells.flatten(1), numbers], 1)).squeeze(1)


class Dlrm(nn.Module):
    def __init__(self, numbers, vectors, dim, bottom, top):
        super().__init__()
        self.bottom = Layers([numbers, *bottom], relu_last=True)
        self.pairs = torch.tril_indices(vectors + 1, vectors + 1, -1)
        self.top = Layers([dim + self.pairs.shape[1], *top, 1])

    def forward(self, numbers, cells):
        bottom = self.bottom(numbers)
        vectors = torch.cat([bottom.unsqueeze(1), cells], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, products], 1)).squeeze(1)


class Gmf(nn.Module):
    def __init__(self, numbers, vectors, dim):
        super().__init__()
        assert numbers == 0 and vectors == 2
        self.output = Layers([dim, 1])

    def forward(self, _, cells):
        return self.output(cells[:, 0] * cells[:, 1]).squeeze(1)


def module_of(case):
    model = {"mlp": Mlp, "dlrm": Dlrm, "gmf": Gmf}[case["model"]](
        case["numeric"], len(case["fields"]), case["dim"], *case["widths"])
    own = dict(model.named_parameters())
    assert list(own) == [p["name"] for p in case["parameters"]], list(own)
    for parameter in case["parameters"]:
        with torch.no_grad():
            own[parameter["name"]].copy_(torch.tensor(parameter["values"]).view(
                own[parameter["name"]].shape))
    return model


class OfTables(nn.Module):
    """The module, with its cells from a dict of tables, in this order."""

    def __init__(self, model, tables: List[str]):
        super().__init__()
        self.model, self.tables = model, tables

    def forward(self, dense: torch.Tensor, sparse: Dict[str, torch.Tensor]) -> torch.Tensor:
        return self.model(dense, torch.cat([sparse[t] for t in self.tables], 1))


def export(case, file):
    torch.jit.script(OfTables(module_of(case), case["tables"])).save(file)


def near(what, found, want):
    want = torch.tensor(want).view(found.shape)
    worst = float((found - want).abs().max() / want.abs().max())
    assert worst < 1e-5, (what, worst)


def gradients(case):
    model = module_of(case)
    samples = len(case["labels"])
    numbers = torch.tensor(case["numbers"]).view(samples, case["numeric"])
    cells = torch.tensor(case["cells"]).view(samples, len(case["fields"]),
                                             case["dim"]).requires_grad_()
    logits = model(numbers, cells)
    nn.BCEWithLogitsLoss(reduction="sum")(logits, torch.tensor(case["labels"])).backward()
    near("logits", logits.detach(), case["logits"])
    near("cells", cells.grad, case["pooled_gradients"])
    for name, parameter in model.named_parameters():
        near(name, parameter.grad, next(p["gradient"] for p in case["parameters"] if p["name"]
                                        == name))


def batches(case, path):
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for begin in range(0, len(rows), case["batch"]):
        part = rows[begin:begin + case["batch"]]
        numbers = torch.tensor([[float(r[f"x{i}"]) for i in range(case["numeric"])] for r in part])
        ids = {f: torch.from_numpy(tandem.hash_ids([r[f] for r in part], f))
               for f in case["fields"]}
        yield numbers, ids, torch.tensor([float(r["label"]) for r in part])


def train(case, train_file, test_file):
    job = tandem.init()
    rows, model = tandem.EmbeddingBagCollection(), module_of(case)
    optimizer = tandem.DistributedOptimizer(model)
    loader = tandem.DataLoader(list(batches(case, train_file)), features=1)
    tests = tandem.DataLoader(list(batches(case, test_file)), features=1)
    loss_of = nn.BCEWithLogitsLoss()

    def cells_of(ids):
        pooled = rows(ids)
        return torch.cat([pooled.table(t) for t in job.tables], 1)

    for _ in job.epochs():
        for numbers, ids, label in loader:
            optimizer.zero_grad()
            loss_of(model(numbers, cells_of(ids)), label).backward()
            optimizer.step()
        for numbers, ids, label in job.evaluate(tests):
            with torch.no_grad():
                job.score(model(numbers, cells_of(ids)), label)


if __name__ == "__main__":
    with open(sys.argv[2], encoding="utf-8") as opened:
        {"gradients": gradients, "train": train,
         "export": export}[sys.argv[1]](json.load(opened), *sys.argv[3:])
