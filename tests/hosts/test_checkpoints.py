"""Checkpoints of jobs on several hosts: saved there and resumed here, and the other way round."""
import json
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
        keeping = [*ARGS, "--sync", "server", "--servers", 2, "--checkpoint", self.runs, "--checkpoint-every", "25steps"]
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


if __name__ == "__main__":
    training.main()
