"""`trireme train` on several hosts whose workers die, come and go: those who are left go on, each sample counts once,
and nobody stays behind on any host."""
import json
import os
import random
import re
import signal
import statistics
import threading
import time
import unittest

import training
from training import support

LIMIT = 1  # seconds of silence that count as death, in these tests
SOON = 60  # no wait here may take longer
PORT = 7070
TOKEN = "0123456789abcdef0123456789abcdef"
SAMPLES = 20000
MODEL = ["mlp:256,256", "--data", f"synthetic:{SAMPLES}", "--batch", 64]
BITS = ["twoconv", "--data", "synthetic:3000", "--batch", 32, "--seed", 3, "--virtual", 4]
LONG = "TRIREME_LONG" in os.environ
SEEDS = [int(seed) for seed in os.environ.get("SEEDS", "1,2,3,4,5,6" if LONG else "1").split(",")]
EPOCHS = int(os.environ.get("EPOCHS", "40" if LONG else "5"))  # of a run with a seed
TRIES = int(os.environ.get("TRIES", "0"))  # of a kill, to see how long the others take


def made(line):
    """Of a rank: the epoch of its crew, and when that had made its first step, 0: it has not."""
    counted = line["metrics"]
    return counted.get("crew_epoch", -1), counted.get("crew_since") or 0


class Job:
    """`trireme train --hosts`, started on host a, and what it has written so far."""

    def __init__(self, test, spec, *args, remote=None):
        self.test, self.hosts = test, test.hosts
        self.report = test.folder / f"report-{time.monotonic_ns()}.json"
        flags = ["--hosts", spec, "--remote", remote or test.remote(), "--port", PORT, "--heartbeat-limit", LIMIT]
        self.lines, self.parts, self.readers = [], [], []
        self.process = self.start("a", "train", *args, *flags, "--report", self.report)
        test.addCleanup(self.end)  # before the streams are closed: cleanups run backwards

    def start(self, host, *words, cwd=None, env=None):
        """Another part of it, by hand."""
        process = self.test.start(*words, host=host, env={"TRIREME_TOKEN": TOKEN, **(env or {})}, cwd=cwd)
        self.parts.append(process)
        for stream in (process.stdout, process.stderr):
            self.readers.append(threading.Thread(target=self.read, args=(stream,)))
            self.readers[-1].start()
        return process

    def join(self, host, *args, **where):
        return self.start(host, "join", f"{self.hosts.address('a')}:{PORT}", *args, **where)

    def read(self, stream):
        for line in stream:
            self.lines.append(line.rstrip("\n"))

    def end(self):
        for host in self.hosts.names:  # what it has started would keep the streams open
            self.kill_host(host)
        for part in self.parts:
            part.wait()
        for reader in self.readers:
            reader.join()

    def __str__(self):
        return "\n".join(line for line in self.lines if "samples" not in line)[-8000:]

    # ---- what is seen of it ----
    def wait_for(self, pattern, count=1):
        """Until so many lines match."""
        there = lambda: sum(bool(re.search(pattern, line)) for line in list(self.lines)) >= count  # noqa: E731
        self.test.assertTrue(support.wait_until(there, SOON), f"no '{pattern}':\n{self}")

    def epochs(self, count=1):
        """Waits until so many more have ended."""
        pattern = r"^epoch \d+  loss .*samples/s"
        done = sum(bool(re.search(pattern, line)) for line in list(self.lines))
        self.wait_for(pattern, done + count)

    def ctl(self, *words):
        return self.hosts.check("a", [training.TRIREME, "ctl", *map(str, words)], env=support.environment())

    def status(self):
        """Its crew, and the lines of those that are in it, by rank; nothing while it is not there."""
        try:
            lines = [json.loads(line) for line in self.ctl("status").splitlines()]
        except RuntimeError:
            return None, {}
        crew = next((line for line in lines if line["member"] == "crew"), None)
        ranks = crew["ranks"] if crew else []
        members = {rank: line for rank in ranks for line in lines if line["member"] == f"rank {rank}"}
        return crew, {rank: line for rank, line in members.items() if support.alive(line["process"])}

    def row(self, *ranks):
        """Waits until exactly these are in the crew, and have made a step; their lines."""
        self.test.assertTrue(
            support.wait_until(lambda: self.rows(ranks), SOON, 0.05), f"{ranks} do not row: {self.status()[0]}\n{self}"
        )
        return self.status()[1]

    def rows(self, ranks=None, count=0):
        crew, members = self.status()
        if not crew or not (crew["ranks"] == list(ranks) if ranks else len(crew["ranks"]) == count):
            return False
        steps = [made(line) for line in members.values()]
        return len(steps) == len(crew["ranks"]) and all(epoch == crew["epoch"] and since for epoch, since in steps)

    # ---- what happens to it ----
    def kill(self, rank):
        _, members = self.status()
        os.kill(members[rank]["process"], signal.SIGKILL)

    def kill_host(self, host):
        for pid in self.hosts.pids(host):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # with its agent
                pass

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        return self.ends(130)

    def ends(self, code=0):
        """Its report, once nothing of it is left on any host."""
        self.process.wait(SOON)
        self.test.assertEqual(self.process.returncode, code, str(self))
        gone = support.wait_until(lambda: not self.hosts.pids(), 15)
        self.test.assertTrue(gone, f"still there: {self.hosts.pids()}\n{self}")
        return json.loads(self.report.read_text())


