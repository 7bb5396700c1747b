"""c10d on Gloo: collectives of float32 by size. Usage: gloo_collectives.py OUT BYTES,BYTES,… [COLLECTIVE]

COLLECTIVE is allreduce, reduce-scatter or all-gather; the size is that of the whole vector. Gloo has no reduce-scatter:
whoever needs one on it reduces everything and takes a part.
"""
import json, sys, time
import torch, torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
collective = sys.argv[3] if len(sys.argv) > 3 else "allreduce"


def measured(size):
    """A function that does it once."""
    x = torch.ones(size // 4)
    if collective == "allreduce":
        return lambda: dist.all_reduce(x)
    share = len(x) // ranks
    mine = torch.ones(share)
    if collective == "reduce-scatter":

        def reduce_scatter():
            dist.all_reduce(x)
            mine.copy_(x[rank * share : (rank + 1) * share])

        return reduce_scatter
    blocks = list(x[: share * ranks].split(share))
    return lambda: dist.all_gather(blocks, mine)


lines = []
for size in map(int, sys.argv[2].split(",")):
    do, rounds = measured(size), max(5, min(100, (1 << 23) // (size // 4)))
    for round in range(-3, rounds):
        if round == 0:
            start = time.perf_counter()
        do()
    lines.append(json.dumps({"bytes": size, "us": (time.perf_counter() - start) / rounds * 1e6}))
if dist.get_rank() == 0:
    open(sys.argv[1], "w").write("\n".join(lines) + "\n")
dist.barrier()
