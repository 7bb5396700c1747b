"""GPT, BERT or LeNet in plain PyTorch, trained with AdamW from given parameters on given batches; prints its losses.

Usage: loss_reference.py PARAMETERS BATCHES [--kind gpt|bert|lenet] [--heads H] [--lr 3e-4] [--weight-decay 0.01]
       [--clip NORM] [--double] [--save FILE]
Both are safetensors files: the parameters under the names of trireme's models, and x and y of all steps: tokens and
targets, i64 [steps, batch, time] (-100: no target), or images and classes. The losses are printed as JSON. Nothing here
knows of ranks: it is what they are compared with."""
import argparse, json, math, struct
import numpy as np, torch, torch.nn.functional as F
from torch import nn

TYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64}


def read(path):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack_from("<Q", data)
    tensors, header = {}, json.loads(data[8 : 8 + length])
    for name, about in header.items():
        if name != "__metadata__":
            begin, end = about["data_offsets"]
            numbers = np.frombuffer(data[8 + length + begin : 8 + length + end], TYPES[about["dtype"]])
            tensors[name] = torch.from_numpy(numbers.reshape(about["shape"]).copy())
    return tensors


def write(path, tensors):
    names = {np.dtype(value): key for key, value in TYPES.items()}
    header, blobs, at = {}, [], 0
    for name, tensor in tensors.items():
        array = tensor.detach().contiguous().numpy()
        header[name] = {
            "dtype": names[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        blobs.append(array.tobytes())
        at += array.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


class Attention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (f(x).view(batch, time, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)
        if self.causal:
            scores = scores.masked_fill(torch.ones(time, time, dtype=torch.bool).triu(1), float("-inf"))
        shares = F.softmax(scores, dim=3)
        return self.out((shares @ v).transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.mlp = nn.ModuleDict({"in": nn.Linear(width, 4 * width), "out": nn.Linear(4 * width, width)})

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp["out"](F.gelu(self.mlp["in"](self.mlp_norm(x))))


class Gpt(nn.Module):
    CAUSAL = True

    def __init__(self, layers, width, heads, context, vocabulary):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, self.CAUSAL) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def head(self, x):
        return F.linear(x, self.tokens.weight)


class Bert(Gpt):
    CAUSAL = False

    def __init__(self, layers, width, heads, context, vocabulary):
        super().__init__(layers, width, heads, context, vocabulary)
        self.transform, self.transform_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def head(self, x):
        return F.linear(self.transform_norm(F.gelu(self.transform(x))), self.tokens.weight, self.bias)


def lenet(parameters):
    net = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    net.load_state_dict(parameters)
    return net


def language(kind, parameters, heads):
    layers = 1 + max(int(name.split(".")[1]) for name in parameters if name.startswith("blocks."))
    (vocabulary, width), context = parameters["tokens.weight"].shape, parameters["positions.weight"].shape[0]
    net = kind(layers, width, heads, context, vocabulary)
    net.load_state_dict(parameters)
    return net


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parameters")
    parser.add_argument("batches")
    parser.add_argument("--kind", choices=("gpt", "bert", "lenet"), default="gpt")
    parser.add_argument("--heads", type=int, default=0, help="of gpt and bert")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--clip", type=float, default=0, help="the norm above which gradients are scaled down")
    parser.add_argument("--double", action="store_true", help="in f64")
    parser.add_argument("--save", help="where the parameters go after the last step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    given = read(options.parameters)
    if options.kind == "lenet":
        net = lenet(given)
    else:
        net = language(Gpt if options.kind == "gpt" else Bert, given, options.heads)
    if options.double:
        net.double()
    optimizer = torch.optim.AdamW(net.parameters(), lr=options.lr, weight_decay=options.weight_decay)
    batches, losses = read(options.batches), []
    for x, y in zip(batches["x"], batches["y"]):
        if options.double and x.is_floating_point():
            x = x.double()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x).flatten(0, -2), y.flatten())
        loss.backward()
        if options.clip > 0:
            nn.utils.clip_grad_norm_(net.parameters(), options.clip)
        optimizer.step()
        losses.append(loss.item())
    if options.save:
        write(options.save, net.state_dict())
    print(json.dumps({"losses": losses}))
