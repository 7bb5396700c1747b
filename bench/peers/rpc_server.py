"""PyTorch's RPC parameter server: samples per second of asynchronous training. Usage: rpc_server.py OUT CASE

Rank 0 is the server: it keeps the parameters and applies each gradient as it arrives, under a lock (SGD with momentum).
The other ranks are workers: one call pushes the gradients and brings the new parameters back, as in PyTorch's tutorial
on asynchronous RPC.
"""
import json, os, sys, threading, time

os.environ.setdefault("GLOG_minloglevel", "1")  # its agents announce their end
import torch, torch.distributed.rpc as rpc, torch.nn.functional as F
from ddp_train import CASES

server = None  # of rank 0


class Server:
    def __init__(self, model):
        self.lock = threading.Lock()
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.01, momentum=0.9)

    def fetch(self):
        return [p.detach() for p in self.parameters]

    def update_and_fetch(self, gradients):
        with self.lock:
            for p, g in zip(self.parameters, gradients):
                p.grad = g
            self.optimizer.step()
            return [p.detach().clone() for p in self.parameters]


def fetch():
    return server.fetch()


def update_and_fetch(gradients):
    return server.update_and_fetch(gradients)


def train(name, warm_up, steps):
    """In a worker. Returns when it began and ended, by the machine's clock."""
    torch.set_num_threads(1)
    make, batch, _ = CASES[name]
    model = make()
    x, y = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))

    def take(values):
        with torch.no_grad():
            for p, value in zip(model.parameters(), values):
                p.copy_(value)

    take(rpc.rpc_sync("rank0", fetch))
    for step in range(warm_up + steps):
        if step == warm_up:
            start = time.monotonic()
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        take(rpc.rpc_sync("rank0", update_and_fetch, args=([p.grad for p in model.parameters()],)))
    return start, time.monotonic()


def main():
    global server
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, world, name = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[2]
    make, batch, steps = CASES[name]
    if rank == 0:
        server = Server(make())
    options = rpc.TensorPipeRpcBackendOptions(
        init_method="tcp://%s:%s" % (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])
    )
    rpc.init_rpc("rank%d" % rank, rank=rank, world_size=world, rpc_backend_options=options)
    if rank == 0:
        calls = [
            rpc.rpc_async("rank%d" % worker, train, args=(name, 20, steps), timeout=0) for worker in range(1, world)
        ]
        times = [call.wait() for call in calls]
        seconds = max(end for _, end in times) - min(begin for begin, _ in times)
        rate = (world - 1) * batch * steps / seconds
        open(sys.argv[1], "w").write(json.dumps({"case": name, "samples_per_second": rate}) + "\n")
    rpc.shutdown()


if __name__ == "__main__":
    main()
