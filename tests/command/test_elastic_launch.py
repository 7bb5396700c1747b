"""Ranks that die, come and go under `trireme launch`: who is started in whose place, and what is left in the end."""
import json
import os
import re
import signal
import threading

import support

PROGRAM = support.PROGRAMS / "program_elastic"
SOON = 30  # seconds; a machine with much to do takes its time


class Job:
    """`trireme launch` of the program, and what it has written so far."""

    def __init__(self, test, *flags, way=""):
        self.folder = test.folder
        program = [PROGRAM, self.folder] + ([way] if way else [])
        self.process = support.start("launch", *flags, "--", *program)
        test.addCleanup(self.end)
        self.out, self.err = [], []
        self.readers = [
            threading.Thread(target=self.read, args=pair)
            for pair in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self.readers:
            reader.start()

    @staticmethod
    def read(stream, lines):
        for line in stream:
            lines.append(line.rstrip("\n"))
        stream.close()

    def end(self):
        self.process.kill()
        self.process.wait()
        for reader in self.readers:
            reader.join()

    def said(self, rank, text):
        return f"[{rank}] {text}" in self.out

    def pid(self, rank):
        for line in self.out:
            if match := re.fullmatch(rf"\[{rank}\] pid (\d+)", line):
                return int(match[1])
        return None

    def crews(self):
        """The latest one that each rank has named."""
        return {int(m[1]): m[2] for line in self.out if (m := re.fullmatch(r"\[(\d+)\] epoch \d+ of ([\d,]+)", line))}

    def rows(self, *ranks):
        """Whether all of them are in the crew of exactly these."""
        names = ",".join(map(str, ranks))
        crews = self.crews()
        return all(crews.get(rank) == names for rank in ranks)

    def kill(self, rank, signum=signal.SIGKILL):
        os.kill(self.pid(rank), signum)

    def stop(self):
        (self.folder / "stop").touch()
        self.process.wait(SOON)
        for reader in self.readers:
            reader.join()
        return self.process.returncode

    def __str__(self):
        return "\n".join(self.out + self.err)


class ElasticLaunch(support.CommandTest):
    def begin(self, *flags, crew=(), way=""):
        job = Job(self, *flags, way=way)
        if crew:
            self.rows(job, *crew)
        return job

    def rows(self, job, *ranks):
        self.assertTrue(support.wait_until(lambda: job.rows(*ranks), SOON), f"{ranks} do not row:\n{job}")

    def ends_well(self, job):
        pids = [job.pid(rank) for rank in range(20) if job.pid(rank)]
        self.assertEqual(job.stop(), 0, str(job))
        self.assertFalse([pid for pid in pids if support.alive(pid)])

    def ctl(self, *words):
        return support.run("ctl", *words)

    def status(self):
        lines = self.ctl("status").stdout.splitlines()
        return next((json.loads(line) for line in lines if json.loads(line)["member"] == "crew"), None)

    def test_a_dead_rank_is_replaced(self):
        job = self.begin("-n", 2, "--on-failure", "replace", crew=(0, 1))
        job.kill(1)
        self.rows(job, 0, 2)
        job.kill(0)  # rank 0 is one like the others
        self.rows(job, 2, 3)
        self.ends_well(job)
        self.assertTrue(any("rank 1 (process" in line and "SIGKILL" in line for line in job.err), str(job))
        for rank in (0, 1):
            self.assertTrue(any(f"rank {rank} was lost; the others went on" in line for line in job.err), str(job))

    def test_a_spare_takes_over_and_is_replaced(self):
        job = self.begin("-n", 2, "--on-failure", "replace", "--spares", 1, crew=(0, 1))
        self.assertTrue(support.wait_until(lambda: self.status()["spares"] == [2], SOON), self.status())
        job.kill(0)
        self.rows(job, 1, 2)
        self.assertTrue(support.wait_until(lambda: self.status()["spares"] == [3], SOON), self.status())
        now = self.status()
        self.assertEqual([loss["rank"] for loss in now["lost"]], [0])
        self.assertIn("rank 0", now["lost"][0]["why"])
        self.ends_well(job)
        self.assertTrue(any(line.startswith("[3] dismissed") for line in job.out), str(job))

    def test_their_number_changes_while_they_work(self):
        job = self.begin("-n", "1:4", "--on-failure", "continue")
        first = min(4, max(1, os.cpu_count()))
        self.rows(job, *range(first))
        self.assertEqual(self.ctl("scale", first + 1).returncode, 0) if first < 4 else None
        self.rows(job, *range(min(4, first + 1)))
        done = self.ctl("scale", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.rows(job, 0)
        for refused in (0, 5):
            done = self.ctl("scale", refused)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("1 to 4", done.stderr)
        self.ends_well(job)
        self.assertFalse([line for line in job.err if "lost" in line], str(job))  # who was sent away was not lost

    def test_one_is_sent_away(self):
        job = self.begin("-n", "3", "--on-failure", "replace", crew=(0, 1, 2))
        done = self.ctl("drain", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.rows(job, 0, 2)
        self.assertTrue(support.wait_until(lambda: not support.alive(job.pid(1)), SOON))
        self.assertEqual(self.status()["target"], 2)
        self.assertEqual(self.ctl("drain", 7).returncode, 2)
        self.ends_well(job)
        self.assertIsNone(job.pid(3), "nobody comes in its place")
        self.assertFalse([line for line in job.err if "lost" in line], str(job))

    def test_workers_that_die_again_and_again_are_given_up(self):
        job = self.begin("-n", 2, "--on-failure", "replace", crew=(0, 1), way="newcomers")
        job.kill(1)
        told = lambda: any("no more are started" in line for line in job.err)  # noqa: E731
        self.assertTrue(support.wait_until(told, SOON), str(job))
        self.assertTrue(any("there is nothing to eat here" in line for line in job.err), str(job))
        self.assertIsNone(job.pid(6), str(job))
        self.assertEqual(len([line for line in job.err if "was lost: " in line]), 5, str(job))
        self.rows(job, 0)  # it goes on
        self.ends_well(job)

    def test_and_the_job_with_them_when_too_few_are_left(self):
        job = self.begin("-n", "2:2", crew=(0, 1), way="newcomers")
        job.kill(1)
        self.assertNotEqual(job.process.wait(SOON), 0)
        for reader in job.readers:
            reader.join()
        self.assertIn("there is nothing to eat here", str(job))
        self.assertIn("again and again", str(job))
        self.assertFalse(support.alive(job.pid(0)))

    def test_nobody_stays_behind_after_ctrl_c(self):
        job = self.begin("-n", 2, "--on-failure", "replace", "--spares", 1, crew=(0, 1), way="ready")
        getting_ready = lambda: job.pid(2) is not None  # noqa: E731
        self.assertTrue(support.wait_until(getting_ready, SOON), str(job))
        pids = support.children(job.process.pid)
        self.assertEqual(len(pids), 3)
        job.process.send_signal(signal.SIGINT)
        self.assertEqual(job.process.wait(SOON), 130)
        self.assertFalse([pid for pid in pids if support.alive(pid)])
        self.assertTrue(job.said(0, "done") and job.said(1, "done"), str(job))

    def test_what_cannot_be_is_refused(self):
        for flags, says in (
            (["-n", "8:2"], ["8:2", "did you mean 2:8?"]),
            (["-n", "0:4"], ["0:4", "did you mean 1:4?"]),
            (["-n", "2:1000"], ["2:1000", "256"]),
            (["-n", "2", "--spares", "1"], ["--spares", "LEAST:MOST"]),
            (["-n", "2", "--rejoin-timeout", "5s"], ["--rejoin-timeout", "--on-failure replace"]),
            (["-n", "2:3", "--on-failure", "stop"], ["--on-failure stop", "2:3"]),
            (["-n", "2", "--on-failure", "replcae"], ["replcae", "did you mean 'replace'?"]),
            (["-n", "2:3", "--servers", "1"], ["parameter servers"]),
            (["-n", "2", "--heartbeat-limit", "2"], ["--heartbeat-limit", "no effect"]),
        ):
            with self.subTest(flags):
                self.refused("launch", *flags, "--", "true", says=says, code=2)

    def test_a_job_whose_crew_cannot_change(self):
        done = self.ctl("scale", 2)
        self.assertEqual(done.returncode, 2)
        self.assertIn("LEAST:MOST", done.stderr)


if __name__ == "__main__":
    support.main()
