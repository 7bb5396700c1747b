"""PyTorch DDP on Gloo: what torch.save from rank 0 costs, while the others wait.
Usage: ddp_checkpoint.py OUT FOLDER WIDTH BATCH TURNS"""
import json, os, sys, time
import torch, torch.distributed as dist, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from ddp_train import mlp

WARM, QUIET = 4, 12


def save(model, optimizer, path, durable):
    """Seconds from the end of a step until all ranks can go on."""
    dist.barrier()
    start = time.perf_counter()
    if dist.get_rank() == 0:
        with open(path, "wb") as file:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    dist.barrier()
    return time.perf_counter() - start


def forget(path):
    """Outside of all times; what is written later than it was asked for disturbs nobody else."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
    size = os.path.getsize(path)
    os.unlink(path)
    return size


if __name__ == "__main__":
    out, folder, width, batch, turns = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(mlp(width), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))

    def step():
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        return time.perf_counter() - start

    first = dist.get_rank() == 0
    path = os.path.join(folder, "checkpoint.pt")
    for _ in range(WARM):
        step()
    for turn in range(turns):
        steps = sorted(step() for _ in range(QUIET))
        row = {"turn": turn, "median_ms": steps[len(steps) // 2] * 1e3}
        for key, durable in ("stall_s", False), ("durable_s", True):
            row[key] = save(model, optimizer, path, durable)
            if first:
                row["mb"] = forget(path) / 1e6
            dist.barrier()
        if first:
            with open(out, "a") as file:
                file.write(json.dumps(row) + "\n")
