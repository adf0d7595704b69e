"""Models of TorchRec whose tables live on the servers.

    model = tandem.torchrec.shard(model, optimizer="kind: SGD learning_rate: 0.1", batch_size=512)
    job = tandem.job()

shard() stands where torchrec's DistributedModelParallel would. The tables of the job are the
configurations of the model's collections. docs/TORCHREC.md is the tutorial. Needs torchrec.
"""
from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence, Union

import torch
from torch import nn

from tandem import current, session
from tandem._abi import Error
from tandem.current import current_tables, current_worker
from tandem.data import DataLoader
from tandem.local import program
from tandem.nn import EmbeddingBagConfig as Expected
from tandem.nn import Embedding, Rows, batch_at_hand, find_table, pooled_rows, rows_of_field
from tandem.optim import DistributedOptimizer
from tandem.sparse import FieldIds
from tandem.tables import Table

_MOST_ROWS = 10_000_000          # of a table
# Limits of a step that copies rows to the servers: its rows, and its bytes. The check of
# limits.held_bytes_per_shard assumes that a step has this many rows of every table.
_PIECE_ROWS, _PIECE_BYTES = 1 << 16, 400_000_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


def _torchrec() -> Any:
    try:
        import torchrec
    except ModuleNotFoundError as error:
        raise ImportError(f"tandem.torchrec needs torchrec, and there is no module {error.name}; "
                          "docs/TORCHREC.md has the versions that fit") from None
    return torchrec


# ---- modules -----------------------------------------------------------------------------------

class _Collection(Rows):
    """The part that both collections share. fields: of each table, in the order of its features,
    the fields of the job; names: the keys of the result."""

    def __init__(self, plain: Any, configs: Sequence[Any], fields: list[list[str]],
                 names: list[list[str]], weighted: bool) -> None:
        super().__init__()
        self._configs, self._names, self._weighted = configs, names, weighted
        self._fields = [field for of_table in fields for field in of_table]
        self._features = {field: (feature, config.num_embeddings)
                          for config, of_table in zip(configs, fields)
                          for feature, field in zip(config.feature_names, of_table)}
        self._tables: list[Table] = [
            find_table(current_tables(), Expected(config.name, config.embedding_dim, of_table))
            for config, of_table in zip(configs, fields)]
        place = next(plain.parameters()).device  # plain.device does not follow .to()
        if place.type not in ("cpu", "meta"):
            self._device = place

    @property
    def device(self) -> torch.device:
        """Where forward() returns rows."""
        return self._device or torch.device("cpu")

    def ids(self, features: Any) -> dict[str, FieldIds]:
        """The ids of a KeyedJaggedTensor by field of the job, for the features that it has.
        ValueError: invalid ids, or an unsupported kind of KeyedJaggedTensor."""
        if features.variable_stride_per_key() or features.inverse_indices_or_none() is not None:
            raise ValueError("KeyedJaggedTensor with a batch size for each key, or with inverse "
                             "indices, is unsupported; expected one batch size for all keys")
        if features.device().type != "cpu":
            features = features.to(torch.device("cpu"))
        jagged, found = features.to_dict(), {}
        for field, (feature, rows) in self._features.items():
            if feature in jagged:
                found[field] = self._ids_of(field, feature, rows, jagged[feature])
        return found

    def _ids_of(self, field: str, feature: str, rows: int, jagged: Any) -> FieldIds:
        weights = jagged.weights_or_none() if self._weighted else None
        if self._weighted and weights is None:
            raise ValueError(f"feature '{feature}': no weights, and the collection of table "
                             f"'{self._table_of(field)}' is weighted; give the KeyedJaggedTensor "
                             "weights")
        if weights is not None and weights.requires_grad:
            raise ValueError(f"feature '{feature}': its weights require a gradient, and rows are "
                             "fetched before the model runs; expected weights of the batch")
        ids = FieldIds(field, jagged.values(), jagged.offsets(), weights)
        if ids.ids.numel():
            least, most = (int(end) for end in torch.aminmax(ids.ids))
            if least < 0 or most >= rows:
                raise ValueError(f"feature '{feature}': id {least if least < 0 else most} in table "
                                 f"'{self._table_of(field)}', expected 0 to {rows - 1} "
                                 "(num_embeddings)")
        return ids

    def _table_of(self, field: str) -> str:
        return next(table.name for table in self._tables if field in table.fields)

    def _batch(self, features: Any) -> tuple[dict[str, torch.Tensor], Any]:
        """The cells of the batch at hand, and its ids."""
        worker = current_worker()
        what = type(self).__name__
        try:
            cells, given = batch_at_hand(worker, what, self._tables, features)
        except ValueError as error:
            if "called with other ids" not in str(error):
                raise
            raise ValueError(f"{what}: unsupported: a KeyedJaggedTensor that is made inside the "
                             f"model ({error})") from None
        given.check_has(self._fields)
        return cells, given

    def extra_repr(self) -> str:
        """The tables, for repr()."""
        return ", ".join(repr(table) for table in self._tables)


