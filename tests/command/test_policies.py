"""What ends a run early, what becomes of a NaN, and how long a step may take: real runs of the command."""
import json
import os
import pathlib
import re
import signal
import time

import support

SMALL = ("mlp:16", "--data", "synthetic:2000", "--batch", 50, "--seed", 3)


class Policies(support.CommandTest):
    def decisions(self, *args, **settings):
        """A run that must succeed; returns (its decisions, its report, stdout)."""
        path = self.folder / f"report-{time.monotonic_ns()}.json"
        result = support.run("train", *args, "--report", path, cwd=self.folder, **settings)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        report = json.loads(path.read_text())
        for decision in report["decisions"]:
            self.assertEqual(list(decision), ["step", "policy", "decision", "reason"])
        return report["decisions"], report, result.stdout

    def failing(self, *args, says, **settings):
        """A run that must fail and say so; returns the decisions of its report, which has the error."""
        path = self.folder / f"report-{time.monotonic_ns()}.json"
        text = self.refused("train", *args, "--report", path, says=says, **settings)
        report = json.loads(path.read_text())
        self.assertIn(report["error"].split(". ")[0], " ".join(text.split()))
        self.assertEqual(report["sha256"], "")
        return [(d["step"], d["policy"], d["decision"], d["reason"]) for d in report["decisions"]]

    def expect_stop(self, policy, decisions, out):
        """The last decision is to stop, for this reason, and the log has it."""
        self.assertEqual(len(decisions), 1, decisions)
        self.assertEqual((decisions[0]["policy"], decisions[0]["decision"]), (policy, "stop"))
        self.assertIn(f"({policy}): {decisions[0]['reason']}\n", out)
        self.assertRegex(out, r"stopping after \d+ updates? ")
        self.assertIn("done: ", out)
        return decisions[0]

    # ---- stop ----
    def test_accuracy(self):
        for flags in (["--workers", 1], ["--workers", 2], ["--workers", 2, "--sync", "async"]):
            with self.subTest(flags=flags):
                found, report, out = self.decisions(*SMALL, *flags, "--epochs", 30, "--stop", "accuracy=0.9")
                decision = self.expect_stop("accuracy", found, out)
                accuracies = [epoch["test_accuracy"] for epoch in report["epochs"]]
                self.assertGreaterEqual(accuracies[-1], 0.9)
                self.assertTrue(all(accuracy < 0.9 for accuracy in accuracies[:-1]), accuracies)
                self.assertLess(len(accuracies), 30)
                self.assertEqual(decision["step"], len(accuracies) * 40)
                self.assertFalse(report["stopped"])

    def test_loss(self):
        found, report, out = self.decisions(*SMALL, "--workers", 2, "--epochs", 30, "--stop", "loss=0.2")
        self.expect_stop("loss", found, out)
        losses = [epoch["test_loss"] for epoch in report["epochs"]]
        self.assertLessEqual(losses[-1], 0.2)
        self.assertTrue(all(loss > 0.2 for loss in losses[:-1]), losses)

    def test_time(self):
        for flags in (["--workers", 1], ["--workers", 2], ["--workers", 2, "--sync", "async"]):
            with self.subTest(flags=flags):
                model = self.folder / "timed.safetensors"
                found, report, out = self.decisions(
                    *SMALL, *flags, "--epochs", 1000000, "--stop", "time=500ms", "--save", model
                )
                decision = self.expect_stop("time", found, out)
                self.assertGreater(decision["step"], 0)
                self.assertIn("test_accuracy", report["epochs"][-1])  # evaluated as at any end
                self.assertFalse(report["stopped"])
                self.assertTrue(model.exists())

    def test_steps_are_max_steps(self):
        same = ("--workers", 2, "--epochs", 5, "--lr-schedule", "cosine")
        found, stopped, out = self.decisions(*SMALL, *same, "--stop", "steps=70")
        self.expect_stop("steps", found, out)
        self.assertEqual(found[0]["step"], 70)
        self.assertEqual(stopped["updates"], 70)
        _, limited, _ = self.decisions(*SMALL, *same, "--max-steps", 70)
        self.assertEqual(stopped["sha256"], limited["sha256"])  # the schedule ends there, too

    def test_plateau(self):
        # A learning rate of almost nothing: no epoch is better than the first.
        found, report, out = self.decisions(
            *SMALL, "--workers", 2, "--epochs", 30, "--lr", "1e-9", "--stop", "plateau=3"
        )
        decision = self.expect_stop("plateau", found, out)
        self.assertEqual(len(report["epochs"]), 4)
        self.assertIn("for 3 epochs", decision["reason"])

    def test_the_first_of_several(self):
        found, report, out = self.decisions(
            *SMALL, "--epochs", 30, "--stop", "time=1h", "--stop", "loss=1e-9", "--stop", "steps=45", "--stop", "nan"
        )
        self.expect_stop("steps", found, out)
        self.assertEqual(report["updates"], 45)

    def test_recipes_have_lists(self):
        recipe = self.folder / "small.toml"
        recipe.write_text(
            'model = "mlp:16"\ndata = "synthetic:2000"\nbatch = 50\nworkers = 1\nstop = ["time=1h", "steps=45"]\n'
        )
        found, report, out = self.decisions(recipe)
        self.expect_stop("steps", found, out)
        found, report, out = self.decisions(recipe, "--stop", "steps=30")  # replaces the recipe's
        self.assertEqual(report["updates"], 30)
        recipe.write_text('model = "mlp:16"\ndata = "synthetic:2000"\nstop = ["steps=45", "stepz=3"]\n')
        self.refused("train", recipe, says=["unknown policy 'stepz' (did you mean 'steps'?)"])
        recipe.write_text('model = "mlp:16"\ndata = "synthetic:2000"\nlr = [0.1, 0.2]\n')
        self.refused("train", recipe, says=["line 3", "'lr' must be a text, a number, true or false"])

    def test_without_policies_there_are_no_decisions(self):
        found, _, out = self.decisions(*SMALL, "--workers", 1, "--epochs", 1)
        self.assertEqual(found, [])
        self.assertNotIn("stopping", out)

    # ---- NaN ----
    def csv(self, rows=400, huge=()):
        """Two classes, easily told apart; some cells are far beyond the range of a float."""
        path = self.folder / f"cells-{time.monotonic_ns()}.csv"
        lines = ["a,b,kind"]
        for i in range(rows):
            cell = "1e38" if i in huge else f"{(i * 37 % 100) / 50 - 1:.3f}"
            lines.append(f"{cell},{(i * 53 % 100) / 50 - 1:.3f},{i % 2}")
        path.write_text("\n".join(lines) + "\n")
        return path

    def on_nan(self, path, *args):
        return (
            *("mlp:8", "--data", path, "--label", "kind", "--normalize", "no", "--test", 0, "--batch", 20),
            *("--no-shuffle", "--optimizer", "sgd", "--lr", 0.1, "--loss", "mse", *args),
        )

    def test_nan_stops(self):
        for flags in ([], ["--stop", "nan"], ["--on-nan", "stop"]):
            with self.subTest(flags=flags):
                args = self.on_nan(self.csv(huge=[205]), "--workers", 2, "--epochs", 2, *flags)
                ((step, policy, decision, reason),) = self.failing(*args, says=["became", "at update 11"], code=1)
                self.assertEqual((step, policy, decision), (10, "nan", "stop"))
                self.assertIn("at update 11", reason)

    def test_nan_is_skipped(self):
        clean = self.csv()
        lines = clean.read_text().splitlines()
        without = self.folder / "without.csv"
        without.write_text("\n".join(lines[:201] + lines[221:]) + "\n")
        for sync, workers in (("shared", 1), ("shared", 2), ("allreduce", 2), ("central", 2), ("server", 2)):
            with self.subTest(sync=sync, workers=workers):
                flags = ("--workers", workers, "--sync", sync, "--epochs", 1, "--on-nan", "skip")
                bad = self.csv(huge=[205])
                found, report, out = self.decisions(*self.on_nan(bad, *flags))
                self.assertEqual(len(found), 1, found)
                self.assertEqual((found[0]["step"], found[0]["policy"], found[0]["decision"]), (11, "nan", "skip"))
                self.assertIn("at update 11", found[0]["reason"])
                self.assertIn(f"update skipped (1 so far): {found[0]['reason']}\n", out)
                self.assertEqual(report["updates"], 19)
                for rank in range(workers):
                    self.assertEqual(report["metrics"][f"rank {rank}"]["skipped_updates"], 1)
                _, wanted, _ = self.decisions(*self.on_nan(without, *flags))
                self.assertEqual(wanted["updates"], 19)
                self.assertEqual(report["sha256"], wanted["sha256"])

    def test_too_many_in_a_row_end_the_run(self):
        bad = self.csv(huge=range(100, 400))
        for sync in ("shared", "async"):
            with self.subTest(sync=sync):
                args = self.on_nan(bad, "--workers", 1, "--sync", sync, "--epochs", 1, "--on-nan", "skip")
                says = ["10 updates in a row were skipped; of the last, ", "at update 6"]
                found = self.failing(*args, says=says, code=1)
                self.assertEqual([d[:3] for d in found[:-1]], [(step, "nan", "skip") for step in range(6, 15)])
                self.assertEqual(found[-1][:3], (15, "nan", "stop"))
                self.assertIn("10 updates in a row were skipped", found[-1][3])

    def test_rollbacks_come_to_an_end(self):
        args = self.on_nan(self.csv(huge=[105, 165, 225, 285]), "--workers", 2, "--epochs", 1, "--on-nan", "rollback")
        found = self.failing(*args, "--checkpoint", "runs", "--checkpoint-every", "3steps",
                             says=["after going back 3 times"], code=1)
        went_back = [(step, "nan", "rollback") for step in (5, 8, 11)]
        self.assertEqual([d[:3] for d in found], [*went_back, (14, "nan", "stop")])
        self.assertIn("after going back 3 times", found[-1][3])

    def test_nothing_to_go_back_to(self):
        args = self.on_nan(self.csv(huge=[105]), "--workers", 2, "--epochs", 1, "--on-nan", "rollback")
        found = self.failing(*args, "--checkpoint", "none", says=["there is no checkpoint yet to go back to"], code=1)
        self.assertEqual([d[:3] for d in found], [(5, "nan", "stop")])

    def test_lines_grow_rare(self):
        bad = self.csv(huge=range(5, 400, 40))  # every second batch
        args = self.on_nan(bad, "--workers", 1, "--epochs", 3, "--on-nan", "skip")
        found, report, out = self.decisions(*args)
        self.assertEqual(len(found), 30)
        self.assertEqual(report["metrics"]["rank 0"]["skipped_updates"], 30)
        self.assertEqual(re.findall(r"update skipped \((\d+) so far\)", out), ["1", "2", "3", "4", "8", "16"])

    # ---- a step that hangs ----
    def begin(self, *args):
        """A run of two workers that does nothing but steps, endlessly; returns (process, the workers' pids)."""
        data = ("mlp:16", "--data", self.csv(), "--label", "kind", "--test", 0, "--batch", 20)
        process = support.start("train", *data, "--workers", 2, "--epochs", 1000000, *args, cwd=self.folder)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        for line in process.stdout:
            if line.startswith("epoch 1 "):
                break
        else:
            self.fail(process.stderr.read())
        command = lambda pid: pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()  # noqa: E731
        workers = [pid for pid in support.children(process.pid) if b"trireme-worker" in command(pid)]
        self.assertEqual(len(workers), 2)
        return process, workers

    def test_a_stopped_worker_is_found_within_the_limit_of_a_step(self):
        rank = r"rank 1 \(process \d+, stopped .*\) did not come to .* within 1 s; rank 0 gave up waiting"
        # as a server says it; between epochs, workers wait for each other
        worker = r"worker 1.*: worker 0 has waited 1 s for"
        either = f"{rank}|{worker}"
        for sync, says in {"shared": rank, "server": either, "async": rank, "stale:1": either}.items():
            with self.subTest(sync=sync):
                report = self.folder / f"late-{sync.split(':')[0]}.json"
                flags = ("--sync", sync, "--step-timeout", "1s", "--timeout", "5m")
                process, workers = self.begin(*flags, "--report", report)
                os.kill(workers[1], signal.SIGSTOP)
                _, text = process.communicate(timeout=40)  # far below --timeout
                self.assertNotEqual(process.returncode, 0)
                self.assertRegex(text, says)
                self.assertIn("A longer --step-timeout helps", text)
                if sync == "shared":  # elsewhere a server may be the first to say so, and end the ranks
                    decisions = json.loads(report.read_text())["decisions"]
                    self.assertEqual([(d["policy"], d["decision"]) for d in decisions], [("step-timeout", "stop")])
                    self.assertRegex(decisions[0]["reason"], says)
                self.assertTrue(support.wait_until(lambda: not any(map(support.alive, workers)), 5))

    def test_a_slow_step_of_one_worker_ends_the_job(self):
        late = r"update \d+ took [\d.e-]+ s on rank 0, and --step-timeout is 1ms"
        args = (*SMALL, "--workers", 1, "--epochs", 1, "--step-timeout", "1ms", "--batch", 2000)
        ((_, policy, decision, reason),) = self.failing(*args, says=["--step-timeout is 1ms"])
        self.assertEqual((policy, decision), ("step-timeout", "stop"))
        self.assertRegex(reason, late)

    def test_a_limit_that_is_kept_changes_nothing(self):
        same = (*SMALL, "--workers", 2, "--epochs", 2)
        self.assertEqual(self.train(*same)["sha256"], self.train(*same, "--step-timeout", "1m")["sha256"])

    # ---- bad input ----
    def test_bad_input(self):
        cases = [
            (["--stop", "acuracy=0.9"], "unknown policy 'acuracy' (did you mean 'accuracy'?)"),
            (["--stop", "accuracy=90"], "Do you mean accuracy=0.9?"),
            (["--stop", "accuracy=-1"], "more than 0 and at most 1, not -1"),
            (["--stop", "accuracy"], "say when, as in accuracy=0.9"),
            (["--stop", "time=10"], None),
            (["--stop", "time=ten"], "'ten' is not a duration: a number and ms, s, m (or min) or h"),
            (["--stop", "time=-1m"], "must be more than 0"),
            (["--stop", "steps=0"], "at least 1, not '0'"),
            (["--stop", "plateau=x"], "needs a whole number of epochs"),
            (["--stop", "nan=1"], "nan has no value"),
            (["--stop", ""], "unknown policy ''"),
            (["--stop", "time=1m", "--stop", "time=2m"], "time is there twice"),
            (["--stop", "steps=5", "--max-steps", "6"], "are the same limit"),
            (["--stop", "nan", "--on-nan", "skip"], "contradict each other"),
            (["--step-timeout", "0"], "--step-timeout must be more than 0"),
            (["--step-timeout", "-3s"], "--step-timeout must be more than 0"),
            (["--step-timeout", "fast"], "--step-timeout: 'fast' is not a duration"),
            (["--timeout", "1 h"], "--timeout: '1 h' is not a duration"),
            (["--on-nan", "skipp"], "did you mean 'skip'?"),
            (["--on-nan", "rollback"], "give --checkpoint DIR"),
            (["--on-nan", "rollback", "--sync", "async"], "needs workers that take every step together"),
        ]
        for flags, says in cases:
            with self.subTest(flags=flags):
                if says is None:
                    self.train(*SMALL, "--workers", 1, "--epochs", 1, *flags)
                else:
                    self.refused("train", *SMALL, *flags, says=[says])

    def test_what_the_data_cannot_give(self):
        self.refused(
            "train",
            *("mlp:8", "--data", self.csv(), "--label", "kind", "--test", 0, "--stop", "accuracy=0.9"),
            says=["there is no test set"],
        )
        self.refused(
            "train",
            *("mlp:8", "--data", self.csv(), "--label", "a", "--loss", "mse", "--stop", "accuracy=0.9"),
            says=["numbers are predicted here"],
        )


if __name__ == "__main__":
    support.main()
