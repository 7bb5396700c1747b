"""Several models in one program (tests/programs/several_models.cpp), in every mode: by turns and one after another, and
who is named when it goes wrong."""
import os
import pathlib
import re
import signal
import time

import support

PROGRAM = support.PROGRAMS / "program_several_models"
LOCKSTEP = ["shared", "allreduce", "central", "server", "stale:0"]
OTHERS = ["async", "stale:3", "trylock:0.9", "round-robin", "hogwild", "local:4", "elastic:4,0.3"]
NEEDS_NO_SERVERS = ["shared", "allreduce", "central", "hogwild", "local:4"]


def lines(text):
    """What the program prints: (distance from one process, loss before, loss after) of each line."""
    return [tuple(map(float, found)) for found in re.findall(r"distance (\S+) before (\S+) after (\S+)", text)]


class Models(support.CommandTest):
    def launch(self, mode, what, servers):
        return support.run("launch", "-n", 2, "--servers", servers, "--", PROGRAM, mode, what, cwd=self.folder)

    def trained(self, mode, what, servers, count):
        result = self.launch(mode, what, servers)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        found = lines(result.stdout)
        self.assertEqual(len(found), count, result.stdout)
        return found

    def modes(self):
        for mode in LOCKSTEP + OTHERS:
            if mode not in NEEDS_NO_SERVERS:
                yield mode, 2
            else:
                yield mode, 0
        yield "local:4", 2
        yield "server", 1
        yield "async", 1

    def check(self, mode, distance, before, after):
        if mode in LOCKSTEP:
            self.assertLess(distance, 1e-12)
        self.assertLess(after, 0.5 * before)

    def test_two_models_by_turns(self):
        for mode, servers in self.modes():
            with self.subTest(mode=mode, servers=servers):
                for figures in self.trained(mode, "pair", servers, 1):
                    self.check(mode, *figures)

    def test_three_models_one_after_another(self):
        beside = (("shared", 1), ("diloco:4", 1))  # servers that these modes have no use for
        for mode, servers in (*self.modes(), ("diloco:4", 0), *beside):
            with self.subTest(mode=mode, servers=servers):
                for figures in self.trained(mode, "sequence", servers, 3):
                    self.check(mode, *figures)

    def test_models_in_another_order_are_a_mismatch(self):
        for mode, servers in (("shared", 0), ("server", 2), ("async", 1)):
            with self.subTest(mode=mode):
                result = self.launch(mode, "order", servers)
                self.assertNotEqual(result.returncode, 0)
                self.assertRegex(result.stderr, r"models differ.*rank 0.*\[7,5\].*rank 1.*\[9,4\]")


class InTheSecondModel(support.CommandTest):
    def start(self, mode, what, servers):
        process = support.start("launch", "-n", 2, "--servers", servers, "--", PROGRAM, mode, what, cwd=self.folder)
        self.addCleanup(self.end, process)
        for line in process.stdout:
            if "the second model trains" in line:
                return process
        self.fail("it ended before the second model: " + process.stderr.read())

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()

    def ranks(self, process):
        found = {}
        for pid in support.children(process.pid):
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found.update({int(word[13:]): pid for word in environment if word.startswith(b"TRIREME_RANK=")})
        return found


class Deaths(InTheSecondModel):
    def test_a_worker_killed_in_the_second_model_is_named(self):
        for mode in ("server", "async", "shared"):
            with self.subTest(mode=mode):
                process = self.start(mode, "endless", 0 if mode == "shared" else 2)
                victim = self.ranks(process)[1]
                os.kill(victim, signal.SIGKILL)
                _, text = process.communicate(timeout=support.LIMIT)
                self.assertIn(f"rank 1 (process {victim}) died first: killed by signal 9", text)
                if mode == "server":
                    self.assertRegex(text, rf"worker 1 \(process {victim}\) died|rank 1 \(process {victim}\) died")

    def test_a_worker_that_sleeps_is_named_within_the_timeout(self):
        for mode in ("server", "round-robin"):
            with self.subTest(mode=mode):
                process = self.start(mode, "asleep", 2)
                since = time.monotonic()
                _, text = process.communicate(timeout=support.LIMIT)
                self.assertLess(
                    time.monotonic() - since, 5.5, text
                )  # 3 s, one for those who do not end by themselves, and a busy machine
                self.assertRegex(
                    text,
                    r"worker 1 has not pushed its gradient of '\S+' of model 1 for step \d+|"
                    r"rank 1 \(process \d+, \w+\) did not come",
                )
                self.assertIn("A longer JoinOptions::timeout helps", text)
                self.assertNotIn("--timeout", text)


class Control(InTheSecondModel):
    def test_control_names_the_models(self):
        process = self.start("async", "endless", 1)
        result = support.run("ctl", "status")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn('"model 0":', result.stdout)
        self.assertIn('"model 1":', result.stdout)
        result = support.run("ctl", "delay", 1, 5, "--model", 1)
        self.assertEqual(result.stdout, "server 0, model 1: updates of worker 1 are delayed by 5 ms\n", result.stderr)
        self.assertIn("no model 7", support.run("ctl", "delay", 1, 5, "--model", 7).stderr)
        process.kill()


if __name__ == "__main__":
    support.main()
