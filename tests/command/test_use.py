"""`trireme evaluate`, `predict` and `checkpoint export`: a trained model is of use without writing a program.

The independent reference is Debian's torch: TorchScript is run by it, and the models are written down here once more
and filled from the safetensors file, which is read by hand (support.read_safetensors).
"""
import concurrent.futures
import csv
import hashlib
import json
import pathlib
import random
import re
import shutil
import struct
import sys
import tempfile

import numpy
import support
import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/peers"))
from resnet_reference import ResNet  # noqa: E402

CLOSE = 1e-6
DATA = ("--data", "flowers.csv")

SMALL = 12  # pixels of the images for models that take any size and would take long for larger ones
REFERENCE = {  # for 28 × 28 images of one channel and ten classes
    "linear": ("linear", lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10))),
    "mlp": (
        "mlp:16,8",
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 10)
        ),
    ),
    "lenet": (
        "lenet",
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
            *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
        ),
    ),
    "lenet-bn": (
        "lenet-bn",
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 6, 5, padding=2), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.BatchNorm2d(16), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
            *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
        ),
    ),
    "twoconv": (
        "twoconv",
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(10, 20, 5), nn.Dropout2d(), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(320, 50), nn.ReLU(), nn.Dropout(), nn.Linear(50, 10)),
        ),
    ),
    "resnet18": ("resnet18", lambda: ResNet([2, 2, 2, 2])),
    "resnet34": ("resnet34", lambda: ResNet([3, 4, 6, 3])),
    "resnet50": ("resnet50", lambda: ResNet([3, 4, 6, 3], deep=True)),
}
REFERENCE_F64 = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, 10))  # noqa: E731


def header_of(path):
    raw = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length])


def fill(net, path):
    """The reference with the parameters of a file, which must be exactly its own."""
    tensors = {name: torch.from_numpy(values.copy()) for name, values in support.read_safetensors(path).items()}
    net.load_state_dict(tensors, strict=True)
    return net.eval()


def rows_of(text):
    return list(csv.DictReader(text.splitlines()))


class UseTest(support.CommandTest):
    def succeeds(self, *args):
        result = support.run(*args, cwd=self.folder)
        self.assertEqual(result.returncode, 0, f"{args}\n{result.stderr}{result.stdout}")
        return result

    def side_by_side(self, checks):
        """By name: most of their time is that of starting processes."""
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            running = {name: pool.submit(check) for name, check in checks.items()}
            for name, check in running.items():
                with self.subTest(name):
                    check.result()

    def evaluation(self, *args):
        return json.loads(self.succeeds("evaluate", *args, "--json").stdout)

    def predictions(self, *args):
        return rows_of(self.succeeds("predict", *args).stdout)

    def assert_close(self, got, expected, what, close=CLOSE):
        got, expected = numpy.asarray(got, numpy.float64), numpy.asarray(expected, numpy.float64)
        self.assertEqual(got.shape, expected.shape, what)
        self.assertLess(numpy.max(numpy.abs(got - expected) / numpy.maximum(1, numpy.abs(expected))), close, what)


