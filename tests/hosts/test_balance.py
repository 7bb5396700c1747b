"""--balance across hosts: shares by speed, with the result of one worker, and the slow one is named with its host."""
import json

import numpy

import training
from training import support

ARGS = ["linear", "--data", "synthetic:1000", "--batch", 64, "--dtype", "f64", "--lr", "1e-3", "--epochs", 40]


class Balance(training.HostsTest):
    def test_a_slow_host_gets_fewer_samples(self):
        alone = self.folder / "alone.safetensors"
        result = support.run("train", *ARGS, "--workers", 1, "--save", alone, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        for sync in ("shared", "allreduce"):
            with self.subTest(sync=sync):
                parameters, report, printed = self.train(
                    "a:1,b:1", *ARGS, "--sync", sync, "--balance", "auto", "--straggler", "1:80"
                )
                self.assertIn("2 machines", printed)
                self.assertRegex(
                    printed, r"rank 1 \(host .+, process \d+\) is slow: the others waited \d+ % of the last"
                )
                self.assertLess(report["balance"]["shares"][1], 20, json.dumps(report["balance"]))
                for name, value in support.read_safetensors(alone).items():
                    numpy.testing.assert_allclose(parameters[name], value, rtol=0, atol=1e-9)


if __name__ == "__main__":
    training.main()
