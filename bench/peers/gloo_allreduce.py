"""c10d on Gloo: allreduce of float32 by size. Usage: gloo_allreduce.py OUT BYTES,BYTES,…"""
import json, sys, time
import torch, torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
lines = []
for size in map(int, sys.argv[2].split(",")):
    x, rounds = torch.ones(size // 4), max(5, min(100, (1 << 23) // (size // 4)))
    for round in range(-3, rounds):
        if round == 0:
            start = time.perf_counter()
        dist.all_reduce(x)
    lines.append(json.dumps({"bytes": size, "us": (time.perf_counter() - start) / rounds * 1e6}))
if dist.get_rank() == 0:
    open(sys.argv[1], "w").write("\n".join(lines) + "\n")
dist.barrier()
