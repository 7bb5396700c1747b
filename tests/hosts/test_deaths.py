"""Ranks, hosts and cables that die: every survivor has an error that names who, soon after the heartbeat limit, and
nothing stays behind."""
import os
import pathlib
import signal
import time

import training
from training import support

FAR_HOST = training.ON_HOST.with_name("far_host")
DAMAGED = "uncaught exception: the 3rd shard is damaged"  # tests/programs/throwing.cpp
LIMIT = 2  # seconds of silence that count as death, in these tests
SOON = 2  # promised on top of it
BUSY = 3  # more, for a machine that is busy
LONG_EPOCH = ["train", "mlp:1024,1024", "--data", "synthetic:120000", "--dtype", "f64", "--epochs", 1000, "--batch", 64]
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
        """A survivor says so within that time; the end of everything, on both sides of a cut cable, comes soon
        after."""
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

    # ---- interrupted, where a signal reaches nobody but the launcher ----
    def begin_far(self, hosts, *args, ready):
        """The command on host a; all ranks behind a connection like ssh's."""
        far = f"{FAR_HOST} {self.hosts.prefix} {{host}} {{command}}"
        process = self.start(*args[:1], "--hosts", hosts, "--remote", far, "--heartbeat-limit", LIMIT, *args[1:])
        for line in process.stdout:
            if ready in line:
                return process
        self.fail("it ended early: " + process.stderr.read())

    def test_interrupt_saves_what_takes_long_far_away(self):
        model = self.folder / "far.safetensors"
        process = self.begin_far("b:2", *LONG_EPOCH, "--sync", "local:1000", "--save", model, ready="parameters;")
        since = time.monotonic()
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, out + error)
        self.assertGreater(time.monotonic() - since, 5, "make it slower: this shows nothing")
        self.assertIn("model saved to", out, error)
        self.assertIn("stopping after this update, then saving the model", error)
        self.assertIn("1.weight", support.read_safetensors(model))
        self.assertTrue(support.wait_until(lambda: not self.hosts.pids(), 5))

    def test_a_second_interrupt_ends_everybody_far_away(self):
        process = self.begin_far(
            "b:2",
            *LONG_EPOCH,
            "--sync",
            "local:1000000",
            "--save",
            self.folder / "lost.safetensors",
            ready="parameters;",
        )
        process.send_signal(signal.SIGINT)
        self.assertIn("stopping", process.stderr.readline())
        time.sleep(0.5)  # two that follow at once are one wish
        since = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=20)
        self.assertLess(time.monotonic() - since, 1 + BUSY)
        self.assertRegex(error, r"ended at once: the model is lost, its \d+ updates had not been saved")
        self.assertTrue(support.wait_until(lambda: not self.hosts.pids(), 5), f"still there: {self.hosts.pids()}")

    # ---- who is blamed ----
    def test_who_throws_is_blamed_and_who_ends_because_of_it_never(self):
        for hosts, culprit, host in (("a:2,b:2", 3, "b"), ("a:2,b:2", 1, "a"), ("b:1,a:1", 1, "a")):
            for attempt in range(3):
                with self.subTest(hosts=hosts, culprit=culprit, attempt=attempt):
                    program = [support.PROGRAMS / "program_throwing", culprit, "uncaught"]
                    process = self.start("launch", "--hosts", hosts, "--remote", self.remote(), "--", *program)
                    _, error = process.communicate(timeout=30)
                    self.assertEqual(process.returncode, 128 + signal.SIGABRT, error)
                    ours = [line for line in error.splitlines() if line.startswith("trireme: ")]
                    self.assertRegex("\n".join(ours), rf"rank {culprit} on host {host} .*{DAMAGED}")
                    for line in ours:
                        self.assertIn(f"rank {culprit}", line)


def groups_made(pid):
    """Between hosts: each has four threads (network::Communicator)."""
    names = []
    for thread in pathlib.Path(f"/proc/{pid}/task").glob("*/comm"):
        try:
            names.append(thread.read_text())
        except OSError:  # it has ended
            pass
    return sum(name.startswith("trireme-net") for name in names) // 4


class DeathsWhileGroupsAreMade(training.HostsTest):
    """The job makes six: two of all ranks, two for each axis of the mesh. A rank stops after some of them, the others
    come to where they need it, and it dies. Memory that is freed is filled: who uses it afterwards does not end well.
    """

    HOSTS = 4
    JOB = ("gpt:layers=1,width=32,heads=4,context=16", "--data", "text:/usr/share/games/fortunes/literature",
           "--tensor", 2, "--batch", 8, "--epochs", 1000, "--heartbeat-limit", 2 * LIMIT)  # fmt: skip

    def start_ranks(self):
        """Without a launcher, which would hide how they end; by host."""
        common = {"WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "a"}
        common |= {"MASTER_PORT": "29500", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.perturb=85"}
        return {
            host: self.start("train", *self.JOB, host=host, env={**common, "RANK": str(rank)})
            for rank, host in enumerate(self.hosts.names)
        }

    def kill_after(self, groups, host):
        ranks = self.start_ranks()
        victim = ranks.pop(host)
        self.assertTrue(support.wait_until(lambda: groups_made(victim.pid) >= groups, 30, step=0))
        victim.send_signal(signal.SIGSTOP)
        support.wait_until(lambda: all(groups_made(rank.pid) >= groups for rank in ranks.values()), 0.5)
        time.sleep(0.3)  # until they wait for it
        victim.kill()
        for rank in ranks.values():
            _, error = rank.communicate(timeout=30)
            self.assertGreater(rank.returncode, 0, f"killed by a signal: {error}")
            self.assertIn(f"process {victim.pid}", error)
        self.assertTrue(support.wait_until(lambda: not self.hosts.pids(), 5), f"still there: {self.hosts.pids()}")

    def test_survivors_end_in_good_order(self):
        """Not after an odd number: a rank to which a dead one was to connect waits in Gloo until its deadline."""
        for groups in (2, 4, 6):
            for host in ("b", "d"):
                with self.subTest(groups=groups, host=host):
                    self.kill_after(groups, host)


if __name__ == "__main__":
    training.main()
