"""Modules as TorchScript, for script_test.cc. `scripts.py write FOLDER` writes all of them;
`scripts.py train FOLDER TRAIN.csv BATCH EPOCHS` is a worker with the eager twin of ranker.pt, over
every n-th row."""
import csv
import os
import sys
import zipfile
from typing import Dict, Tuple

import torch
from torch import nn

FIELDS = ["city", "offer", "day"]
TABLES = {"t-0": ["city", "offer"], "t1": ["day"]}  # "t-0" is no name of Python's
DIM = 8


class Ranker(nn.Module):
    """Over the tables of the test's job: two numbers, two tables."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.bottom = nn.Linear(2, DIM)
        self.layers = nn.Sequential(nn.Linear(4 * DIM, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: torch.Tensor, sparse: Dict[str, torch.Tensor]) -> torch.Tensor:
        x = torch.cat([self.bottom(dense), sparse["t-0"].flatten(1), sparse["t1"].flatten(1)], 1)
        return self.layers(x).squeeze(1)


class Noisy(Ranker):
    """With dropout and running means."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4 * DIM)
        self.drop = nn.Dropout(.25)

    def forward(self, dense: torch.Tensor, sparse: Dict[str, torch.Tensor]) -> torch.Tensor:
        x = torch.cat([self.bottom(dense), sparse["t-0"].flatten(1), sparse["t1"].flatten(1)], 1)
        return self.layers(self.drop(self.norm(x))).squeeze(1)


class RowsAlone(nn.Module):
    """Without a parameter."""

    def forward(self, dense: torch.Tensor, sparse: Dict[str, torch.Tensor]) -> torch.Tensor:
        return sparse["t-0"].sum([1, 2]) + sparse["t1"].sum([1, 2])


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(.5)

    def forward(self, dense: torch.Tensor, sparse: Dict[str, torch.Tensor]) -> torch.Tensor:
        return self.drop(sparse["a"]).sum([1, 2])


