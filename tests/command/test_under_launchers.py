"""What the command does under launchers of others, and in shells with limits: output to a file, threads, addresses."""
import json
import os
import shutil
import socket
import subprocess
import unittest

import support

SMALL = ["mlp:8", "--data", "synthetic:200", "--epochs", "2"]


def free_port():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return holder.getsockname()[1]


class UnderMpirun(support.CommandTest):
    def setUp(self):
        super().setUp()
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun (apt-get install openmpi-bin)")

    def mpirun(self, *args, ranks=2):
        """Its output goes to a file, as in a job's script."""
        path = self.folder / "output"
        with open(path, "wb") as out:
            result = subprocess.run(
                ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), support.TRIREME, "train", *args],
                cwd=self.folder,
                env=support.environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                timeout=support.LIMIT,
            )
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        return path.read_bytes().replace(b"\r\n", b"\n")  # a terminal's line ends, and mpirun's ranks have one

    def test_a_file_gets_lines_and_nothing_else(self):
        text = self.mpirun(*SMALL)
        self.assertIn(b"epoch 2  loss", text)
        self.assertNotIn(b"\r", text)
        self.assertNotIn(b"\x1b", text)

    def test_who_asks_for_a_progress_line_has_one(self):
        enough = ["mlp:512", "--data", "synthetic:20000", "--epochs", "1"]  # for a line: one is drawn every 0.1 s
        self.assertIn(b"\x1b[K", self.mpirun(*enough, "--progress", "line"))

    def test_the_number_of_ranks_goes_before_a_recipes_workers(self):
        (self.folder / "three.toml").write_text('model = "mlp:8"\ndata = "synthetic:200"\nepochs = 1\nworkers = 3\n')
        self.mpirun("three.toml", "--report", "report.json")
        self.assertEqual(json.loads((self.folder / "report.json").read_text())["workers"], 2)


class Threads(support.CommandTest):
    def threads(self, *flags, **variables):
        """Of a rank that torchrun's variables have started, as its report says."""
        base = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        clean = {
            name: value
            for name, value in support.environment().items()
            if name not in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        }
        ranks = [
            subprocess.Popen(
                [support.TRIREME, "train", *SMALL, *flags, "--report", "report.json"],
                cwd=self.folder,
                env={**clean, **base, "RANK": str(rank), **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        for rank in ranks:
            text, _ = rank.communicate(timeout=support.LIMIT)
            self.assertEqual(rank.returncode, 0, text)
        return json.loads((self.folder / "report.json").read_text())["threads"]

    def test_the_flag_is_heard_under_a_foreign_launcher(self):
        self.assertEqual(self.threads("--threads", "2"), 2)
        self.assertEqual(self.threads("--threads", "2", OMP_NUM_THREADS="1"), 2)

    def test_without_the_flag_the_launchers_word_counts_and_then_one(self):
        self.assertEqual(self.threads(OMP_NUM_THREADS="2"), 2)
        self.assertEqual(self.threads(), 1)

    def test_the_flag_is_heard_by_workers_of_our_own(self):
        self.assertEqual(self.train(*SMALL, "--workers", 2, "--threads", 2)["threads"], 2)


class AddressLimit(support.CommandTest):
    def limited(self, kilobytes, *args):
        line = ["bash", "-c", f'ulimit -v {kilobytes} && exec "$0" "$@"', support.TRIREME, "train", *args]
        return subprocess.run(
            line,
            cwd=self.folder,
            env=support.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=support.LIMIT,
        )

    def test_training_fits_into_few_addresses(self):
        for sync in ("shared", "allreduce", "server", "hogwild", "local:2"):
            with self.subTest(sync=sync):
                result = self.limited(4_000_000, *SMALL, "--workers", "2", "--sync", sync)
                self.assertEqual(result.returncode, 0, result.stderr)

    def test_too_few_are_told_before_anything_starts(self):
        result = self.limited(500_000, *SMALL, "--workers", "2")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertIn("'ulimit -v'", result.stderr)
        self.assertIn("libtorch", result.stderr)

    def test_data_that_does_not_fit_says_so(self):
        result = self.limited(4_000_000, "linear", "--data", "synthetic:3000000", "--workers", "2")
        self.assertEqual(result.returncode, 1)
        self.assertIn("'ulimit -v' limits the addresses", result.stderr)


if __name__ == "__main__":
    support.main()
