"""Models in stages, on two hosts with two workers each."""
import json
import os
import signal
import tempfile
import time

import training
from training import support

TEXT = "/usr/share/games/fortunes/literature"
GPT = ("gpt:layers=2,width=32,heads=4,context=16", "--data", f"text:{TEXT}", "--batch", 8, "--test", 0.005)
TINY = (*GPT, "--dtype", "f64", "--max-steps", 6)
LIMIT = 2  # seconds of silence that count as death
ENDLESS = (*GPT, "--epochs", 100000, "--heartbeat-limit", LIMIT)


def furthest(ours, theirs):
    assert ours.keys() == theirs.keys()
    return max(float(abs(ours[name] - theirs[name]).max()) for name in ours)


class Pipelines(training.HostsTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        save = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="trireme-alone-")) + "/model.safetensors"
        result = support.run("train", *TINY, "--workers", 1, "--save", save, "--report", save + ".json", limit=120)
        assert result.returncode == 0, result.stdout + result.stderr
        cls.alone = support.read_safetensors(save)
        with open(save + ".json") as file:
            cls.report = json.load(file)

    def expect_same(self, model, report, mesh):
        self.assertEqual(report["mesh"], mesh)
        self.assertLessEqual(furthest(model, self.alone), 1e-9)
        for key in ("loss", "test_loss", "test_accuracy"):
            self.assertAlmostEqual(report["epochs"][-1][key], self.report["epochs"][-1][key], places=9)

    def test_stages_on_different_hosts(self):
        record = self.folder / "steps.txt"
        model, report, out = self.train(
            "a:2,b:2", *TINY, "--pipeline", 2, "--tensor", 2, "--micro", 4, "--schedule", "zero-bubble", "--zero", 1,
            "--record-schedule", record,
        )  # fmt: skip
        self.assertIn("data 1 × pipeline 2 × tensor 2: ", out)
        self.expect_same(model, report, {"data": 1, "pipeline": 2, "tensor": 2})
        head, *spans = map(json.loads, record.read_text().splitlines())
        self.assertEqual((head["stages"], head["micro"]), (2, 4))
        self.assertEqual({span["stage"] for span in spans}, {0, 1})

    def test_more_stages_than_a_host_has_workers(self):
        model, report, _ = self.train("a:2,b:2", *TINY, "--pipeline", 4, "--micro", 4)
        self.expect_same(model, report, {"data": 1, "pipeline": 4, "tensor": 1})

    def test_a_pipeline_inside_each_host(self):
        model, report, out = self.train("a:2,b:2", *TINY, "--pipeline", 2, "--zero", 2, "--schedule", "interleaved:2")
        self.assertIn("data 2 × pipeline 2: each copy of the model is inside one machine", out)
        self.expect_same(model, report, {"data": 2, "pipeline": 2, "tensor": 1})

    def test_all_three_axes_learn_what_one_worker_learns(self):
        settings = (*GPT, "--lr", 3e-3, "--clip", 1)

        def alone(steps):
            path = self.folder / "alone.json"
            flags = ("--max-steps", steps, "--workers", 1, "--report", path)
            result = support.run("train", *settings, *flags, limit=120)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            return json.loads(path.read_text())["epochs"][-1]["test_loss"]

        learnt = alone(40)
        self.assertLess(learnt, 0.9 * alone(1))
        mesh = ("--pipeline", 2, "--tensor", 2, "--zero", 1, "--micro", 2, "--schedule", "zero-bubble")
        _, report, out = self.train("a:4,b:4", *settings, *mesh, "--max-steps", 40, limit=240)
        self.assertIn("data 2 × pipeline 2 × tensor 2: ", out)
        self.assertEqual(report["mesh"], {"data": 2, "pipeline": 2, "tensor": 2})
        self.assertLess(abs(report["epochs"][-1]["test_loss"] - learnt), 0.01 * learnt)

    def test_a_killed_stage_ends_the_job_by_name(self):
        for mesh in (("--pipeline", 4), ("--pipeline", 2, "--tensor", 2)):
            for host, index, rank in (("a", 1, 1), ("b", 1, 3)):
                with self.subTest(mesh=mesh, rank=rank):
                    process = self.start_train("a:2,b:2", *ENDLESS, *mesh)
                    started = any(line.startswith("schedule 1f1b") for line in process.stdout)
                    self.assertTrue(started, "it ended early")
                    time.sleep(0.5)  # in the middle of steps, not before the first
                    victim, since = self.workers(host)[index], time.monotonic()
                    os.kill(victim, signal.SIGKILL)
                    _, error = process.communicate(timeout=40)
                    self.assertNotEqual(process.returncode, 0)
                    self.assertLess(time.monotonic() - since, 15, error)
                    for part in (f"rank {rank}", f"host {host}", str(victim)):
                        self.assertIn(part, error)
                    self.assertTrue(support.wait_until(lambda: not self.hosts.pids(), 5))


if __name__ == "__main__":
    training.main()