class TwoHeads(nn.Module):
    """A loss of its own, of outputs that are no logits."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 1), nn.Linear(4, 1)

    def forward(self, dense: torch.Tensor, sparse: Dict[str, torch.Tensor]) -> Tuple[torch.Tensor,
                                                                                     torch.Tensor]:
        return self.first(dense).squeeze(1), self.second(sparse["a"][:, 0]).squeeze(1)

    @torch.jit.export
    def loss(self, outputs: Tuple[torch.Tensor, torch.Tensor],
             labels: torch.Tensor) -> torch.Tensor:
        return (outputs[0] - labels).square().sum() + 2 * (outputs[1] - labels).square().sum()

    @torch.jit.export
    def score(self, outputs: Tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return outputs[0] + outputs[1]


class NoScore(TwoHeads):
    @torch.jit.export
    def score(self, outputs: Tuple[torch.Tensor, torch.Tensor], more: int) -> torch.Tensor:
        return outputs[0] + more


class Odd(nn.Module):
    """One parameter under two names, one that no batch reaches, one that is frozen, one that is a
    scalar, and rows that are read with strides and changed in a copy."""

    def __init__(self):
        super().__init__()
        self.one, self.unused = nn.Linear(4, 4, bias=False), nn.Linear(4, 1)
        self.same = self.one
        self.frozen = nn.Parameter(torch.full([3], 2.), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(.5))
        self.turned = nn.Parameter(torch.arange(12.).view(4, 3).t())
        with torch.no_grad():
            self.one.weight.copy_(torch.arange(16.).view(4, 4) / 16)

    def forward(self, dense: torch.Tensor, sparse: Dict[str, torch.Tensor]) -> torch.Tensor:
        rows = sparse["a"].transpose(0, 1)[0]
        dense.mul_(self.frozen)
        return ((self.same(self.one(rows)).sum(1) + dense.matmul(self.turned).sum(1)) * self.scale)


class Plain(nn.Module):
    """Of one table `a`, for what goes wrong. `how` is compiled in."""
    how: str

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, dense: torch.Tensor, sparse: Dict[str, torch.Tensor]) -> torch.Tensor:
        x = (sparse["a"][:, 0] * self.weight).sum(1)
        if self.how == "column":
            return x.unsqueeze(1)
        if self.how == "raises":
            raise ValueError("no such city")
        if self.how == "shapes":
            return dense.matmul(self.weight)
        if self.how == "table":
            return sparse["b"].sum([1, 2])
        if self.how == "detached":
            return x.detach()
        if self.how == "cuda":
            return x + torch.ones(1, device="cuda")
        if self.how == "inplace":
            with torch.no_grad():
                self.weight.mul_(.5)
        if self.how == "integer":
            return x.long()
        if self.how == "nan":
            return x / (x - x)
        return x


class ScoreAlone(Plain):
    """As a module for serving may have it: trained on, it would be taken for logits."""

    @torch.jit.export
    def score(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.sigmoid()


class OtherArguments(nn.Module):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return ids


class NoForward(nn.Module):
    @torch.jit.export
    def score(self, x: torch.Tensor) -> torch.Tensor:
        return x


def views():
    module, whole = Plain("views"), torch.ones(6)
    module.other = nn.Parameter(whole[2:])
    module.weight = nn.Parameter(whole[:4])
    return module


def no_parameters():
    module = Plain("none")
    del module.weight
    module.register_buffer("weight", torch.ones(4))
    return module


def write(folder):
    os.makedirs(folder, exist_ok=True)
    modules = {"ranker": Ranker(), "noisy": Noisy(), "dropped": Dropped(), "rows": RowsAlone(),
               "heads": TwoHeads(), "odd": Odd(),
               "noscore": NoScore(), "scorealone": ScoreAlone("none"),
               "arguments": OtherArguments(), "noforward": NoForward(),
               "double": Plain("").double(), "views": views(), "none": no_parameters()}
    for how in ["column", "raises", "shapes", "table", "detached", "cuda", "inplace", "integer",
                "nan"]:
        modules[how] = Plain(how)
    for name, module in modules.items():
        torch.jit.script(module).save(f"{folder}/{name}.pt")
    changed = Ranker()
    with torch.no_grad():
        changed.bottom.weight.mul_(.5)
    torch.jit.script(changed).save(f"{folder}/changed.pt")
    torch.jit.freeze(torch.jit.script(Ranker().eval())).save(f"{folder}/frozen.pt")
    example = torch.zeros(3, 2), {"t-0": torch.zeros(3, 2, DIM), "t1": torch.zeros(3, 1, DIM)}
    torch.jit.trace(Ranker(), example, strict=False).save(f"{folder}/traced.pt")
    torch.save(Ranker().state_dict(), f"{folder}/state.pt")
    # As a machine with a GPU would have written it.
    with zipfile.ZipFile(f"{folder}/ranker.pt") as was, zipfile.ZipFile(f"{folder}/gpu.pt",
                                                                        "w") as to:
        for entry in was.namelist():
            to.writestr(entry, was.read(entry).replace(b"X\3\0\0\0cpu", b"X\6\0\0\0cuda:0"))


def train(train_file, batch, epochs):
    import tandem
    job = tandem.init()
    rows, model = tandem.EmbeddingBagCollection(), Ranker()
    optimizer = tandem.DistributedOptimizer(model, loss="sum")
    with open(train_file, encoding="utf-8") as file:
        data = list(csv.DictReader(file))[job.rank::job.world_size]

    def batches():
        for begin in range(0, len(data), batch):
            part = data[begin:begin + batch]
            yield (torch.tensor([[float(r["x0"]), float(r["x1"])] for r in part]),
                   {f: torch.from_numpy(tandem.hash_ids([r[f] for r in part], f)) for f in FIELDS},
                   torch.tensor([float(r["label"]) for r in part]))

    loader = tandem.DataLoader(list(batches()), features=1)
    for _ in job.epochs():
        for dense, ids, label in loader:
            optimizer.zero_grad()
            pooled = rows(ids)
            logits = model(dense, {table: pooled.table(table) for table in TABLES})
            loss = nn.functional.binary_cross_entropy_with_logits(logits, label, reduction="sum")
            loss.backward()
            optimizer.step(loss=loss)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2])
    else:
        train(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