class EmbeddingBagCollection(_Collection):
    """In the place of torchrec.EmbeddingBagCollection; shard() makes it."""

    def forward(self, features: Any) -> Any:
        """features: the KeyedJaggedTensor of the batch at hand. Returns a torchrec.KeyedTensor."""
        cells, given = self._batch(features)
        worker, pooled = current_worker(), []
        for config, table in zip(self._configs, self._tables):
            for field in table.fields:
                rows = pooled_rows(worker, cells[table.name], table, given, field)
                if config.pooling.name == "MEAN":
                    counts = given.fields[field].bounds().diff().clamp(min=1)
                    rows = rows / counts.unsqueeze(1).to(rows.dtype)
                pooled.append(rows)
        return _torchrec().KeyedTensor(
            keys=[name for of_table in self._names for name in of_table],
            length_per_key=[rows.shape[1] for rows in pooled],
            values=self._here(torch.cat(pooled, 1)))

    def embedding_bag_configs(self) -> Sequence[Any]:
        """The torchrec.EmbeddingBagConfig of each table."""
        return self._configs

    def is_weighted(self) -> bool:
        """Whether the KeyedJaggedTensor has a weight for each id."""
        return self._weighted


class EmbeddingCollection(_Collection):
    """In the place of torchrec.EmbeddingCollection; shard() makes it."""

    def __init__(self, plain: Any, configs: Sequence[Any], fields: list[list[str]],
                 names: list[list[str]]) -> None:
        super().__init__(plain, configs, fields, names, False)
        self._need_indices = plain.need_indices()
        current_tables().unpooled.update(table.name for table in self._tables)

    def forward(self, features: Any) -> dict[str, Any]:
        """features: the KeyedJaggedTensor of the batch at hand. Returns a torchrec.JaggedTensor for
        each feature, with a row for each id."""
        cells, given = self._batch(features)
        jagged, out = features.to_dict(), {}
        for table, names in zip(self._tables, self._names):
            for field, name in zip(table.fields, names):
                ids = jagged[self._features[field][0]]
                out[name] = _torchrec().JaggedTensor(
                    values=self._here(rows_of_field(cells[table.name], table, given, field)),
                    lengths=ids.lengths(), weights=ids.values() if self._need_indices else None)
        return out

    def embedding_configs(self) -> Sequence[Any]:
        """The torchrec.EmbeddingConfig of each table."""
        return self._configs

    def need_indices(self) -> bool:
        """Whether results have the ids as weights."""
        return self._need_indices

    def embedding_dim(self) -> int:
        """Floats of a row, the same for all tables."""
        return self._configs[0].embedding_dim

    def embedding_names_by_table(self) -> list[list[str]]:
        """The keys of the result, by table."""
        return self._names


# ---- the tables of a model ---------------------------------------------------------------------

