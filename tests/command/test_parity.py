"""Training with `trireme train` equals an ordinary PyTorch program, and N workers equal one."""
import math
import pathlib
import unittest

import numpy
import torch
from torch import nn

import support

COUNT, BATCH, STEPS = 230, 32, 50  # the last batch of an epoch has 6 samples
F64 = 1e-9


def make_data(folder):
    """Four IDX files of images with something to learn; returns the training part."""
    random = numpy.random.RandomState(0)
    patterns = random.randint(0, 100, (10, 28, 28))
    parts = {}
    for part, count in (("train", COUNT), ("t10k", 60)):
        labels = random.randint(0, 10, count).astype(numpy.uint8)
        labels[:10] = range(10)
        images = (patterns[labels] + random.randint(0, 156, (count, 28, 28))).astype(numpy.uint8)
        support.write_idx(folder / f"{part}-images-idx3-ubyte", images)
        support.write_idx(folder / f"{part}-labels-idx1-ubyte", labels)
        parts[part] = images, labels
    return parts["train"]


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


def lenet_bn():
    layers = list(lenet())
    return nn.Sequential(layers[0], nn.BatchNorm2d(6), *layers[1:4], nn.BatchNorm2d(16), *layers[4:])


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 10))


MODELS = {"lenet": lenet, "lenet-bn": lenet_bn, "mlp:40,30": mlp}
OPTIMIZERS = {
    "sgd": ([], lambda p: torch.optim.SGD(p, 0.05)),
    "momentum": ([], lambda p: torch.optim.SGD(p, 0.05, momentum=0.9)),
    "nesterov": (
        ["--optimizer", "momentum", "--nesterov", "--weight-decay", "0.01"],
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "adagrad": (["--lr", "0.01"], lambda p: torch.optim.Adagrad(p, 0.01)),
    "adam": (["--lr", "0.001", "--weight-decay", "0.01"], lambda p: torch.optim.Adam(p, 0.001, weight_decay=0.01)),
    "adamw": (["--lr", "0.001", "--weight-decay", "0.1"], lambda p: torch.optim.AdamW(p, 0.001, weight_decay=0.1)),
}


def train_with_torch(model, optimizer, initial, images, labels, dtype, steps, seed, batch=BATCH, rate=None, clip=None):
    """The ordinary program: final parameters by name, and the mean loss of each epoch."""
    net = MODELS[model]().to(dtype)
    net.load_state_dict({name: torch.tensor(array) for name, array in initial.items()})
    update = OPTIMIZERS[optimizer][1](net.parameters())
    base = update.param_groups[0]["lr"]
    x = (torch.tensor(images).to(dtype) / 255).unsqueeze(1)
    y = torch.tensor(labels.astype(numpy.int64))
    losses, norms, step = [], [], 0
    while step < steps:
        order, sums = support.epoch_order(len(y), seed, len(losses)), []
        for begin in range(0, len(y), batch):
            picked = torch.tensor(order[begin : begin + batch])
            for group in update.param_groups:
                group["lr"] = base * (rate(step) if rate else 1)
            update.zero_grad()
            loss = nn.functional.cross_entropy(net(x[picked]), y[picked])
            loss.backward()
            if clip:
                norms.append(float(nn.utils.clip_grad_norm_(net.parameters(), clip)))
            update.step()
            sums.append(loss.item())
            step += 1
            if step == steps:
                break
        losses.append(sum(sums) / len(sums))
    assert not clip or min(norms) < clip < max(norms), "some are clipped, some are not"
    return {name: tensor.detach().numpy() for name, tensor in net.state_dict().items()}, losses


class Parity(support.CommandTest):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)

    def setUp(self):
        super().setUp()
        self.images, self.labels = make_data(self.folder)

    def ours(self, model, optimizer, *args, dtype="f64", seed=3):
        kind = optimizer if optimizer != "nesterov" else "momentum"
        return self.parameters(
            model,
            "--data",
            self.folder,
            "--batch",
            BATCH,
            "--dtype",
            dtype,
            "--seed",
            seed,
            "--epochs",
            STEPS,
            "--max-steps",
            STEPS,
            "--optimizer",
            kind,
            *OPTIMIZERS[optimizer][0],
            *args,
        )

    def initial(self, model, dtype="f64", seed=3):
        return self.parameters(
            model, "--data", self.folder, "--dtype", dtype, "--seed", seed, "--epochs", 0, "--workers", 1
        )[0]

    def assert_near(self, ours, theirs, bound):
        self.assertEqual(sorted(ours), sorted(theirs))
        for name in ours:
            self.assertEqual(ours[name].shape, theirs[name].shape)
            difference = numpy.abs(ours[name] - theirs[name]).max()
            self.assertLess(difference, bound, name)

    def check(self, model, optimizer, *args):
        initial = self.initial(model)
        theirs, losses = train_with_torch(
            model, optimizer, initial, self.images, self.labels, torch.float64, STEPS, seed=3
        )
        moved = max(numpy.abs(theirs[name] - initial[name]).max() for name in theirs)
        self.assertGreater(moved, 1e-3)  # a program that does not train equals everything
        ours, report = self.ours(model, optimizer, *args)
        self.assert_near(ours, theirs, F64)
        self.assertEqual(report["updates"], STEPS)
        for epoch, loss in zip(report["epochs"], losses, strict=True):
            self.assertAlmostEqual(epoch["loss"], loss, delta=1e-9)

    def test_lenet_momentum_1_worker(self):
        self.check("lenet", "momentum", "--workers", 1)

    def test_lenet_momentum_3_workers_accumulate(self):
        self.check("lenet", "momentum", "--workers", 3, "--accumulate", 2)

    def test_lenet_adam_2_workers_channels_last(self):
        self.check("lenet", "adam", "--workers", 2, "--memory-format", "channels-last")

    def test_batch_norm_over_all_workers(self):
        for args in (
            ["--workers", 1],
            ["--workers", 2],
            ["--workers", 3, "--memory-format", "channels-last"],
            ["--workers", 3, "--sync", "allreduce"],
            ["--workers", 2, "--sync", "server"],
        ):
            with self.subTest(args=args):
                self.check("lenet-bn", "momentum", *args, "--sync-batch-norm")

    def test_batch_norm_of_each_worker(self):
        """Without the flag the result depends on their number, which is said."""
        one, _ = self.ours("lenet-bn", "momentum", "--workers", 1)
        two, _ = self.ours("lenet-bn", "momentum", "--workers", 2)
        self.assertGreater(max(numpy.abs(two[name] - one[name]).max() for name in one), 1e-4)
        for workers, flags, said in ((2, [], True), (1, [], False), (2, ["--sync-batch-norm"], False)):
            printed = support.run(
                "train", "lenet-bn", "--data", self.folder, "--workers", workers, "--epochs", 0, *flags
            ).stdout
            self.assertEqual("--sync-batch-norm" in printed, said, printed)

    def test_mlp_adam_3_workers(self):
        self.check("mlp:40,30", "adam", "--workers", 3)

    def test_mlp_sgd_1_worker_accumulate(self):
        self.check("mlp:40,30", "sgd", "--workers", 1, "--accumulate", 4)

    def test_mlp_adagrad_2_workers(self):
        self.check("mlp:40,30", "adagrad", "--workers", 2)

    def test_mlp_adamw_2_workers_accumulate_allreduce(self):
        self.check("mlp:40,30", "adamw", "--workers", 2, "--accumulate", 3, "--sync", "allreduce")

    def test_mlp_nesterov_2_workers_central(self):
        self.check("mlp:40,30", "nesterov", "--workers", 2, "--sync", "central")

    def test_cosine_with_warmup(self):
        def rate(step):
            return (step + 1) / 10 if step < 10 else 0.5 * (1 + math.cos(math.pi * (step - 10) / (STEPS - 10)))

        initial = self.initial("mlp:40,30")
        theirs, _ = train_with_torch(
            "mlp:40,30", "momentum", initial, self.images, self.labels, torch.float64, STEPS, seed=3, rate=rate
        )
        ours, _ = self.ours("mlp:40,30", "momentum", "--workers", 2, "--lr-schedule", "cosine", "--warmup", 10)
        self.assert_near(ours, theirs, F64)

    def test_clipping_in_every_mode(self):
        """By the norm of the mean gradient where workers update together; where each does so alone, one worker is an
        ordinary program."""
        initial = self.initial("mlp:40,30")
        theirs, _ = train_with_torch(
            "mlp:40,30", "momentum", initial, self.images, self.labels, torch.float64, STEPS, seed=3, clip=1.5
        )
        for args in (
            ["--workers", 1],
            ["--workers", 3],
            ["--workers", 2, "--accumulate", 2, "--bucket-bytes", 4096],
            ["--workers", 2, "--sync", "allreduce"],
            ["--workers", 3, "--sync", "central"],
            ["--workers", 2, "--sync", "server"],
            ["--workers", 3, "--sync", "server", "--servers", 3, "--bucket-bytes", 4096],
            ["--workers", 2, "--sync", "stale:0"],
            *(
                ["--workers", 1, "--sync", sync]
                for sync in ("async", "stale:3", "trylock:1", "round-robin", "hogwild", "local:1")
            ),
        ):
            with self.subTest(args=args):
                ours, _ = self.ours("mlp:40,30", "momentum", "--clip", 1.5, *args)
                self.assert_near(ours, theirs, F64)

    def test_losses_in_f32(self):
        for model in ("lenet", "mlp:40,30"):
            initial = self.initial(model, "f32")
            _, losses = train_with_torch(
                model, "momentum", initial, self.images, self.labels, torch.float32, STEPS, seed=3
            )
            _, report = self.ours(model, "momentum", "--workers", 2, dtype="f32")
            for epoch, loss in zip(report["epochs"], losses, strict=True):
                self.assertAlmostEqual(epoch["loss"] / loss, 1, delta=1e-4, msg=model)

    def test_any_number_of_workers_and_any_sync(self):
        one, _ = self.ours("lenet", "momentum", "--workers", 1)
        for args in (
            ["--workers", 2],
            ["--workers", 3],
            ["--workers", 4],
            ["--workers", 4, "--accumulate", 3],
            ["--workers", 2, "--sync", "allreduce"],
            ["--workers", 3, "--sync", "central"],
            ["--workers", 4, "--sync", "allreduce", "--no-overlap", "--bucket-bytes", 4096],
        ):
            with self.subTest(args=args):
                many, report = self.ours("lenet", "momentum", *args)
                self.assert_near(many, one, F64)
                self.assertEqual(report["workers"], args[1])

    def test_another_order_gives_other_parameters(self):
        """The bound is sharp enough to tell."""
        initial = self.initial("mlp:40,30")
        theirs, _ = train_with_torch(
            "mlp:40,30", "momentum", initial, self.images, self.labels, torch.float64, STEPS, seed=4
        )
        ours, _ = self.ours("mlp:40,30", "momentum", "--workers", 2)
        self.assertGreater(max(numpy.abs(ours[name] - theirs[name]).max() for name in ours), 1e-4)

    def test_regression_from_csv(self):
        random = numpy.random.RandomState(1)
        rows = random.randn(100, 4).round(4)
        rows[:, 3] = (rows[:, :3] @ [1, -2, 0.5] + 0.3).round(4)
        (self.folder / "line.csv").write_text(
            "a,b,c,price\n" + "".join(",".join(f"{v:.4f}" for v in row) + "\n" for row in rows)
        )
        for workers in (1, 3):
            weights, report = self.parameters(
                "linear",
                "--data",
                self.folder / "line.csv",
                "--label",
                "price",
                "--normalize",
                "no",
                "--test",
                0,
                "--workers",
                workers,
                "--batch",
                20,
                "--epochs",
                60,
            )
            self.assertLess(report["epochs"][-1]["loss"], 1e-5)
            self.assertLess(numpy.abs(weights["1.weight"] - [[1, -2, 0.5]]).max(), 0.01)

    @unittest.skipUnless(
        pathlib.Path("/usr/share/datasets/fashion-mnist").exists(), "apt-get install dataset-fashion-mnist"
    )
    def test_fashion_mnist_after_an_epoch(self):
        # The rate falls to 0 within the epoch: at full rate the accuracy jumps by a point from one step to the next,
        # whoever computes.
        args = [
            "lenet",
            "--data",
            "fashion-mnist",
            "--epochs",
            1,
            "--lr",
            0.03,
            "--lr-schedule",
            "cosine",
            "--memory-format",
            "default",
        ]
        accuracy = [self.train(*args, "--workers", n, limit=200)["epochs"][0]["test_accuracy"] for n in (1, 2)]
        self.assertLess(abs(accuracy[0] - accuracy[1]), 0.005, accuracy)
        self.assertGreater(accuracy[0], 0.75)


if __name__ == "__main__":
    support.main()
