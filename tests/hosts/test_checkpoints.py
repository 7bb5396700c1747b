"""Checkpoints of jobs on several hosts: saved there and resumed here, and the other way round; where a host is lost, or
does not see the folder."""
import json
import os
import signal

import numpy

import training
from training import support

ARGS = ["mlp:24", "--data", "synthetic:1600", "--batch", 32, "--seed", 5, "--dtype", "f64", "--epochs", 2]  # 50 steps


class Checkpoints(training.HostsTest):
    def setUp(self):
        super().setUp()
        self.runs = self.folder / "runs"

    def alone(self, *args):
        save, report = self.folder / "alone.safetensors", self.folder / "alone.json"
        result = support.run("train", *ARGS, *args, "--save", save, "--report", report, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        return support.read_safetensors(save), json.loads(report.read_text())

    def steps(self):
        return sorted(int(path.parent.name.split("-")[1]) for path in self.runs.glob("step-*/manifest.json"))

    def blind(self):
        """For --remote: host b has no part in the folder."""
        self.runs.mkdir(exist_ok=True)
        return f"{training.ON_HOST.with_name('blind_host')} {self.runs} {self.hosts.prefix} {{host}} {{command}}"

    def program(self, *words, remote=None, servers=2):
        """What is printed by tests/programs/saving.cpp on both hosts."""
        flags = ["--hosts", "a:1,b:1", "--remote", remote or self.remote(), "--servers", servers]
        process = self.start("launch", *flags, "--", support.PROGRAMS / "program_saving", *words)
        out, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, out + error)
        return [line.split("] ")[-1] for line in out.splitlines() if "rows " in line]

    def same(self, ours, theirs, bound=1e-9):
        for name in theirs:
            self.assertLess(numpy.abs(ours[name] - theirs[name]).max(), bound, name)

    def test_stopped_on_two_hosts_and_resumed_on_one(self):
        whole, _ = self.alone("--workers", 2)
        keeping = [*ARGS, "--checkpoint", self.runs, "--checkpoint-every", "20steps"]
        self.train("a:2,b:1", *keeping, "--max-steps", 60)
        here, report = self.alone("--workers", 2, "--resume", self.runs)
        self.assertTrue(report["resumed"].endswith("step-000000060"))
        self.same(here, whole)
        again, report, _ = self.train("a:1,b:2", *ARGS, "--resume", self.runs / "step-000000040")
        self.assertTrue(report["resumed"].endswith("step-000000040"))
        self.same(again, whole)

    def test_with_servers_on_both(self):
        whole, _ = self.alone("--workers", 2)
        keeping = [
            *ARGS,
            "--sync",
            "server",
            "--servers",
            2,
            "--checkpoint",
            self.runs,
            "--checkpoint-every",
            "25steps",
        ]
        self.train("a:1,b:1", *keeping, "--max-steps", 50)
        again, _, _ = self.train("a:1,b:1", *keeping, "--resume", "latest")
        self.same(again, whole)

    def test_sigterm_saves_on_all_hosts(self):
        whole, _ = self.alone("--workers", 2, "--epochs", 60)
        keeping = [*ARGS, "--epochs", 60, "--checkpoint", self.runs, "--checkpoint-every", "50steps"]
        process = self.start_train("a:1,b:1", *keeping)
        self.assertTrue(support.wait_until(lambda: list(self.runs.glob("step-*/manifest.json")), 60))
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, out + error)
        self.assertIn("--resume latest", out)
        again, _, _ = self.train("a:1,b:1", *keeping, "--resume", "latest")
        self.same(again, whole, 1e-6)

    def test_a_host_is_lost_while_one_is_written(self):
        """The newest that is complete is whole, and what was not is no obstacle."""
        big = ["mlp:700,700", *ARGS[1:-1], 6]
        keeping = [*big, "--checkpoint", self.runs, "--checkpoint-every", "1steps"]
        process = self.start_train("a:1,b:1", *keeping)
        half_written = lambda: [  # noqa: E731
            path for path in self.runs.glob("step-*") if not (path / "manifest.json").exists()
        ]
        self.assertTrue(support.wait_until(lambda: len(self.steps()) >= 2 and half_written(), 60, 0.001))
        for pid in self.hosts.pids("b"):
            os.kill(pid, signal.SIGKILL)
        out, error = process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("host b", error)
        newest = self.steps()[-1]
        verified = support.run("checkpoint", "verify", self.runs / f"step-{newest:09}")
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
        again = support.run(
            "train", *keeping[:-2], "--workers", 2, "--resume", "latest", "--report", "r.json", cwd=self.folder
        )
        self.assertEqual(again.returncode, 0, again.stderr)
        report = json.loads((self.folder / "r.json").read_text())
        self.assertTrue(report["resumed"].endswith(f"step-{newest:09}"), report["resumed"])
        self.assertEqual((report["updates"], half_written()), (300, []))

    def test_workers_that_meet_rarely(self):
        """local: the same as without a stop; elastic: each has its own, and learns on."""
        local = [*ARGS, "--sync", "local:5", "--lr", 0.02]
        whole, _, _ = self.train("a:1,b:1", *local)
        self.train("a:1,b:1", *local, "--checkpoint", self.runs, "--max-steps", 35)
        again, report, _ = self.train("a:1,b:1", *local, "--checkpoint", self.runs, "--resume", "latest")
        self.assertTrue(report["resumed"].endswith("step-000000035"), report["resumed"])
        self.same(again, whole)
        self.runs = self.folder / "elastic"
        elastic = [*ARGS, "--sync", "elastic:5,0.3", "--servers", 2, "--lr", 0.02, "--checkpoint", self.runs]
        _, begun, _ = self.train("a:1,b:1", *elastic, "--max-steps", 50)
        _, report, out = self.train("a:1,b:1", *elastic, "--resume", "latest")
        self.assertEqual([epoch["epoch"] for epoch in report["epochs"]], [1, 2], out)
        self.assertLess(report["epochs"][-1]["loss"], begun["epochs"][0]["loss"])
        self.assertEqual(self.steps()[-1], 100)

    def test_rolls_back(self):
        """A row that makes NaN, on one host's worker: all go back to the checkpoint, and past that batch."""
        support.write_bad_csv(self.folder / "bad.csv")
        data = ["--data", self.folder / "bad.csv", "--label", "kind", "--normalize", "no", "--test", 0, "--batch", 20]
        args = [
            "mlp:8",
            *data,
            "--no-shuffle",
            "--optimizer",
            "sgd",
            "--lr",
            0.1,
            "--loss",
            "mse",
            "--epochs",
            2,
            "--checkpoint-every",
            "3steps",
            "--on-nan",
            "rollback",
        ]
        alone = support.run(
            "train",
            *args,
            "--workers",
            2,
            "--checkpoint",
            self.folder / "alone",
            "--save",
            self.folder / "alone.safetensors",
            cwd=self.folder,
        )
        self.assertEqual(alone.returncode, 0, alone.stderr)
        found, report, _ = self.train("a:1,b:1", *args, "--checkpoint", self.runs)
        decisions = [(d["step"], d["decision"]) for d in report["decisions"]]
        self.assertEqual(decisions, [(10, "rollback"), (30, "rollback")])
        self.same(found, support.read_safetensors(self.folder / "alone.safetensors"), 1e-6)

    def test_the_bits_of_a_run_that_was_not_stopped(self):
        for mode in ([], ["--sync", "allreduce"], ["--sync", "server", "--servers", 2], ["--zero", 1], ["--zero", 3]):
            with self.subTest(mode=mode):
                self.runs = self.folder / f"runs-{len(list(self.folder.iterdir()))}"
                args = [*ARGS, *mode]
                _, whole, _ = self.train("a:1,b:1", *args)
                keeping = [*args, "--checkpoint", self.runs, "--checkpoint-every", "1h"]
                self.train("a:1,b:1", *keeping, "--max-steps", 37)
                _, report, _ = self.train("a:1,b:1", *keeping, "--resume", "latest")
                self.assertTrue(report["resumed"].endswith("step-000000037"), report["resumed"])
                self.assertEqual(report["sha256"], whole["sha256"])

    def test_rank_0_decides_whether_to_roll_back(self):
        """A host that does not see the folder would find nothing there."""
        support.write_bad_csv(self.folder / "bad.csv")
        args = ["mlp:8", "--hosts", "a:1,b:1", "--remote", self.blind(), "--data", self.folder / "bad.csv", "--label",
                "kind", "--normalize", "no", "--test", 0, "--batch", 20, "--no-shuffle", "--optimizer", "sgd", "--lr",
                0.1, "--loss", "mse", "--epochs", 2, "--on-nan", "rollback", "--checkpoint", self.runs]
        for every, decision, says in (
            ("100steps", "stop", "there is no checkpoint yet to go back to"),
            ("3steps", "rollback", "another checkpoint|no checkpoint|no folder|cannot read"),
        ):
            with self.subTest(every=every):
                report = self.folder / f"{every}.json"
                process = self.start("train", *args, "--checkpoint-every", every, "--report", report)
                out, error = process.communicate(timeout=60)
                self.assertNotEqual(process.returncode, 0, out)
                self.assertRegex(error, says)
                found = json.loads(report.read_text())["decisions"]
                self.assertEqual([(d["step"], d["decision"]) for d in found], [(10, decision)], out + error)

    def test_rows_of_tables(self):
        wanted = self.program("tables", self.runs)
        self.assertEqual(len(wanted), 1, wanted)
        more = self.program("tables", self.runs, "from")
        self.assertNotEqual(more, wanted)
        self.assertEqual(self.program("tables", self.runs, "from", servers=1), more)

    def test_a_host_that_does_not_see_the_folder(self):
        """What it alone has comes to rank 0: rows of its server, its random numbers, what its worker has of its own."""
        wanted = self.program("tables", self.folder / "seen")
        more = self.program("tables", self.folder / "seen", "from")
        self.assertEqual(self.program("tables", self.runs, remote=self.blind()), wanted)
        self.assertEqual(self.program("tables", self.runs, "from"), more)
        for args in (["twoconv", *ARGS[1:]], [*ARGS, "--sync", "local:5", "--lr", 0.02], [*ARGS, "--zero", 1]):
            with self.subTest(args=args):
                self.runs = self.folder / f"runs-{len(args)}-{args[0][:3]}"
                whole, _, _ = self.train("a:1,b:1", *args)
                keeping = [*args, "--checkpoint", self.runs]
                first = self.start(
                    "train", keeping[0], "--hosts", "a:1,b:1", "--remote", self.blind(), *keeping[1:], "--max-steps", 35
                )
                out, error = first.communicate(timeout=60)
                self.assertEqual(first.returncode, 0, out + error)
                self.assertIn(f"1 of 2 ranks do not see {self.runs}: what only they have goes to rank 0", out)
                refused = self.start(
                    "train",
                    keeping[0],
                    "--hosts",
                    "a:1,b:1",
                    "--remote",
                    self.blind(),
                    *keeping[1:],
                    "--resume",
                    "latest",
                )
                out, error = refused.communicate(timeout=60)
                self.assertNotEqual(refused.returncode, 0, out)
                self.assertIn(str(self.runs), error)
                again, report, _ = self.train("a:1,b:1", *keeping, "--resume", "latest")
                self.assertTrue(report["resumed"].endswith("step-000000035"), report["resumed"])
                self.same(again, whole)


if __name__ == "__main__":
    training.main()
