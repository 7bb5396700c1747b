"""Deaths where the others cannot go on by themselves: all start again from the newest checkpoint."""
import json
import os
import signal

import support
from language import TEXT

GPT = ("gpt:layers=2,width=32,heads=4,context=16", "--data", f"text:{TEXT}", "--batch", 8, "--test", 0.005)
STEPS = 120


def steps_in(folder):
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("step-*") if (path / "manifest.json").exists())


class Restarts(support.CommandTest):
    def struck(self, *args, at=10):
        """Kills the last worker when a checkpoint of step `at` is there; returns the report and what was printed."""
        runs, report = self.folder / "runs", self.folder / "report.json"
        command = (*args, "--max-steps", STEPS, "--checkpoint", runs, "--checkpoint-every", "10steps")
        process = support.start("train", *command, "--report", report, "--progress", "plain", cwd=self.folder)
        try:
            there = support.wait_until(lambda: any(step >= at for step in steps_in(runs)), 60)
            self.assertTrue(there, f"{args}: no checkpoint of step {at}")
            os.kill(support.children(process.pid)[-1], signal.SIGKILL)
            out, err = process.communicate(timeout=100)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        self.assertEqual(process.returncode, 0, out + err)
        return json.loads(report.read_text()), out + err

    def test_a_mesh_goes_on_without_the_copy_of_a_dead_rank(self):
        report, text = self.struck(*GPT, "--workers", 4, "--tensor", 2, "--on-failure", "continue")
        self.assertIn("3 of 4 workers are left: they start again, as data 1 × tensor 2, from step-", text)
        self.assertIn("killed by signal 9", text)
        self.assertEqual((report["workers"], report["mesh"]["tensor"], report["restarts"]), (2, 2, 1))
        self.assertEqual(report["updates"], STEPS)
        whole = self.train(*GPT, "--workers", 1, "--max-steps", STEPS)
        self.assertAlmostEqual(report["epochs"][-1]["test_loss"], whole["epochs"][-1]["test_loss"], places=3)

    def test_where_there_is_one_copy_the_mesh_gets_smaller(self):
        report, text = self.struck(*GPT, "--workers", 2, "--pipeline", 2, "--on-failure", "continue")
        self.assertIn("1 of 2 workers are left: they start again, as data 1, from step-", text)
        self.assertEqual((report["workers"], report["updates"]), (1, STEPS))

    def test_replaced_it_ends_with_the_bits_of_a_run_in_which_nobody_died(self):
        for args in (
            (*GPT, "--workers", 2, "--tensor", 2),
            ("mlp:64", "--data", "synthetic:4000", "--workers", 2, "--sync", "allreduce"),
        ):
            with self.subTest(args=args):
                whole = self.train(*args, "--max-steps", STEPS)
                report, text = self.struck(*args, "--on-failure", "replace")
                self.assertIn("All start again, as data", text)
                self.assertEqual(report["sha256"], whole["sha256"])
                for path in (self.folder / "runs").iterdir():  # the next one's are its own
                    path.rename(self.folder / f"old-{report['sha256'][:8]}-{path.name}")

    def test_an_error_of_its_own_is_the_end(self):
        args = ("mlp:64", "--data", "synthetic:4000", "--workers", 2, "--sync", "allreduce", "--lr", 1e30)
        text = self.refused("train", *args, "--on-failure", "replace", "--checkpoint", self.folder / "runs")
        self.assertNotIn("start again", text)

    def test_what_has_no_effect_is_refused(self):
        mesh = ("train", *GPT, "--workers", 2, "--tensor", 2)
        self.refused(*mesh, "--on-failure", "continue", says=["--checkpoint DIR", "--tensor 2"], code=2)
        keeps = ("--checkpoint", self.folder / "runs")
        self.refused(*mesh, *keeps, "--on-failure", "replace", "--spares", 1, says=["--spares has no effect"], code=2)


if __name__ == "__main__":
    support.main()
