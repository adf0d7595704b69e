"""What tandem.torchrec.shard() and its modules refuse, each by one line, and tables on the device "meta"."""
import os
import sys

import torch
from torch import nn
from torchrec import (EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig,
                      KeyedJaggedTensor)
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import (ManagedCollisionEmbeddingBagCollection,
                                                   ManagedCollisionEmbeddingCollection)
from torchrec.modules.mc_modules import (DistanceLFU_EvictionPolicy, ManagedCollisionCollection, MCHManagedCollisionModule)
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.types import DataType

import tandem
import tandem.torchrec

META = torch.device("meta")
FOLDER = sys.argv[1]


def bag(name="t", rows=10, features=("f",), **more):
    return EmbeddingBagConfig(name=name, embedding_dim=4, num_embeddings=rows, feature_names=list(features), **more)


def bags(*tables, device=META, **more):
    return EmbeddingBagCollection(tables=list(tables), device=device, **more)


def refused(kind, text, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except kind as error:
        assert text in str(error) and "\n" not in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")


def shard(model, **more):
    return tandem.torchrec.shard(model, **{"optimizer": "kind: SGD learning_rate: 1", "batch_size": 4, **more})


def managed(kind, collection, configs):
    collisions = {config.name: MCHManagedCollisionModule(
        zch_size=10, device=torch.device("cpu"), eviction_policy=DistanceLFU_EvictionPolicy(), eviction_interval=2,
        input_hash_size=100) for config in configs}
    return kind(collection, ManagedCollisionCollection(collisions, configs))


def of_models():
    processed = FeatureProcessedEmbeddingBagCollection(
        bags(bag(), is_weighted=True), PositionWeightedModuleCollection({"f": 3}, torch.device("cpu")))
    refused(tandem.Error, "inner is a FeatureProcessedEmbeddingBagCollection, which is unsupported", shard,
            nn.ModuleDict({"inner": processed}))
    refused(tandem.Error, "the model is a ManagedCollisionEmbeddingBagCollection, which is unsupported", shard,
            managed(ManagedCollisionEmbeddingBagCollection, bags(bag(), device=torch.device("cpu")), [bag()]))
    config = EmbeddingConfig(name="t", embedding_dim=4, num_embeddings=10, feature_names=["f"])
    refused(tandem.Error, "the model is a ManagedCollisionEmbeddingCollection, which is unsupported", shard,
            managed(ManagedCollisionEmbeddingCollection, EmbeddingCollection(tables=[config]), [config]))
    refused(tandem.Error, "has no EmbeddingBagCollection", shard, nn.Linear(1, 1))
    refused(tandem.Error, "table 't': another collection has a table of this name", shard,
            nn.ModuleList([bags(bag()), bags(bag())]))
    refused(tandem.Error, "table 'dense': expected a name", shard, bags(bag("dense")))
    refused(tandem.Error, "table 'a b': expected a name", shard, bags(bag("a b")))
    refused(tandem.Error, "table 't': data_type DataType.FP16, expected FP32", shard,
            bags(bag(data_type=DataType.FP16)))
    refused(tandem.Error, "table 't': num_embeddings 10000001, expected at most 10000000", shard,
            bags(bag(rows=10_000_001)))
    refused(tandem.Error, "table 't': pooling MEAN in a weighted collection", shard,
            bags(bag(pooling=PoolingType.MEAN), is_weighted=True))
    fused = bags(bag(), device=torch.device("cpu"))
    apply_optimizer_in_backward(torch.optim.SGD, fused.parameters(), {"lr": 1.})
    refused(tandem.Error, "table 't': has an optimizer in backward; say optimizer=", shard, fused)
    refused(tandem.Error, "table 'other' is in one of the model and the dict", shard, bags(bag()),
            optimizer={"t": "kind: SGD learning_rate: 1", "other": ""}, out=FOLDER + "/dict")
    os.environ["WORLD_SIZE"] = "2"
    refused(tandem.Error, "another program has started several processes", shard, bags(bag()), workers=2)
    os.environ["WORLD_SIZE"] = "1"
    os.makedirs(FOLDER + "/there.start")
    refused(tandem.Error, "there.start exists; remove it", shard, bags(bag()), out=FOLDER + "/there")
    refused(tandem.Error, "expected a number above 0", shard, bags(bag()), out=FOLDER + "/rate",
            optimizer="kind: SGD learning_rate: -1")


def keyed(values, keys=("f",), **more):
    return KeyedJaggedTensor(keys=list(keys), values=torch.tensor(values),
                             lengths=torch.ones(len(values), dtype=torch.int32), **more)


class Model(nn.Module):
    """made: the model makes a KeyedJaggedTensor itself."""

    def __init__(self, collection):
        super().__init__()
        self.collection, self.layer, self.made = collection, nn.Linear(4, 1), None

    def forward(self, features):
        return self.layer(self.collection(features if self.made is None else self.made).values()).mean()


def of_batches():
    """The table begins with the values of its init_fn."""
    def first(weight):
        weight.copy_(torch.arange(40.).view(10, 4))

    model = shard(Model(bags(bag(init_fn=first))), out=FOLDER + "/batches", set=["seed=3"])
    job = tandem.job()
    assert job.seed == 3
    refused(tandem.Error, "there is a job already", shard, Model(bags(bag("u"))))
    refused(ValueError, "the job has None, and the module wants another table; in the job say table { name: \"u\"",
            shard, Model(bags(bag("u"))))
    refused(ValueError, "the job has Table('t', dim=4, fields=['f']), and the module wants another table", shard,
            Model(bags(bag(features=["g"]))))
    assert type(model.collection) is tandem.torchrec.EmbeddingBagCollection
    assert [config.name for config in model.collection.embedding_bag_configs()] == ["t"]
    optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=.1), model)
    assert torch.equal(job.rows("t", torch.arange(10)), torch.arange(40.).view(10, 4))

    refused(ValueError, "feature 'f': id 10 in table 't', expected 0 to 9", list, tandem.DataLoader([keyed([1, 10])]))
    refused(ValueError, "feature 'f': id -1 in table 't', expected 0 to 9", list, tandem.DataLoader([keyed([1, -1])]))
    refused(ValueError, "with a batch size for each key", list, tandem.DataLoader([KeyedJaggedTensor(
        keys=["f", "g"], values=torch.tensor([1, 2, 3]), lengths=torch.tensor([1, 1, 1]),
        stride_per_key_per_rank=[[2], [1]])]))
    for _ in job.epochs():
        for batch in tandem.DataLoader([keyed([1, 2])]):
            model.made = keyed([1, 3])
            refused(ValueError, "EmbeddingBagCollection: unsupported: a KeyedJaggedTensor that is made inside the "
                    "model (EmbeddingBagCollection: called with other ids than the batch has; rows are fetched "
                    "before the model runs", model, batch)
            model.made = keyed([1, 2])  # others of the same ids are as good
            model(batch).backward()
            optimizer.step()


if __name__ == "__main__":
    of_models()
    of_batches()
    print("refused")