class _Found:
    """A collection of the model: its path, the module, and what the job calls its features."""

    def __init__(self, path: str, module: Any) -> None:
        self.path, self.module = path, module
        self.bags = hasattr(module, "embedding_bag_configs")
        self.configs = module.embedding_bag_configs() if self.bags else module.embedding_configs()
        self.weights: Mapping[str, Any] = module.embedding_bags if self.bags else module.embeddings
        self.weighted = self.bags and module.is_weighted()
        self.fields: list[list[str]] = []
        # As torchrec has it: a feature of several tables of the collection is FEATURE@TABLE.
        features = [name for config in self.configs for name in config.feature_names]
        self.names = [[f"{name}@{config.name}" if features.count(name) > 1 else name
                       for name in config.feature_names] for config in self.configs]

    def replacement(self) -> nn.Module:
        """The module of this file in its place."""
        if self.bags:
            return EmbeddingBagCollection(self.module, self.configs, self.fields, self.names,
                                          self.weighted)
        return EmbeddingCollection(self.module, self.configs, self.fields, self.names)


def _collections(model: nn.Module) -> list[_Found]:
    """The collections of the model. An Error: one of them, or a table, is unsupported."""
    kinds, found = _torchrec().modules.embedding_modules, []
    for path, module in model.named_modules():
        kind = type(module)
        if kind in (kinds.EmbeddingBagCollection, kinds.EmbeddingCollection):
            found.append(_Found(path, module))
        elif isinstance(module, (kinds.EmbeddingBagCollectionInterface,
                                 kinds.EmbeddingCollectionInterface)) or \
                re.search(r"Collection(Adapter)?$", kind.__name__) and \
                "Tower" not in kind.__name__ and \
                any(base.__module__.startswith("torchrec.") for base in kind.__mro__):
            raise Error(f"tandem.torchrec.shard: {path or 'the model'} is a {kind.__name__}, which "
                        "is unsupported; expected a plain EmbeddingBagCollection or "
                        "EmbeddingCollection of torchrec (docs/TORCHREC.md)")
    if not found:
        raise Error("tandem.torchrec.shard: the model has no EmbeddingBagCollection and no "
                    "EmbeddingCollection of torchrec; call shard() before the model is wrapped")
    tables: set[str] = set()
    for one in found:
        for config in one.configs:
            _check(one, config, tables)
            tables.add(config.name)
    # A field of the job belongs to one table, and a feature of torchrec to any number.
    features = [name for one in found for config in one.configs for name in config.feature_names]
    for one in found:
        one.fields = [[f"{name}@{config.name}" if features.count(name) > 1 else name
                       for name in config.feature_names] for config in one.configs]
    return found


def _check(one: _Found, config: Any, others: Iterable[str]) -> None:
    """An Error: a table of the collection that the job cannot have."""
    weight = one.weights[config.name].weight
    wrong = None
    if config.name in others:
        wrong = "another collection has a table of this name; give each table a name of its own"
    elif not _NAME.fullmatch(config.name) or config.name == "dense":
        wrong = "expected a name of letters, digits, _ and -, at most 100, and not `dense`"
    elif weight.dtype != torch.float32:
        wrong = f"data_type {config.data_type}, expected FP32"
    elif config.num_embeddings > _MOST_ROWS:
        wrong = f"num_embeddings {config.num_embeddings}, expected at most {_MOST_ROWS}"
    elif one.weighted and config.pooling.name != "SUM":
        wrong = f"pooling {config.pooling.name} in a weighted collection, expected SUM"
    elif hasattr(weight, "_optimizer_classes") or hasattr(weight, "_in_backward_optimizers"):
        wrong = "has an optimizer in backward; say optimizer= to shard() instead"
    if wrong is not None:
        raise Error(f"tandem.torchrec.shard: table '{config.name}': {wrong}")


def _replace(model: nn.Module, found: Iterable[_Found]) -> nn.Module:
    made = [(one, one.replacement()) for one in found]
    collections = [module for _, module in made]
    others = current_tables().keyed  # of another model of this job
    current_tables().keyed = lambda ids: {
        **(others(ids) if others is not None else {}),
        **{name: field for module in collections for name, field in module.ids(ids).items()}}
    for one, module in made:
        for path, child in list(model.named_modules(remove_duplicate=False)):  # it may have several
            if path and child is one.module:
                parent, _, name = path.rpartition(".")
                setattr(model.get_submodule(parent), name, module)
        if one.module is model:
            model = module
    return model


