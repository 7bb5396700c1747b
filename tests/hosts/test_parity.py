"""Ranks on several hosts give what one process gives."""
import json

import numpy

import training
from training import support

ARGS = ["--batch", 32, "--epochs", 50, "--max-steps", 50, "--seed", 3, "--memory-format", "default"]


class Parity(training.HostsTest):
    HOSTS = 3

    def setUp(self):
        super().setUp()
        random = numpy.random.RandomState(0)
        patterns = random.randint(0, 100, (10, 28, 28))
        for part, count in (("train", 230), ("t10k", 60)):
            labels = numpy.arange(count).astype(numpy.uint8) % 10
            images = (patterns[labels] + random.randint(0, 156, (count, 28, 28))).astype(numpy.uint8)
            support.write_idx(self.folder / f"{part}-images-idx3-ubyte", images)
            support.write_idx(self.folder / f"{part}-labels-idx1-ubyte", labels)

    def alone(self, *args, workers=1):
        save, report = self.folder / "alone.safetensors", self.folder / "alone.json"
        result = support.run("train", *args, "--workers", workers, "--save", save, "--report", report, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        return support.read_safetensors(save), json.loads(report.read_text())

    def check(self, spec, model, *args, bound=1e-9, workers=1):
        arguments = [model, "--data", self.folder, *ARGS, *args]
        theirs, expected = self.alone(*arguments, workers=workers)
        start, _ = self.alone(
            model, "--data", self.folder, "--seed", 3, "--epochs", 0, *(["--dtype", "f64"] if "f64" in args else [])
        )
        self.assertGreater(
            max(numpy.abs(theirs[name] - start[name]).max() for name in theirs), 1e-3
        )  # it trains at all
        ours, report, printed = self.train(spec, *arguments)
        self.assertIn("2 machines" if spec.count(",") == 1 else "3 machines", printed)
        for name in theirs:
            self.assertLess(numpy.abs(ours[name] - theirs[name]).max(), bound, name)
        for mine, other in zip(report["epochs"], expected["epochs"], strict=True):
            self.assertAlmostEqual(mine["loss"] / other["loss"], 1, delta=bound)
        return report, expected

    def test_two_by_two_shared(self):
        self.check("a:2,b:2", "lenet", "--dtype", "f64")

    def test_batch_norm_over_all_hosts(self):
        self.check("a:2,b:1", "lenet-bn", "--dtype", "f64", "--sync-batch-norm", "--bucket-bytes", 4096)

    def test_two_by_two_equals_one_by_four(self):
        self.check("a:2,b:2", "mlp:40,30", "--dtype", "f64", "--optimizer", "adam", "--lr", 0.002, workers=4)

    def test_on_a_slow_cable_first_layers_overtake(self):
        """The rest of the parameters is still on its way when the next forward pass begins: operators have to wait for
        it."""
        for host in ("a", "b"):
            self.hosts.limit(host, "300mbit")
            self.addCleanup(self.hosts.unlimit, host)
        self.check("a:1,b:1", "mlp:128,4096", "--dtype", "f64", "--bucket-bytes", 100000)

    def test_weight_gradients_of_large_layers_come_first(self):
        """The weight is used once more after its gradient has departed, by both workers of a host, and its rows as they
        arrive."""
        for host in ("a", "b"):
            self.hosts.limit(host, "1gbit")
            self.addCleanup(self.hosts.unlimit, host)
        self.check("a:2,b:2", "mlp:40,1024,1024", "--dtype", "f64")

    def test_uneven_with_accumulation(self):
        self.check("a:2,b:1", "mlp:40,30", "--dtype", "f64", "--accumulate", 2, "--bucket-bytes", 4096)

    def test_clipping_is_by_the_norm_over_all_hosts(self):
        clip = ["--dtype", "f64", "--clip", 1.5]
        free, _ = self.alone("mlp:40,30", "--data", self.folder, *ARGS, "--dtype", "f64")
        clipped, _ = self.alone("mlp:40,30", "--data", self.folder, *ARGS, *clip)
        self.assertGreater(max(numpy.abs(free[name] - clipped[name]).max() for name in free), 1e-3)  # it does something
        self.check("a:2,b:2", "mlp:40,30", *clip)
        self.check("a:2,b:1", "mlp:40,30", *clip, "--bucket-bytes", 4096, "--sync", "shared")
        self.check("a:1,b:1,c:1", "mlp:40,30", *clip, "--sync", "allreduce")

    def test_numbers_that_are_none_end_all_hosts_alike(self):
        for extra in ([], ["--clip", 1e300], ["--sync", "allreduce"]):
            with self.subTest(extra=extra):
                process = self.start_train(
                    "a:2,b:1", "mlp:40,30", "--data", self.folder, *ARGS, "--dtype", "f64", "--lr", "1e200", *extra
                )
                _, text = process.communicate(timeout=60)
                self.assertNotEqual(process.returncode, 0)
                self.assertRegex(text, "became (NaN|infinite|NaN or infinite) on rank [0-2] at update [0-9]+")
                self.assertIn("smaller learning rate than 1e+200", text)

    def test_three_hosts_allreduce(self):
        self.check(
            "a:1,b:1,c:1", "mlp:40,30", "--dtype", "f64", "--sync", "allreduce", "--optimizer", "adamw", "--lr", 0.002
        )

    def test_central(self):
        self.check("a:1,b:2", "mlp:40,30", "--dtype", "f64", "--sync", "central")

    def test_single_precision(self):
        report, expected = self.check("a:2,b:2", "lenet", bound=1e-3)
        first = [abs(mine["loss"] / other["loss"] - 1) for mine, other in zip(report["epochs"], expected["epochs"])]
        self.assertLess(max(first), 1e-4)


if __name__ == "__main__":
    training.main()
