"""A GPT in PyTorch's own pipeline, `torch.distributed.pipeline.sync.Pipe`: milliseconds per training step.

Usage: pipe_train.py OUT SPEC MICRO THREADS
SPEC: layers,width,heads,context,vocabulary,batch,steps, as gpt_train.py's. Two stages in one process, which is all that
Pipe can do; each half of the blocks is one. It wants RPC, so there is one of a single process. On CPU both stages share
one thread of Pipe's, because it has one for each device and all CPUs are one device; THREADS are those of operators.
"""
import json, sys, tempfile, time
import torch, torch.nn as nn, torch.nn.functional as F
from torch.distributed import rpc
from torch.distributed.pipeline.sync import Pipe

import gpt_train

WARM_UP = 2


class Embedding(nn.Module):
    def __init__(self, context, vocabulary, width):
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(vocabulary, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.02)

    def forward(self, x):
        return F.embedding(x, self.tokens) + self.positions


class Masked(nn.Module):
    """A block that brings its mask: what goes from stage to stage is one tensor."""

    def __init__(self, width, heads, context):
        super().__init__()
        self.block = gpt_train.Block(width, heads, gpt_train.Split(1))
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu(1))

    def forward(self, x):
        return self.block(x, self.mask)


class Head(nn.Module):
    def __init__(self, width, tokens):
        super().__init__()
        self.norm, self.tokens = nn.LayerNorm(width), tokens

    def forward(self, x):
        return F.linear(self.norm(x), self.tokens)


def two_stages(layers, width, heads, context, vocabulary):
    first = Embedding(context, vocabulary, width)
    blocks = [Masked(width, heads, context) for _ in range(layers)]
    half = (layers + 1) // 2
    return nn.Sequential(nn.Sequential(first, *blocks[:half]), nn.Sequential(*blocks[half:], Head(width, first.tokens)))


def run(spec, micro):
    layers, width, heads, context, vocabulary, batch, steps = (int(number) for number in spec.split(","))
    torch.manual_seed(0)
    model = Pipe(two_stages(layers, width, heads, context, vocabulary), chunks=micro, checkpoint="never")
    assert len(model.partitions) == 2
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    x = torch.randint(0, vocabulary, (batch, context))
    y = torch.randint(0, vocabulary, (batch, context))
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x).local_value().flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
    ms = (time.perf_counter() - start) / steps * 1e3
    with open(sys.argv[1], "w") as out:
        out.write(json.dumps({"ms_per_step": ms, "loss": loss.item()}) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[4]))
    with tempfile.NamedTemporaryFile() as meeting:
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{meeting.name}")
        rpc.init_rpc("pipe", rank=0, world_size=1, rpc_backend_options=options)
        run(sys.argv[2], int(sys.argv[3]))
        rpc.shutdown()
