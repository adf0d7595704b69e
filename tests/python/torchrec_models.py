"""Models of torchrec, plain in one process and with their tables on servers.

    torchrec_models.py MODEL FILE plain        writes the losses of 100 steps in one process, and
                                               the rows before and after
    torchrec_models.py MODEL OUT W             the same with W workers; writes OUT.RANK.json
    torchrec_models.py MODEL OUT W 40          takes 40 steps
    torchrec_models.py MODEL OUT W resume      resumes that run

Worker R of W has every W-th sample of each batch, from R on.
"""
import json
import sys

import torch
from torch import nn
from torchrec import (EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection,
                      EmbeddingConfig, JaggedTensor, KeyedJaggedTensor, KeyedTensor)
from torchrec.datasets.utils import Batch
from torchrec.models.deepfm import SimpleDeepFMNN
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_configs import PoolingType

import tandem
import tandem.torchrec

STEPS, SAMPLES, ROWS, DENSE = 100, 64, 20, 5
RATES = {"dlrm": 2., "deepfm": .5, "mixed": .5}
CPU = torch.device("cpu")
SUM, MEAN = PoolingType.SUM, PoolingType.MEAN


def bags(*tables, **more):
    configs = [EmbeddingBagConfig(name=name, embedding_dim=dim, num_embeddings=ROWS,
                                  feature_names=features, pooling=pooling)
               for name, dim, features, pooling in tables]
    return EmbeddingBagCollection(tables=configs, device=CPU, **more)


class DeepFM(nn.Module):
    """Its logits are after a sigmoid, as torchrec has it."""

    def __init__(self):
        super().__init__()
        tables = bags(("t1", 8, ["a", "b"], SUM), ("t2", 8, ["c"], SUM))
        self.inside = SimpleDeepFMNN(DENSE, tables, 16, 5)

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
            EmbeddingConfig(name=name, embedding_dim=3, num_embeddings=ROWS, feature_names=features)
            for name, features in (("t6", ["a", "c"]), ("t7", ["b", "a"]))])
        floats = DENSE + (8 + 8 + 4 + 6) + (8 + 4 + 4) + 4 * 3
        self.layers = nn.Sequential(nn.Linear(floats, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, batch):
        features = batch.sparse_features
        pooled, weighted = self.bags(features), self.weighted(features)
        assert type(pooled) is type(weighted) is KeyedTensor
        assert pooled.keys() == ["a@t1", "b", "c", "a@t3"], pooled.keys()
        assert weighted.keys() == ["a", "b", "c"], weighted.keys()
        assert pooled["a@t3"].shape == (len(batch.labels), 6)
        parts = [batch.dense_features, pooled.values(), weighted.values(), *self.sums(features)]
        logits = self.layers(torch.cat(parts, 1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels.float())
        return loss, logits

    def sums(self, features):
        """Of each sequence, rows weighted by their place, so that their order matters."""
        sequences = self.sequences(features)
        assert list(sequences) == ["a@t6", "c", "b", "a@t7"], list(sequences)
        for name, rows in sequences.items():
            assert type(rows) is JaggedTensor
            ids, samples = features[name[0]], features.stride()
            assert torch.equal(rows.weights(), ids.values())
            assert torch.equal(rows.lengths(), ids.lengths())
            owner = torch.repeat_interleave(torch.arange(samples), rows.lengths())
            place = torch.arange(len(owner)) - rows.offsets()[:-1][owner]
            values = rows.values() * (1 + place).sin().unsqueeze(1)
            yield torch.zeros(samples, 3).index_add(0, owner, values)


def rows_of(model):
    """The weights of each table."""
    return {key.split(".")[-2]: value for key, value in model.state_dict().items()
            if "embedding" in key}


def make(name):
    torch.manual_seed(7)
    if name == "deepfm":
        return DeepFM()
    if name == "mixed":
        return Mixed()
    tables = bags(("t1", 8, ["a"], SUM), ("t2", 8, ["b"], SUM), ("t3", 8, ["c"], SUM))
    model = DLRMTrain(DLRM(tables, DENSE, [32, 8], [32, 16, 1]))
    for weight in rows_of(model).values():
        nn.init.normal_(weight, std=.5)
    return model


def batches(rank=0, workers=1):
    """Bags of 0 to 3 ids, a feature that no table has, and labels that follow from the ids."""
    random = torch.Generator().manual_seed(11)
    taste = torch.randn(ROWS, generator=random)
    for _ in range(STEPS):
        lengths = torch.randint(0, 4, (4, SAMPLES), generator=random)
        ids = [[torch.randint(0, ROWS, (int(n),), generator=random) for n in of_key]
               for of_key in lengths]
        weights = [[torch.rand(len(bag), generator=random) for bag in of_key] for of_key in ids]
        dense = torch.randn(SAMPLES, DENSE, generator=random)
        labels = torch.tensor([int(sum(float(taste[of_key[sample]].sum()) for of_key in ids) > 0)
                               for sample in range(SAMPLES)])
        mine = range(rank, SAMPLES, workers)
        yield Batch(dense[mine], KeyedJaggedTensor(
            keys=["a", "unread", "b", "c"], lengths=lengths[:, mine].reshape(-1).int(),
            values=torch.cat([of_key[sample] for of_key in ids for sample in mine]),
            weights=torch.cat([of_key[sample] for of_key in weights for sample in mine]),
        ), labels[mine])


class Loader:
    def __init__(self, *part):
        self.part = part

    def __iter__(self):
        return batches(*self.part)


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
    model = tandem.torchrec.shard(
        make(name), optimizer=f"kind: SGD learning_rate: {RATES[name]}", batch_size=SAMPLES,
        workers=workers, ids_per_field=4, out=None if resumes else out,
        resume=out if resumes else None, set=[f"train.max_steps={STEPS if resumes else steps}"])
    job, losses = tandem.job(), []
    dense = torch.optim.SGD(model.parameters(), lr=RATES[name])
    optimizer = tandem.DistributedOptimizer(dense, model)
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
