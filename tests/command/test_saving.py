"""Somebody dies while a checkpoint is written: what was complete before stays whole, and others go on with it."""
import os
import pathlib
import shutil
import signal
import time

import support

PROGRAM = support.PROGRAMS / "program_saving"
BIG = ["mlp:1000,1000", "--data", "synthetic:2000", "--batch", 50, "--seed", 7, "--epochs", 4]  # 160 steps; 14 MB
LONGER = [("allreduce", 2), ("central", 1)] if os.environ.get("TRIREME_LONG") else []


def complete(folder):
    return sorted(path.parent for path in folder.glob("step-*/manifest.json"))


def half_written(folder):
    return [path for path in folder.glob("*") if path.is_dir() and not (path / "manifest.json").exists()]


def kinds(pid):
    """The processes of a job, by what they do."""
    found = {"worker": [], "server": []}
    for child in support.children(pid):
        words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        found["server" if b"serve" in words else "worker"].append(child)
    return found


class Saving(support.CommandTest):
    def crew(self, ranks, mode, folder, victim):
        """The lines that start with these words; the rest of them."""
        flags = ["--on-failure", "continue"] if victim >= 0 else []
        result = support.run("launch", "-n", ranks, *flags, "--", PROGRAM, "crew", mode, folder, victim, limit=150)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertNotIn("left late", result.stdout)
        words = [line.split("] ")[-1] for line in result.stdout.splitlines()]
        return {line.rsplit(" ", 1)[0]: line.rsplit(" ", 1)[1] for line in words if " " in line}

    def test_a_new_crew_goes_on_from_what_was_complete(self):
        """With the parameters that a fresh crew of its size gets from the same checkpoint."""
        for mode, victim in (("shared", 1), ("shared", 0), ("local:4", 1), *LONGER):
            with self.subTest(mode=mode, victim=victim):
                runs, alone = self.folder / f"{mode}-{victim}", self.folder / f"{mode}-{victim}-alone"
                ended = self.crew(3, mode, runs, victim)
                step = int(ended["went on from"])
                self.assertIn(step, (4, 8, 12))
                self.assertEqual([int(path.name.split("-")[1]) for path in complete(runs)], [4, 8, 12, 16])
                self.assertEqual(half_written(runs), [])
                verified = support.run("checkpoint", "verify", runs)
                self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
                alone.mkdir()
                shutil.copytree(runs / f"step-{step:09}", alone / f"step-{step:09}")
                again = self.crew(2, mode, alone, -1)
                self.assertEqual(again, ended)

    def test_a_server_is_killed_while_one_is_written(self):
        for sync in ("server", "async"):
            with self.subTest(sync=sync):
                runs = self.folder / sync
                args = [*BIG, "--workers", 2, "--servers", 2, "--sync", sync, "--lr", 0.01]
                keeping = [*args, "--checkpoint", runs, "--checkpoint-every", "1steps"]
                process = support.start("train", *keeping, cwd=self.folder)
                try:
                    there = support.wait_until(lambda: len(complete(runs)) >= 2 and half_written(runs), 60, 0.001)
                    self.assertTrue(there, "no checkpoint was being written")
                    os.kill(kinds(process.pid)["server"][1], signal.SIGKILL)
                    out, error = process.communicate(timeout=60)
                finally:
                    if process.poll() is None:
                        process.kill()
                        process.communicate()
                self.assertNotEqual(process.returncode, 0)
                self.assertIn("server 1", error)
                newest = complete(runs)[-1]
                verified = support.run("checkpoint", "verify", newest)
                self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
                begun = time.monotonic()
                again = self.train(*args, "--checkpoint", runs, "--resume", "latest")
                self.assertLess(time.monotonic() - begun, support.LIMIT)
                self.assertTrue(again["resumed"].endswith(newest.name), again["resumed"])
                self.assertEqual(half_written(runs), [])
                self.assertEqual(len(again["epochs"]), 4)
                if sync == "server":
                    self.assertEqual(again["sha256"], self.train(*args)["sha256"])


if __name__ == "__main__":
    support.main()
