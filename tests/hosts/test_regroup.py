"""The crew changes, on three hosts: a rank is killed in the middle of a collective, or one comes from another host, and
a new group in the same processes reduces again."""
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import unittest

import hosts

PROGRAM = pathlib.Path(os.environ["TRIREME"]).parent / "tests" / "program_regroup"
TRIES = int(os.environ.get("TRIES", "5"))  # 50 for a distribution
RANKS = {"a": [0, 1], "b": [2], "c": [3]}


class Regroup(unittest.TestCase):
    def setUp(self):
        self.hosts = hosts.Hosts(3)
        self.hosts.__enter__()
        self.addCleanup(self.hosts.__exit__)
        self.environment = {
            **os.environ,
            "TRIREME_JOB": "job",
            "TRIREME_TOKEN": "secret",
            "TRIREME_COORDINATOR": f"{self.hosts.address('a')}:7070",
        }

    def coordinate(self, ranks, *target):
        self.environment["TRIREME_SIZE"] = str(ranks)
        coordinator = self.start("a", "coordinator", 7070, ranks, *target)
        self.assertEqual(coordinator.stdout.readline(), "ready\n")

    def start(self, host, *arguments):
        process = self.hosts.run(
            host, [PROGRAM, *arguments], env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)
        return process

    def lines(self, process, count, last):
        """What each of that many ranks says up to a line that ends with `last` or has it as its second word."""
        result = {}
        while len(result) < count:
            line = process.stdout.readline()
            self.assertNotIn(" error ", line)
            self.assertTrue(line, "a rank's process has ended")
            rank, text = line.rstrip("\n").split(" ", 1)
            if text.startswith(last):
                result[int(rank)] = text
        return result

    def fork(self, process, ranks):
        process.stdin.write(" ".join(map(str, ranks)) + "\n")
        process.stdin.flush()

    def one_try(self, forks, victim):
        for host, process in forks.items():
            self.fork(process, RANKS[host])
        pids = {}
        for host, process in forks.items():
            pids |= self.lines(process, len(RANKS[host]), "pid")
        for host, process in forks.items():
            self.lines(process, len(RANKS[host]), "running")
        os.kill(int(pids[victim].split()[1]), signal.SIGKILL)
        left = [rank for rank in range(4) if rank != victim]
        longest = 0
        for host, process in forks.items():
            here = [rank for rank in RANKS[host] if rank != victim]
            for text in self.lines(process, len(here), "ranks").values():
                group, ms = text.rsplit(" ", 1)
                self.assertEqual(group, f"ranks {', '.join(map(str, left))} of epoch 1")
                longest = max(longest, float(ms))
        for process in forks.values():
            self.assertEqual(process.stdout.readline(), "over\n")
        return longest

    def test_a_machine_joins_one_and_then_there_are_two(self):
        self.coordinate(2, 3)
        here, there = self.start("a", "ranks"), self.start("b", "ranks")
        self.fork(here, [0, 1])
        self.lines(here, 2, "running")
        self.fork(there, [2])
        groups = self.lines(here, 2, "ranks") | self.lines(there, 1, "ranks")
        for group in groups.values():
            self.assertTrue(group.startswith("ranks 0, 1, 2 of epoch 1 "), group)
        for process in (here, there):
            self.assertEqual(process.stdout.readline(), "over\n")

    def test_three_of_four_go_on(self):
        self.coordinate(4)
        forks = {host: self.start(host, "ranks") for host in RANKS}
        times = sorted(self.one_try(forks, victim) for victim in [1, 0, 3, 2, 1] * ((TRIES + 4) // 5))
        tenth = len(times) // 10
        print(
            f"from the notice to the new group, 4 ranks on 3 hosts: {len(times)} tries, "
            f"median {statistics.median(times):.1f} ms, "
            f"10 % {times[tenth]:.1f}, 90 % {times[-1 - tenth]:.1f}, longest {times[-1]:.1f}"
        )


if __name__ == "__main__":
    if reason := hosts.unavailable():
        print(f"skipped: {reason}")
        sys.exit(hosts.SKIPPED)
    unittest.main()
