# %% [markdown]
# The four collective operations of data-parallel training, as on MindSpore's page "Distributed Set
# Communication Primitives": AllReduce, AllGather, ReduceScatter and Broadcast of four ranks. From
# the root of the tree:
#
#     export PYTHONPATH=build/python
#     mpirun -np 4 python3 examples/four_collectives.py
#
# Each rank prints its outputs. mpirun of MPICH, srun and torchrun start it as well.

# %%
import torch
import torch.distributed as dist

import tandem.distributed

tandem.distributed.join()
rank, size = dist.get_rank(), dist.get_world_size()
own = torch.tensor([float(rank)])            # the input of rank r is [r]
everything = torch.arange(float(size))       # [0, 1, 2, 3] on each rank

# %% [markdown]
# AllReduce: each rank gets the sum of all inputs, 0 + 1 + 2 + 3.

# %%
total = own.clone()
dist.all_reduce(total)

# %% [markdown]
# AllGather: each rank gets all inputs, in the order of the ranks.

# %%
gathered = [torch.empty(1) for _ in range(size)]
dist.all_gather(gathered, own)

# %% [markdown]
# ReduceScatter: the inputs [0, 1, 2, 3] of all ranks are summed, and rank r gets element r.

# %%
part = torch.empty(1)
dist.reduce_scatter(part, list(everything.split(1)))

# %% [markdown]
# Broadcast: each rank gets the input of rank 0.

# %%
sent = own.clone()
dist.broadcast(sent, 0)

# %%
lines = [f"AllReduce {total.tolist()}", f"AllGather {torch.cat(gathered).tolist()}",
         f"ReduceScatter {part.tolist()}", f"Broadcast {sent.tolist()}"]
print("\n".join(f"rank {rank}: {line}" for line in lines), flush=True)
dist.barrier()
dist.destroy_process_group()
