"""Real training whose workers die, come, go and stop: `trireme train --workers LEAST:MOST` on one machine."""
import json
import os
import signal
import threading

import support

SAMPLES, BATCH = 6000, 50
NET = ("mlp:64", "--data", f"synthetic:{SAMPLES}", "--batch", BATCH, "--seed", 5)
SOON = 40  # seconds; a machine with much to do takes its time


class Training:
    """A run, and what it has said so far."""

    def __init__(self, test, *args):
        self.test, self.report = test, test.folder / "report.json"
        self.process = support.start("train", *NET, *args, "--report", self.report, "--progress", "plain")
        test.addCleanup(self.end)
        self.lines = []
        streams = (self.process.stdout, self.process.stderr)
        self.readers = [threading.Thread(target=self.read, args=[stream]) for stream in streams]
        for reader in self.readers:
            reader.start()

    def read(self, stream):
        for line in stream:
            self.lines.append(line.rstrip("\n"))
        stream.close()

    def end(self):
        self.process.kill()
        self.process.wait()
        for reader in self.readers:
            reader.join()

    def __str__(self):
        return "\n".join(self.lines)

    def until(self, condition, what):
        support.wait_until(lambda: condition() or self.process.poll() is not None, SOON)
        self.test.assertTrue(condition(), f"{what}:\n{self}")

    def until_said(self, text, times=1):
        self.until(lambda: sum(text in line for line in list(self.lines)) >= times, f"'{text}' was not said")

    def ctl(self, *words):
        lines = map(json.loads, support.run("ctl", "status").stdout.splitlines())
        own = [line["job"] for line in lines if line["member"] == "launcher" and line["process"] == self.process.pid]
        return support.run("ctl", words[0], "--job", own[0], *words[1:])

    def crew(self):
        """Ranks that row now."""
        lines = map(json.loads, self.ctl("status").stdout.splitlines())
        return next((line["ranks"] for line in lines if line["member"] == "crew"), [])

    def stop(self):
        """As Ctrl-C does; returns the report."""
        self.process.send_signal(signal.SIGINT)
        return self.finish(130)

    def finish(self, code=0):
        self.process.wait(90)
        for reader in self.readers:
            reader.join()
        self.test.assertEqual(self.process.returncode, code, str(self))
        return json.loads(self.report.read_text())


class ElasticTraining(support.CommandTest):
    def each_once(self, report, least=1):
        """Of every epoch that came to its end."""
        epochs = [epoch for epoch in report["epochs"] if "samples" in epoch]
        self.assertGreaterEqual(len(epochs), least, report["epochs"])
        for epoch in epochs:
            self.assertEqual((epoch["samples"], epoch["each_once"]), (SAMPLES, True), epoch)
        return epochs

    def test_workers_die_come_and_go(self):
        run = Training(self, "--workers", "1:3", "--epochs", 100000, "--heartbeat-limit", 20)
        run.until_said("epoch 1: ")
        first = support.children(run.process.pid)
        self.assertIn(len(first), (1, 2, 3), "one a core, at most three")
        run.ctl("scale", "3")
        run.until(lambda: len(run.crew()) == 3, "no crew of three")
        os.kill(support.children(run.process.pid)[0], signal.SIGKILL)
        run.until_said("1 worker lost")
        run.until(lambda: len(run.crew()) == 3 and 0 not in run.crew(), "nobody came in its place")
        gone = run.crew()[0]
        run.ctl("drain", str(gone))
        run.until(lambda: len(run.crew()) == 2 and gone not in run.crew(), "it was not sent away")
        said = sum(": 6000 of 6000 samples, each once" in line for line in list(run.lines))
        run.until_said(": 6000 of 6000 samples, each once", said + 2)
        epochs = self.each_once(run.stop(), 3)
        self.assertGreaterEqual(sum(epoch.get("joined", 0) for epoch in epochs), 1)
        self.assertGreaterEqual(sum(epoch.get("lost", 0) for epoch in epochs), 1)
        self.assertFalse(list(filter(support.alive, first)))

    def test_a_stopped_worker_is_given_up_and_its_checkpoints_go_on(self):
        runs = self.folder / "runs"
        flags = ("--workers", 2, "--on-failure", "replace", "--heartbeat-limit", 2, "--checkpoint", runs)
        run = Training(self, *flags, "--checkpoint-every", "1epoch", "--epochs", 100000)
        run.until_said("epoch 2: ")
        stopped = support.children(run.process.pid)[0]  # who writes the checkpoints
        os.kill(stopped, signal.SIGSTOP)
        run.until_said("given up, as nothing was heard of it, and ended. Another one starts in its place")
        self.assertFalse(support.alive(stopped))
        run.until(lambda: len(run.crew()) == 2 and 0 not in run.crew(), "nobody came in its place")
        said = sum(": 6000 of 6000 samples, each once" in line for line in list(run.lines))
        run.until_said(": 6000 of 6000 samples, each once", said + 2)
        report = run.stop()
        self.each_once(report, 3)
        ended = report["updates"]
        more = ("--epochs", 100000, "--max-steps", ended + 10)
        again = self.train(*NET, "--workers", 1, "--checkpoint", runs, "--resume", "latest", *more)
        self.assertEqual(again["updates"], ended + 10)

    def test_the_bits_are_those_of_a_run_in_which_nothing_happened(self):
        virtual = ("--virtual", 4, "--epochs", 40)
        calm = self.train(*NET, *virtual, "--workers", 1)
        run = Training(self, *virtual, "--workers", "1:3")
        run.until_said("epoch 1: ")
        os.kill(support.children(run.process.pid)[-1], signal.SIGKILL)
        run.until(lambda: len(run.crew()) == 2 and 1 not in run.crew(), "nobody came in its place")
        os.kill(support.children(run.process.pid)[0], signal.SIGKILL)
        run.until_said("worker lost", 2)
        report = run.finish()
        self.assertEqual(report["sha256"], calm["sha256"], str(run))
        for epoch, wanted in zip(report["epochs"], calm["epochs"], strict=True):
            self.assertEqual(epoch["test_loss"], wanted["test_loss"])
        self.each_once(report, 40)

    def all_killed(self, *flags):
        run = Training(self, *flags, "--workers", 2, "--on-failure", "replace", "--virtual", 2, "--epochs", 30)
        run.until_said("epoch 2: ")
        for pid in support.children(run.process.pid):
            os.kill(pid, signal.SIGKILL)
        return run

    def test_all_of_a_crew_die_and_others_go_on_from_a_checkpoint(self):
        calm = self.train(*NET, "--virtual", 2, "--epochs", 30, "--workers", 1)
        run = self.all_killed("--checkpoint", self.folder / "runs", "--checkpoint-every", "1epoch")
        report = run.finish()
        self.assertEqual((report["restarts"], report["sha256"]), (1, calm["sha256"]), str(run))

    def test_all_of_a_crew_die_and_nothing_was_saved(self):
        run = self.all_killed()
        run.until_said("nobody is left of the crew before, and its state with it: resume from a checkpoint")
        self.assertNotEqual(run.process.wait(SOON), 0, str(run))

    def test_with_rolling_back_all_start_again(self):
        args = (*NET, "--workers", "1:2", "--on-nan", "rollback", "--checkpoint", self.folder, "--spares", 1)
        self.refused("train", *args, says=["--spares has no effect with --on-nan rollback"], code=2)


if __name__ == "__main__":
    support.main()
