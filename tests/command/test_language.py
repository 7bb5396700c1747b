"""Language models learn, and write what they have learned.

The reference for what a model must have learned is computed here: the cross entropy of unigrams and of bigrams, counted
in the part that training sees and measured on the part that is held out.
"""
import collections
import math

import support
import torch
from language import TEXT, LanguageTest


def parts():
    """What training sees, and what is held out: the last tenth."""
    text = TEXT.read_bytes()
    cut = len(text) - round(0.1 * len(text))
    return text[:cut], text[cut:]


def entropies(weight=20):
    """Of the next byte, in nats: by how often it comes at all, and behind the one before it."""
    train, test = parts()
    single, pairs = collections.Counter(train), collections.Counter(zip(train, train[1:]))
    alone = {b: (single[b] + 0.5) / (len(train) + 128) for b in range(256)}
    behind = lambda a, b: (pairs[a, b] + weight * alone[b]) / (single[a] + weight)  # noqa: E731
    following = list(zip(test, test[1:]))
    unigrams = -sum(math.log(alone[b]) for _, b in following) / len(following)
    bigrams = -sum(math.log(behind(a, b)) for a, b in following) / len(following)
    return unigrams, bigrams


class Learning(LanguageTest):
    def test_gpt_learns_more_than_bigrams_know_and_writes(self):
        unigrams, bigrams = entropies()
        path, report = self.learned(
            *("gpt:tiny", "--batch", 32, "--epochs", 14, "--checkpoint", "run", "--keep", 1), limit=180
        )
        first, last = report["epochs"][0], report["epochs"][-1]
        self.assertEqual((report["optimizer"], report["lr"]), ("adamw", 0.003))  # nobody said
        self.assertLess(last["test_loss"], bigrams)
        self.assertLess(bigrams, unigrams)
        self.assertLess(last["loss"], first["loss"])
        self.assertAlmostEqual(last["test_perplexity"], math.exp(last["test_loss"]), places=9)
        self.assertAlmostEqual(last["tokens_per_second"], 64 * last["samples_per_second"], places=3)

        held_out = self.evaluation(path, "--data", f"text:{TEXT}")
        self.assertIn("held out", held_out["what"])
        self.assertAlmostEqual(held_out["loss"], last["test_loss"], places=5)
        self.assertAlmostEqual(held_out["accuracy"], last["test_accuracy"], places=9)
        self.assertEqual(held_out["tokens"], held_out["samples"] * 64)
        seen = self.evaluation("run", "--data", f"text:{TEXT}", "--part", "train")
        self.assertLess(seen["loss"], held_out["loss"])  # what it has learned by heart
        copy = self.folder / "copy"
        copy.write_bytes(parts()[1])
        self.assertAlmostEqual(self.evaluation(path, "--data", "text:copy")["loss"], held_out["loss"], places=5)
        self.assertIn("perplexity", self.succeeds("evaluate", path, "--data", "text:copy"))

        write = ("generate", path, "--prompt", "It was ", "--tokens", 100)
        text = self.succeeds(*write)
        self.assertTrue(text.startswith("It was "))
        self.assertGreaterEqual(len(text.encode()), len("It was ") + 50)
        self.assertEqual(text, self.succeeds(*write))
        self.assertNotEqual(text, self.succeeds(*write, "--seed", 2))
        greedy = self.succeeds(*write, "--temperature", 0)
        self.assertEqual(self.succeeds("generate", "run", *write[2:], "--temperature", 0), greedy)
        self.assertEqual(self.succeeds(*write[:-1], 0), "It was \n")
        self.runs_in_python(path)

    def runs_in_python(self, path):
        """As TorchScript, and what generate takes for the likeliest byte is the likeliest there."""
        self.succeeds("checkpoint", "export", path, "--out", "gpt.pt")
        net = torch.jit.load(str(self.folder / "gpt.pt"))
        tokens = list(b"It was ")
        with torch.no_grad():
            for _ in range(80):
                tokens.append(int(net(torch.tensor([tokens[-64:]]))[0, -1, :256].argmax()))
        expected = bytes(tokens).decode(errors="replace")
        text = self.succeeds("generate", path, "--prompt", "It was ", "--tokens", 80, "--temperature", 0)
        self.assertEqual(text, expected + "\n")

    def test_bert_finds_what_its_neighbours_tell(self):
        """Ten letters, of which a masked one follows from those around it; a unigram has a perplexity of ten."""
        data = self.folder / "circle"
        data.write_text("abcdefghij" * 1200)
        path, report = self.learned(
            *("bert:layers=1,width=64,heads=2,context=16", "--batch", 64, "--max-steps", 400, "--epochs", 60), data=data
        )
        last = report["epochs"][-1]
        self.assertLess(last["test_perplexity"], 2)
        self.assertGreater(last["test_accuracy"], 0.9)
        measured = self.evaluation(path, "--data", f"text:{data}")
        self.assertAlmostEqual(measured["loss"], last["test_loss"], places=5)
        self.assertEqual(measured["tokens"], measured["samples"] * 2)  # 15 % of 16
        self.refused("generate", path, "--prompt", "a", says=["bert", "masked", "gpt"], code=2)


if __name__ == "__main__":
    support.main()
