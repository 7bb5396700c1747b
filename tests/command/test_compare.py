"""`trireme compare`: one training per way of synchronising, and a table, CSV and a plot that say the same as the
reports."""
import csv
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import xml.etree.ElementTree

import support

EPOCHS = 3
SMALL = ["mlp:16", "--data", "synthetic:200", "--batch", 20, "--workers", 2, "--lr", 0.01]
MODES = ["shared", "allreduce", "central"]
COLUMNS = [
    "mode",
    "epoch",
    "seconds",
    "samples_per_second",
    "loss",
    "test_loss",
    "test_accuracy",
    "staleness_mean",
    "staleness_max",
    "dropped",
]
SVG = "{http://www.w3.org/2000/svg}"


def table(text):
    """The rows of the table by mode, and its header: lists of cells."""
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("mode "))
    rows = {}
    for line in lines[begin + 1 :]:
        cells = line.split()
        if cells[0] not in MODES or cells[1] == "had":
            break
        rows[cells[0]] = cells
    return rows, lines[begin].replace("ep ", "ep_").replace("s to ", "s_to_").split()


def scratch_folders():
    return {path.name for path in pathlib.Path(tempfile.gettempdir()).glob("trireme-compare-*")}


WORKER = """#!/usr/bin/python3
import json, sys
flags = dict(arg[2:].split("=", 1) for arg in sys.argv if arg.startswith("--") and "=" in arg)
epochs = [{"epoch": e + 1, "loss": 1.5, "test_loss": None if e else 2.5, "test_accuracy": 0.25 * e,
           "samples_per_second": 1e5 / (e + 1), "seconds": e + 1} for e in range(3)]
report = {"epochs": epochs}
if flags["sync"] == "allreduce":
    report["warning"] = "the loss grows"
if flags["sync"] != "shared":
    stale = lambda s, m: {"count": 250, "sum": 314 + 10 * (m - s), "max": 3 + 2 * s + 2 * m}
    model = lambda s, m: {"staleness": stale(s, m), "dropped": 308.5}
    servers = {f"server {s}": {f"model {m}": model(s, m) for m in range(2)} for s in range(2)}
    report["metrics"] = {"rank 0": {"updates": 3}, **servers}
open(flags["report"], "w").write("{" if flags["sync"] == "central" else json.dumps(report))
"""


