"""--virtual: bits that do not depend on the hosts either."""
import json

import training
from training import support

# 300 samples in batches of 32, in four pieces, and the last step has twelve. Dropout, convolutions, a large layer.
ARGS = ["--data", "synthetic:300", "--batch", 32, "--epochs", 2, "--seed", 3, "--virtual", 4]


class Virtual(training.HostsTest):
    HOSTS = 3

    def alone(self, *args):
        report = self.folder / "alone.json"
        result = support.run("train", *args, "--workers", 1, "--report", report, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(report.read_text())

    def check(self, model, *specs, args=()):
        wanted = self.alone(model, *ARGS, *args)
        for spec in specs:
            with self.subTest(spec=spec):
                _, report, printed = self.train(spec, model, *ARGS, *args)
                self.assertIn(f"{spec.count(',') + 1} machines", printed)
                self.assertEqual(report["sha256"], wanted["sha256"])
                for mine, other in zip(report["epochs"], wanted["epochs"], strict=True):
                    self.assertEqual((mine["loss"], mine["test_loss"]), (other["loss"], other["test_loss"]))

    def test_one_root_each(self):
        """Two hosts with half of the tree each send what any gradients would."""
        self.check("twoconv", "a:1,b:1", "a:2,b:2")

    def test_roots_one_by_one(self):
        self.check("twoconv", "a:2,b:1", "a:1,b:1,c:1", args=["--optimizer", "adam", "--lr", "0.002"])

    def test_large_layers_and_clipping(self):
        self.check("mlp:40,1024,1024", "a:1,b:2", args=["--clip", "0.5", "--max-steps", 8])


if __name__ == "__main__":
    training.main()
