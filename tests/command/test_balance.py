"""--balance: shares by measured speed, with the result of one worker; and who makes the others wait is named."""
import os
import signal
import time

import numpy

import support

# Worker 1 sleeps: a step of even shares takes many times as long as one of fitting shares, whatever else the machine
# does.
SLOW = ["--straggler", "1:80"]
DATA = ["linear", "--data", "synthetic:1000", "--batch", 64, "--dtype", "f64", "--lr", "1e-3"]


class Balance(support.CommandTest):
    def test_uneven_shares_end_with_the_parameters_of_one_worker(self):
        length = ["--epochs", 40]  # of 16 steps, the last of them with 40 samples
        wanted, _ = self.parameters(*DATA, *length, "--workers", 1)
        for sync in ("shared", "allreduce"):
            with self.subTest(sync=sync):
                args = [*DATA, *length, "--workers", 2, "--sync", sync, *SLOW, "--balance", "auto"]
                parameters, report = self.parameters(*args)
                balance = report["balance"]
                self.assertEqual(sum(balance["shares"]), 64)
                self.assertLess(balance["shares"][1], 20, balance)
                self.assertGreaterEqual(balance["changes"], 1)
                self.assertRegex(balance["straggler"]["name"], r"^rank 1 \(host .+, process \d+\)$")
                self.assertEqual(len(balance["workers"]), 2)
                self.assertGreater(report["metrics"]["rank 0"]["share"], 40)
                self.assertGreater(report["metrics"]["rank 1"]["share_changes"], 0)
                for name, value in wanted.items():
                    numpy.testing.assert_allclose(parameters[name], value, rtol=0, atol=1e-9)

    def test_no_decision_before_a_stint_is_over(self):
        args = [*DATA, "--epochs", 10, "--workers", 2, *SLOW, "--balance", "auto", "--balance-stint", "1h"]
        balance = self.train(*args)["balance"]
        self.assertEqual((balance["shares"], balance["changes"]), ([32, 32], 0))

    def test_what_is_said(self):
        args = [*DATA, "--epochs", 40, "--workers", 2, *SLOW]
        for mode, share in (("auto", r"(; its share is now \d+ of 64 samples)?"), ("watch", "")):
            with self.subTest(mode=mode):
                result = support.run("train", *args, "--balance", mode, "--progress", "plain", cwd=self.folder)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                said = (
                    r"(?m)^rank 1 \(host .+, process \d+\) is slow: "
                    r"the others waited \d+ % of the last \d+ steps for it "
                    rf"\([\d.e+]+ ms a step of [\d.e+]+ ms\){share}$"
                )
                self.assertRegex(result.stdout, said)
                self.assertEqual("\nshares: by the speed of the last" in result.stdout, mode == "auto", result.stdout)

    def test_a_crew_that_changes_keeps_its_speeds_and_every_sample(self):
        """Worker 0 dies when the shares are uneven; those who are left go on with what is known of them."""
        args = [*DATA, "--epochs", 100000, "--workers", 3, "--on-failure", "continue", *SLOW, "--balance", "auto"]
        job = support.start(
            "train", *args, "--report", "r.json", "--progress", "plain", "--stop", "time=6s", cwd=self.folder
        )
        for cleanup in (job.stderr.close, job.stdout.close, job.wait, job.kill):  # the last one first
            self.addCleanup(cleanup)
        lines = []
        for line in job.stdout:
            lines.append(line)
            if line.startswith("shares: ") and sum(one.startswith("shares: ") for one in lines) == 1:
                time.sleep(0.2)
                os.kill(support.children(job.pid)[0], signal.SIGKILL)
        job.wait()
        text = "".join(lines)
        self.assertIn("1 worker lost", text)
        self.assertIn("by the speeds that were known before the crew changed", text)
        self.assertNotIn("NOT each once", text)
        self.assertIn("1000 of 1000 samples, each once; 1 worker lost", text)

    def test_a_run_that_is_resumed_goes_on_with_the_next_batch(self):
        kept = ["--checkpoint", "kept", "--checkpoint-every", "30steps"]
        wanted, _ = self.parameters(*DATA, "--max-steps", 300, "--workers", 1)
        self.train(*DATA, "--max-steps", 257, "--workers", 2, *SLOW, "--balance", "auto", *kept)
        parameters, report = self.parameters(
            *DATA, "--max-steps", 300, "--workers", 2, "--balance", "auto", *kept, "--resume", "latest"
        )
        self.assertIn("step-", report["resumed"])
        for name, value in wanted.items():
            numpy.testing.assert_allclose(parameters[name], value, rtol=0, atol=1e-9)

    def test_what_makes_no_sense_is_refused_before_anything_starts(self):
        small = ["mlp:8", "--data", "synthetic:100", "--batch", 16, "--workers", 2, "--balance", "auto"]
        for args, sentence in (
            (["--sync", "async"], "at its own pace"),
            (["--sync", "local:5"], "at its own pace"),
            (["--virtual", 2], "virtual 2"),
            (["--pipeline", 2], "pipeline 2"),
            (["--mean", "plain"], "mean plain"),
            (["--balance", "fast"], "even, watch or auto"),
        ):
            with self.subTest(args=args):
                self.refused("train", *small, *args, says=[sentence])
        even = small[:-2]
        self.refused(
            "train", *even, "--balance-stint", "2s", says=["--balance-stint has no effect with --balance even"]
        )
        self.refused("train", *small, "--balance-stint", "soon", says=["--balance-stint", "soon"])
        batch_norm = ["lenet-bn", "--data", "synthetic:100", "--sync-batch-norm", "--balance", "watch"]
        self.refused("train", *batch_norm, says=["sync_batch_norm"])


if __name__ == "__main__":
    support.main()
