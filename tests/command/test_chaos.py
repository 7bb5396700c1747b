"""trireme chaos: workers of a real job are killed and stopped, and nothing is lost; and what it says when something
is."""
import json
import signal
import time

import support

MODEL = ["mlp:64", "--data", "synthetic:6000", "--batch", 60, "--lr", 0.05]


class Chaos(support.CommandTest):
    def chaos(self, *args, job=MODEL, limit=150):
        """Returns (exit code, output, what it found)."""
        path = self.folder / "chaos.json"
        result = support.run("chaos", *args, "--json", path, "--", *job, cwd=self.folder, limit=limit)
        found = json.loads(path.read_text()) if path.exists() else None
        return result.returncode, result.stdout + result.stderr, found

    def expect_all_well(self, code, text, found, kills, stops=0):
        self.assertEqual(code, 0, text)
        self.assertTrue(found["ok"], text)
        names = {check["name"] for check in found["checks"]}
        self.assertLessEqual({"ended well", "each sample once", "workers lost", "no process left"}, names)
        what = [blow["what"] for blow in found["blows"]]
        self.assertEqual((what.count("kill"), what.count("stop")), (kills, stops))
        for blow in found["blows"]:
            self.assertGreater(blow["next_ms"], 0, text)
        self.assertEqual(found["kill_to_next_step_beyond_its_own_ms"]["tries"], kills)

    def test_ten_kills(self):
        self.expect_all_well(*self.chaos("--kills", 10, "--every", 0.3, "--seed", 3), kills=10)

    def test_the_same_bits_with_virtual_workers(self):
        code, text, found = self.chaos("--kills", 3, "--stops", 1, "--every", 0.3, "--virtual", 4, "--spares", 1)
        self.expect_all_well(code, text, found, kills=3, stops=1)
        self.assertIn("same bits", {check["name"] for check in found["checks"]})

    def test_what_is_wrong_is_said(self):
        job = [*MODEL, "--epochs", 1]  # it has ended before the last blow
        code, text, found = self.chaos("--kills", 3, "--every", 20, job=job)
        self.assertEqual(code, 1, text)
        self.assertIn("WRONG all blows struck: 0 of 3", text)
        self.assertFalse(found["ok"])

    def test_a_job_that_fails_by_itself(self):
        code, text, _ = self.chaos("--kills", 1, job=["mlp:64", "--data", "no-such-data", "--epochs", 1])
        self.assertEqual(code, 1, text)
        self.assertIn("fails without any disturbance", text)
        self.assertIn("no-such-data", text)

    def test_an_interrupt_ends_all(self):
        process = support.start("chaos", "--kills", 5, "--", *MODEL, "--epochs", 100000, cwd=self.folder)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)

        def processes():
            jobs = support.children(process.pid)
            return jobs + [worker for job in jobs for worker in support.children(job)]

        self.assertTrue(support.wait_until(lambda: len(processes()) == 5, 20))
        time.sleep(0.5)
        there = processes()
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 128 + signal.SIGINT, text)
        self.assertIn("stopped on request", text)
        self.assertTrue(support.wait_until(lambda: not any(map(support.alive, there)), 5), "something is left")

    def test_bad_flags(self):
        self.refused("chaos", "--kills", 0, says=["nothing to do"], code=2)
        self.refused("chaos", "--leave", 4, says=["--leave 4 of 4 workers"], code=2)
        self.refused("chaos", "--every", 0, says=["seconds above 0"], code=2)
        self.refused("chaos", "--", "lenet", "--report", "x.json", says=["--report"], code=2)
        self.refused("chaos", "--", "lenet", "--hosts", "a:2", says=["this machine"], code=2)
        self.refused("chaos", "--kils", 3, says=["--kills"], code=2)


if __name__ == "__main__":
    support.main()
