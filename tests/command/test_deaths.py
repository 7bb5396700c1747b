"""Workers and commands that die, hang or are interrupted: the end comes soon, says who and why, and leaves nothing
behind."""
import os
import signal
import sys
import time

import support

SOON = 4  # seconds; promised are 2, the rest is for a busy machine
DAMAGED = "uncaught exception: the 3rd shard is damaged"  # tests/programs/throwing.cpp
ENDLESS = ["mlp:64", "--data", "synthetic:2000", "--epochs", 100000, "--batch", 64]


class Deaths(support.CommandTest):
    def setUp(self):
        super().setUp()
        self.segments = set(os.listdir("/dev/shm"))

    def begin(self, *args, workers, cwd=None):
        """Starts a run that would not end by itself; returns (process, pids of its workers)."""
        process = support.start("train", *ENDLESS, "--workers", workers, *args, cwd=cwd or self.folder)
        self.addCleanup(self.end, process)
        self.assertTrue(
            support.wait_until(lambda: len(support.children(process.pid)) == workers, 10), "the workers did not start"
        )
        return process, support.children(process.pid)

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()

    def wait_for_training(self, process):
        for line in process.stdout:
            if line.startswith("epoch 1 "):
                return
        self.fail("it ended before the first epoch: " + process.stderr.read())

    def expect_end(self, process, pids, since, says, within=SOON):
        """It ends soon, with an error that says `says` and without leftovers; returns stderr."""
        _, text = process.communicate(timeout=within + 10)
        self.assertLess(time.monotonic() - since, within, text)
        self.assertNotEqual(process.returncode, 0)
        for part in says:
            self.assertIn(part, text)
        self.expect_nothing_left(pids)
        return text

    def expect_nothing_left(self, pids):
        self.assertTrue(support.wait_until(lambda: not any(map(support.alive, pids)), 2), "a worker is still there")
        self.assertEqual(set(os.listdir("/dev/shm")) - self.segments, set())

    # ---- kill -9 ----
    def test_killed_in_training(self):
        for workers, rank in ((1, 0), (2, 0), (2, 1), (3, 1)):
            with self.subTest(workers=workers, rank=rank):
                process, pids = self.begin(workers=workers)
                self.wait_for_training(process)
                since = time.monotonic()
                os.kill(pids[rank], signal.SIGKILL)
                text = self.expect_end(process, pids, since, [f"rank {rank} (process {pids[rank]})", "SIGKILL"])
                self.assertEqual(process.returncode, 128 + signal.SIGKILL)
                self.assertEqual(text.count("died first"), 1, text)

    def test_killed_right_after_the_start(self):
        for delay in (0, 0.15, 0.4, 0.8):  # before main(), while libraries load, while ranks meet, while data is read
            with self.subTest(delay=delay):
                process, pids = self.begin(workers=3)
                time.sleep(delay)
                since = time.monotonic()
                os.kill(pids[2], signal.SIGKILL)
                self.expect_end(process, pids, since, ["rank 2", "SIGKILL"])

    def test_killed_with_other_exchanges(self):
        for sync in ("allreduce", "central"):
            with self.subTest(sync=sync):
                process, pids = self.begin("--sync", sync, workers=2)
                self.wait_for_training(process)
                since = time.monotonic()
                os.kill(pids[1], signal.SIGKILL)
                self.expect_end(process, pids, since, ["rank 1", "SIGKILL"])

    def test_another_signal_is_named(self):
        process, pids = self.begin(workers=2)
        self.wait_for_training(process)
        since = time.monotonic()
        os.kill(pids[1], signal.SIGSEGV)
        self.expect_end(process, pids, since, ["rank 1", "SIGSEGV"])

    # ---- stopped ----
    def test_stopped_past_the_deadline(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                process, pids = self.begin("--timeout", 2, workers=2)
                self.wait_for_training(process)
                since = time.monotonic()
                os.kill(pids[rank], signal.SIGSTOP)
                self.expect_end(process, pids, since, [f"rank {rank}", "stopped"], within=2 + SOON)

    def test_stopped_for_a_moment_is_no_death(self):
        process, pids = self.begin("--timeout", 20, workers=2)
        self.wait_for_training(process)
        os.kill(pids[1], signal.SIGSTOP)
        time.sleep(0.7)
        os.kill(pids[1], signal.SIGCONT)
        self.assertTrue(process.stdout.readline().startswith("epoch "))
        self.assertIsNone(process.poll())

    # ---- interrupted ----
    def test_interrupt_saves_the_model(self):
        for workers in (1, 2):
            with self.subTest(workers=workers):
                model, report = self.folder / f"model-{workers}.safetensors", self.folder / f"report-{workers}.json"
                process, pids = self.begin("--save", model, "--report", report, workers=workers)
                self.wait_for_training(process)
                since = time.monotonic()
                process.send_signal(signal.SIGINT)
                out, text = process.communicate(timeout=20)
                self.assertLess(time.monotonic() - since, 6)
                self.assertEqual(process.returncode, 130, text)
                self.assertEqual(text.count("\n"), 1, text)  # what happens, and nothing else
                self.assertIn("stopped on request", out)
                self.assertIn("1.weight", support.read_safetensors(model))
                self.assertIn('"stopped": true', report.read_text())
                self.expect_nothing_left(pids)

    def test_interrupt_at_the_start(self):
        process, pids = self.begin(workers=2)
        time.sleep(0.2)
        since = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        self.assertLess(time.monotonic() - since, 6)
        self.assertEqual(process.returncode, 130)
        self.expect_nothing_left(pids)

    def test_terminated(self):
        process, pids = self.begin(workers=2)
        self.wait_for_training(process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.expect_nothing_left(pids)

    def test_killed_command_takes_its_workers_along(self):
        process, pids = self.begin(workers=3)
        self.wait_for_training(process)
        process.kill()
        process.wait()
        self.expect_nothing_left(pids)


class Launch(support.CommandTest):
    def python(self, text, ranks=2):
        script = self.folder / "program.py"
        script.write_text("import os, sys, time\nrank = int(os.environ['RANK'])\n" + text)
        return support.run("launch", "-n", ranks, "--", sys.executable, script, "--flag", "-n", "7", "--")

    def test_variables_arguments_and_prefixes(self):
        result = self.python(
            "print(*[os.environ[n] for n in ('WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', "
            "'TRIREME_RANK', 'TRIREME_SIZE')], "
            "int(os.environ['MASTER_PORT']) > 0, sys.argv[1:])\nprint('to stderr', file=sys.stderr)",
            ranks=3,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        arguments = "['--flag', '-n', '7', '--']"
        self.assertEqual(
            sorted(result.stdout.splitlines()), [f"[{r}] 3 {r} 3 127.0.0.1 {r} 3 True {arguments}" for r in range(3)]
        )
        self.assertEqual(sorted(result.stderr.splitlines()), [f"[{r}] to stderr" for r in range(3)])

    def test_without_dashes(self):
        result = support.run("launch", "-n", 2, "echo", "hello")
        self.assertEqual((result.returncode, sorted(result.stdout.splitlines())), (0, ["[0] hello", "[1] hello"]))

    def test_exit_code_and_last_lines_of_the_first_failed(self):
        started = time.monotonic()
        result = self.python(
            "if rank == 1:\n  print('first line')\n"
            "  print('my last words', file=sys.stderr)\n  sys.exit(7)\ntime.sleep(30)"
        )
        self.assertEqual(result.returncode, 7)
        self.assertLess(time.monotonic() - started, SOON + 1)
        self.assertRegex(result.stderr, r"trireme: rank 1 \(process \d+\) died first: exit code 7")
        explained = result.stderr.split("its last lines:")[1]
        self.assertIn("  [1] first line\n", explained)
        self.assertIn("  [1] my last words\n", explained)

    def test_killed_rank(self):
        result = self.python("if rank == 0: os.kill(os.getpid(), 11)\ntime.sleep(30)")
        self.assertEqual(result.returncode, 128 + 11)
        self.assertIn("rank 0", result.stderr)
        self.assertIn("SIGSEGV", result.stderr)

    def test_rank_that_ignores_the_end(self):
        started = time.monotonic()
        result = self.python(
            "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "if rank == 1: time.sleep(0.3); sys.exit(3)\ntime.sleep(30)"
        )
        self.assertEqual(result.returncode, 3)
        self.assertLess(time.monotonic() - started, SOON + 1)

    # ---- who is blamed ----
    def throwing(self, culprit, way, ranks=2, *flags):
        return support.run("launch", "-n", ranks, *flags, "--", support.PROGRAMS / "program_throwing", culprit, way)

    def test_who_throws_is_blamed_and_who_ends_because_of_it_never(self):
        for attempt in range(10):
            with self.subTest(attempt=attempt):
                text = self.throwing(1, "uncaught").stderr
                self.assertRegex(text, rf"trireme: rank 1 \(process \d+\) died first: {DAMAGED} \(after")
                self.assertRegex(
                    text, rf"\[0\] +what\(\):  rank 1 \(process \d+\) died of an {DAMAGED}; rank 0 needed it"
                )

    def test_so_is_one_of_many_however_it_ends(self):
        for culprit, way, words in (
            (2, "uncaught", DAMAGED),
            (1, "caught", "exit code 1"),
            (3, "exit", "exit code 3"),
            (2, "before", "uncaught exception: no such file: weights.bin"),
        ):
            with self.subTest(culprit=culprit, way=way):
                text = self.throwing(culprit, way, 4).stderr
                self.assertRegex(text, rf"trireme: rank {culprit} \(process \d+\) died first: {words}")

    def test_a_stack_of_libtorch_is_no_part_of_the_cause(self):
        text = self.throwing(1, "torch").stderr
        self.assertRegex(text, rf"trireme: rank 1 \(process \d+\) died first: {DAMAGED} \(after")
        self.assertRegex(text, rf"died of an {DAMAGED}; rank 0 needed it")

    def test_a_python_traceback_is_the_cause(self):
        result = self.python("if rank == 1: raise ValueError('no such shard')\ntime.sleep(30)")
        self.assertEqual(result.returncode, 1)
        words = "died first: uncaught exception: ValueError: no such shard"
        self.assertRegex(result.stderr, rf"rank 1 \(process \d+\) {words}")

    def test_nothing_to_start(self):
        self.refused("launch", "-n", 2, says=["nothing to launch"], code=2)
        self.refused("launch", "-n", 2, "--", says=["nothing to launch"], code=2)
        self.refused("launch", "-n", 0, "--", "true", says=["ranks", "0"], code=2)
        self.refused("launch", "-n", "x", "--", "true", says=["x"], code=2)

    def test_program_not_found(self):
        result = support.run("launch", "-n", 2, "--", "./no-such-program")
        self.assertEqual(result.returncode, 127)
        self.assertIn("cannot start ./no-such-program: No such file or directory", result.stderr)


if __name__ == "__main__":
    support.main()