class Compare(support.CommandTest):
    def compare(self, *args, code=0, modes=MODES, epochs=EPOCHS):
        result = support.run("compare", *SMALL, "--epochs", epochs, "--sync", ",".join(modes), *args, cwd=self.folder)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result

    def rows(self, path="out/compare.csv"):
        with open(self.folder / path, newline="") as file:
            reader = csv.DictReader(file)
            self.assertEqual(reader.fieldnames, COLUMNS)
            return list(reader)

    def reports(self, name="report", modes=MODES):
        return {mode: json.loads((self.folder / f"{name}-{mode}.json").read_text()) for mode in modes}

    def plot(self, path="out/compare.svg"):
        root = xml.etree.ElementTree.parse(self.folder / path).getroot()
        self.assertEqual(root.tag, f"{SVG}svg")
        return root

    def polylines(self, root):
        return {
            line.find(f"{SVG}title").text: [tuple(map(float, point.split(","))) for point in line.get("points").split()]
            for line in root.iter(f"{SVG}polyline")
        }

    # ---- what it finds ----
    def test_table_csv_and_plot_agree_with_the_reports(self):
        before = scratch_folders()
        result = self.compare("--report", "report.json", "--target", 0.3)
        self.assertEqual(result.stderr, "")
        for number, mode in enumerate(MODES, 1):
            self.assertIn(f"--- mode {number} of 3: {mode}\n", result.stdout)
        reports = self.reports()
        rows, header = table(result.stdout)
        self.assertEqual(
            header, ["mode", "samples/s", "staleness", "max", "dropped", "ep_1", "ep_2", "ep_3", "final", "s_to_0.3"]
        )
        self.assertEqual(list(rows), MODES)
        self.assertEqual(len(self.rows()), len(MODES) * EPOCHS)
        for mode, report in reports.items():
            with self.subTest(mode=mode):
                self.assertEqual(report["sync"], mode)
                epochs = report["epochs"]
                seconds = [sum(e["seconds"] for e in epochs[: i + 1]) for i in range(EPOCHS)]
                servers = {member for member in report["metrics"] if member.startswith("server ")}
                self.assertEqual(servers, set())  # none of these modes has any
                for row, epoch, since_start in zip(
                    [row for row in self.rows() if row["mode"] == mode], epochs, seconds, strict=True
                ):
                    self.assertEqual(int(row["epoch"]), epoch["epoch"])
                    self.assertAlmostEqual(float(row["seconds"]), since_start, delta=1e-9)
                    for key in ("samples_per_second", "loss", "test_loss", "test_accuracy"):
                        self.assertEqual(float(row[key]), epoch[key])
                    for key in ("staleness_mean", "staleness_max", "dropped"):
                        self.assertEqual(row[key], "")
                reached = [s for s, e in zip(seconds, epochs) if e["test_accuracy"] >= 0.3]
                cells = rows[mode]
                speed = sum(e["samples_per_second"] * e["seconds"] for e in epochs) / seconds[-1]
                self.assertLessEqual(abs(int(cells[1].replace(",", "")) - speed), 1)
                self.assertEqual(cells[2:5], ["-", "-", "-"])
                self.assertEqual(cells[5:9], [f"{e['test_accuracy']:.4f}" for e in epochs + epochs[-1:]])
                self.assertEqual(cells[9], f"{reached[0]:.2f}" if reached else "-")
        self.assertEqual(scratch_folders() - before, set())

    def test_known_reports(self):
        """A worker of our own that only writes reports: figures of servers, what was no number, a damaged file."""
        shutil.copy(support.TRIREME, self.folder / "trireme")
        (self.folder / "trireme-worker").write_text(WORKER)
        (self.folder / "trireme-worker").chmod(0o755)
        result = subprocess.run(
            [self.folder / "trireme", "compare", *map(str, SMALL), "--sync", ",".join(MODES), "--target", "0.25"],
            cwd=self.folder,
            env=support.environment(),
            capture_output=True,
            text=True,
            timeout=support.LIMIT,
        )
        self.assertEqual(result.returncode, 1, result.stderr)
        rows, _ = table(result.stdout)
        self.assertEqual(
            rows["shared"], ["shared", "50,000", "-", "-", "-", "0.0000", "0.2500", "0.5000", "0.5000", "3.00"]
        )
        self.assertEqual(
            rows["allreduce"],
            ["allreduce", "50,000", "1.26", "7", "1,234", "0.0000", "0.2500", "0.5000", "0.5000", "3.00"],
        )
        self.assertRegex(result.stdout, r"(?m)^central +failed: .*report-central.json is not a report")
        self.assertIn("\nwarning: allreduce: the loss grows\n", result.stdout)
        self.assertNotIn("warning: shared: ", result.stdout)
        self.assertIn("warning: the fastest epoch of allreduce was 3.0 times as fast as its slowest", result.stdout)
        self.assertEqual(
            [list(row.values()) for row in self.rows() if row["epoch"] == "2"],
            [
                ["shared", "2", "3", "50000", "1.5", "", "0.25", "", "", ""],
                ["allreduce", "2", "3", "50000", "1.5", "", "0.25", "1.256", "7", "1234"],
            ],
        )

    def test_the_target_is_an_epoch_end_or_not_reached(self):
        rows, _ = table(self.compare("--report", "report.json", "--target", 0, modes=MODES[:2]).stdout)
        for mode, report in self.reports(modes=MODES[:2]).items():
            self.assertEqual(rows[mode][-1], f"{report['epochs'][0]['seconds']:.2f}")
        rows, header = table(self.compare("--target", 1.5, modes=MODES[:1]).stdout)
        self.assertEqual((rows["shared"][-1], header[-1]), ("-", "s_to_1.5"))
        _, header = table(self.compare(modes=MODES[:1]).stdout)
        self.assertEqual(header[-1], "final")

    def test_plot(self):
        self.compare("--target", 0.5, "--csv", "a.csv", "--plot", "pictures/a.svg")
        root = self.plot("pictures/a.svg")
        lines = self.polylines(root)
        self.assertEqual(list(lines), MODES)
        texts = [text.text for text in root.iter(f"{SVG}text")]
        for word in [*MODES, "seconds of training", "test accuracy", "target 0.5"]:
            self.assertIn(word, texts)
        self.assertEqual(len({line.get("stroke") for line in root.iter(f"{SVG}polyline")}), len(MODES))
        width, height = float(root.get("width")), float(root.get("height"))
        for mode, points in lines.items():
            rows = [row for row in self.rows("a.csv") if row["mode"] == mode]
            self.assertEqual(len(points), EPOCHS)
            self.assertEqual(points, sorted(points))
            for x, y in points:
                self.assertTrue(0 < x < width and 0 < y < height)
            order = sorted(range(EPOCHS), key=lambda i: (float(rows[i]["test_accuracy"]), -points[i][1]))
            heights = [points[i][1] for i in order]
            self.assertEqual(heights, sorted(heights, reverse=True))  # better is higher up
        self.assertFalse((self.folder / "out").exists())

    def test_one_epoch_and_no_files(self):
        result = self.compare("--csv", "", "--plot", "", "--progress", "none", modes=MODES[:2], epochs=1)
        self.assertTrue(result.stdout.startswith("\nmlp:16 on synthetic:200, 2 workers, batch 20"), result.stdout)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_many_epochs_show_the_last(self):
        _, header = table(self.compare(modes=MODES[:1], epochs=30).stdout)
        self.assertNotIn("ep_1", header)
        self.assertIn("ep_30", header)
        self.assertEqual(len(self.rows()), 30)

    def test_numbers_instead_of_classes(self):
        (self.folder / "line.csv").write_text("a,price\n" + "".join(f"{i / 100},{i / 50 + 0.25}\n" for i in range(100)))
        result = support.run(
            "compare",
            "linear",
            "--data",
            "line.csv",
            "--workers",
            2,
            "--epochs",
            2,
            "--sync",
            "shared,central",
            "--target",
            1000,
            cwd=self.folder,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("loss at the end of each epoch", result.stdout)
        rows, _ = table(result.stdout)
        for cells in rows.values():
            self.assertNotEqual(cells[-1], "-")  # a loss is reached from above
        self.assertEqual({row["test_accuracy"] for row in self.rows()}, {""})
        self.assertEqual([len(points) for points in self.polylines(self.plot()).values()], [2, 2])

    # ---- settings ----
    def test_settings_of_one_mode(self):
        result = self.compare(
            "--report",
            "r.json",
            "--set",
            "central:lr=0.002",
            "--optimizer-of",
            "allreduce=adam",
            "--set",
            "allreduce:overlap=false",
        )
        reports = self.reports("r")
        self.assertEqual(
            {mode: (report["lr"], report["optimizer"]) for mode, report in reports.items()},
            {"shared": (0.01, "momentum"), "allreduce": (0.01, "adam"), "central": (0.002, "momentum")},
        )
        texts = [text.text for text in self.plot().iter(f"{SVG}text")]
        for mode, own in (("central", "lr=0.002"), ("allreduce", "overlap=false optimizer=adam")):
            self.assertIn(f"\n{mode} had {own}\n", result.stdout)
            self.assertIn(own, texts)
        self.assertNotIn("shared had", result.stdout)

    def test_the_rate_is_for_modes_that_have_one(self):
        self.compare("--rate", "full", "--report", "r.json", modes=["shared", "async"])
        self.assertEqual(
            {mode: report["rate"] for mode, report in self.reports("r", ["shared", "async"]).items()},
            {"shared": "share", "async": "full"},
        )

    def test_flags_reach_the_training(self):
        """The same parameters as the same flags of `train` give."""
        flags = [
            "--nesterov",
            "--no-overlap",
            "--seed",
            7,
            "--epochs",
            2,
            "--momentum",
            0.5,
            "--lr-schedule=cosine",
            "--max-steps",
            15,
        ]
        self.compare(*flags, "--report", "r.json", "--save", "kept/m.safetensors", modes=["allreduce"])
        report = self.reports("r", ["allreduce"])["allreduce"]
        self.assertEqual(report["sha256"], self.train(*SMALL, *flags, "--sync", "allreduce")["sha256"])
        self.assertEqual(report["updates"], 15)
        self.assertIn("1.weight", support.read_safetensors(self.folder / "kept" / "m-allreduce.safetensors"))

    def test_recipe(self):
        (self.folder / "small.toml").write_text(
            'model = "mlp:16"\ndata = "synthetic:200"\nworkers = 2\nepochs = 5\nsync = "central"\noverlap = false\n'
            'report = "kept/a.json"\n'
        )
        result = support.run("compare", "small.toml", "--epochs", 1, "--sync", "shared,allreduce", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual({row["mode"] for row in self.rows()}, {"shared", "allreduce"})
        self.assertEqual(len(self.rows()), 2)
        self.assertEqual(
            sorted(path.name for path in (self.folder / "kept").iterdir()), ["a-allreduce.json", "a-shared.json"]
        )

    # ---- what is refused, before anything runs ----
    def test_refused(self):
        for args, says in (
            (["--sync", "shared,alreduce"], ["'alreduce'", "did you mean 'allreduce'?"]),
            (["--sync", "shared,central,shared"], ["'shared' twice"]),
            (["--sync", ","], ["unknown sync mode ''"]),
            (["--sync", ""], ["--sync"]),
            ([], ["--sync is required"]),
            (["--sync", "shared,central", "--set", "centrl:lr=1"], ["'centrl'", "did you mean 'central'?"]),
            (["--sync", "shared", "--set", "shared:epoch=1"], ["'epoch'", "did you mean 'epochs'?"]),
            (["--sync", "shared", "--set", "shared:sync=central"], ["'sync'"]),
            (["--sync", "shared", "--set", "shared:report=x"], ["'report'"]),
            (["--sync", "shared", "--set", "shared"], ["MODE:FLAG=VALUE"]),
            (["--sync", "shared", "--set", "lr=1"], ["MODE:FLAG=VALUE"]),
            (["--sync", "shared", "--optimizer-of", "shared"], ["MODE=OPTIMIZER"]),
            (["--sync", "shared", "--optimizer-of", "shared=adan"], ["mode shared", "did you mean 'adam'?"]),
            (["--sync", "shared,central", "--set", "central:lr=-1"], ["mode central", "learning rate"]),
            (["--sync", "shared,central", "--set", "central:lr=x"], ["mode central", "lr"]),
            (["--sync", "shared", "--target", "x"], ["--target"]),
            (["--sync", "shared", "--tarket", "1"], ["did you mean '--target'?"]),
            (["--sync", "shared", "--csv", "/proc/no/x"], ["/proc/no"]),
            (["--sync", "shared", "--plot", "."], ["folder"]),
        ):
            with self.subTest(args=args):
                before = scratch_folders()
                text = self.refused("compare", *SMALL, *args, says=says)
                self.assertEqual(text.count("\n"), 1, text)
                self.assertEqual(scratch_folders() - before, set())

    def test_inside_a_launcher(self):
        result = support.run(
            "launch", "-n", 2, "--", support.TRIREME, "compare", *SMALL, "--sync", "shared", cwd=self.folder
        )
        self.assertEqual(result.returncode, 2)
        self.assertIn("trireme launch has started it", result.stderr)

    # ---- what goes wrong on the way ----
    def test_a_mode_that_fails_does_not_stop_the_others(self):
        result = self.compare("--set", "allreduce:lr=1e30", code=1)
        rows, _ = table(result.stdout)
        self.assertEqual(list(rows), MODES)
        self.assertRegex(
            result.stdout, r"(?m)^allreduce +failed: the loss became .* smaller learning rate than 1e\+30$"
        )
        self.assertEqual({row["mode"] for row in self.rows()}, {"shared", "central"})
        self.assertEqual(list(self.polylines(self.plot())), ["shared", "central"])

    def test_all_fail(self):
        result = self.compare("--lr", "1e30", code=1, modes=MODES[:2])
        self.assertEqual(result.stdout.count("failed: the loss became"), 2)
        self.assertFalse((self.folder / "out" / "compare.csv").exists())

    def begin(self, *args):
        """Starts a comparison whose second mode does not end by itself; returns it and that mode's workers."""
        process = support.start(
            "compare",
            *SMALL,
            "--sync",
            ",".join(MODES),
            "--epochs",
            2,
            "--set",
            "allreduce:epochs=1000000",
            *args,
            cwd=self.folder,
        )
        self.addCleanup(self.end, process)
        seen = ""
        for line in process.stdout:
            seen += line
            if "mode 2 of 3" in seen and line.startswith("epoch 1 "):
                return process, support.children(process.pid)
        self.fail(seen + process.stderr.read())

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()

    def test_interrupted(self):
        before = scratch_folders()
        process, workers = self.begin()
        process.send_signal(signal.SIGINT)
        out, text = process.communicate(timeout=support.LIMIT)
        self.assertEqual(process.returncode, 130)
        self.assertRegex(text, r"^trireme: stopping after this update\. .*\n$")
        rows, _ = table(out)
        self.assertEqual(list(rows), ["shared"])
        self.assertIn("interrupted in allreduce, mode 2 of 3", out)
        self.assertNotIn("mode 3 of 3:", out)
        self.assertEqual({row["mode"] for row in self.rows()}, {"shared"})
        self.assertEqual(list(self.polylines(self.plot())), ["shared"])
        self.assertFalse(any(map(support.alive, workers)))
        self.assertEqual(scratch_folders() - before, set())

    def test_a_worker_that_is_killed(self):
        process, workers = self.begin()
        os.kill(workers[1], signal.SIGKILL)
        out, text = process.communicate(timeout=support.LIMIT)
        self.assertEqual(process.returncode, 1, text)
        rows, _ = table(out)
        self.assertEqual(list(rows), MODES)
        self.assertRegex(out, r"(?m)^allreduce +failed: rank 1 .*SIGKILL")
        self.assertIn("died first", text)

    def test_help(self):
        result = support.run("compare", "--help")
        self.assertEqual(result.returncode, 0)
        for word in (
            "--sync",
            "--set",
            "--target",
            "--csv",
            "--plot",
            "--optimizer-of",
            "--workers",
            "--epochs",
            "Examples:",
            "recipes/lenet.toml",
        ):
            self.assertIn(word, result.stdout)
        self.assertRegex(support.run("--help").stdout, r"(?m)^  compare ")


if __name__ == "__main__":
    support.main()