# ---- the job -----------------------------------------------------------------------------------

def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _job(found: Iterable[_Found], optimizer: Union[str, Mapping[str, str]], policy: str,
         cluster: str, train: str, ids_per_field: int) -> str:
    """A job file. optimizer: the text of the message, or by table."""
    configs = [(config, fields) for one in found for config, fields in zip(one.configs, one.fields)]
    if not isinstance(optimizer, str):
        strange = set(optimizer).symmetric_difference(config.name for config, _ in configs)
        if strange:
            raise Error(f"tandem.torchrec.shard: optimizer: table '{min(strange)}' is not in both "
                        "the model and the dict; expected one entry for each table of the model")
    lines = ["# The job starts from the weights of the model, in rows/model of this folder.",
             f"cluster {{ {cluster} }}", "data { format: PROGRAM }"]
    for config, fields in configs:
        of_fields = " ".join(f"field: {_text(field)}" for field in fields)
        of_table = optimizer if isinstance(optimizer, str) else optimizer[config.name]
        lines.append(f"table {{ name: {_text(config.name)} dim: {config.embedding_dim} {of_fields} "
                     f"expected_rows: {config.num_embeddings} ids_per_field: {ids_per_field} "
                     f"initializer {{ kind: ZERO }} optimizer {{ {of_table} }} }}")
    lines += ["dense { optimizer { kind: PROGRAM } }", f"policy {{ {policy} }}",
              "model { program {} }", f"train {{ {train} }}", ""]
    return "\n".join(lines)


