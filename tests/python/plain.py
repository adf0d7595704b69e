"""What needs no job: hashing, forms of ids, and what is missing where."""
import numpy
import torch

import tandem
from tandem.sparse import BatchIds, FieldIds, KeyedJaggedTensor


class OneTable:
    """Stands for a job whose table `ids` has two fields."""
    _fields = ["city", "offer"]
    tables = {}

    def _table_of(self, name):
        from tandem.job import Table
        if name not in self._fields:
            raise ValueError(name)
        return Table(0, "ids", 4, self._fields), self._fields.index(name)


def same(a, b):
    for name in ("city", "offer"):
        x, y = a.fields[name], b.fields[name]
        assert torch.equal(x.ids, y.ids), name
        ox = torch.arange(x.ids.numel() + 1) if x.offsets is None else x.offsets
        oy = torch.arange(y.ids.numel() + 1) if y.offsets is None else y.offsets
        assert torch.equal(ox, oy), name


job = OneTable()
matrix = torch.tensor([[1, 5], [2, 6], [3, 7]])
flat = BatchIds(job, matrix)
same(flat, BatchIds(job, {"city": matrix[:, 0], "offer": matrix[:, 1]}))
same(flat, BatchIds(job, KeyedJaggedTensor(["city", "offer"], torch.tensor([1, 2, 3, 5, 6, 7]),
                                           lengths=torch.ones(6, dtype=torch.int64))))
same(flat, BatchIds(job, {"city": (matrix[:, 0], torch.arange(3)),      # as nn.EmbeddingBag
                          "offer": (matrix[:, 1], torch.arange(4))}))   # with include_last_offset
assert flat.samples == 3
jagged = BatchIds(job, {"city": (torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3])), "offer": matrix[:, 1]})
assert jagged.fields["city"].offsets.tolist() == [0, 0, 3, 3]
wide = BatchIds(job, {"city": matrix.repeat(1, 2), "offer": matrix[:, 1]}).fields["city"]
assert wide.length == 4 and wide.offsets.tolist() == [0, 4, 8, 12]

texts = tandem.hash_ids(["Rome", "", None, "Rome", "7"], "city")
assert texts[0] == texts[3] != texts[1] == texts[2] and texts.dtype == numpy.int64
assert tandem.hash_ids(["Rome"], "offer")[0] != texts[0]
numbers = tandem.hash_ids(torch.tensor([7, 8, 7]), "city")
assert numbers[0] == numbers[2] != numbers[1]
print(texts[0], texts[1], numbers[0])
try:
    tandem.load("/nowhere")
except FileNotFoundError as error:
    assert "is it the folder `model` of a run?" in str(error)