class Zoo(UseTest):
    """Every model of `trireme models` on images: saved, exported both ways, and run by Python."""

    TESTS = 60

    def setUp(self):
        super().setUp()
        make = numpy.random.default_rng(1)
        sizes = {"train": 96, "t10k": self.TESTS}
        self.images = {part: make.integers(0, 256, (n, 28, 28), numpy.uint8) for part, n in sizes.items()}
        for part, images in self.images.items():
            labels = numpy.arange(len(images)) % 10
            images[numpy.arange(len(images)), labels, :] = 255  # something to learn
        self.data = self.write_images("images", 28)

    def write_images(self, name, pixels):
        """The upper left corner of each image."""
        folder = self.folder / name
        folder.mkdir()
        for part, images in self.images.items():
            labels = (numpy.arange(len(images)) % 10).astype(numpy.uint8)
            support.write_idx(folder / f"{part}-images-idx3-ubyte", images[:, :pixels, :pixels].copy())
            support.write_idx(folder / f"{part}-labels-idx1-ubyte", labels)
        return folder

    def train_model(self, spec, *flags, data=None):
        path = self.folder / f"{spec.replace(':', '-')}.safetensors"
        report = self.train(
            *(
                spec,
                "--data",
                data or self.data,
                "--workers",
                2,
                "--batch",
                32,
                "--epochs",
                2,
                "--lr",
                0.01,
                "--save",
                path,
            ),
            *flags,
        )
        return path, report["epochs"][-1]

    def check_model(self, spec, reference, *flags, data=None, pixels=28, close=CLOSE):
        data = data or self.data
        path, last = self.train_model(spec, *flags, data=data)
        script, copy = path.with_suffix(".pt"), path.with_suffix(".copy.safetensors")
        self.succeeds("checkpoint", "export", path, "--out", script)
        self.succeeds("checkpoint", "export", path, "--out", copy)

        measured = self.evaluation(path, "--data", data)
        self.assertEqual(measured["samples"], self.TESTS)
        self.assertEqual(measured["accuracy"], last["test_accuracy"])
        self.assert_close(measured["loss"], last["test_loss"], spec, close)
        self.assertEqual(sum(entry["right"] for entry in measured["classes"]) / self.TESTS, measured["accuracy"])

        images = torch.from_numpy(self.images["t10k"][:, :pixels, :pixels].copy()).unsqueeze(1)
        module = torch.jit.load(str(script))
        first = support.read_safetensors(path)
        dtype = torch.float64 if "f64" in flags else torch.float32
        with torch.no_grad():
            expected = fill(reference().to(dtype), copy)(images.to(dtype) / 255)
            outputs, probabilities = module(images.to(dtype) / 255), module.predict(images)
        self.assert_close(outputs, expected, f"{spec}: TorchScript and the reference", close)
        self.assert_close(probabilities, expected.double().softmax(1), f"{spec}: predict() in TorchScript", close)
        self.assertEqual(list(first), list(support.read_safetensors(copy)))
        self.assertEqual(set(module.state_dict()), set(first))
        self.assertEqual(header_of(path)["__metadata__"], header_of(copy)["__metadata__"])
        self.assertFalse(module.training)

        table = self.predictions(path, "--data", data, "--all-classes")
        self.assertEqual([int(row["sample"]) for row in table], list(range(self.TESTS)))
        printed = [[float(row[f"p:{c}"]) for c in range(10)] for row in table]
        self.assert_close(printed, expected.double().softmax(1), f"{spec}: trireme predict", close)
        self.assertEqual([int(row["prediction"]) for row in table], expected.argmax(1).tolist())
        self.assertEqual([int(row["label"]) for row in table], [i % 10 for i in range(self.TESTS)])
        right = sum(row["prediction"] == row["label"] for row in table)
        self.assertEqual(right / self.TESTS, measured["accuracy"])

    def test_every_model(self):
        listed = re.findall(r"^(\S+)", self.succeeds("models").stdout.partition("\n\n")[0], re.M)[1:]
        names = [name.partition(":")[0] for name in listed]
        names = [name for name in names if name not in ("gpt", "bert")]  # test_language.py, test_language_runs.py
        self.assertEqual(set(names), set(REFERENCE), "a model of the zoo has no reference here")
        cases = [REFERENCE[name] for name in names] + [("mlp:8", REFERENCE_F64, "--dtype", "f64")]
        small = self.write_images("small", SMALL)

        def check(case):
            if case[0].startswith("resnet"):  # so many layers that f32 would differ by more
                self.check_model(*case, "--dtype", "f64", data=small, pixels=SMALL)
            else:
                self.check_model(*case)

        self.side_by_side({case[0]: lambda case=case: check(case) for case in cases})

    def test_exported_dropout_and_batch_norm_train_in_python(self):
        """What is exported is in eval mode, and train() changes it as it does any module."""
        path, _ = self.train_model("lenet-bn", "--checkpoint", self.folder / "runs")
        self.succeeds("checkpoint", "export", "runs", "--out", "m.pt")
        extra = {"trireme.json": ""}
        module = torch.jit.load(str(self.folder / "m.pt"), _extra_files=extra)
        for name, values in support.read_safetensors(path).items():
            self.assertTrue(numpy.array_equal(module.state_dict()[name].numpy(), values), name)
        x = torch.rand(8, 1, 28, 28)
        module.train()
        before = module.state_dict()["1.running_mean"].clone()
        module(x).sum().backward()
        self.assertFalse(torch.equal(before, module.state_dict()["1.running_mean"]))
        self.assertTrue(all(p.grad is not None for p in module.parameters()))
        self.assertEqual(json.loads(extra["trireme.json"]), header_of(path)["__metadata__"])
        self.assertEqual(json.loads(extra["trireme.json"])["model"], "lenet-bn")

    def test_images_without_labels_and_other_images(self):
        path, _ = self.train_model("linear")
        images = self.folder / "new-images-idx3-ubyte"
        support.write_idx(images, self.images["t10k"][:7])
        table = self.predictions(path, "--data", images)
        whole = self.predictions(path, "--data", self.data)
        self.assertEqual(len(table), 7)
        self.assertNotIn("label", table[0])
        self.assertEqual([row["prediction"] for row in table], [row["prediction"] for row in whole[:7]])
        self.assertEqual(self.evaluation(path, "--data", self.data, "--part", "train")["samples"], 96)
        self.refused("evaluate", path, "--data", images, says=["labels"])
        small = self.folder / "small-images-idx3-ubyte"
        support.write_idx(small, self.images["t10k"][:3, :9, :9].copy())
        self.refused("predict", path, "--data", small, says=["1×28×28", "1×9×9", str(small)])
        self.refused("evaluate", path, "--data", self.data, "--part", "all", says=["train or test"])
        table = self.folder / "t.csv"
        table.write_text("a,b\n1,2\n3,4\n")
        self.refused("predict", path, "--data", table, says=["1×28×28", "CSV"])

    def test_a_file_that_does_not_say_which_model_it_is(self):
        path, last = self.train_model("linear")
        raw = path.read_bytes()
        header = header_of(path)
        (length,) = struct.unpack("<Q", raw[:8])
        del header["__metadata__"]
        text = json.dumps(header).encode()
        bare = self.folder / "bare.safetensors"
        bare.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
        self.refused("evaluate", bare, "--data", self.data, says=["does not say which model", "--model"])
        self.refused("evaluate", bare, "--data", self.data, "--model", "lnear", says=["did you mean 'linear'"])
        self.refused("evaluate", bare, "--data", self.data, "--model", "lenet", says=["not those of lenet", "0.weight"])
        self.refused("evaluate", path, "--data", self.data, "--model", "mlp", says=["holds linear"])
        measured = self.evaluation(bare, "--data", self.data, "--model", "linear")
        self.assertEqual(measured["accuracy"], last["test_accuracy"])


