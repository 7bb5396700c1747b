"""--virtual: bits that do not depend on the workers."""

import support

# 300 samples in batches of 32: the last step has twelve. Dropout, convolutions, Adam.
NET = ["twoconv", "--data", "synthetic:300", "--batch", 32, "--optimizer", "adam", "--lr", "0.002", "--virtual", 4]


class Virtual(support.CommandTest):
    def test_any_number_of_workers_ends_with_the_same_bits(self):
        one, *others = [self.train(*NET, "--epochs", 2, "--workers", workers) for workers in (1, 2, 3, 4)]
        self.assertEqual(one["virtual"], 4)
        figures = [[epoch[key] for key in ("loss", "test_loss", "test_accuracy")] for epoch in one["epochs"]]
        for other in others:
            with self.subTest(workers=other["workers"]):
                self.assertEqual(other["sha256"], one["sha256"])
                theirs = [[epoch[key] for key in ("loss", "test_loss", "test_accuracy")] for epoch in other["epochs"]]
                self.assertEqual(theirs, figures)

    def test_masks_and_dropout_of_a_language_model(self):
        text = self.folder / "text.txt"
        text.write_text("the quick brown fox jumps over the lazy dog. " * 60)
        args = ["bert:layers=1,width=16,heads=2,context=16,dropout=0.2", "--data", f"text:{text}", "--batch", 8]
        args += ["--max-steps", 12, "--virtual", 3]
        hashes = {self.train(*args, "--workers", workers)["sha256"] for workers in (1, 2, 3)}
        self.assertEqual(len(hashes), 1)

    def test_another_crew_goes_on_with_a_checkpoint(self):
        kept = ["--checkpoint", "kept", "--checkpoint-every", "3steps"]
        whole = self.train(*NET, "--max-steps", 14, "--workers", 1)
        self.train(*NET, "--max-steps", 7, "--workers", 2, *kept)  # ten steps are an epoch
        resumed = self.train(*NET, "--max-steps", 14, "--workers", 3, *kept, "--resume", "latest")
        self.assertEqual(resumed["sha256"], whole["sha256"])
        self.assertEqual([epoch["loss"] for epoch in resumed["epochs"]], [epoch["loss"] for epoch in whole["epochs"]])

    def test_what_cannot_be_had_is_refused_before_anything_starts(self):
        small = ["mlp:8", "--data", "synthetic:100", "--batch", 16, "--workers", 2]
        for args, sentence in (
            (["--virtual", 1], "2 workers cannot divide 1 virtual worker"),
            (["--virtual", 17], "more pieces than it has samples"),
            (["--virtual", 257, "--batch", 512], "from 1 to 256"),
            (["--virtual", 4, "--sync", "allreduce"], "use sync 'shared'"),
            (["--virtual", 4, "--sync", "async"], "use sync 'shared'"),
            (["--virtual", 4, "--accumulate", 2], "use virtual 8"),
            (["--virtual", 4, "--zero", 1], "use zero 0"),
            (["--virtual", 4, "--pipeline", 2], "pipeline 2"),
            (["--virtual", -1], "--virtual"),
        ):
            with self.subTest(args=args):
                self.refused("train", *small, *args, says=[sentence])
        self.refused("train", "lenet-bn", "--data", "synthetic:100", "--virtual", 2, says=["lenet-bn has batch norms"])


if __name__ == "__main__":
    support.main()
