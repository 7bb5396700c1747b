"""Two jobs that were given one MASTER_PORT: each finds its own ranks where anything tells them apart; otherwise all say
soon what is wrong, and nobody trains with a stranger."""
import itertools
import json
import socket
import subprocess
import sys

import support

COMMON = [
    "train",
    "mlp:16",
    "--data",
    "synthetic:500",
    "--epochs",
    1,
    "--workers",
    2,
    "--timeout",
    15,
    "--progress",
    "plain",
]

# Stands for a shell or an agent: starts the ranks that it reads, and ends with the worst of their exit codes.
SHELL = """
import json, os, subprocess, sys
command, variables = json.loads(sys.argv[1]), json.loads(sys.argv[2])
ranks = []
for line in sys.stdin:
    environment = {**os.environ, **variables, "RANK": line.strip()}
    ranks.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL))
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class TwoJobs(support.CommandTest):
    def setUp(self):
        super().setUp()
        self.variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def command(self, *args):
        return [support.TRIREME, *map(str, [*COMMON, *args])]

    def rank(self, rank, *args, **more):
        return self.process(self.command(*args), {**self.variables, "RANK": str(rank), **more}, subprocess.DEVNULL)

    def process(self, words, variables, stdin):
        process = subprocess.Popen(
            words,
            env={**support.environment(), **variables},
            stdin=stdin,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def shell(self, *args, **more):
        """A parent of its own for the ranks of a job."""
        words = [sys.executable, "-c", SHELL, json.dumps(self.command(*args)), json.dumps({**self.variables, **more})]
        return self.process(words, {}, subprocess.PIPE)

    def start_in_shells(self, order, first, second):
        """`order`: "A0", "B1" and so on. The rank that comes next is started when the one before is there."""
        shells = {"A": first, "B": second}
        for word in order:
            shell = shells[word[0]]
            before = len(support.children(shell.pid))
            shell.stdin.write(word[1] + "\n")
            shell.stdin.flush()
            self.assertTrue(support.wait_until(lambda: len(support.children(shell.pid)) > before, 10))
        return [(*job.communicate(timeout=support.LIMIT), job.returncode) for job in (first, second)]

    # ---- told apart ----
    def test_ranks_of_one_parent_find_each_other(self):
        for order in (("A0", "B0", "B1", "A1"), ("B1", "A0", "B0", "A1"), ("A1", "B1", "B0", "A0")):
            with self.subTest(order=order):
                reports = [self.folder / "a.json", self.folder / "b.json"]
                jobs = [self.shell("--seed", seed, "--report", report) for seed, report in zip((1, 2), reports)]
                for out, error, code in self.start_in_shells(order, *jobs):
                    self.assertEqual(code, 0, out + error)
                alone = [self.train(*map(str, COMMON[1:-2]), "--seed", seed)["sha256"] for seed in (1, 2)]
                self.assertEqual([json.loads(report.read_text())["sha256"] for report in reports], alone)

    def test_so_do_those_of_one_run_or_scheduled_job(self):
        for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
            with self.subTest(name):
                order = ((0, 1), (1, 2), (0, 2), (1, 1))
                ranks = [self.rank(r, "--seed", seed, **{name: f"run-{seed}"}) for r, seed in order]
                for rank in ranks:
                    out, error = rank.communicate(timeout=support.LIMIT)
                    self.assertEqual(rank.returncode, 0, out + error)

    # ---- not told apart ----
    def test_otherwise_options_are_compared(self):
        orders = list(itertools.permutations([(0, "0.1"), (1, "0.2"), (1, "0.1"), (0, "0.2")]))
        for order in orders[::5]:
            with self.subTest(order=order):
                ranks = [self.rank(r, "--lr", lr) for r, lr in order]
                texts = [rank.communicate(timeout=support.LIMIT)[1] for rank in ranks]
                # By luck a job may have got its own ranks: then it is whole.
                well = [lr for (_, lr), rank in zip(order, ranks) if rank.returncode == 0]
                for lr in ("0.1", "0.2"):
                    self.assertIn(well.count(lr), (0, 2), texts)
                for rank, text in zip(ranks, texts):
                    self.assertTrue(rank.returncode == 0 or text.startswith("trireme: "), text)

    def test_a_stranger_alone_is_refused_by_both(self):
        for args, words in (
            ((["--lr", 0.1], ["--lr", 0.2]), ["--lr 0.1, rank 1 with --lr 0.2", "MASTER_PORT"]),
            ((["--save", "a.safetensors"], []), ["--save a.safetensors, rank 1 with no --save"]),
        ):
            with self.subTest(words):
                ranks = [self.rank(rank, *args[rank]) for rank in (0, 1)]
                for rank in ranks:
                    _, error = rank.communicate(timeout=support.LIMIT)
                    self.assertEqual(rank.returncode, 1, error)
                    self.assertIn("rank 0 was started with ", error)
                    for word in words:
                        self.assertIn(word, error)

    def test_two_first_ranks_of_one_parent(self):
        for rank in [self.rank(0), self.rank(0)]:
            _, error = rank.communicate(timeout=support.LIMIT)
            self.assertEqual(rank.returncode, 1, error)
            self.assertIn("MASTER_PORT", error)
            self.assertIn("rank 0", error)

    def test_two_terminals_make_one_job(self):
        """Ranks with other parents are no strangers."""
        jobs = [self.shell(), self.shell()]
        for out, error, code in self.start_in_shells(("A0", "B1"), *jobs):
            self.assertEqual(code, 0, out + error)


if __name__ == "__main__":
    support.main()