class _Copy:
    """The rows of all tables as batches of one sample, each for the first field of its table.
    rows: the most of a batch."""

    def __init__(self, found: Iterable[_Found]) -> None:
        bytes_of_row = sum(len(config.feature_names) * (4 * config.embedding_dim + 8)
                           for one in found for config in one.configs)
        self.rows = max(1, min(_PIECE_ROWS, _PIECE_BYTES // bytes_of_row))
        self._tables = [(config, fields[0], one.weights[config.name].weight.detach())
                        for one in found for config, fields in zip(one.configs, one.fields)]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        for config, field, weight in self._tables:
            if weight.is_meta:
                weight = torch.empty(config.num_embeddings, config.embedding_dim)
                with torch.no_grad():
                    config.init_fn(weight)
            for begin in range(0, len(weight), self.rows):
                piece = weight[begin:begin + self.rows].cpu()
                yield field, torch.arange(begin, begin + len(piece)).unsqueeze(0), piece


def _copy(found: Sequence[_Found], folder: str) -> str:
    """Makes a checkpoint with the weights of the collections. Returns its path. A job whose rows
    begin with zeros takes a step of SGD with the learning rate 1 for each piece: the gradient of a
    row is its negative value, so the row gets each bit of the value."""
    job_file, out = os.path.join(folder, "rows.textproto"), os.path.join(folder, "rows")
    pieces = _Copy(found)
    with open(job_file, "x", encoding="utf-8") as file:
        file.write(_job(found, "kind: SGD learning_rate: 1", "kind: BSP", "workers: 1 servers: 1",
                        "batch_size: 1 epochs: 1 max_inflight_pushes: 1", pieces.rows))
    with session.init(job_file, out=out) as job:
        rows = {fields[0]: Embedding(fields[0]) for one in found for fields in one.fields}
        optimizer = DistributedOptimizer(torch.optim.SGD([torch.zeros(1)], lr=1.), nn.Module(),
                                         loss="sum")
        loader = DataLoader(pieces, features=lambda batch: {batch[0]: batch[1]})
        for _ in job.epochs():
            for field, ids, values in loader:
                rows[field](ids).backward(-values.unsqueeze(0))
                optimizer.step()
    return os.path.join(out, "model")


def shard(model: nn.Module, optimizer: Union[str, Mapping[str, str]], batch_size: int,
          policy: str = "kind: BSP", epochs: int = 1, workers: int = 1, servers: int = 1,
          ids_per_field: int = 1, out: Optional[str] = None, resume: Optional[str] = None,
          set: Iterable[str] = ()  # pylint: disable=redefined-builtin
          ) -> nn.Module:
    """Moves the tables of a torchrec model to servers, and returns the model with modules of this
    file in the place of its EmbeddingBagCollection and EmbeddingCollection. Starts the job, unless
    `tandem run` has started this script; tandem.job() is the job.

    The tables of the job are those of the model's configurations, and a row number is the key of
    its row. Rows begin with the weights of the model; tables on the device "meta" begin with their
    init_fn.

    optimizer: of the tables, as text of a job file, such as "kind: ADAGRAD learning_rate: 0.1", or
    a dict from each table to such a text. policy: of the job, such as "kind: SSP bound: 4".
    batch_size: the largest number of samples of a batch of one worker. ids_per_field: the most ids
    that a feature of a sample has, on average over a batch. epochs, servers: of the job. set:
    "path=value" texts that change the job, as those of tandem.init().
    out: the folder of the run; None: a new one under out/. The folder OUT.start has the job file
    and a checkpoint with the first weights. resume: the folder of a run that resumes.

    workers: 1: this process is the worker. More: this process becomes `tandem run`, which starts
    the script once for each worker, with the same arguments. The lines before shard() run again.

    Under `tandem run JOB --python SCRIPT` the job has its own tables and initial values, and all
    arguments are ignored. A ValueError says which table of the job differs from the model's.
    An Error names the part of the model that is unsupported.
    """
    found = _collections(model)
    if os.environ.get("TANDEM_SCHEDULER") or \
            (current.worker is not None and not current.worker.ended):
        if current.worker is None or current.worker.ended:
            session.init()
        return _replace(model, found)
    script = getattr(sys.modules["__main__"], "__file__", None)  # a notebook has none
    if workers > 1 and script is None:
        raise Error(f"tandem.torchrec.shard: workers={workers} starts the script once for each "
                    "worker, and this process runs no script; say workers=1")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise Error("tandem.torchrec.shard: another program has started several processes "
                    "(WORLD_SIZE); start the script once, and say workers= to shard()")
    if resume is not None:
        job_file, rows = os.path.join(resume, "job.textproto"), None
    else:
        stem = os.path.splitext(os.path.basename(script or "model"))[0]
        out = os.path.normpath(out or time.strftime(f"out/{stem}-%Y%m%d-%H%M%S-{os.getpid()}"))
        start = out + ".start"
        text = _job(found, optimizer, policy, f"workers: {workers} servers: {servers}",
                    f"batch_size: {batch_size} epochs: {epochs}", ids_per_field)
        if os.path.exists(out) and os.listdir(out):
            raise Error(f"tandem.torchrec.shard: {out} has a run; give another out=, or "
                        f"resume={out!r}")
        try:
            os.makedirs(start)
        except FileExistsError:
            raise Error(f"tandem.torchrec.shard: {start} exists; remove it, give another out=, or "
                        f"resume={out!r}") from None
        job_file = os.path.join(start, "job.textproto")
        try:
            with open(job_file, "x", encoding="utf-8") as file:
                file.write(text)
            rows = _copy(found, start)
        except BaseException:
            shutil.rmtree(start)
            raise
    tables = [] if rows is None else [config.name for one in found for config in one.configs]
    if workers == 1:
        session.init(job_file, set=set, out=out, resume=resume, init_from=rows, only_tables=tables)
        return _replace(model, found)
    command = [program("tandem"), "run", job_file, "--python", script]
    command += ["--resume", resume] if resume is not None else \
        ["--out", out, "--init-from", rows, "--only-tables", ",".join(tables)]
    for setting in set:
        command += ["--set", setting]
    os.environ.setdefault("TANDEM_PYTHON", sys.executable)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], [*command, "--", *sys.argv[1:]])
