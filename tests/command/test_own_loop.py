"""Programs with a loop of their own (tests/programs/own_loop.cpp) whose crew changes: they see it in Step and in the
world, and end with the parameters of a run in which nothing happened."""
import os
import pathlib
import re
import signal
import socket
import subprocess

import support

PROGRAM = support.PROGRAMS / "program_own_loop"
SOON = 40  # seconds; a machine with much to do takes its time
STEPS = 60


class Rank:
    """A process whose output is in a file."""

    def __init__(self, test, name, command, **env):
        self.test, self.path = test, test.folder / name
        with open(self.path, "w") as output:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                env={**support.environment(), **{k: str(v) for k, v in env.items()}},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        test.addCleanup(self.end)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def __str__(self):
        return self.path.read_text()

    def until(self, pattern):
        there = lambda: re.search(pattern, str(self), re.M) or self.process.poll() is not None  # noqa: E731
        support.wait_until(there, SOON)
        self.test.assertRegex(str(self), pattern)

    def ends(self, code=0):
        self.process.wait(SOON)
        self.test.assertEqual(self.process.returncode, code, str(self))


class OwnLoop(support.CommandTest):
    def launch(self, *flags, data="own", blows=()):
        return Rank(self, "job", [support.TRIREME, "launch", *flags, "--", PROGRAM, self.folder, data, STEPS, *blows])

    def parameters(self, text):
        return [float(number) for number in re.findall(r"^(?:\[\d+\] )?parameter (\S+)$", text, re.M)]

    def undisturbed(self, data="own"):
        job = Rank(self, "undisturbed", [PROGRAM, self.folder, data, STEPS])
        job.ends()
        return str(job)

    def compare(self, text, wanted, message):
        found, wanted = self.parameters(text), self.parameters(wanted)
        self.assertEqual(len(found), len(wanted), message)
        self.assertTrue(wanted)
        for one, other in zip(found, wanted):
            self.assertAlmostEqual(one, other, delta=1e-12, msg=message)

    def hold(self):
        (self.folder / "wait").touch()

    def let_go(self):
        (self.folder / "wait").unlink()

    def test_it_goes_through_a_death_and_a_join(self):
        wanted = self.undisturbed()
        self.hold()  # until a newcomer is there
        death = (1, "update: bucket", 0, 12, "kill")
        job = self.launch("-n", 2, "--on-failure", "replace", blows=death)
        job.until(r"^\[0\] crew 0,1 from step 0$")
        job.until(r"^\[0\] crew 0 from step 12$")
        for rank in (0, 2):
            job.until(rf"^\[{rank}\] crew 0,2 from step \d+$")
        self.let_go()
        job.ends()
        self.compare(str(job), wanted, str(job))
        self.assertGreater(int(re.search(r"^\[2\] crew 0,2 from step (\d+)$", str(job), re.M)[1]), 12)

    def test_with_a_feed_and_virtual_workers_bits_are_the_same(self):
        wanted = re.search(r"^sha256 (\w+)$", self.undisturbed("feed"), re.M)[1]
        self.hold()
        job = self.launch("-n", 2, "--on-failure", "replace", data="feed", blows=(0, "step: decided", 7, 1, "kill"))
        for rank in (1, 2):
            job.until(rf"^\[{rank}\] crew 1,2 from step \d+$")
        self.let_go()
        job.ends()
        self.assertEqual(re.search(r"sha256 (\w+)$", str(job), re.M)[1], wanted, str(job))

    def test_one_that_was_stopped_in_an_update_writes_nothing_any_more(self):
        """It goes on when the others have gone on without it, at several places of an update, and finds out."""
        wanted = self.undisturbed()
        for place, number in (("update: begun", 0), ("update: bucket", 1), ("journal: entry", 9), ("update: ended", 0)):
            with self.subTest(place=place):
                self.hold()
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", 0))
                    port = probe.getsockname()[1]
                secret = {"TRIREME_TOKEN": "0123456789abcdef"}
                office = [support.TRIREME, "coordinator", "--ranks", 2, "--port", port, "--address", "127.0.0.1"]
                coordinator = Rank(self, "coordinator", [*office, "--workers", "1:2", "--heartbeat-limit", 1], **secret)
                stop = (1, place, number, 1 if place == "journal: entry" else 9, "stop")
                where = {"TRIREME_COORDINATOR": f"127.0.0.1:{port}", "TRIREME_SIZE": 2, **secret}
                command = [PROGRAM, self.folder, "own", STEPS, *stop]
                ranks = [Rank(self, f"rank{rank}", command, TRIREME_RANK=rank, **where) for rank in range(2)]
                ranks[0].until("^crew 0 from step")
                state = pathlib.Path(f"/proc/{ranks[1].process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
                self.assertEqual(state, "T", "it was not stopped")
                os.kill(ranks[1].process.pid, signal.SIGCONT)  # the other one waits in the middle of its steps
                ranks[1].process.wait(SOON)
                self.assertNotEqual(ranks[1].process.returncode, 0)
                self.let_go()
                ranks[0].ends()
                coordinator.ends()
                self.compare(str(ranks[0]), wanted, f"{place}: {ranks[0]}{ranks[1]}")


if __name__ == "__main__":
    support.main()
