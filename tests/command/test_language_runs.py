"""Runs of language models: resumed, divided, with tokenizers of sentencepiece, and what is refused."""
import gzip
import shutil
import subprocess

import support
import torch
import torch.nn.functional as F
from language import TEXT, LanguageTest

SMALL = "gpt:layers=1,width=32,heads=2,context=32"
BERT = "bert:layers=1,width=32,heads=2,context=32"


class Runs(LanguageTest):
    def test_a_run_that_was_stopped_goes_on_with_the_same_bits(self):
        for model in (SMALL, BERT):
            with self.subTest(model):
                flags = (model, "--data", f"text:{TEXT}", "--workers", 2, "--batch", 256, "--epochs", 4)
                whole = self.train(*flags)
                folder = model.split(":")[0]
                self.train(*flags, "--checkpoint", folder, "--checkpoint-every", "3steps", "--max-steps", 9)
                rest = self.train(*flags, "--checkpoint", folder, "--resume", "latest")
                self.assertEqual(rest["sha256"], whole["sha256"])
                self.assertEqual(rest["epochs"][-1]["test_perplexity"], whole["epochs"][-1]["test_perplexity"])

    def test_workers_and_accumulation_change_nothing_but_rounding(self):
        for model in (SMALL, BERT):
            flags = (model, "--data", f"text:{TEXT}", "--batch", 96, "--max-steps", 8, "--dtype", "f64")
            with self.subTest(model):
                one = self.train(*flags, "--workers", 1)["epochs"][-1]
                three = self.train(*flags, "--workers", 3, "--accumulate", 2)["epochs"][-1]
                self.assertAlmostEqual(one["loss"], three["loss"], places=10)
                self.assertAlmostEqual(one["test_loss"], three["test_loss"], places=9)

    def test_says_what_it_understood(self):
        result = support.run("train", BERT, "--data", f"text:{TEXT}", "--workers", 2, "--max-steps", 1, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("text: 53,589 tokens (bytes), 1,507 training and 167 test samples of 32", result.stdout)
        self.assertIn(
            "vocabulary 256 (embedded as 320, with a mask token); adamw at a learning rate of 0.003", result.stdout
        )
        self.assertRegex(result.stdout, r"perplexity \d+\.\d\d  test accuracy 0\.\d+  [\d,]+ tokens/s")

    def test_compressed_text_is_the_same_text(self):
        (self.folder / "a.gz").write_bytes(gzip.compress(TEXT.read_bytes()))
        flags = ("--workers", 2, "--batch", 256, "--max-steps", 2)
        self.assertEqual(
            self.train(SMALL, "--data", "text:a.gz", *flags)["sha256"],
            self.train(SMALL, "--data", f"text:{TEXT}", *flags)["sha256"],
        )


def logits(tensors, tokens, heads, causal):
    """What a model with these parameters says to tokens, [samples, time]: written down once more."""
    linear = lambda x, name: F.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])  # noqa: E731
    norm = lambda x, name: F.layer_norm(  # noqa: E731
        x, x.shape[-1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"]
    )
    n, time = tokens.shape
    x = tensors["tokens.weight"][tokens] + tensors["positions.weight"][:time]
    hidden = torch.ones(time, time, dtype=torch.bool).triu(1) if causal else torch.zeros(time, time, dtype=torch.bool)
    for block in sorted({name.split(".")[1] for name in tensors if name.startswith("blocks.")}, key=int):
        inner = norm(x, f"blocks.{block}.attention_norm")
        q, k, v = (
            linear(inner, f"blocks.{block}.attention.{name}").view(n, time, heads, -1).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        scores = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).masked_fill(hidden, float("-inf"))
        seen = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, time, -1)
        x = x + linear(seen, f"blocks.{block}.attention.out")
        inner = F.gelu(linear(norm(x, f"blocks.{block}.mlp_norm"), f"blocks.{block}.mlp.in"))
        x = x + linear(inner, f"blocks.{block}.mlp.out")
    x = norm(x, "norm")
    if causal:
        return F.linear(x, tensors["tokens.weight"])
    x = norm(F.gelu(linear(x, "transform")), "transform_norm")
    return F.linear(x, tensors["tokens.weight"], tensors["bias"])


