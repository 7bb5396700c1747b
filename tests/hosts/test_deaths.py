"""Ranks, hosts and cables that die: every survivor has an error that names who, soon after the heartbeat limit, and nothing stays behind."""
import os
import signal
import time

import training
from training import support

LIMIT = 2  # seconds of silence that count as death, in these tests
SOON = 2   # promised on top of it
BUSY = 3   # more, for a machine that is busy
ENDLESS = ["mlp:64", "--data", "synthetic:2000", "--epochs", 100000, "--batch", 64, "--heartbeat-limit", LIMIT]


class Deaths(training.HostsTest):
    def begin(self, spec="a:2,b:2"):
        """Starts a run that would not end by itself, and waits until it trains."""
        process = self.start_train(spec, *ENDLESS)
        for line in process.stdout:
            if line.startswith("epoch 1 "):
                return process
        self.fail("it ended before the first epoch: " + process.stderr.read())

    def expect_end(self, process, since, within, says):
        """A survivor says so within that time; the end of everything, on both sides of a cut cable, comes soon after."""
        text = process.stderr.readline()
        self.assertLess(time.monotonic() - since, within + BUSY, text)
        _, rest = process.communicate(timeout=LIMIT + within + 20)
        self.assertLess(time.monotonic() - since, within + LIMIT + SOON + BUSY, text + rest)
        self.assertNotEqual(process.returncode, 0)
        for part in says:
            self.assertIn(part, text + rest)
        self.assertTrue(support.wait_until(lambda: not self.hosts.pids(), 5), f"still there: {self.hosts.pids()}")
        return text

    def test_killed_rank(self):
        for host, index, rank in (("a", 0, 0), ("a", 1, 1), ("b", 0, 2), ("b", 1, 3)):
            with self.subTest(rank=rank):
                process = self.begin()
                victim, since = self.workers(host)[index], time.monotonic()
                os.kill(victim, signal.SIGKILL)
                self.expect_end(process, since, SOON, [f"rank {rank}", f"host {host}", str(victim)])

    def test_all_processes_of_a_host_killed(self):
        process, since = self.begin(), time.monotonic()
        for pid in self.hosts.pids("b"):
            os.kill(pid, signal.SIGKILL)
        self.expect_end(process, since, SOON, ["host b"])

    def test_cable_pulled(self):
        process, since = self.begin(), time.monotonic()
        self.hosts.down("b")
        self.addCleanup(self.hosts.up, "b")
        self.expect_end(process, since, LIMIT + SOON, ["host b", "has not been heard of"])

    def test_stopped_rank(self):
        process = self.begin("a:1,b:1")
        victim, since = self.workers("b")[0], time.monotonic()
        os.kill(victim, signal.SIGSTOP)
        self.expect_end(process, since, LIMIT + SOON, ["rank 1", "host b"])

    def test_interrupt_saves_and_leaves_nothing(self):
        model = self.folder / "kept.safetensors"
        process = self.start_train("a:1,b:1", *ENDLESS, "--save", model)
        for line in process.stdout:
            if line.startswith("epoch 1 "):
                break
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130, out + error)
        self.assertTrue(model.exists(), out + error)
        self.assertTrue(support.wait_until(lambda: not self.hosts.pids(), 5))


if __name__ == "__main__":
    training.main()
