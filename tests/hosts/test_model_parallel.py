"""Models that workers divide between them, on two hosts with two workers each, and on four with one."""
import json
import math
import re

import training
from training import support

TEXT = "/usr/share/games/fortunes/literature"
TINY = ("gpt:layers=2,width=32,heads=4,context=16", "--data", f"text:{TEXT}", "--batch", 8, "--dtype", "f64",
        "--max-steps", 6, "--test", 0.005)  # fmt: skip

ROUNDED = tuple("f32" if word == "f64" else word for word in TINY) + ("--precision", "bf16")


def furthest(ours, theirs):
    assert ours.keys() == theirs.keys()
    return max(float(abs(ours[name] - theirs[name]).max()) for name in ours)


class ModelParallel(training.HostsTest):
    HOSTS = 4

    def alone(self):
        save = self.folder / "alone.safetensors"
        result = support.run("train", *TINY, "--workers", 1, "--save", save, limit=120)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return support.read_safetensors(save)

    def test_tensor_groups_are_inside_hosts(self):
        model, report, out = self.train("a:2,b:2", *TINY, "--tensor", 2)
        self.assertIn("data 2 × tensor 2: each copy of the model is inside one machine", out)
        self.assertEqual(report["mesh"], {"data": 2, "pipeline": 1, "tensor": 2})
        self.assertLessEqual(furthest(model, self.alone()), 1e-9)

    def check_figures(self, zero, out):
        """Of what a rank is said to hold, in megabytes; a machine has two of them, with different parts."""
        (mine, everything) = map(int, re.search(r"tensor 2: each worker holds (\d+) of (\d+) parameters", out).groups())
        self.assertLess(mine, 0.6 * everything)
        said = re.search(
            rf"zero {zero} on 2 machines: each rank holds (\S+) MB of parameters \(of (\S+)\), (\S+) MB of gradients "
            r"\(of (\S+)\), (\S+) MB of optimizer state \(of (\S+)\)",
            out,
        )
        whole = mine * 8 / 1e6
        shares = [whole / 2 if zero == 3 else whole, whole / 2 if zero > 1 else whole, whole]
        for got, wanted in zip(map(float, said.groups()[::2]), shares):
            self.assertAlmostEqual(got, wanted, delta=0.06)
        for got, wanted in zip(map(float, said.groups()[1::2]), (whole, whole, 2 * whole)):
            self.assertAlmostEqual(got, wanted, delta=0.06)

    def test_zero_beside_tensor_groups(self):
        alone = self.alone()
        for zero in (1, 2, 3):
            with self.subTest(zero=zero):
                model, report, out = self.train("a:2,b:2", *TINY, "--tensor", 2, "--zero", zero)
                self.check_figures(zero, out)
                self.assertEqual((report["mesh"], report["zero"]), ({"data": 2, "pipeline": 1, "tensor": 2}, zero))
                self.assertLessEqual(furthest(model, alone), 1e-9)

    def test_a_folder_of_parts_is_evaluated_and_exported(self):
        runs, out = self.folder / "runs", self.folder / "exported.safetensors"
        flags = ("--tensor", 2, "--zero", 3, "--checkpoint", runs)
        model, report, _ = self.train("a:2,b:2", *TINY, *flags)

        def succeeds(*words):
            result = support.run(*words, limit=120)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            return result.stdout

        loss = json.loads(succeeds("evaluate", runs, "--data", f"text:{TEXT}", "--json"))["loss"]
        self.assertAlmostEqual(loss, report["epochs"][-1]["test_loss"], places=9)
        succeeds("checkpoint", "export", runs, "--out", out)
        self.assertEqual(furthest(support.read_safetensors(out), model), 0)

    def test_zero_without_tensor_groups(self):
        alone = self.alone()
        for zero, more in ((2, ()), (3, ("--recompute",))):
            with self.subTest(zero=zero):
                model, report, out = self.train("a:2,b:2", *TINY, "--zero", zero, *more)
                self.assertIn(f"zero {zero} on 2 machines: each holds", out)
                self.assertEqual(report["zero"], zero)
                self.assertLessEqual(furthest(model, alone), 1e-9)

    def test_zero_beside_tensor_groups_that_cross(self):
        """Each of two copies of the model is on two hosts."""
        alone = self.alone()
        for zero in (1, 2, 3):
            with self.subTest(zero=zero):
                model, report, out = self.train("a:1,b:1,c:1,d:1", *TINY, "--tensor", 2, "--zero", zero)
                self.assertIn("crosses machines", out)
                self.assertEqual((report["mesh"], report["zero"]), ({"data": 2, "pipeline": 1, "tensor": 2}, zero))
                self.assertLessEqual(furthest(model, alone), 1e-9)

    def test_bf16_beside_zero(self):
        """Sums are formed in the same order with every stage."""
        plain, before, _ = self.train("a:2,b:2", *ROUNDED)
        for more in (("--zero", 3), ("--zero", 2), ("--zero", 3, "--recompute")):
            with self.subTest(more=more):
                model, report, _ = self.train("a:2,b:2", *ROUNDED, *more)
                self.assertEqual(report["precision"], "bf16")
                self.assertEqual(report["epochs"][-1]["test_loss"], before["epochs"][-1]["test_loss"])
                self.assertEqual(furthest(model, plain), 0)

    def test_a_tensor_group_that_crosses_says_so(self):
        model, report, out = self.train("a:1,b:1", *TINY, "--tensor", 2)
        self.assertIn("warning: data 1 × tensor 2: the tensor group of ranks 0, 1 crosses machines 0 and 1", out)
        self.assertLessEqual(furthest(model, self.alone()), 1e-9)
        self.assertTrue(math.isfinite(report["epochs"][-1]["test_loss"]))


if __name__ == "__main__":
    training.main()
