"""Refusals of tandem.torchrec.shard() and of its modules, each one line; tables on the device
"meta".

    torchrec_refused.py FOLDER
"""
import os
import sys

import torch
from torch import nn
from torchrec import (EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection,
                      EmbeddingConfig, KeyedJaggedTensor)
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import (ManagedCollisionEmbeddingBagCollection,
                                                   ManagedCollisionEmbeddingCollection)
from torchrec.modules.mc_modules import (DistanceLFU_EvictionPolicy, ManagedCollisionCollection,
                                         MCHManagedCollisionModule)
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.types import DataType

import tandem
import tandem.torchrec

CPU, META = torch.device("cpu"), torch.device("meta")
FOLDER = sys.argv[1]


def table(name="t", rows=10, features=("f",), kind=EmbeddingBagConfig, dim=4, **more):
    return kind(name=name, embedding_dim=dim, num_embeddings=rows, feature_names=list(features),
                **more)


def bags(*tables, device=META, **more):
    return EmbeddingBagCollection(tables=list(tables), device=device, **more)


def shard(model, optimizer="kind: SGD learning_rate: 1", **more):
    return tandem.torchrec.shard(model, optimizer=optimizer, batch_size=4, **more)


def check_refused(kind, text, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except kind as error:
        assert text in str(error) and "\n" not in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")


def check_model(text, model, **more):
    check_refused(tandem.Error, text, shard, model, **more)


def managed(kind, collection, config):
    collision = MCHManagedCollisionModule(
        zch_size=10, device=CPU, eviction_policy=DistanceLFU_EvictionPolicy(), eviction_interval=2,
        input_hash_size=100)
    return kind(collection, ManagedCollisionCollection({"t": collision}, [config]))


def of_kinds():
    processed = FeatureProcessedEmbeddingBagCollection(
        bags(table(), is_weighted=True), PositionWeightedModuleCollection({"f": 3}, CPU))
    check_model("inner is a FeatureProcessedEmbeddingBagCollection, which is unsupported",
                nn.ModuleDict({"inner": processed}))
    one = table()
    check_model("the model is a ManagedCollisionEmbeddingBagCollection, which is unsupported",
                managed(ManagedCollisionEmbeddingBagCollection, bags(one, device=CPU), one))
    one = table(kind=EmbeddingConfig)
    check_model("the model is a ManagedCollisionEmbeddingCollection, which is unsupported",
                managed(ManagedCollisionEmbeddingCollection, EmbeddingCollection([one]), one))
    check_model("has no EmbeddingBagCollection", nn.Linear(1, 1))


def of_tables():
    check_model("table 't': another collection has a table of this name",
                nn.ModuleList([bags(table()), bags(table())]))
    check_model("table 'dense': expected a name", bags(table("dense")))
    check_model("table 'a b': expected a name", bags(table("a b")))
    check_model("table 't': data_type FP16, expected FP32", bags(table(data_type=DataType.FP16)))
    check_model("table 't': num_embeddings 10000001, expected at most 10000000",
                bags(table(rows=10_000_001)))
    check_model("table 't': pooling MEAN in a weighted collection, expected SUM",
                bags(table(pooling=PoolingType.MEAN), is_weighted=True))
    fused = bags(table(), device=CPU)
    apply_optimizer_in_backward(torch.optim.SGD, fused.parameters(), {"lr": 1.})
    check_model("table 't': has an optimizer in backward; say optimizer= to shard()", fused)


def of_arguments():
    check_model("table 'other' is not in both the model and the dict", bags(table()),
                optimizer={"t": "kind: SGD learning_rate: 1", "other": ""}, out=FOLDER + "/dict")
    os.environ["WORLD_SIZE"] = "2"
    check_model("another program has started several processes", bags(table()), workers=2)
    del os.environ["WORLD_SIZE"]
    os.makedirs(FOLDER + "/there.start")
    check_model("there.start exists; remove it", bags(table()), out=FOLDER + "/there")
    check_model("optimizer.learning_rate: -1, must be above 0", bags(table()),
                optimizer="kind: SGD learning_rate: -1", out=FOLDER + "/rate")


def keyed(values, lengths=None, keys=("f",), **more):
    lengths = [1] * len(values) if lengths is None else lengths
    return KeyedJaggedTensor(keys=list(keys), values=torch.tensor(values),
                             lengths=torch.tensor(lengths, dtype=torch.int32), **more)


class Model(nn.Module):
    """made: a KeyedJaggedTensor that the model makes itself."""

    def __init__(self, collection):
        super().__init__()
        self.collection, self.layer, self.made = collection, nn.Linear(4, 1), None
        self.again = collection
        self.weighted = bags(table("w", features=["g"]), is_weighted=True)
        # The copy of their rows fits into limits.held_bytes_per_shard.
        self.wide = bags(*[table(f"wide{i}", features=[f"h{i}"], dim=128) for i in range(26)])

    def forward(self, features):
        used = features if self.made is None else self.made
        return self.layer(self.collection(used).values()).mean()


def of_job():
    """The table begins with the values of its init_fn."""
    values = torch.arange(40.).view(10, 4)
    model = shard(Model(bags(table(init_fn=lambda weight: weight.copy_(values)))),
                  out=FOLDER + "/job", set=["seed=3"])
    job = tandem.job()
    assert job.seed == 3
    for other, text in ((table("u"), "the job has None, and the module wants another table; in the "
                         "job say table { name: \"u\" dim: 4 field: \"f\" }"),
                        (table(features=["g"]), "the job has Table('t', dim=4, fields=['f']), and "
                         "the module wants another table")):
        check_refused(ValueError, text, shard, Model(bags(other)))
    assert type(model.collection) is tandem.torchrec.EmbeddingBagCollection
    assert model.again is model.collection
    assert [config.name for config in model.collection.embedding_bag_configs()] == ["t"]
    optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=.1), model)
    assert torch.equal(job.rows("t", torch.arange(10)), values)
    of_batches(job, model, optimizer)


def of_batches(job, model, optimizer):
    for batch, text in (
            (keyed([1, 10]), "feature 'f': id 10 in table 't', expected 0 to 9 (num_embeddings)"),
            (keyed([1, -1]), "feature 'f': id -1 in table 't', expected 0 to 9 (num_embeddings)"),
            (keyed([1, 2], keys=["f", "g"]), "feature 'g': no weights, and the collection of table "
             "'w' is weighted"),
            (keyed([1, 2], keys=["f", "g"], weights=torch.ones(2, requires_grad=True)),
             "feature 'g': its weights require a gradient"),
            (keyed([1, 2, 3], keys=["f", "g"], stride_per_key_per_rank=[[2], [1]]),
             "KeyedJaggedTensor with a batch size for each key")):
        check_refused(ValueError, text, list, tandem.DataLoader([batch]))
    for _ in job.epochs():
        for batch in tandem.DataLoader([keyed([1, 2])]):
            model.made = keyed([1, 3])
            check_refused(ValueError, "EmbeddingBagCollection: unsupported: a KeyedJaggedTensor "
                          "that is made inside the model (EmbeddingBagCollection: called with "
                          "other ids than the batch has; rows are fetched before the model runs",
                          model, batch)
            model.made = keyed([1, 2])  # the ids of the batch
            model(batch).backward()
            optimizer.step()


if __name__ == "__main__":
    of_kinds()
    of_tables()
    of_arguments()
    of_job()
    print("refused")
