"""A GPT in plain PyTorch: milliseconds per training step. Usage: gpt_train.py OUT LAYOUT SPEC

LAYOUT: `data` (DistributedDataParallel on Gloo) or `tensor` (column and row split layers on torch.distributed, Gloo).
SPEC: layers,width,heads,context,vocabulary,batch,steps; the batch is that of all ranks together. Run by one process
without RANK in its environment, both are the ordinary model.
"""
import json, os, sys, time
import torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 5


class Copy(torch.autograd.Function):
    """The same on all ranks; its gradient is the sum of theirs."""

    @staticmethod
    def forward(context, x):
        return x

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Sum(torch.autograd.Function):
    """The sum of all ranks' parts; its gradient is everybody's."""

    @staticmethod
    def forward(context, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient


class Split:
    """How many ranks share each layer; one means the ordinary layer."""

    def __init__(self, ranks):
        self.ranks = ranks

    def enter(self, x):
        return Copy.apply(x) if self.ranks > 1 else x

    def leave(self, x):
        return Sum.apply(x) if self.ranks > 1 else x


class Attention(nn.Module):
    def __init__(self, width, heads, split):
        super().__init__()
        self.split, self.heads, self.size = split, heads // split.ranks, width // heads
        inner = width // split.ranks
        self.query, self.key, self.value = (nn.Linear(width, inner) for _ in range(3))
        self.out, self.bias = nn.Linear(inner, width, bias=False), nn.Parameter(torch.zeros(width))

    def forward(self, x, mask):
        batch, time_, _ = x.shape
        x = self.split.enter(x)
        q, k, v = (
            layer(x).view(batch, time_, self.heads, self.size).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        weights = (q @ k.transpose(-2, -1) * self.size**-0.5 + mask).softmax(-1)
        joined = (weights @ v).transpose(1, 2).reshape(batch, time_, -1)
        return self.split.leave(self.out(joined)) + self.bias


class Block(nn.Module):
    def __init__(self, width, heads, split):
        super().__init__()
        self.split = split
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, split)
        self.inner = nn.Linear(width, 4 * width // split.ranks)
        self.out, self.bias = nn.Linear(4 * width // split.ranks, width, bias=False), nn.Parameter(torch.zeros(width))

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        hidden = F.gelu(self.inner(self.split.enter(self.norm2(x))))
        return x + self.split.leave(self.out(hidden)) + self.bias


class Gpt(nn.Module):
    """Token embedding and output are one matrix. Split, each rank has some rows of it, and of the logits."""

    def __init__(self, layers, width, heads, context, vocabulary, split):
        super().__init__()
        self.split = split
        self.rows = vocabulary // split.ranks
        self.first = self.rows * (dist.get_rank() if split.ranks > 1 else 0)
        self.tokens = nn.Parameter(torch.randn(self.rows, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads, split) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu(1))

    def embed(self, x):
        if self.split.ranks == 1:
            return F.embedding(x, self.tokens)
        local = x - self.first
        outside = (local < 0) | (local >= self.rows)
        found = F.embedding(local.masked_fill(outside, 0), self.tokens)
        return Sum.apply(found.masked_fill(outside.unsqueeze(-1), 0))

    def forward(self, x, y):
        hidden = self.embed(x) + self.positions
        for block in self.blocks:
            hidden = block(hidden, self.mask)
        logits = F.linear(self.split.enter(self.norm(hidden)), self.tokens).flatten(0, 1)
        return F.cross_entropy(logits, y.flatten()) if self.split.ranks == 1 else self.divided_loss(logits, y.flatten())

    def divided_loss(self, logits, y):
        """Cross entropy of logits of which each rank has some columns."""
        largest = logits.detach().amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        logits = logits - largest.unsqueeze(-1)
        total = Sum.apply(logits.exp().sum(-1))
        local = y - self.first
        outside = (local < 0) | (local >= self.rows)
        own = logits.gather(-1, local.masked_fill(outside, 0).unsqueeze(-1)).squeeze(-1)
        return (total.log() - Sum.apply(own.masked_fill(outside, 0))).mean()


def run(layout, spec):
    layers, width, heads, context, vocabulary, batch, steps = (int(number) for number in spec.split(","))
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    split = Split(ranks if layout == "tensor" else 1)
    torch.manual_seed(0)
    model = Gpt(layers, width, heads, context, vocabulary, split)
    if layout == "data":
        batch //= ranks
        if ranks > 1:
            model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    torch.manual_seed(1)
    x = torch.randint(0, vocabulary, (batch, context))
    y = torch.randint(0, vocabulary, (batch, context))
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = model(x, y)
        loss.backward()
        optimizer.step()
    ms = (time.perf_counter() - start) / steps * 1e3
    if not dist.is_initialized() or dist.get_rank() == 0:
        with open(sys.argv[1], "w") as out:
            out.write(json.dumps({"layout": layout, "ms_per_step": ms, "loss": loss.item()}) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    run(sys.argv[2], sys.argv[3])
