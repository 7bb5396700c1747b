"""Checkpoints of the command: a run that was stopped or killed and resumed is the run that was not."""
import json
import os
import signal
import subprocess
import time

import support

DATA = ["--data", "synthetic:4000", "--batch", 64, "--seed", 7]  # 63 steps an epoch


def steps_in(folder):
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("step-*") if (path / "manifest.json").exists())


class Checkpoints(support.CommandTest):
    def setUp(self):
        super().setUp()
        self.runs = self.folder / "runs"

    def stopped(self, *args, after, signals=signal.SIGTERM):
        """Starts a run, stops it when it has saved step `after`, and returns what it printed."""
        process = support.start("train", *args, "--progress", "plain", cwd=self.folder)
        try:
            there = support.wait_until(lambda: any(step >= after for step in steps_in(self.runs)), 40)
            self.assertTrue(there, f"{args}: no checkpoint of step {after}")
            process.send_signal(signals)
            out, err = process.communicate(timeout=50)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        return process.returncode, out, err

    # ---- the same bits ----

    def test_stopped_and_resumed(self):
        """With dropout, whose random numbers go on; with batch norm, whose statistics do; with accumulation."""
        for args in (
            ["twoconv", "--workers", 2],
            ["lenet-bn", "--workers", 2, "--sync", "allreduce", "--optimizer", "adam", "--lr", 1e-3],
            ["mlp:64", "--workers", 3, "--accumulate", 2, "--lr-schedule", "cosine", "--clip", 1],
            ["mlp:64", "--workers", 2, "--sync", "server", "--servers", 2, "--optimizer", "adam", "--lr", 1e-3],
        ):
            with self.subTest(args=args):
                self.runs = self.folder / f"runs-{time.monotonic_ns()}"
                args = [*args, *DATA, "--epochs", 4]
                whole = self.train(*args)
                keeping = [*args, "--checkpoint", self.runs, "--checkpoint-every", "20steps"]
                code, out, err = self.stopped(*keeping, after=40)
                self.assertEqual(code, 128 + signal.SIGTERM, out + err)
                self.assertIn("--resume latest", out.splitlines()[-1])
                self.assertIn(str(self.runs), out.splitlines()[-1])
                last = steps_in(self.runs)[-1]
                resumed = self.train(*keeping, "--resume", "latest")
                self.assertEqual(resumed["sha256"], whole["sha256"], f"went on with step {last}")
                self.assertTrue(resumed["resumed"].endswith(f"step-{last:09}"), resumed["resumed"])
                self.assertEqual(len(resumed["epochs"]), 4)
                for mine, theirs in zip(resumed["epochs"], whole["epochs"]):
                    self.assertAlmostEqual(mine["loss"], theirs["loss"], places=9)
                    self.assertEqual(mine["test_accuracy"], theirs["test_accuracy"])

    def test_killed_and_resumed(self):
        """Without a chance to save: what was trained since the newest checkpoint is trained again."""
        args = ["lenet", "--workers", 2, *DATA, "--epochs", 3]
        whole = self.train(*args)
        keeping = [*args, "--checkpoint", self.runs, "--checkpoint-every", "25steps", "--keep", 2]
        process = support.start("train", *keeping, cwd=self.folder)
        try:
            self.assertTrue(support.wait_until(lambda: any(step >= 50 for step in steps_in(self.runs)), 40))
            workers = support.children(process.pid)
            os.kill(workers[1], signal.SIGKILL)
            process.communicate(timeout=30)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        self.assertLessEqual(len(steps_in(self.runs)), 3)
        self.assertEqual(self.train(*keeping, "--resume", self.runs)["sha256"], whole["sha256"])

    def test_other_crews(self):
        """The same samples in the same steps, whatever crew goes on; with the sums of others, the same up to
        rounding."""
        args = ["mlp:32", *DATA, "--dtype", "f64", "--epochs", 2]
        whole, _ = self.parameters(*args, "--workers", 2)
        begin = [*args, "--workers", 2, "--checkpoint", self.runs, "--checkpoint-every", "30steps"]
        self.train(*begin, "--max-steps", 90)
        for crew in (
            ["--workers", 1],
            ["--workers", 3],
            ["--workers", 2, "--sync", "server", "--servers", 2],
            ["--workers", 4, "--sync", "allreduce"],
            ["--workers", 3, "--sync", "central"],
        ):
            with self.subTest(crew=crew):
                found, report = self.parameters(*args, *crew, "--resume", self.runs / "step-000000090")
                self.assertEqual(report["updates"], 126)
                self.assertEqual([epoch["epoch"] for epoch in report["epochs"]], [1, 2])
                for name, values in whole.items():
                    self.assertLess(abs(found[name] - values).max(), 1e-9, name)

    def test_at_their_own_pace(self):
        """Where two runs are never the same: stopped in the middle, the rest is trained, and it has learned."""
        for sync in ("async", "stale:2", "hogwild", "local:5", "elastic:5,0.3"):
            with self.subTest(sync=sync):
                self.runs = self.folder / f"runs-{sync.split(':')[0]}"
                args = [
                    "mlp:32",
                    *DATA,
                    "--workers",
                    2,
                    "--sync",
                    sync,
                    "--epochs",
                    3,
                    "--lr",
                    0.02,
                    "--checkpoint",
                    self.runs,
                    "--checkpoint-every",
                    "40steps",
                ]
                code, out, err = self.stopped(*args, after=40)
                self.assertEqual(code, 128 + signal.SIGTERM, out + err)
                report = self.train(*args, "--resume", "latest")
                self.assertEqual([epoch["epoch"] for epoch in report["epochs"]], [1, 2, 3])
                self.assertLess(report["epochs"][-1]["loss"], 2.2)
                self.assertEqual(steps_in(self.runs)[-1], 189)

    def test_grace(self):
        """When time is up, what is being written is given up: the run ends, and goes on with what was complete."""
        args = [
            "mlp:3000,3000",
            "--data",
            "synthetic:400",
            "--batch",
            50,
            "--lr",
            0.001,
            "--workers",
            2,
            "--epochs",
            1000,
            "--checkpoint",
            self.runs,
            "--checkpoint-every",
            "100000steps",
        ]
        self.train(*args, "--max-steps", 2)
        flags = ["--resume", "latest", "--grace", "1ms", "--progress", "plain"]
        process = support.start("train", *args, *flags, cwd=self.folder)
        try:
            for line in process.stdout:
                if line.startswith("epoch 2 "):
                    break
            process.send_signal(signal.SIGTERM)
            out, error = process.communicate(timeout=50)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, out + error)
        newest = self.runs / "step-000000002"
        self.assertIn(f"warning: the last checkpoint is not complete; the newest that is, is {newest}", out)
        self.assertEqual(steps_in(self.runs), [2])
        self.assertIn("--resume latest", out.splitlines()[-1])
        self.assertTrue(self.train(*args, "--max-steps", 3, "--resume", "latest")["resumed"].endswith(newest.name))

    def test_the_clock(self):
        """Never sooner than asked for, and more than once."""
        args = ["mlp:16", *DATA, "--workers", 2, "--epochs", 1000000, "--stop", "time=3s", "--keep", 0]
        since = time.monotonic()
        self.train(*args, "--checkpoint", self.runs, "--checkpoint-every", "300ms")
        most = (time.monotonic() - since) / (0.98 * 0.3) + 1  # and the end
        by_time = steps_in(self.runs)
        self.assertGreaterEqual(len(by_time), 3)
        self.assertLessEqual(len(by_time), most)
        self.assertEqual(len(set(by_time)), len(by_time))
        self.train(*args, "--checkpoint", self.folder / "rarely", "--checkpoint-every", "1h")
        self.assertEqual(len(steps_in(self.folder / "rarely")), 1)  # the end

    def test_the_line_to_go_on_with_is_one_for_a_shell(self):
        runs = self.folder / "it's #1 ~ \"x\" $HOME \\ !"
        args = ["mlp:16", *DATA, "--workers", 1, "--epochs", 100000, "--checkpoint", runs,
                "--checkpoint-every", "50steps"]
        process = support.start("train", *args, cwd=self.folder)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertTrue(support.wait_until(lambda: steps_in(runs), 30))
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=50)
        line = out.splitlines()[-1]
        self.assertIn("trireme train ", line, out + error)
        script = "printf '%s\\n' " + line[line.index("train "):]
        said = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        words = said.stdout.splitlines()
        self.assertEqual((words[:2], words[-2:]), (["train", "mlp:16"], ["--resume", "latest"]))
        self.assertEqual(sorted(words), sorted(["train", *map(str, args), "--resume", "latest"]))

    def test_a_folder_that_another_job_writes_to(self):
        """Which keeps one alone: what was chosen may be gone before it is read."""
        same = ["mlp:400,400", *DATA]
        process = support.start("train", *same, "--epochs", 100000, "--workers", 1, "--checkpoint", self.runs,
                                "--checkpoint-every", "200ms", "--keep", 1, cwd=self.folder)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertTrue(support.wait_until(lambda: steps_in(self.runs), 30))
        begun = steps_in(self.runs)[-1]
        for workers in (1, 2, 2):
            report = self.train(*same, "--epochs", 1, "--resume", self.runs, "--workers", workers,
                                "--checkpoint", self.folder / f"b{time.monotonic_ns()}")
            self.assertGreaterEqual(int(report["resumed"].split("-")[-1]), begun)
        self.assertIsNone(process.poll(), "the other job goes on")

    def test_other_settings_are_told(self):
        args = ["mlp:16", *DATA, "--workers", 1]
        self.train(*args, "--epochs", 1, "--checkpoint", self.runs, "--weight-decay", 0.01, "--clip", 2)
        manifest = json.loads(next(self.runs.glob("step-*/manifest.json")).read_text())
        wanted = {"momentum": "0.9", "weight-decay": "0.01", "accumulate": "1", "clip": "2", "lr-schedule": "constant"}
        self.assertEqual({name: manifest["options"][name] for name in wanted}, wanted)
        for flags, says in (
            (["--weight-decay", 0.01, "--clip", 2], None),
            (["--weight-decay", 0.01], "warning: it was saved with clip 2, and goes on with 0\n"),
            (["--clip", 2, "--momentum", 0.5, "--lr-schedule", "cosine"],
             "warning: it was saved with lr-schedule constant, momentum 0.9, weight-decay 0.01, and goes on with "
             "cosine, 0.5, 0\n"),
        ):
            with self.subTest(flags=flags):
                result = support.run("train", *args, "--epochs", 2, "--resume", self.runs, *flags, cwd=self.folder)
                self.assertEqual(result.returncode, 0, result.stderr)
                if says:
                    self.assertIn(says, result.stdout)
                else:
                    self.assertNotIn("it was saved with", result.stdout)

    # ---- which ones are there ----

    def test_keeps_the_newest_and_the_best(self):
        args = ["lenet", "--workers", 2, *DATA, "--epochs", 6, "--lr", 0.3, "--checkpoint", self.runs]
        report = self.train(*args, "--keep", 2, "--keep-best")
        accuracies = [epoch["test_accuracy"] for epoch in report["epochs"]]
        best = 63 * (len(accuracies) - accuracies[::-1].index(max(accuracies)))  # the newest of equal ones
        self.assertEqual(set(steps_in(self.runs)), {best, 63 * 5, 63 * 6})
        self.assertEqual(report["checkpoint"], f"{self.runs}/step-{63 * 6:09}")
        listed = support.run("checkpoint", "ls", self.runs).stdout
        self.assertEqual(listed.count("complete"), len(steps_in(self.runs)), listed)

    def test_a_damaged_one_is_passed_over(self):
        args = ["lenet", "--workers", 2, *DATA, "--epochs", 2, "--checkpoint", self.runs]
        whole = self.train(*args, "--checkpoint-every", "40steps")
        for name in ("step-000000126", "step-000000120"):
            path = next((self.runs / name).glob("model*.safetensors"))
            raw = bytearray(path.read_bytes())
            raw[-5] ^= 4
            path.write_bytes(raw)
        result = support.run("train", *args, "--resume", "latest", "--report", self.folder / "r.json", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("step-000000120", result.stdout)
        self.assertIn("goes on with", result.stdout)
        self.assertIn("step-000000080", [line for line in result.stdout.splitlines() if "goes on with" in line][0])
        self.assertEqual(json.loads((self.folder / "r.json").read_text())["sha256"], whole["sha256"])

    def test_weights_alone(self):
        args = ["lenet", "--workers", 2, *DATA, "--checkpoint", self.runs]
        self.train(*args, "--epochs", 4, "--lr", 0.1)
        before = support.run("evaluate", self.runs, "--data", "synthetic:4000", "--json", cwd=self.folder)
        self.assertEqual(before.returncode, 0, before.stderr)
        other = ["lenet", "--workers", 2, *DATA, "--epochs", 1, "--lr", 0, "--optimizer", "adam"]
        report = self.train(*other, "--resume", self.runs, "--resume-weights-only")
        self.assertAlmostEqual(report["epochs"][0]["test_loss"], json.loads(before.stdout)["loss"], places=4)

    def test_rolls_back(self):
        """A row that makes NaN: back to the checkpoint, past that batch, on to the end, with the same bits however
        workers take each step together."""
        support.write_bad_csv(self.folder / "bad.csv")
        data = ["--data", "bad.csv", "--label", "kind", "--normalize", "no", "--test", 0, "--batch", 20, "--no-shuffle"]
        args = [
            "mlp:8",
            *data,
            "--optimizer",
            "sgd",
            "--lr",
            0.1,
            "--loss",
            "mse",
            "--epochs",
            2,
            "--workers",
            2,
            "--checkpoint-every",
            "3steps",
        ]
        hashes = set()
        for mode in ([], ["--sync", "allreduce"], ["--sync", "server", "--servers", 2]):
            with self.subTest(mode=mode):
                runs = self.folder / f"runs-{mode[1:2]}"
                report = self.train(*args, *mode, "--checkpoint", runs, "--on-nan", "rollback")
                self.assertEqual(
                    [(d["decision"], d["policy"], d["step"]) for d in report["decisions"]],
                    [("rollback", "nan", 10), ("rollback", "nan", 30)],
                )
                self.assertEqual((len(report["epochs"]), report["updates"]), (2, 38))
                hashes.add(report["sha256"])
        self.assertEqual(len(hashes), 1, hashes)
        self.refused("train", *args, "--checkpoint", self.runs, says=["became", "at update 11"])  # without

    # ---- bad input ----

    def test_refused(self):
        args = ["mlp:16", *DATA, "--workers", 2, "--epochs", 1]
        self.train(*args, "--checkpoint", self.runs, "--checkpoint-every", "30steps")
        middle = self.runs / "step-000000030"
        (self.folder / "empty").mkdir()
        (self.folder / "file").write_text("no folder")
        manifest = json.loads((middle / "manifest.json").read_text())
        newer = self.folder / "newer" / "step-000000030"
        newer.mkdir(parents=True)
        manifest["version"] = 99
        (newer / "manifest.json").write_text(json.dumps(manifest))
        for flags, says in (
            (["--resume", "latest"], "--checkpoint DIR"),
            (["--resume", "nowhere"], "nowhere"),
            (["--resume", "empty"], "no checkpoint"),
            (["--resume", "latest", "--checkpoint", "empty"], "no checkpoint"),
            (["--resume", "newer"], "newer"),
            (["--checkpoint", "file"], "is no folder"),
            (["--checkpoint", "x", "--checkpoint-every", "often"], "500steps"),
            (["--checkpoint", "x", "--keep", -1], "--keep"),
            (["--keep", 2], "without --checkpoint"),
            (["--resume-weights-only"], "--resume DIR"),
            (["--resume", self.runs, "--optimizer", "adam"], "'momentum'"),
            (["--resume", middle, "--seed", 8], "seed 7"),
            (["--resume", self.runs, "--batch", 50], "batches of 64"),
        ):
            with self.subTest(flags=flags):
                self.refused("train", *args, *flags, says=[says])
        for mode in ([], ["--sync", "allreduce"], ["--sync", "server"], ["--sync", "async"], ["--sync", "local:5"]):
            with self.subTest(mode=mode):
                lost = ["'momentum'", "'adam'", "optimizer/momentum and the place in the data would be lost"]
                self.refused("train", *args, "--resume", self.runs, "--optimizer", "adam", *mode,
                             says=[*lost, "--resume-weights-only", str(self.runs)])
        self.refused("train", "mlp:17", *args[1:], "--resume", self.runs, says=["1.weight", "[16,784]", "[17,784]"])
        next((middle).glob("optimizer*")).unlink()
        self.refused("train", *args, "--resume", middle, says=["optimizer"])

    def test_one_job_a_folder(self):
        args = ["mlp:16", *DATA, "--workers", 1, "--epochs", 100000, "--checkpoint", self.runs]
        first = support.start("train", *args, "--checkpoint-every", "50steps", cwd=self.folder)
        try:
            self.assertTrue(support.wait_until(lambda: steps_in(self.runs), 30))
            self.refused("train", *args, says=[str(self.runs)])
            self.assertIsNone(first.poll(), "the first job goes on")
        finally:
            first.send_signal(signal.SIGINT)
            first.communicate(timeout=30)


if __name__ == "__main__":
    support.main()
