"""Real training whose workers die, come, go and stop: `trireme train --workers LEAST:MOST` on one machine."""
import json
import os
import signal
import threading
import time

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

    def crew_line(self):
        lines = map(json.loads, self.ctl("status").stdout.splitlines())
        return next((line for line in lines if line["member"] == "crew"), {})

    def crew(self):
        """Ranks that row now."""
        return self.crew_line().get("ranks", [])

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
        run = self.all_killed("--checkpoint", self.folder / "runs", "--checkpoint-every", "37steps")
        report = run.finish()
        self.assertEqual((report["restarts"], report["sha256"]), (1, calm["sha256"]), str(run))
        self.assertIn("goes on with", str(run))
        self.each_once(report, 30)

    def test_each_sample_once_where_the_crew_stays_and_is_resumed(self):
        for sync in ("shared", "allreduce", "central"):
            with self.subTest(sync=sync):
                flags = (*NET, "--sync", sync, "--checkpoint", self.folder / sync, "--checkpoint-every", "37steps")
                first = self.train(*flags, "--workers", 2, "--epochs", 3, "--max-steps", 150)
                self.assertEqual(len(self.each_once(first)), 1, "the second epoch was not trained to its end")
                again = self.train(*flags, "--workers", 3, "--epochs", 3, "--resume", "latest")
                self.assertEqual(len(self.each_once(again, 3)), 3)

    def test_samples_that_are_left_out_are_no_loss(self):
        support.write_bad_csv(self.folder / "bad.csv")
        flags = ("mlp:8", "--data", "bad.csv", "--label", "kind", "--normalize", "no", "--test", 0, "--batch", 20,
                 "--optimizer", "sgd", "--lr", 0.1, "--loss", "mse", "--epochs", 2)  # fmt: skip
        back = ("--on-nan", "rollback", "--checkpoint", self.folder / "kept", "--checkpoint-every", "3steps")
        skip = ("--on-nan", "skip")
        for policy in (("--workers", 2, *skip), ("--workers", 2, *back), ("--workers", "2:2", *skip)):
            with self.subTest(policy=policy):
                for epoch in self.train(*flags, *policy)["epochs"]:
                    self.assertEqual((epoch["samples"], epoch["left_out"], epoch["each_once"]), (380, 20, True), epoch)

    def test_all_of_a_crew_die_and_nothing_was_saved(self):
        run = self.all_killed()
        run.until_said("nobody is left of the crew before, and its state with it: resume from a checkpoint")
        self.assertNotEqual(run.process.wait(SOON), 0, str(run))

    def test_too_few_save_what_they_have_and_end(self):
        runs = self.folder / "runs"
        flags = ("--workers", "2:2", "--on-failure", "continue", "--checkpoint", runs)
        run = Training(self, *flags, "--rejoin-timeout", "1s", "--epochs", 100000)
        run.until_said("epoch 1: ")
        os.kill(support.children(run.process.pid)[0], signal.SIGKILL)
        self.too_few(run, runs, "Nobody came in their place within 1 s", 137)
        late = Training(self, *flags, "--rejoin-timeout", "10m", "--epochs", 100000, "--resume", "latest")
        late.until_said("each once")
        os.kill(support.children(late.process.pid)[1], signal.SIGKILL)
        late.until(lambda: late.crew_line().get("waiting"), "the crew is not held")
        late.process.send_signal(signal.SIGINT)
        self.too_few(late, runs, "", 130)

    def too_few(self, run, runs, says, code):
        """One of two was lost. The report's steps are in the newest checkpoint, and another run goes on there."""
        report = run.finish(code)
        self.assertIn(says, str(run))
        self.assertIn("stopped, as too few workers are left, after", str(run))
        self.assertIn("--resume latest", str(run))
        done = report["updates"]
        more = ("--epochs", 100000, "--max-steps", done + 1)
        again = self.train(*NET, "--workers", 2, "--checkpoint", runs, "--resume", "latest", *more)
        self.assertEqual(again["updates"], done + 1, "the last state was not saved")
        self.each_once(again)

    def test_a_worker_that_is_killed_at_its_start(self):
        """At ten moments from its start to its first steps."""
        flags = ("--virtual", 2, "--epochs", 10)
        calm = self.train(*NET, *flags, "--workers", 1)
        for delay in range(10):
            with self.subTest(delay=delay):
                run = Training(self, *flags, "--workers", 2, "--on-failure", "replace")
                run.until(lambda: len(support.children(run.process.pid)) == 2, "no workers")
                time.sleep(delay * 0.15)
                os.kill(support.children(run.process.pid)[delay % 2], signal.SIGKILL)
                report = run.finish()
                self.each_once(report, 10)
                self.assertEqual(report["sha256"], calm["sha256"], str(run))

    def test_silence_is_found_before_others_give_up(self):
        few = (*NET, "--workers", "1:2", "--heartbeat-limit")
        for flags, says in (((90,), "90 is not less than --timeout 60"),
                            ((20, "--step-timeout", "20s"), "20 is not less than --step-timeout 20")):  # fmt: skip
            self.refused("train", *few, *flags, says=["--heartbeat-limit " + says], code=2)
        run = Training(self, "--workers", 2, "--on-failure", "replace", "--step-timeout", "6s", "--epochs", 100000)
        run.until_said("epoch 1: ")
        os.kill(support.children(run.process.pid)[1], signal.SIGSTOP)
        run.until_said("given up, as nothing was heard of it")
        run.until_said("1 worker lost")
        self.each_once(run.stop())

    def test_with_rolling_back_all_start_again(self):
        args = (*NET, "--workers", "1:2", "--on-nan", "rollback", "--checkpoint", self.folder, "--spares", 1)
        self.refused("train", *args, says=["--spares has no effect with --on-nan rollback"], code=2)


if __name__ == "__main__":
    support.main()