class Python(LanguageTest):
    def test_python_computes_what_training_reports(self):
        """The parameters of the file, in a model of this file's, on the last tenth of the text."""
        path, report = self.learned(SMALL, "--batch", 64, "--epochs", 1, "--dtype", "f64")
        tensors = {name: torch.from_numpy(values.copy()) for name, values in support.read_safetensors(path).items()}
        text = TEXT.read_bytes()
        held_out = torch.tensor(list(text[len(text) - round(0.1 * len(text)) :]))
        samples = (len(held_out) - 1) // 32
        x, y = (held_out[i : i + samples * 32].view(samples, 32) for i in (0, 1))
        out = logits(tensors, x, heads=2, causal=True)
        self.assertAlmostEqual(
            float(F.cross_entropy(out.flatten(0, 1), y.flatten())), report["epochs"][-1]["test_loss"], places=10
        )
        self.assertAlmostEqual(
            float((out.argmax(-1) == y).double().mean()), report["epochs"][-1]["test_accuracy"], places=10
        )

    def test_what_is_exported_gives_the_same_logits(self):
        """As TorchScript, and as a file of parameters in a model of this file's."""
        for spec, vocabulary, causal in ((SMALL, 256, True), (BERT, 257, False)):  # BERT embeds a round number
            with self.subTest(spec):
                path, _ = self.learned(spec, "--batch", 256, "--max-steps", 2)
                for out in ("m.pt", "m.safetensors"):
                    self.succeeds("checkpoint", "export", path, "--out", out)
                copy = support.read_safetensors(self.folder / "m.safetensors")
                tensors = {name: torch.from_numpy(values.copy()) for name, values in copy.items()}
                tokens = torch.randint(0, vocabulary, (3, 32), generator=torch.Generator().manual_seed(1))
                expected = logits(tensors, tokens, 2, causal=causal)
                got = torch.jit.load(str(self.folder / "m.pt"))(tokens)
                self.assertEqual(got.shape, expected.shape)
                self.assertGreaterEqual(got.shape[2], vocabulary)
                self.assertLess(float((got - expected).abs().max()), 1e-6 * max(1, float(expected.abs().max())))


class Tokenizers(LanguageTest):
    def test_a_sentencepiece_model_travels_with_the_saved_one(self):
        subprocess.run(
            ["spm_train", f"--input={TEXT}", "--model_prefix=m", "--vocab_size=300", "--minloglevel=2"],
            cwd=self.folder,
            check=True,
            capture_output=True,
        )
        path, report = self.learned(SMALL, "--tokenizer", "m.model", "--batch", 64, "--epochs", 2)
        self.assertLess(report["epochs"][-1]["test_perplexity"], 300)
        (self.folder / "m.model").unlink()
        self.assertAlmostEqual(
            self.evaluation(path, "--data", f"text:{TEXT}")["loss"], report["epochs"][-1]["test_loss"], places=5
        )
        text = self.succeeds("generate", path, "--prompt", "It was the", "--tokens", 30)
        self.assertTrue(text.startswith("It was the"))
        self.assertGreater(len(text.split()), 5)
        self.assertNotIn("\u2581", text)  # sentencepiece's sign for a space

    def test_a_damaged_one_is_refused(self):
        (self.folder / "bad.model").write_bytes(b"\x00\x01hello")
        self.refused(
            *("train", SMALL, "--data", f"text:{TEXT}", "--tokenizer", "bad.model", "--workers", 2),
            says=["bad.model is no sentencepiece model"],
        )


class BadInput(LanguageTest):
    def test_refusals(self):
        short, empty = self.folder / "short", self.folder / "empty"
        short.write_text("a" * 40)
        empty.write_text("")
        for args, says in (
            ((SMALL, "--data", "text:nowhere"), ["there is no text 'nowhere'"]),
            ((SMALL, "--data", "text:empty"), ["empty is empty"]),
            ((SMALL, "--data", "text:short", "--test", 0.2), ["a context of 32", "longer than the text", "has 32"]),
            ((SMALL, "--data", "text:short"), ["a context of 32", "to test with", "has 4", "--test"]),
            ((SMALL, "--data", "fashion-mnist"), ["language model", "text:FILE", "lenet"]),
            (("lenet", "--data", "text:short"), ["lenet", "is a text", "gpt"]),
            (("gpt:smal", "--data", "text:short"), ["unknown 'smal'", "did you mean 'small'"]),
            (("gpt:width=100,heads=3", "--data", "text:short"), ["width of 100", "3 heads", "102"]),
            ((SMALL, "--data", "text:short", "--label", "a"), ["--label", "CSV"]),
            ((SMALL, "--data", f"text:{TEXT}", "--loss", "mse"), ["mse"]),
            (("lenet", "--data", "synthetic:64", "--tokenizer", "short"), ["--tokenizer is for text"]),
            ((SMALL, "--data", f"text:{TEXT}", "--tokenizer", "nowhere"), ["there is no tokenizer 'nowhere'"]),
        ):
            with self.subTest(args):
                self.refused("train", *args, "--workers", 2, "--max-steps", 1, says=says)

    def test_models_that_are_used_for_what_they_are_not(self):
        path, _ = self.learned(SMALL, "--batch", 256, "--max-steps", 1)
        self.refused("evaluate", path, "--data", "fashion-mnist", says=["trained on text"], code=2)
        self.refused("predict", path, "--data", f"text:{TEXT}", says=["trireme generate"], code=2)
        self.refused("generate", path, "--temperature", "-1", says=["--temperature"], code=2)
        self.refused("generate", "nowhere", says=["there is no file or folder 'nowhere'"])
        other = self.folder / "other"
        shutil.copy(TEXT, other)
        self.refused("evaluate", path, "--data", "text:other", "--part", "test", says=["not the text"], code=2)
        self.train("linear", "--data", "synthetic:64", "--max-steps", 1, "--save", "linear.safetensors")
        self.refused("generate", "linear.safetensors", says=["no language model", "predict"], code=2)
        self.refused("evaluate", "linear.safetensors", "--data", f"text:{TEXT}", says=["not on text"], code=2)


if __name__ == "__main__":
    support.main()
