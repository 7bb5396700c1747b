"""PyTorch DDP on Gloo: milliseconds per training step. Usage: ddp_train.py OUT CASE [--hook=ddp|ddp_fp16|ddp_powersgd]
[--steps=N]"""
import argparse, json, os, time
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


def register(model, hook, dense):
    """`dense`: steps before PowerSGD begins, which needs two at least."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if hook == "ddp_fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if hook == "ddp_powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=dense)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def run(args):
    make, batch, steps = CASES[args.case]
    steps = args.steps or steps
    before = max(6, min(20, steps))  # not timed; half of them without PowerSGD, which the timed ones all have
    torch.manual_seed(0)
    model = make()
    if dist.is_initialized():
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        register(model, args.hook, before // 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))
    for step in range(before + steps):
        if step == before:
            start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    ms = (time.perf_counter() - start) / steps * 1e3
    if not dist.is_initialized() or dist.get_rank() == 0:
        open(args.out, "w").write(json.dumps({"case": args.case, "ms_per_step": ms}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("case")
    parser.add_argument("--hook", default="ddp")
    parser.add_argument("--steps", type=int, default=0)
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    run(parser.parse_args())
