"""GPT in plain PyTorch, trained with AdamW from given parameters on given batches; prints its losses as JSON.

Usage: gpt_reference.py PARAMETERS BATCHES --heads H [--lr 3e-4] [--weight-decay 0.01] [--double] [--save FILE]
Both are safetensors files: the parameters under the names of trireme's gpt, and the tokens x and targets y of all
steps, i64 [steps, batch, time] (-100: no target). Nothing here knows of ranks: it is what they are compared with."""
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
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (f(x).view(batch, time, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)
        later = torch.ones(time, time, dtype=torch.bool).triu(1)
        shares = F.softmax(scores.masked_fill(later, float("-inf")), dim=3)
        return self.out((shares @ v).transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.ModuleDict({"in": nn.Linear(width, 4 * width), "out": nn.Linear(4 * width, width)})

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp["out"](F.gelu(self.mlp["in"](self.mlp_norm(x))))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, context, vocabulary):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def from_parameters(parameters, heads):
    layers = 1 + max(int(name.split(".")[1]) for name in parameters if name.startswith("blocks."))
    (vocabulary, width), context = parameters["tokens.weight"].shape, parameters["positions.weight"].shape[0]
    net = Gpt(layers, width, heads, context, vocabulary)
    net.load_state_dict(parameters)
    return net


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parameters")
    parser.add_argument("batches")
    parser.add_argument("--heads", type=int, required=True)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--double", action="store_true", help="in f64")
    parser.add_argument("--save", help="where the parameters go after the last step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    net = from_parameters(read(options.parameters), options.heads)
    if options.double:
        net.double()
    optimizer = torch.optim.AdamW(net.parameters(), lr=options.lr, weight_decay=options.weight_decay)
    batches, losses = read(options.batches), []
    for x, y in zip(batches["x"], batches["y"]):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if options.save:
        write(options.save, net.state_dict())
    print(json.dumps({"losses": losses}))
