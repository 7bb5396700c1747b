"""`trireme train` on CSV files as they are found: what it says, what it reaches, what the saved model knows."""
import gzip
import json
import math
import os
import pathlib
import random
import re
import struct
import unittest

import support

# scripts/csv_files puts the files of scikit-learn there; a system that has the package has them, too.
PLACES = [os.environ.get("CSV_FILES", ""), "/usr/lib/python3/dist-packages/sklearn/datasets/data"]
FILES = next((pathlib.Path(place) for place in PLACES if place and (pathlib.Path(place) / "iris.csv").exists()), None)


def metadata(path):
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length])["__metadata__"]


def flowers(rows=150, seed=1):
    """Three kinds, in this order, with four measures of which two tell them apart."""
    r = random.Random(seed)
    kinds = ["setosa", "versicolor", "virginica"]

    def flower(k):
        return [r.gauss(5, 1), r.gauss(3, 0.5), r.gauss(2 * k, 0.3), r.gauss(1 - k, 0.3), kinds[k]]

    return [flower(k) for k in range(3) for _ in range(rows // 3)]


def cell(value):
    return f"{value:.3f}" if isinstance(value, float) else str(value)


class CsvTest(support.CommandTest):
    def write(self, name, rows, header="", delimiter=","):
        lines = ([header] if header else []) + [delimiter.join(map(cell, row)) for row in rows]
        data = ("\n".join(lines) + "\n").encode()
        (self.folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return self.folder / name

    def run_train(self, *args, code=0):
        result = support.run("train", *args, cwd=self.folder)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return result

    def report_of(self, *args):
        """(the report, what was printed)"""
        result = self.run_train(*args, "--report", "r.json", "--workers", 2)
        return json.loads((self.folder / "r.json").read_text()), result.stdout

    def accuracy(self, *args):
        report, text = self.report_of(*args)
        return report["epochs"][-1]["test_accuracy"], text


class Csv(CsvTest):
    def test_the_line_that_says_what_was_understood(self):
        self.write("iris.csv", flowers())
        accuracy, text = self.accuracy("mlp:64", "--data", "iris.csv")
        self.assertIn(
            "classification, 3 classes (setosa, versicolor, virginica), 4 features, normalised; "
            "120 training and 30 test rows",
            text.splitlines(),
        )
        self.assertGreaterEqual(accuracy, 0.93)
        self.assertIn("50 epochs of 2 updates", text)

    def test_other_dress_same_data(self):
        quoted = [[f'"{cell(c)}"' for c in row] for row in flowers()]
        files = [
            self.write("a.csv", flowers()),
            self.write("b.csv.gz", flowers(), header="w;x;y;z;kind", delimiter=";"),
            self.write("c.tsv", flowers(), header="# written by hand\nw\tx\ty\tz\tkind", delimiter="\t"),
            self.write("d.data", quoted, header='"w, of it","x",y,z,kind'),
        ]
        hashes = {self.train("linear", "--data", file, "--workers", 2, "--epochs", 3)["sha256"] for file in files}
        self.assertEqual(len(hashes), 1)

    def test_test_rows_are_chosen_by_the_seed_and_not_by_the_workers(self):
        args = ["linear", "--data", self.write("a.csv", flowers()), "--epochs", 4, "--dtype", "f64"]
        one, three = (self.train(*args, "--workers", workers)["epochs"] for workers in (1, 3))
        for ours, theirs in zip(one, three, strict=True):
            self.assertAlmostEqual(ours["test_loss"], theirs["test_loss"], delta=1e-9)
        other = self.train(*args, "--workers", 1, "--seed", 2)["epochs"]
        self.assertNotEqual(other[-1]["test_loss"], one[-1]["test_loss"])
        text = self.run_train("linear", "--data", "a.csv", "--test", 0, "--epochs", 1).stdout
        self.assertIn("150 training and 0 test rows", text)

    def test_normalising_makes_the_difference(self):
        r = random.Random(5)
        pairs = [(r.gauss(0, 1), r.gauss(0, 1)) for _ in range(400)]
        rows = [[f"{1e6 + 1e3 * a:.2f}", f"{1e-3 * b:.3e}", "yes" if a + b > 0 else "no"] for a, b in pairs]
        self.write("a.csv", rows, header="a,b,sold")
        accuracy, text = self.accuracy("linear", "--data", "a.csv")
        self.assertIn(
            "classification, 2 classes (no, yes), 2 features, normalised; 320 training and 80 test rows", text
        )
        self.assertGreater(accuracy, 0.95)
        accuracy, text = self.accuracy("linear", "--data", "a.csv", "--normalize", "no", "--lr", 1e-9)
        self.assertIn("2 features; 320 training", text)
        self.assertLess(accuracy, 0.9)

    def test_a_number_to_predict_in_its_own_unit(self):
        """price = 1000 · (50 + 3 rooms + noise of deviation 2): the best model's mean squared error is 4e6."""
        r = random.Random(2)
        rows = [[r.randrange(1, 9), r.choice(["Bern", "Oslo", "NA"])] for _ in range(2000)]
        for row in rows:
            row.append(round(1000 * (50 + 3 * row[0] + r.gauss(0, 2))))
        self.write("homes.csv", rows, header="rooms,town,price")
        report, text = self.report_of("linear", "--data", "homes.csv", "--save", "m.safetensors", "--lr", 0.01)
        self.assertIn("regression of 'price', 2 features (4 inputs), normalised; 1600 training and 400 test rows", text)
        self.assertIn(
            "'price' has more than 1000 whole numbers in 2000 rows and is taken for a number to predict; "
            "--loss cross-entropy",
            text,
        )
        self.assertRegex(text, r"\d+ values missing \(\d+ in 'town'\)")
        last = report["epochs"][-1]
        for loss in (last["loss"], last["test_loss"]):
            self.assertTrue(3e6 < loss < 5.5e6, last)
        error = float(re.search(r"test error ([\d.]+) \(root of the mean square\)", text)[1])
        self.assertAlmostEqual(error, math.sqrt(last["test_loss"]), delta=1)
        # Whoever has the file alone can predict: 1 room more is 3000 more.
        schema = json.loads(metadata(self.folder / "m.safetensors")["schema"])
        rooms, town = schema["columns"]
        weights = support.read_safetensors(self.folder / "m.safetensors")["1.weight"].reshape(-1)
        self.assertAlmostEqual(weights[0] / rooms["deviation"] * schema["label"]["deviation"], 3000, delta=300)
        self.assertEqual(town, {"name": "town", "kind": "category", "categories": ["Bern", "Oslo"], "missing": True})

    def test_a_saved_model_knows_its_columns(self):
        self.write("a.csv", flowers(), header="w,x,y,z,kind")
        self.run_train("mlp:8", "--data", "a.csv", "--save", "m.safetensors", "--epochs", 1, "--test", 0)
        known = metadata(self.folder / "m.safetensors")
        self.assertEqual((known["model"], known["producer"]), ("mlp:8", "trireme"))
        schema = json.loads(known["schema"])
        self.assertEqual(
            schema["label"], {"name": "kind", "column": 4, "classes": ["setosa", "versicolor", "virginica"]}
        )
        for i, column in enumerate(schema["columns"]):
            values = [float(cell(row[i])) for row in flowers()]
            mean = sum(values) / len(values)
            deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
            self.assertEqual((column["name"], column["kind"]), ("wxyz"[i], "number"))
            self.assertAlmostEqual(column["mean"], mean, delta=1e-6)
            self.assertAlmostEqual(column["deviation"], deviation, delta=1e-6)

    def test_flags_that_are_for_csv(self):
        for flag, value in (("--label", "x"), ("--normalize", "no"), ("--test", 0.3)):
            result = self.run_train("linear", "--data", "synthetic:100", flag, value, "--workers", 2, code=2)
            for part in (f"{flag} ", "CSV files", "no effect", "synthetic:100"):
                self.assertIn(part, result.stderr)
        self.write("a.csv", flowers())
        wrong = (("--normalize", "perhaps", "yes or no"), ("--test", 1, "less than 1"), ("--test", "x", "--test"))
        for flag, value, says in wrong:
            self.assertIn(says, self.run_train("linear", "--data", "a.csv", flag, value, code=2).stderr)

    def test_epochs_that_are_given_win(self):
        self.write("a.csv", flowers())
        text = self.run_train("linear", "--data", "a.csv", "--epochs", 3).stdout
        self.assertIn("epoch 3 ", text)
        self.assertNotIn("epoch 4 ", text)
        self.assertNotIn("small data", text)


@unittest.skipIf(FILES is None, "the CSV files of scikit-learn are not here: scripts/csv_files build/csv_files")
class ScikitLearn(CsvTest):
    """Every CSV file that comes with scikit-learn, with no flag but --data."""

    def test_accuracies(self):
        digits = ", ".join(map(str, range(10)))
        for name, least, classes, rest in (
            ("breast_cancer.csv", 0.95, "2 classes (malignant, benign)", "30 features, 455 and 114"),
            ("wine_data.csv", 0.95, "3 classes (class_0, class_1, class_2)", "13 features, 142 and 36"),
            ("iris.csv", 0.93, "3 classes (setosa, versicolor, virginica)", "4 features, 120 and 30"),
            ("digits.csv.gz", 0.95, f"10 classes ({digits})", "64 features, 1438 and 359"),
        ):
            with self.subTest(name=name):
                features, train, _, test = rest.rsplit(maxsplit=3)
                accuracy, text = self.accuracy("mlp:64", "--data", FILES / name)
                self.assertIn(
                    f"classification, {classes}, {features} normalised; {train} training and {test} test rows",
                    text.splitlines(),
                )
                self.assertGreaterEqual(accuracy, least)

    def test_numbers_to_predict(self):
        for name, label, features, train, test in (
            ("diabetes_data_raw.csv.gz", "9", 9, 354, 88),
            ("linnerud_exercise.csv", "Jumps", 2, 16, 4),
            ("linnerud_physiological.csv", "Pulse", 2, 16, 4),
            ("boston_house_prices.csv", "MEDV", 13, 405, 101),
        ):
            if not (FILES / name).exists():
                continue  # newer packages have no boston_house_prices.csv
            with self.subTest(name=name):
                text = self.run_train("mlp:64", "--data", FILES / name, "--workers", 2).stdout
                self.assertIn(
                    f"regression of '{label}', {features} features, normalised; "
                    f"{train} training and {test} test rows",
                    text.splitlines(),
                )

    def test_one_column(self):
        result = self.run_train("mlp:64", "--data", FILES / "diabetes_target.csv.gz", "--workers", 2, code=1)
        self.assertIn("a row needs at least one feature and a label", result.stderr)


if __name__ == "__main__":
    support.main()
