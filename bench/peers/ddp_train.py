"""PyTorch DDP on Gloo: milliseconds per training step. Usage: ddp_train.py OUT CASE"""
import json, os, sys, time
import torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def mlp(width):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


CASES = {  # name: (model, batch per worker, timed steps)
    "lenet-32": (lenet, 32, 400),
    "lenet-128": (lenet, 128, 200),
    "mlp512-32": (lambda: mlp(512), 32, 400),
    "mlp512-128": (lambda: mlp(512), 128, 300),
    "mlp2048-32": (lambda: mlp(2048), 32, 120),
    "mlp2048-128": (lambda: mlp(2048), 128, 80),
}


def run(name):
    make, batch, steps = CASES[name]
    torch.manual_seed(0)
    model = make()
    if dist.is_initialized():
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))
    for step in range(20 + steps):
        if step == 20:
            start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    ms = (time.perf_counter() - start) / steps * 1e3
    if not dist.is_initialized() or dist.get_rank() == 0:
        open(sys.argv[1], "w").write(json.dumps({"case": name, "ms_per_step": ms}) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    run(sys.argv[2])
