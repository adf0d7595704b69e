"""Models of torchrec, plain in one process and with their tables on servers.

    torchrec_models.py MODEL FILE plain             writes losses of 100 steps on one process, first and last rows
    torchrec_models.py MODEL OUT W                  the same with W workers; writes OUT.RANK.json
    torchrec_models.py MODEL OUT W 40               takes 40 steps
    torchrec_models.py MODEL OUT W resume           resumes that run

Worker R of W has every W-th sample of each batch, from R on.
"""
import json
import sys

import torch
from torch import nn
from torchrec import (EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig, JaggedTensor,
                      KeyedJaggedTensor, KeyedTensor)
from torchrec.datasets.utils import Batch
from torchrec.models.deepfm import SimpleDeepFMNN
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_configs import PoolingType

import tandem
import tandem.torchrec

STEPS, SAMPLES, ROWS, DENSE = 100, 64, 20, 5
RATES = {"dlrm": 2., "deepfm": .5, "mixed": .5}
CPU = torch.device("cpu")


def bags(*tables, **more):
    return EmbeddingBagCollection(device=CPU, tables=[
        EmbeddingBagConfig(name=name, embedding_dim=dim, num_embeddings=ROWS, feature_names=features, pooling=pooling)
        for name, dim, features, pooling in tables], **more)


SUM, MEAN = PoolingType.SUM, PoolingType.MEAN


class DeepFM(nn.Module):
    """Its logits are after a sigmoid, as torchrec has it."""

    def __init__(self):
        super().__init__()
        self.inside = SimpleDeepFMNN(DENSE, bags(("t1", 8, ["a", "b"], SUM), ("t2", 8, ["c"], SUM)), 16, 5)

    def forward(self, batch):
        prediction = self.inside(batch.dense_features, batch.sparse_features).squeeze(1)
        return nn.functional.binary_cross_entropy(prediction, batch.labels.float()), prediction


class Mixed(nn.Module):
    """Sums and means, a table of two features, a feature of two tables, weights, sequences."""

    def __init__(self):
        super().__init__()
        self.bags = bags(("t1", 8, ["a", "b"], SUM), ("t2", 4, ["c"], MEAN), ("t3", 6, ["a"], MEAN))
        self.weighted = bags(("t4", 8, ["a"], SUM), ("t5", 4, ["b", "c"], SUM), is_weighted=True)
        self.sequences = EmbeddingCollection(device=CPU, need_indices=True, tables=[
            EmbeddingConfig(name="t6", embedding_dim=3, num_embeddings=ROWS, feature_names=["a", "c"]),
            EmbeddingConfig(name="t7", embedding_dim=3, num_embeddings=ROWS, feature_names=["b", "a"])])
        self.layers = nn.Sequential(nn.Linear(DENSE + 8 + 8 + 4 + 6 + 8 + 4 + 4 + 12, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, batch):
        features = batch.sparse_features
        pooled, weighted, sequences = self.bags(features), self.weighted(features), self.sequences(features)
        assert type(pooled) is type(weighted) is KeyedTensor
        assert pooled.keys() == ["a@t1", "b", "c", "a@t3"] and weighted.keys() == ["a", "b", "c"], pooled.keys()
        assert pooled["a@t3"].shape == (len(batch.labels), 6)
        assert list(sequences) == ["a@t6", "c", "b", "a@t7"], list(sequences)
        last = []
        for name, rows in sequences.items():
            assert type(rows) is JaggedTensor
            ids = features[name[0]]
            assert torch.equal(rows.weights(), ids.values()) and torch.equal(rows.lengths(), ids.lengths())
            sums = torch.zeros(len(batch.labels), 3)   # weighted by place, so the order of rows matters
            owner = torch.repeat_interleave(torch.arange(len(batch.labels)), rows.lengths())
            place = torch.arange(len(owner)) - rows.offsets()[:-1][owner]
            last.append(sums.index_add(0, owner, rows.values() * (1 + place).sin().unsqueeze(1)))
        logits = self.layers(torch.cat([batch.dense_features, pooled.values(), weighted.values(), *last], 1)).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(logits, batch.labels.float()), logits


def make(name):
    torch.manual_seed(7)
    if name == "dlrm":
        model = DLRMTrain(DLRM(bags(("t1", 8, ["a"], SUM), ("t2", 8, ["b"], SUM), ("t3", 8, ["c"], SUM)),
                               DENSE, [32, 8], [32, 16, 1]))
        for weight in rows_of(model).values():
            nn.init.normal_(weight, std=.5)
        return model
    return DeepFM() if name == "deepfm" else Mixed()


def batches(rank=0, workers=1):
    """Bags of 0 to 3 ids, a feature that no table has, and labels that follow from the ids."""
    random = torch.Generator().manual_seed(11)
    taste = torch.randn(ROWS, generator=random)
    for _ in range(STEPS):
        lengths = torch.randint(0, 4, (4, SAMPLES), generator=random)
        ids = [[torch.randint(0, ROWS, (int(n),), generator=random) for n in of_key] for of_key in lengths]
        dense = torch.randn(SAMPLES, DENSE, generator=random)
        labels = torch.tensor([int(sum(float(taste[key[s]].sum()) for key in ids) > 0) for s in range(SAMPLES)])
        weights = [[torch.rand(len(i), generator=random) for i in key] for key in ids]
        mine = range(rank, SAMPLES, workers)
        yield Batch(dense[mine], KeyedJaggedTensor(
            keys=["a", "unread", "b", "c"], values=torch.cat([key[s] for key in ids for s in mine]),
            weights=torch.cat([key[s] for key in weights for s in mine]),
            lengths=lengths[:, mine].reshape(-1).int()), labels[mine])


class Loader:
    def __init__(self, *part):
        self.part = part

    def __iter__(self):
        return batches(*self.part)


def rows_of(model):
    """The weights of each table."""
    return {key.split(".")[-2]: value for key, value in model.state_dict().items() if "embedding" in key}


def plain(name, out):
    model, losses = make(name), []
    optimizer = torch.optim.SGD(model.parameters(), lr=RATES[name])
    for batch in Loader():
        optimizer.zero_grad()
        loss, _ = model(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.save({"losses": losses, "rows": rows_of(model), "first": rows_of(make(name))}, out)


def sharded(name, out, workers, steps=STEPS):
    resumes = steps == "resume"
    model = tandem.torchrec.shard(make(name), optimizer=f"kind: SGD learning_rate: {RATES[name]}", batch_size=SAMPLES,
                                  workers=workers, ids_per_field=4, out=None if resumes else out,
                                  resume=out if resumes else None,
                                  set=[f"train.max_steps={STEPS if resumes else steps}"])
    job, losses = tandem.job(), []
    optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=RATES[name]), model)
    loader = tandem.DataLoader(Loader(job.rank, job.world_size))
    for _ in job.epochs():
        for batch in loader:
            optimizer.zero_grad()
            loss, _ = model(batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    with open(f"{out}.{job.rank}.json", "w", encoding="utf-8") as file:
        json.dump(losses, file)


if __name__ == "__main__":
    if sys.argv[3] == "plain":
        plain(*sys.argv[1:3])
    else:
        sharded(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
