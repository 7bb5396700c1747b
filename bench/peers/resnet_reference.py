"""ResNets in plain PyTorch, trained with momentum from given parameters on given batches; prints its losses as JSON.

Usage: resnet_reference.py MODEL BATCHES [--lr 0.01] [--momentum 0.9] [--micro M] [--frozen]
Both are safetensors files: parameters and buffers under the names of trireme's resnet18 or resnet34 (for small images),
and the images x and classes y of all steps, [steps, batch, …]. With --micro a batch is M micro-batches whose gradients
are added up: batch norms see one at a time. --frozen: they keep the statistics that they have. Nothing here knows of
ranks: it is what they are compared with."""
import argparse
import json

import torch
import torch.nn.functional as F
from loss_reference import read
from torch import nn


class Block(nn.Module):
    """A residual block as its paper has it: two 3 × 3 convolutions, or with `deep` 1 × 1, 3 × 3, 1 × 1."""

    def __init__(self, inputs, width, stride, deep):
        super().__init__()
        outputs = 4 * width if deep else width
        kernels = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        if not deep:
            kernels = [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        self.count = len(kernels)
        for i, (a, b, kernel, step) in enumerate(kernels, 1):
            setattr(self, f"conv{i}", nn.Conv2d(a, b, kernel, step, padding=kernel // 2, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(b))
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.count:
                y = torch.relu(y)
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """For small images, with torchvision's names."""

    def __init__(self, depths, deep=False, channels=1, classes=10):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        inputs, width = 64, 64
        for layer, depth in enumerate(depths, 1):
            blocks = []
            for i in range(depth):
                blocks.append(Block(inputs, width, 2 if i == 0 and layer > 1 else 1, deep))
                inputs = 4 * width if deep else width
            setattr(self, f"layer{layer}", nn.Sequential(*blocks))
            width *= 2
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return self.fc(x.mean((2, 3)))


def from_tensors(tensors):
    blocks = lambda layer: {name.split(".")[1] for name in tensors if name.startswith(f"layer{layer}.")}  # noqa: E731
    depths = [len(blocks(layer)) for layer in (1, 2, 3, 4)]
    (classes, _), channels = tensors["fc.weight"].shape, tensors["conv1.weight"].shape[1]
    net = ResNet(depths, "layer1.0.conv3.weight" in tensors, channels, classes).to(tensors["fc.weight"].dtype)
    net.load_state_dict(tensors)
    return net


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("batches")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--micro", type=int, default=1)
    parser.add_argument("--frozen", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    net = from_tensors(read(options.model)).train(not options.frozen)
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=options.momentum)
    batches, losses = read(options.batches), []
    for x, y in zip(batches["x"], batches["y"]):
        optimizer.zero_grad()
        step = 0
        for part, classes in zip(x.tensor_split(options.micro), y.tensor_split(options.micro)):
            loss = F.cross_entropy(net(part), classes) * len(part) / len(x)
            loss.backward()
            step += loss.item()
        optimizer.step()
        losses.append(step)
    print(json.dumps({"losses": losses}))