class Tables(UseTest):
    """CSV: names of classes, numbers in their own unit, columns by name."""

    KINDS = ["setosa", 'says "hi", twice', "virginica"]

    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory(prefix="trireme-use-")
        cls.addClassCleanup(cls.holder.cleanup)
        cls.common = pathlib.Path(cls.holder.name)
        r = random.Random(1)
        cls.flowers = [
            {
                "width": f"{r.gauss(k, 0.4):.3f}",
                "height": f"{r.gauss(3, 1):.3f}",
                "soil": r.choice(["clay", "sand"]),
                "kind": cls.KINDS[k],
            }
            for k in range(3)
            for _ in range(40)
        ]
        cls.flowers[5]["height"] = ""
        cls.houses = [
            {"size": f"{r.uniform(20, 200):.1f}", "age": f"{r.uniform(0, 80):.1f}", "price": ""} for _ in range(100)
        ]
        for house in cls.houses:
            house["price"] = f"{3000 * float(house['size']) - 500 * float(house['age']) + r.gauss(0, 100):.0f}"
        cls.write(cls.common / "flowers.csv", cls.flowers)
        cls.write(cls.common / "houses.csv", cls.houses)
        cls.reports = {}
        keep = ["--checkpoint", "runs", "--checkpoint-every", "10epochs"]
        for name, flags in (("flowers", keep), ("houses", ["--optimizer", "adam", "--lr", "0.02"])):
            result = support.run(
                *("train", "mlp:8,8", "--data", f"{name}.csv", "--save", f"{name}.safetensors", "--report", "r.json"),
                *("--workers", 2, "--progress", "none", "--epochs", 30, *flags),
                cwd=cls.common,
            )
            assert result.returncode == 0, result.stderr
            cls.reports[name] = json.loads((cls.common / "r.json").read_text())["epochs"][-1]

    @staticmethod
    def write(path, rows, columns=None, header=True):
        columns = columns or list(rows[0])
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            if header:
                writer.writerow(columns)
            writer.writerows([row[column] for column in columns] for row in rows)

    def setUp(self):
        super().setUp()
        shutil.copytree(self.common, self.folder, dirs_exist_ok=True)

    def encoded(self, rows):
        """Values as they stand in the file, as predict() in TorchScript takes them."""
        number = lambda text: float(text) if text else float("nan")  # noqa: E731
        return torch.tensor(
            [[number(r["width"]), number(r["height"]), r["soil"] == "clay", r["soil"] == "sand"] for r in rows]
        )

    def test_evaluate_says_what_training_said(self):
        measured = self.evaluation("flowers.safetensors", "--data", "flowers.csv")
        self.assertEqual(measured["samples"], 24)
        self.assertIn("kept for testing", measured["what"])
        self.assertEqual(measured["accuracy"], self.reports["flowers"]["test_accuracy"])
        self.assert_close(measured["loss"], self.reports["flowers"]["test_loss"], "loss")
        self.assertEqual([entry["name"] for entry in measured["classes"]], sorted(self.KINDS))
        text = self.succeeds("evaluate", "flowers.safetensors", "--data", "flowers.csv").stdout
        self.assertRegex(text, rf"(?m)^loss \d\.\d{{4}}  accuracy {measured['accuracy']:.4f}$")
        self.assertRegex(text, r"(?m)^setosa +8 ")
        houses = self.evaluation("houses.safetensors", "--data", "houses.csv")
        self.assertEqual(houses["samples"], 20)
        self.assert_close(houses["loss"] / self.reports["houses"]["test_loss"], 1, "loss of houses")
        self.assert_close(houses["error"] ** 2 / houses["loss"], 1, "error")

    def test_parts_of_a_file_and_a_file_of_another_name(self):
        everything = self.evaluation("flowers.safetensors", "--data", "flowers.csv", "--part", "all")
        train = self.evaluation("flowers.safetensors", "--data", "flowers.csv", "--part", "train")
        test = self.evaluation("flowers.safetensors", "--data", "flowers.csv", "--part", "test")
        self.assertEqual([part["samples"] for part in (everything, train, test)], [120, 96, 24])
        rights = [round(part["accuracy"] * part["samples"]) for part in (everything, train, test)]
        self.assertEqual(rights[0], rights[1] + rights[2])
        self.write(self.folder / "fresh.csv", self.flowers[30:70])
        fresh = self.evaluation("flowers.safetensors", "--data", "fresh.csv")
        self.assertEqual(fresh["samples"], 40)
        self.refused(
            *("evaluate", "flowers.safetensors", "--data", "fresh.csv", "--part", "test"), says=["40 rows", "120"]
        )

    def test_classes_by_name_as_torchscript_says(self):
        self.succeeds("checkpoint", "export", "flowers.safetensors", "--out", "f.pt")
        module = torch.jit.load(str(self.folder / "f.pt"))
        with torch.no_grad():
            expected = module.predict(self.encoded(self.flowers))
        classes = sorted(self.KINDS)
        said = self.succeeds("predict", "flowers.safetensors", "--data", "flowers.csv", "--out", "p.csv").stdout
        self.assertIn(str(self.folder / "p.csv"), said)
        table = rows_of((self.folder / "p.csv").read_text())
        self.assertEqual(list(table[0]), ["sample", "prediction", "probability", "label"])
        self.assertEqual([row["prediction"] for row in table], [classes[i] for i in expected.argmax(1)])
        self.assertEqual([row["label"] for row in table], [row["kind"] for row in self.flowers])
        self.assert_close([float(row["probability"]) for row in table], expected.max(1).values, "probabilities")

    def test_numbers_in_their_own_unit(self):
        self.succeeds("checkpoint", "export", "houses.safetensors", "--out", "h.pt")
        with torch.no_grad():
            expected = torch.jit.load(str(self.folder / "h.pt")).predict(
                torch.tensor([[float(r["size"]), float(r["age"])] for r in self.houses])
            )
        table = self.predictions("houses.safetensors", "--data", "houses.csv")
        self.assertEqual(list(table[0]), ["sample", "prediction", "label"])
        got = [float(row["prediction"]) for row in table]
        self.assert_close(got, expected, "prices")
        prices = [float(r["price"]) for r in self.houses]
        self.assert_close([float(row["label"]) for row in table], prices, "labels")
        wrong = numpy.mean(numpy.abs(numpy.array(got) - prices))
        self.assertLess(wrong, 0.2 * numpy.std(prices))  # it has learnt, and in this unit
        measured = self.evaluation("houses.safetensors", "--data", "houses.csv", "--part", "all")
        self.assert_close(measured["absolute_error"] / wrong, 1, "mean absolute error")

    def test_other_orders_no_label_no_header(self):
        whole = [row["prediction"] for row in self.predictions("flowers.safetensors", "--data", "flowers.csv")]
        self.write(self.folder / "new.csv", self.flowers, ["soil", "height", "width"])
        unlabelled = self.predictions("flowers.safetensors", "--data", "new.csv")
        self.assertEqual(list(unlabelled[0]), ["sample", "prediction", "probability"])
        self.assertEqual([row["prediction"] for row in unlabelled], whole)
        self.write(self.folder / "bare.csv", self.flowers, ["width", "height", "soil"], header=False)
        result = self.succeeds("predict", "flowers.safetensors", "--data", "bare.csv")
        self.assertEqual([row["prediction"] for row in rows_of(result.stdout)], whole)
        self.assertIn("no header", result.stderr)
        self.write(self.folder / "more.csv", [{**row, "id": "7"} for row in self.flowers])
        result = self.succeeds("predict", "flowers.safetensors", "--data", "more.csv")
        self.assertEqual([row["prediction"] for row in rows_of(result.stdout)], whole)
        self.assertIn("'id'", result.stderr)
        self.refused("evaluate", "flowers.safetensors", "--data", "new.csv", says=["no column 'kind'", "predict"])

    def test_one_column_alone(self):
        rows = [{"x": str(i % 13), "y": f"{2 * (i % 13) + 0.5}"} for i in range(60)]
        self.write(self.folder / "line.csv", rows)
        flags = ("--workers", 1, "--epochs", 30)
        self.succeeds("train", "linear", "--data", "line.csv", "--save", "l.safetensors", *flags)
        (self.folder / "new.csv").write_text("x\n1\n4\n")
        table = self.predictions("l.safetensors", "--data", "new.csv")
        for row, expected in zip(table, (2.5, 8.5), strict=True):
            self.assertAlmostEqual(float(row["prediction"]), expected, delta=1.5)

    def test_wrong_data(self):
        model = "flowers.safetensors"
        wrong = {
            "other.csv": ("a,b,kind\n1,2,setosa\n3,4,setosa\n", ["'width'", "'height'", "'soil'"]),
            "typo.csv": ("width,heigth,soil\n1,2,clay\n", ["no column 'height'", "did you mean 'heigth'"]),
            "text.csv": ("width,height,soil\n1,2,clay\n1,tall,clay\n1,3,clay\n", ["line 3", "'tall'", "'height'"]),
            "narrow.csv": ("1,2\n3,4\n5,6\n", ["2 columns", "3 or 4"]),
            "strange.csv": ("width,height,soil,kind\n1,2,clay,setosa\n1,2,clay,rose\n", ["line 3", "'rose'", "setosa"]),
            "empty.csv": ("", ["empty"]),
        }
        for name, (text, _) in wrong.items():
            (self.folder / name).write_text(text)
        refuse = lambda name, says: self.refused("predict", model, "--data", name, says=[name, *says])  # noqa: E731
        self.side_by_side({name: lambda n=name, s=says: refuse(n, s) for name, (_, says) in wrong.items()})
        self.refused("predict", model, "--data", "synthetic:100", says=["columns of a CSV file"])
        self.refused("predict", model, "--data", "nowhere.csv", says=["no file or folder 'nowhere.csv'"])
        part = ("--part", "tests")
        self.refused("evaluate", model, "--data", "flowers.csv", *part, says=["did you mean 'test'"], code=2)
        self.refused("predict", "houses.safetensors", "--data", "houses.csv", "--all-classes", says=["no classes"])

    def test_wrong_files(self):
        good = (self.folder / "flowers.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", good[:8])
        made = lambda header: struct.pack("<Q", len(header)) + header + good[8 + length :]  # noqa: E731
        header = good[8 : 8 + length]
        foreign = b'{"bert.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        cases = {
            "cut.safetensors": (good[:-5], ["cut short"]),
            "long.safetensors": (good + b"x", ["belong to no tensor"]),
            "tiny.safetensors": (b"abc", ["3 bytes"]),
            "text.safetensors": (b"this is no model at all", ["no safetensors file"]),
            "header.safetensors": (made(header.replace(b'"1.bias"', b'"1.bias', 1)), ["header"]),
            "named.safetensors": (
                made(header.replace(b'"1.bias"', b'"1.buas"', 1)),
                ["1.bias F32[8] is missing", "1.buas"],
            ),
            "shape.safetensors": (made(header.replace(b'"[4]"', b'"[5]"', 1)), ["not those of mlp:8"]),
            "version.safetensors": (made(header.replace(rb"\"version\":1", rb"\"version\":9", 1)), ["schema"]),
            "foreign.safetensors": (struct.pack("<Q", len(foreign)) + foreign + b"1234", ["does not say which model"]),
        }
        for name, (data, _) in cases.items():
            (self.folder / name).write_bytes(data)
        refuse = lambda name, says: self.refused("evaluate", name, *DATA, says=[name, *says])  # noqa: E731
        self.side_by_side({name: lambda n=name, s=says: refuse(n, s) for name, (_, says) in cases.items()})
        self.refused("evaluate", "none.safetensors", "--data", "flowers.csv", says=["no file or folder 'none.saf"])
        (self.folder / "folder").mkdir()
        self.refused(
            "predict", "folder", "--data", "flowers.csv", says=["no checkpoint in folder", "empty", "--checkpoint"]
        )
        export = ("checkpoint", "export", "flowers.safetensors")
        self.refused(*export, "--out", "m.onnx", says=[".pt", ".safetensors"], code=2)
        self.refused(*export, says=["--out"], code=2)
        self.refused(*export, "--output", "x.pt", says=["--output", "did you mean '--out'"], code=2)
        predict = ("predict", "flowers.safetensors", "--data", "flowers.csv")
        self.refused(*predict, "--out", "/proc/no/p.csv", says=["/proc/no"])

    def steps(self):
        return sorted(path.name for path in (self.folder / "runs").glob("step-*"))

    def test_checkpoints_are_as_good_as_the_file(self):
        older, newest = self.steps()[-2:]
        one = f"runs/{newest}"
        last = self.evaluation("flowers.safetensors", *DATA)
        for given in ("runs", one):
            measured = self.evaluation(given, *DATA)
            self.assertEqual(measured["accuracy"], self.reports["flowers"]["test_accuracy"])
            self.assertEqual(measured, {**last, "file": one})
        before = self.evaluation(f"runs/{older}", *DATA)
        self.assertEqual(before["file"], f"runs/{older}")
        self.assertNotEqual(before["loss"], last["loss"])
        self.assertEqual(self.predictions("runs", *DATA), self.predictions("flowers.safetensors", *DATA))

        saved, x = support.read_safetensors(self.folder / "flowers.safetensors"), self.encoded(self.flowers[10:])
        outputs = {}
        for name, given in {"file": "flowers.safetensors", "folder": "runs", "one": one}.items():
            self.succeeds("checkpoint", "export", given, "--out", f"{name}.pt")
            module = torch.jit.load(str(self.folder / f"{name}.pt"))
            with torch.no_grad():
                outputs[name] = (module(x), module.predict(x))
            self.succeeds("checkpoint", "export", given, "--out", f"{name}.safetensors")
            copy = support.read_safetensors(self.folder / f"{name}.safetensors")
            self.assertEqual(set(copy), set(saved))
            self.assertTrue(all(numpy.array_equal(copy[tensor], saved[tensor]) for tensor in saved), name)
            self.assertEqual(*(header_of(self.folder / f"{n}.safetensors")["__metadata__"] for n in (name, "flowers")))
        for name in ("folder", "one"):
            self.assertTrue(all(map(torch.equal, outputs[name], outputs["file"])), name)

    def test_damaged_checkpoints_are_skipped(self):
        older, newest = self.steps()[-2:]
        file = self.folder / "runs" / newest / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1]))  # no size tells, only the hash
        before = self.evaluation(f"runs/{older}", *DATA)
        result = self.succeeds("evaluate", "runs", *DATA, "--json")
        self.assertEqual(json.loads(result.stdout), before)
        remark = rf"(?m)^warning: .*{newest}.*model\.safetensors.*; runs/{older} is taken instead$"
        self.assertRegex(result.stderr, remark)
        for out in ("m.pt", "m.safetensors"):
            self.assertRegex(self.succeeds("checkpoint", "export", "runs", "--out", out).stderr, remark)
        self.refused("evaluate", f"runs/{newest}", *DATA, says=["no checkpoint", "of use", newest, "model.safetensors"])
        for step in self.steps()[:-1]:
            (self.folder / "runs" / step / "manifest.json").unlink()
        self.refused("predict", "runs", *DATA, says=["no checkpoint in runs", newest, older, "half-written"])

    def test_a_model_in_several_files_with_tied_tensors(self):
        folder = self.folder / "runs" / self.steps()[-1]
        whole = support.read_safetensors(folder / "model.safetensors")
        expected = {**whole, "3.bias": whole["1.bias"]}
        (folder / "model.safetensors").unlink()
        parts = [["1.bias", "5.weight"], ["1.weight", "3.weight", "5.bias"]]
        manifest = json.loads((folder / "manifest.json").read_text())
        files = [note for note in manifest["files"] if note["name"] != "model.safetensors"]
        for number, names in enumerate(parts, 1):
            header, data = {"__metadata__": {"ties": json.dumps({"3.bias": "1.bias"})}}, b""
            for name in names:
                raw = whole[name].tobytes()
                offsets = [len(data), len(data) + len(raw)]
                header[name] = {"dtype": "F32", "shape": list(whole[name].shape), "data_offsets": offsets}
                data += raw
            text = json.dumps(header).encode()
            raw = struct.pack("<Q", len(text)) + text + data
            name = f"model-{number:05}-of-{len(parts):05}.safetensors"
            (folder / name).write_bytes(raw)
            files.append({"name": name, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()})
        (folder / "manifest.json").write_text(support.manifest_text({**manifest, "files": files}))
        self.succeeds("checkpoint", "export", folder, "--out", "m.pt")
        state = torch.jit.load(str(self.folder / "m.pt")).state_dict()
        self.assertEqual(set(state), set(expected))
        for name, values in expected.items():
            self.assertTrue(numpy.array_equal(state[name].numpy(), values), name)


if __name__ == "__main__":
    support.main()
