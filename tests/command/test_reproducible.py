"""The same seed and workers give the same bits; a recipe is a list of flags."""

import support

SMALL = ["mlp:32", "--data", "synthetic:300", "--epochs", 2, "--batch", 32]


class Reproducible(support.CommandTest):
    def test_same_seed_same_bits(self):
        for args in (
            ["--workers", 1],
            ["--workers", 2],
            ["--workers", 3, "--sync", "allreduce"],
            ["--workers", 2, "--sync", "central", "--accumulate", 2],
        ):
            with self.subTest(args=args):
                self.assertEqual(self.train(*SMALL, *args)["sha256"], self.train(*SMALL, *args)["sha256"])

    def test_dropout_too(self):
        args = ["twoconv", "--data", "synthetic:200", "--epochs", 1, "--workers", 2]
        self.assertEqual(self.train(*args)["sha256"], self.train(*args)["sha256"])

    def test_another_seed_other_bits(self):
        hashes = {self.train(*SMALL, "--workers", 2, "--seed", seed)["sha256"] for seed in (1, 2, 3)}
        self.assertEqual(len(hashes), 3)

    def test_hash_is_of_the_parameters(self):
        before, after = (self.train(*SMALL, "--workers", 2, "--epochs", epochs)["sha256"] for epochs in (0, 1))
        self.assertNotEqual(before, after)
        self.assertRegex(before, "^[0-9a-f]{64}$")

    def test_report_has_what_is_promised(self):
        report = self.train(
            *SMALL, "--workers", 2, "--optimizer", "adam", "--lr", "0.01", "--seed", 7, "--accumulate", 2
        )
        expected = {
            "model": "mlp:32",
            "data": "synthetic:300",
            "workers": 2,
            "batch": 32,
            "optimizer": "adam",
            "lr": 0.01,
            "seed": 7,
            "accumulate": 2,
            "sync": "shared",
            "parameters": 784 * 32 + 32 + 320 + 10,
            "updates": 20,
            "stopped": False,
        }
        self.assertEqual(expected, {key: report.get(key) for key in expected})
        self.assertEqual([epoch["epoch"] for epoch in report["epochs"]], [1, 2])
        for epoch in report["epochs"]:
            for key in ("loss", "test_loss", "test_accuracy", "samples_per_second", "seconds"):
                self.assertGreaterEqual(epoch[key], 0, key)
            self.assertGreater(epoch["samples_per_second"], 0)
        self.assertLess(report["epochs"][1]["loss"], report["epochs"][0]["loss"])

    def test_report_says_where_the_model_is(self):
        _, report = self.parameters(*SMALL, "--workers", 1, "--epochs", 0)
        self.assertTrue(report["saved"].startswith(str(self.folder)))

    def write_recipe(self, text):
        path = self.folder / "recipe.toml"
        path.write_text(text)
        return path

    def test_recipe_equals_flags(self):
        recipe = self.write_recipe(
            'model = "mlp:32"\ndata = "synthetic:300"\nworkers = 2\nbatch = 32\nepochs = 2\nlr = 0.1\n'
            'nesterov = true\noverlap = false\n'
            '[schedule_of_lr]\nlr-schedule = "cosine"\n'
        )
        flags = [*SMALL, "--workers", 2, "--lr", "0.1", "--nesterov", "--no-overlap", "--lr-schedule", "cosine"]
        self.assertEqual(self.train(recipe)["sha256"], self.train(*flags)["sha256"])

    def test_flag_wins_over_recipe(self):
        recipe = self.write_recipe(
            'model = "mlp:32"\ndata = "synthetic:300"\nworkers = 2\nbatch = 32\nepochs = 2\nlr = 0.1\nnesterov = true\n'
        )
        report = self.train(recipe, "--lr", "0.02", "--workers", "1", "--nesterov=false")
        self.assertEqual((report["lr"], report["workers"], report["batch"]), (0.02, 1, 32))
        self.assertEqual(report["sha256"], self.train(*SMALL, "--workers", 1, "--lr", "0.02")["sha256"])

    def test_the_recipes_of_the_repository_are_valid(self):
        for recipe in (support.ROOT / "recipes").glob("*.toml"):
            text = recipe.stem == "gpt"  # it brings its text, and needs no more than a few steps of it
            data = ["--max-steps", 2, "--batch", 4] if text else ["--data", "synthetic:200"]
            report = self.train(recipe, *data, "--epochs", 1, "--save", self.folder / "model.safetensors")
            self.assertEqual(len(report["epochs"]), 1)


if __name__ == "__main__":
    support.main()