class ElasticTest(training.HostsTest):
    """What the classes below share; no tests."""

    HOSTS = 3

    def begin(self, spec, *args, crew, model=MODEL, **settings):
        job = Job(self, spec, *model, "--epochs", 100000, *args, **settings)
        job.row(*crew)
        return job

    def check_samples(self, report, samples=SAMPLES):
        """Of all epochs but the one in which it was stopped."""
        epochs = report["epochs"][: len(report["epochs"]) - report["stopped"]]
        self.assertTrue(epochs)
        for epoch in epochs:
            self.assertEqual((epoch["samples"], epoch["each_once"]), (samples, True), epoch)

    def cut_off(self, host):
        self.hosts.down(host)
        self.addCleanup(self.hosts.up, host)

    def undisturbed(self, *args):
        path = self.folder / "undisturbed.json"
        done = support.run("train", *args, "--workers", 1, "--report", path, cwd=self.folder, limit=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(path.read_text())


class Elastic(ElasticTest):
    def test_those_who_are_left_go_on(self):
        job = self.begin("a:2,b:2", "--workers", "1:8", "--on-failure", "continue", crew=[0, 1, 2, 3])
        job.epochs()
        job.kill(3)
        job.row(0, 1, 2)
        job.epochs()
        job.kill(0)
        job.row(1, 2)
        job.epochs()
        self.cut_off("b")
        job.row(1)
        job.epochs()
        gone = support.wait_until(lambda: not self.hosts.pids("b"), 10)
        self.assertTrue(gone, "host b, which was cut off, goes on by itself")
        self.check_samples(job.stop())

    def test_others_come_in_their_place(self):
        job = self.begin("a:2,b:2", "--workers", "2:8", crew=[0, 1, 2, 3])
        job.kill(2)
        job.row(0, 1, 3, 4)
        job.kill(0)
        hosts = [line["host"] for line in job.row(1, 3, 4, 5).values()]
        self.assertEqual((hosts.count("a"), hosts.count("b")), (2, 2))
        late = job.join("c", "--slots", 2)
        job.row(1, 3, 4, 5, 6, 7)
        job.kill_host("b")
        job.row(1, 5, 6, 7)
        self.cut_off("c")
        job.row(1, 5)
        self.assertNotEqual(late.wait(SOON), 0)
        job.epochs()
        self.check_samples(job.stop())

    def test_their_number_changes(self):
        job = self.begin("a:2,b:2", "--workers", "1:8", crew=[0, 1, 2, 3])
        job.ctl("drain", 2)
        job.row(0, 1, 3)
        job.ctl("scale", 1)
        job.row(0)
        job.ctl("scale", 4)  # b has nobody left, and starts others all the same
        hosts = [line["host"] for line in job.row(0, 4, 5, 6).values()]
        self.assertEqual((hosts.count("a"), hosts.count("b")), (2, 2))
        job.epochs()
        self.check_samples(job.stop())
        self.assertNotIn("was lost", str(job))

    def test_the_same_bits(self):
        """With virtual workers: a host is cut off, and another one joins. The way to the first one does not end by
        itself, as ssh's would not; the launcher does not wait for it."""
        args = [*BITS, "--epochs", 8]
        wanted = self.undisturbed(*args)
        deaf = f"{training.ON_HOST.with_name('deaf_host')} {self.hosts.prefix} {{host}} {{command}}"
        job = Job(self, "a:2,b:1", *args, "--workers", "1:4", "--on-failure", "continue", remote=deaf)
        job.row(0, 1, 2)
        late = job.join("c")
        self.cut_off("b")
        report = job.ends()
        self.assertEqual(late.wait(SOON), 0, str(job))
        self.assertEqual(report["sha256"], wanted["sha256"], str(job))
        self.check_samples(report, 3000)
        self.assertEqual(sum(epoch["lost"] for epoch in report["epochs"]), 1, str(job))
        self.assertEqual(sum(epoch["joined"] for epoch in report["epochs"]), 1, str(job))


class KilledAtPlaces(ElasticTest):
    """A rank of a program kills itself at a marked place of a step between machines, or of what follows a change: those
    who are left end with the bits of a run in which nobody died (tests/programs/own_loop.cpp)."""

    PROGRAM = support.PROGRAMS / "program_own_loop"
    STEPS = 40
    IN_A_STEP = [("piece: landed", 1, 9), ("sums: here", 0, 9), ("update: bucket", 1, 9), ("land: ended", 0, 9),
                 ("piece: departs", 0, 9), ("piece: awaited", 2, 9), ("land: begun", 0, 9), ("step: decided", 9, 1),
                 ("update: begun", 0, 9), ("update: ended", 0, 9), ("bucket: ready", 1, 9)]  # fmt: skip

    def launch(self, *blows):
        program = [self.PROGRAM, self.folder, "feed", self.STEPS, *blows]
        flags = ["--remote", self.remote(), "--port", PORT, "--heartbeat-limit", LIMIT, "--on-failure", "continue"]
        words = ["launch", "-n", "1:3", "--hosts", "a:1,b:1", *flags, "--", *program]
        return self.start(*words, env={"TRIREME_TOKEN": TOKEN})

    def sha256(self, process):
        out, error = process.communicate(timeout=SOON)
        self.assertEqual(process.returncode, 0, out + error)
        return re.search(r"sha256 (\w+)$", out, re.M)[1], out

    def setUp(self):
        super().setUp()
        alone = [self.PROGRAM, self.folder, "feed", str(self.STEPS)]
        alone = support.subprocess.run(alone, env=support.environment(), capture_output=True, text=True)
        self.wanted = re.search(r"sha256 (\w+)$", alone.stdout, re.M)[1]

    def test_in_a_step(self):
        for turn, (place, number, hit) in enumerate(self.IN_A_STEP if LONG else self.IN_A_STEP[:4]):
            with self.subTest(place=place):
                found, out = self.sha256(self.launch(turn % 2, place, number, hit, "kill"))
                self.assertIn(f"crew {1 - turn % 2} from step", out)
                self.assertEqual(found, self.wanted, out)


class WhoDoesNotFit(ElasticTest):
    """It ends with a sentence, and the others do not mind."""

    def newcomer(self, job, cwd, *words):
        """A worker that somebody starts by hand on host c."""
        where = {"TRIREME_NEWCOMER": "1", "TRIREME_RANK": "-1", "TRIREME_SIZE": "2", "TRIREME_COORDINATOR": f"a:{PORT}"}
        return job.start("c", "train", *words, env=where, cwd=cwd)

    def refused(self, job, process, *says):
        self.assertNotIn(process.wait(SOON), (0, -signal.SIGKILL))
        text = lambda: "\n".join(job.lines)  # noqa: E731
        for part in says:
            self.assertTrue(support.wait_until(lambda: part in text(), 5), f"not '{part}':\n{job}")

    def test_it_is_refused(self):
        table = "x,y,label\n" + "".join(f"{i % 7},{i % 5},{i % 3}\n" for i in range(4000))
        here, there = self.folder / "here", self.folder / "there"
        for folder, text in ((here, table), (there, table.replace("1,0,0\n", "1,0,1\n", 1))):
            folder.mkdir()
            (folder / "table.csv").write_text(text)
        options = ["--data", "./table.csv", "--batch", 64, "--seed", 3, "--epochs", 100000]
        job = Job.__new__(Job)
        self.folder, folder = here, self.folder
        Job.__init__(job, self, "a:1,b:1", "mlp:32", *options, "--workers", "1:4")
        self.folder = folder
        job.row(0, 1)
        self.refused(job, job.join("c", env={"TRIREME_TOKEN": "another"}), "refuses the token")
        for words, says in (
            (["mlp:33", *options], "model: the job has 'mlp:32', rank"),
            (["mlp:32", *options, "--lr", 0.01], "learning rate: the job has '0.05', rank"),
            (["mlp:32", *options, "--virtual", 4], "virtual: the job has '0', rank"),
        ):
            self.refused(job, self.newcomer(job, here, *words), "cannot join the job", says)
        # What an agent starts has the job's command, and finds other files.
        self.refused(job, job.join("c", cwd=there), "it has other data. SHA-256: the job has", "does not fit the job")
        self.assertEqual(job.status()[0]["ranks"], [0, 1], str(job))
        late = job.join("c", cwd=here)
        crew = lambda: job.status()[0]["ranks"]  # noqa: E731
        self.assertTrue(support.wait_until(lambda: len(crew()) == 3, SOON), str(job))
        job.stop()
        self.assertEqual(late.wait(SOON), 0, str(job))


class Chaos(ElasticTest):
    """Bad luck from a seed: workers and whole hosts are killed, stopped and cut off, and others come. The bits are
    those of a run in which nothing happened."""

    SLOTS = {"b": 1, "c": 2}

    def test_seeded(self):
        args = [*BITS, "--epochs", EPOCHS]
        wanted = self.undisturbed(*args)
        for seed in SEEDS:
            with self.subTest(seed=seed):
                self.disturb(seed, args, wanted)

    def disturb(self, seed, args, wanted):
        luck, self.cut, self.blows = random.Random(seed), set(), []
        job = Job(self, "a:2,b:1", *args, "--workers", "1:4")
        job.row(0, 1, 2)
        while not self.over(job, luck.uniform(0.2, 1.5)):
            self.bring_back(job)
            self.strike(job, luck)
        for late in job.parts[1:]:  # one that has missed the end would look for the job until its --timeout
            if not support.wait_until(lambda: late.poll() is not None, 5):
                late.terminate()
        for host in self.cut:
            self.hosts.up(host)
        report = job.ends()
        print(f"seed {seed}: {', '.join(self.blows)}", flush=True)
        self.assertEqual(report["sha256"], wanted["sha256"], f"{self.blows}\n{job}")
        self.check_samples(report, 3000)

    def over(self, job, seconds):
        return support.wait_until(lambda: job.process.poll() is not None, seconds)

    def bring_back(self, job):
        """A host that is cut off comes back when its part of the job has ended; one whose agent is gone joins again."""
        for host in [host for host in self.cut if not self.hosts.pids(host)]:
            self.hosts.up(host)
            self.cut.remove(host)
        for host in self.SLOTS:
            if host not in self.cut and not self.hosts.pids(host):
                job.join(host, "--slots", self.SLOTS[host])
                self.blows.append(f"join {host}")

    def strike(self, job, luck):
        _, members = job.status()
        here = [rank for rank, line in members.items() if line["host"] == "a"]
        what = luck.choice(["kill"] * 4 + ["stop", "pause", "host", "cable"])
        host, place = luck.choice(list(self.SLOTS)), luck.random()
        if not here or len(members) < 2:
            return
        rank = sorted(members)[int(place * len(members))]
        if what in ("host", "cable") and host not in self.cut and self.hosts.pids(host):
            self.blows.append(f"{what} {host}")
            if what == "host":
                job.kill_host(host)
            else:
                self.cut.add(host)
                self.hosts.down(host)
        elif what in ("kill", "stop", "pause") and (rank not in here or len(here) > 1):
            self.blows.append(f"{what} {rank} on {members[rank]['host']}")
            self.strike_worker(job, what, members[rank]["process"])

    def strike_worker(self, job, what, process):
        try:
            os.kill(process, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
            if what == "kill":
                return
            self.over(job, LIMIT / 2 if what == "pause" else LIMIT + 1.5)
            os.kill(process, signal.SIGCONT)
        except ProcessLookupError:
            pass


class Restarts(ElasticTest):
    """Where the others cannot go on by themselves, all start again from the newest checkpoint."""

    GPT = ["gpt:layers=2,width=32,heads=4,context=16", "--data", "text:/usr/share/games/fortunes/literature"]

    def test_a_mesh_goes_on_without_the_copy_of_a_dead_worker(self):
        runs = self.folder / "runs"
        keeps = ["--checkpoint", runs, "--checkpoint-every", "10steps", "--max-steps", 120]
        mesh = ["--batch", 8, "--test", 0.005, "--tensor", 2, "--on-failure", "continue"]
        job = Job(self, "a:2,b:2", *self.GPT, *mesh, *keeps)
        there = lambda: any(runs.glob("step-*/manifest.json"))  # noqa: E731
        self.assertTrue(support.wait_until(there, SOON), str(job))
        os.kill(self.workers("b")[0], signal.SIGKILL)
        report = job.ends()
        self.assertIn("3 of 4 workers are left: they start again, as data 1 × tensor 2, from step-", str(job))
        self.assertEqual((report["workers"], report["mesh"]["tensor"], report["restarts"]), (2, 2, 1))
        self.assertEqual(report["updates"], 120)


@unittest.skipIf(TRIES == 0, "TRIES=100 measures how long it takes")
class Times(ElasticTest):
    """From a kill to the next step that those who are left have made. They tell on the machine's clock when that
    was."""

    def one_try(self, job, strike):
        """Seconds."""
        before = job.status()[0]["epoch"]
        start = time.monotonic()
        strike()
        while time.monotonic() < start + SOON:
            for line in job.status()[1].values():
                epoch, since = made(line)
                if epoch > before and since > start:
                    return since - start
        self.fail(f"no step after it:\n{job}")

    def test_from_a_kill_to_the_next_step(self):
        job = self.begin("a:2,b:2", "--workers", "2:4", crew=[0, 1, 2, 3])
        times = []
        for number in range(TRIES):
            self.assertTrue(support.wait_until(lambda: job.rows(count=4), SOON, 0.05), str(job))
            ranks = sorted(job.status()[1])
            times.append(self.one_try(job, lambda: job.kill(ranks[number % 4])))
        self.tell("kill -9 of one of 4 workers on 2 hosts", times)
        job.stop()

    def test_from_silence_to_the_next_step(self):
        job = self.begin("a:2,b:2", "--workers", "2:8", crew=[0, 1, 2, 3])
        times = []
        for number in range((TRIES + 1) // 2):
            if number > 0:
                self.hosts.up("b")
                job.join("b", "--slots", 2)
            self.assertTrue(support.wait_until(lambda: job.rows(count=4), SOON, 0.05), str(job))
            times.append(self.one_try(job, lambda: self.hosts.down("b")))
            self.assertTrue(support.wait_until(lambda: not self.hosts.pids("b"), 15), "b goes on by itself")
        self.hosts.up("b")
        self.tell(f"the cable of one of 2 hosts is pulled, --heartbeat-limit {LIMIT}", times)
        job.stop()

    def tell(self, what, times):
        times = sorted(round(1000 * seconds) for seconds in times)
        last = times[min(len(times) - 1, int(0.99 * len(times)))]
        print(
            f"{what}: {len(times)} tries, median {statistics.median(times)} ms, p99 {last}, longest {times[-1]}",
            flush=True,
        )


if __name__ == "__main__":
    training.main()
