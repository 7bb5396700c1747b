"""PyTorch DDP on Gloo: LeNet on Fashion-MNIST, seconds per epoch. Usage:
ddp_fashion.py OUT EPOCHS [BATCH_PER_WORKER=32] [LR=0.05] [ddp|ddp_fp16|ddp_powersgd] [SEED=0]"""
import gzip, json, os, sys, time
import numpy as np, torch, torch.distributed as dist, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from ddp_train import lenet, register

DATA = "/usr/share/datasets/fashion-mnist"


def load(part):
    with gzip.open(f"{DATA}/{part}-images-idx3-ubyte.gz") as f:
        x = np.frombuffer(f.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(f"{DATA}/{part}-labels-idx1-ubyte.gz") as f:
        y = np.frombuffer(f.read(), np.uint8, offset=8)
    return torch.from_numpy(x.copy()).float().div_(255), torch.from_numpy(y.copy()).long()


if __name__ == "__main__":
    epochs = int(sys.argv[2])
    batch = int(sys.argv[3]) if len(sys.argv) > 3 else 32
    rate = float(sys.argv[4]) if len(sys.argv) > 4 else 0.05
    torch.set_num_threads(1)
    seed = int(sys.argv[6]) if len(sys.argv) > 6 else 0
    torch.manual_seed(seed)
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
    (x, y), (tx, ty) = load("train"), load("t10k")
    model = lenet()
    if distributed:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        register(model, sys.argv[5] if len(sys.argv) > 5 else "ddp")
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    lines = []
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 * seed + epoch))[rank::world]
        start = time.perf_counter()
        for i in range(0, len(order) - batch + 1, batch):
            idx = order[i : i + batch]
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(x[idx]), y[idx]).backward()
            optimizer.step()
        seconds = time.perf_counter() - start
        if rank == 0:
            with torch.no_grad():
                net = model.module if distributed else model
                hits = sum(
                    (net(tx[i : i + 500]).argmax(1) == ty[i : i + 500]).sum().item() for i in range(0, len(tx), 500)
                )
            lines.append(json.dumps({"epoch": epoch + 1, "epoch_seconds": seconds, "test_accuracy": hits / len(tx)}))
        if distributed:
            dist.barrier()
    if rank == 0:
        open(sys.argv[1], "w").write("\n".join(lines) + "\n")
