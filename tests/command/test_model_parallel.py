"""Models that workers divide between them: whatever the mesh, the model is that of one worker."""
import itertools
import math
import subprocess

import numpy
import support
import torch
from language import TEXT, LanguageTest

TINY = ("gpt:layers=2,width=32,heads=4,context=16", "--data", f"text:{TEXT}", "--batch", 8)
SHORT = ("--max-steps", 6, "--test", 0.005)


def furthest(ours, theirs):
    """The largest difference between two models; names and shapes must be the same."""
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    return max(float(numpy.abs(ours[name] - theirs[name]).max()) for name in ours)


class Reference:
    """The same GPT in plain PyTorch, from its saved initial parameters: forward, batches and optimizer once more."""

    HEADS, CONTEXT, BATCH = 4, 16, 8

    def __init__(self, initial, test):
        text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).long()
        cut = len(text) - round(test * len(text))
        self.train, self.test = self.samples(text[:cut]), self.samples(text[cut:])
        self.p = {name: torch.tensor(value).requires_grad_() for name, value in initial.items()}

    def samples(self, text):
        """Windows one behind the other, and what follows each token of them."""
        count = (len(text) - 1) // self.CONTEXT
        return text[: count * self.CONTEXT].view(count, -1), text[1 : count * self.CONTEXT + 1].view(count, -1)

    def linear(self, name, x):
        return torch.nn.functional.linear(x, self.p[name + ".weight"], self.p[name + ".bias"])

    def norm(self, name, x):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], self.p[name + ".weight"], self.p[name + ".bias"])

    def attention(self, name, x):
        n, t, width = x.shape
        q, k, v = (
            self.linear(f"{name}.{part}", x).view(n, t, self.HEADS, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.HEADS)
        scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -math.inf)
        return self.linear(name + ".out", (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, width))

    def loss(self, x, y):
        h = self.p["tokens.weight"][x] + self.p["positions.weight"]
        for b in range(2):
            h = h + self.attention(f"blocks.{b}.attention", self.norm(f"blocks.{b}.attention_norm", h))
            inner = self.linear(f"blocks.{b}.mlp.in", self.norm(f"blocks.{b}.mlp_norm", h))
            h = h + self.linear(f"blocks.{b}.mlp.out", torch.nn.functional.gelu(inner))
        logits = self.norm("norm", h) @ self.p["tokens.weight"].T
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())

    def run(self, steps, lr):
        """Mean loss of the steps, and the loss on what is held out."""
        optimizer = torch.optim.AdamW(self.p.values(), lr=lr, weight_decay=0)
        order, losses = support.epoch_order(len(self.train[0]), 1, 0), []
        for step in range(steps):
            chosen = order[step * self.BATCH : (step + 1) * self.BATCH]
            loss = self.loss(self.train[0][chosen], self.train[1][chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            return sum(losses) / steps, self.loss(*self.test).item()


class Division(LanguageTest):
    def model(self, workers, *flags, spec=TINY, short=SHORT):
        return self.parameters(*spec, *short, "--workers", workers, *flags)

    def test_every_mesh_trains_the_model_of_one_worker(self):
        alone, report = self.model(1, "--dtype", "f64", "--clip", 0.5)
        self.assertEqual(report["mesh"], {"data": 1, "pipeline": 1, "tensor": 1})
        meshes = ((1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4))
        for (workers, tensor), zero in itertools.product(meshes, (0, 1, 2, 3)):
            with self.subTest(workers=workers, tensor=tensor, zero=zero):
                divided, its = self.model(workers, "--dtype", "f64", "--tensor", tensor, "--zero", zero, "--clip", 0.5)
                self.assertEqual(its["mesh"], {"data": workers // tensor, "pipeline": 1, "tensor": tensor})
                self.assertEqual(its["zero"], zero)
                self.assertEqual(its["parameters"], report["parameters"])
                self.assertLessEqual(furthest(divided, alone), 1e-9)
                for key in ("loss", "test_loss", "test_accuracy"):
                    self.assertAlmostEqual(its["epochs"][-1][key], report["epochs"][-1][key], places=9)

    def test_losses_are_those_of_an_independent_program(self):
        initial, _ = self.parameters(*TINY, "--epochs", 0, "--test", 0.005, "--workers", 1)
        training, test = Reference(initial, 0.005).run(20, 1e-3)
        flags = ("--max-steps", 20, "--test", 0.005, "--lr", 1e-3)
        for workers, tensor, zero in ((1, 1, 0), (2, 2, 0), (4, 2, 2)):
            with self.subTest(workers=workers, tensor=tensor, zero=zero):
                report = self.train(*TINY, *flags, "--workers", workers, "--tensor", tensor, "--zero", zero)
                self.assertAlmostEqual(report["epochs"][-1]["loss"], training, delta=1e-5)
                self.assertAlmostEqual(report["epochs"][-1]["test_loss"], test, delta=1e-5)

    def test_bert_and_dropout(self):
        spec = ("bert:layers=2,width=32,heads=4,context=16,dropout=0.1", *TINY[1:])
        alone, report = self.model(1, "--dtype", "f64", "--recompute", spec=spec)
        divided, its = self.model(2, "--dtype", "f64", "--tensor", 2, spec=spec)  # draws what one worker draws
        self.assertLessEqual(furthest(divided, alone), 1e-9)
        self.assertAlmostEqual(its["epochs"][-1]["test_loss"], report["epochs"][-1]["test_loss"], places=9)

    def test_computing_again_changes_nothing(self):
        for model in (TINY, ("lenet-bn", "--data", "synthetic:600", "--batch", 30)):
            kept, report = self.parameters(*model, "--max-steps", 4, "--workers", 1)
            again, its = self.parameters(*model, "--max-steps", 4, "--workers", 1, "--recompute")
            self.assertTrue(its["recompute"])
            self.assertEqual(furthest(again, kept), 0)
            self.assertEqual(its["sha256"], report["sha256"])

    def test_bf16_learns_as_f32_does(self):
        more = ("--max-steps", 60, "--test", 0.005)
        _, exact = self.model(1, short=more)
        for tensor in (1, 2):
            _, rounded = self.model(2, "--tensor", tensor, "--precision", "bf16", short=more)
            self.assertEqual(rounded["precision"], "bf16")
            self.assertNotEqual(rounded["sha256"], exact["sha256"])
            ours, theirs = rounded["epochs"][-1], exact["epochs"][-1]
            self.assertLess(theirs["test_loss"], math.log(256) - 1)
            self.assertAlmostEqual(ours["test_loss"], theirs["test_loss"], delta=0.03 * theirs["test_loss"])

    def test_the_first_lines_say_who_has_what(self):
        out = self.succeeds("train", *TINY, *SHORT, "--workers", 2, "--tensor", 2)
        self.assertIn("data 1 × tensor 2, all on one machine", out)
        self.assertRegex(out, r"tensor 2: each worker holds \d+ of \d+ parameters.* \d\d % less")
        out = self.succeeds("train", *TINY, *SHORT, "--workers", 2, "--zero", 2)
        self.assertIn("zero 2 on one machine", out)

    def test_a_checkpoint_of_one_mesh_goes_on_on_another(self):
        spec = (*TINY, "--dtype", "f64", "--test", 0.005)
        straight, _ = self.parameters(*spec, "--workers", 1, "--max-steps", 8)
        meshes = {"a": ("2", "2", "0"), "b": ("2", "1", "3"), "c": ("4", "2", "1"), "d": ("1", "1", "0")}
        for first, second in ("ab", "ba", "cd", "dc", "ac"):
            with self.subTest(first=meshes[first], second=meshes[second]):
                keep = ("--checkpoint", f"run-{first}-{second}")
                flags = lambda mesh: sum(zip(("--workers", "--tensor", "--zero"), meshes[mesh]), ())  # noqa: E731
                self.train(*spec, *keep, *flags(first), "--max-steps", 4)
                goes_on, report = self.parameters(*spec, *keep, *flags(second), "--resume", "latest", "--max-steps", 8)
                self.assertEqual(report["updates"], 8)
                self.assertLessEqual(furthest(goes_on, straight), 1e-9)


class Dropout(LanguageTest):
    """A text of one letter: all samples are the same, so what copies of the model learn from them differs by dropout
    alone."""

    def model(self, *flags, dropout=0.5):
        (self.folder / "same").write_text("a" * 2000)
        spec = f"gpt:layers=1,width=16,heads=2,context=16,dropout={dropout}"
        return self.parameters(spec, "--data", "text:same", "--dtype", "f64", "--max-steps", 2, *flags)[0]

    def test_differs_between_copies_and_agrees_within_one(self):
        alone = self.model("--workers", 1, "--batch", 1)
        copies = self.model("--workers", 2, "--batch", 2)
        self.assertGreater(furthest(copies, alone), 1e-4, "both copies have dropped the same")
        plain = self.model("--workers", 1, "--batch", 1, dropout=0)
        self.assertLess(furthest(self.model("--workers", 2, "--batch", 2, dropout=0), plain), 1e-12)
        parts = self.model("--workers", 2, "--tensor", 2, "--batch", 1)
        self.assertLess(furthest(parts, alone), 1e-9, "parts of one copy have dropped others")


class Refusals(LanguageTest):
    def test_a_vocabulary_that_cannot_be_divided(self):
        """How many tokens there are shows when the tokenizer is open; the rows are a multiple of 64."""
        subprocess.run(
            ["spm_train", f"--input={TEXT}", "--model_prefix=m", "--vocab_size=300", "--minloglevel=2"],
            cwd=self.folder, check=True, capture_output=True,
        )  # fmt: skip
        six = "gpt:layers=1,width=48,heads=6,context=16"
        refused = ("train", six, *TINY[1:], "--tokenizer", "m.model", "--workers", 3, "--tensor", 3)
        self.refused(*refused, says=("320 rows of its vocabulary", "tensor 3 does not divide: use tensor 2"))

    def test_a_benchmark_of_samples_that_cannot_be_divided(self):
        samples = ("bench", "model", "--samples", 3)
        self.refused(*samples, "--way", "data", says=("--samples 3: 2 workers", "use 2 or 4, or --way tensor"), code=2)
        self.refused(*samples, "--way", "tensor,zero1", says=("evenly (zero1)",), code=2)

    def test_what_cannot_be_divided(self):
        refused = lambda *flags, says: self.refused("train", *flags, says=says, code=2)  # noqa: E731
        refused("lenet", "--workers", 2, "--tensor", 2, says=("lenet has no form", "gpt and bert"))
        refused(*TINY, "--workers", 6, "--tensor", 4, says=("6 workers do not divide by tensor 4", "4 or 8 workers"))
        refused(*TINY, "--workers", 3, "--tensor", 3, says=("4 heads", "tensor 2, 4"))
        odd = "gpt:layers=1,width=36,heads=6,context=16"
        refused(odd, *TINY[1:], "--workers", 3, "--tensor", 3, says=("256 rows of its vocabulary", "use tensor 2"))
        for sync in ("async", "hogwild", "local:4", "server"):
            refused(*TINY, "--workers", 2, "--tensor", 2, "--sync", sync, says=("tensor 2", sync, "shared"))
        refused(*TINY, "--workers", 4, "--tensor", 2, "--batch", 1, says=("--batch 1", "copies of the model (2)"))
        for sync in ("async", "hogwild", "local:4"):
            refused(*TINY, "--workers", 2, "--zero", 1, "--sync", sync, says=("zero 1", sync, "no lockstep"))
        refused(*TINY, "--tensor", 0, says=("--tensor",))
        refused(*TINY, "--zero", 4, says=("from 0 (none) to 3, not 4",))
        refused(*TINY, "--zero-window", 4, says=("--zero-window has no effect with --zero 0",))
        refused(*TINY, "--zero", 1, "--sync", "allreduce", says=("sync 'allreduce' makes it elsewhere",))

    def test_where_precision_makes_no_sense(self):
        self.refused("train", *TINY, "--precision", "bf16", "--dtype", "f64", says=("bf16", "f64"), code=2)
        self.refused("train", *TINY, "--precision", "fp16", says=("fp16", "f32 or bf16"), code=2)
        batch_norm = ("--recompute", "--sync-batch-norm")
        self.refused("train", "lenet-bn", "--data", "synthetic", *batch_norm, says=("recompute", "batch norm"), code=2)


if __name__ == "__main__":
    support.main()
