"""Every mode of --sync with four workers and the command's defaults, in the short form of scripts/check_modes: the
accuracy is near that of `shared`. And what is said of a training that gets nowhere."""
import pathlib
import subprocess
import unittest

import support

SHORT = [
    "--workers",
    4,
    "--settings",
    "defaults",
    "--seeds",
    1,
    "--max-steps",
    300,
    "--limit",
    8,
    "--limit-dropping",
    16,
]
MODES = ["async", "stale:3", "trylock:0.8", "round-robin", "hogwild", "local:10", "elastic:10,0.3"]
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")


@unittest.skipUnless(FASHION.exists(), "apt-get install dataset-fashion-mnist")
class Modes(support.CommandTest):
    def check(self, *args):
        command = [support.ROOT / "scripts" / "check_modes", "--trireme", support.TRIREME, *SHORT, *args]
        return subprocess.run(
            [str(word) for word in command],
            cwd=self.folder,
            env=support.environment(),
            capture_output=True,
            text=True,
            timeout=4 * support.LIMIT,
        )

    def test_the_rate_means_the_same_in_every_mode(self):
        result = self.check("--modes", *MODES)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        for mode in MODES:
            self.assertRegex(result.stdout, rf"(?m)^defaults +4  {mode} ")

    def test_what_is_too_low_is_said(self):
        result = self.check("--modes", "round-robin", "--", "--rate", "full")
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn("1 did not pass: defaults 4 round-robin", result.stdout)

    def test_a_training_that_only_guesses_says_so(self):
        args = ["lenet", "--workers", 4, "--sync", "round-robin", "--rate", "full", "--epochs", 3]
        result = support.run(
            "train", *args, "--report", "r.json", "--progress", "plain", cwd=self.folder, limit=3 * support.LIMIT
        )
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(result.stdout.count("warning: the loss is"), 1, result.stdout)
        for words in ("no better than guessing: ln(10 classes) is 2.3026", "learning rate than 0.05", "--rate share"):
            self.assertIn(words, result.stdout)
        self.assertIn("no better than guessing", (self.folder / "r.json").read_text())


if __name__ == "__main__":
    support.main()
