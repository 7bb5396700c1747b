"""Parameter servers from the command line: what each mode promises, and what becomes of it when somebody dies."""
import csv
import json
import os
import pathlib
import signal
import time

import support

SMALL = ["mlp:32", "--data", "synthetic:300", "--epochs", 3, "--batch", 30, "--lr", 0.02]
ENDLESS = ["mlp:64", "--data", "synthetic:2000", "--epochs", 100000, "--batch", 64]
ASYNCHRONOUS = ["async", "stale:2", "trylock:0.9", "round-robin", "hogwild", "local:4", "elastic:4,0.3"]
SOON = 4  # seconds; the rest is for a busy machine


def role(pid):
    try:
        return "server" if b"serve" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") else "worker"
    except FileNotFoundError:
        return "gone"


class Modes(support.CommandTest):
    def test_synchronous_servers_give_the_bits_of_shared(self):
        for args in (
            ["--workers", 2],
            ["--workers", 3, "--optimizer", "adam", "--bucket-bytes", 4096],
            ["--workers", 2, "--accumulate", 2],
        ):
            expected = self.train(*SMALL, *args)
            for servers in (1, 3):
                with self.subTest(args=args, servers=servers):
                    report = self.train(*SMALL, *args, "--sync", "server", "--servers", servers)
                    self.assertEqual(report["sha256"], expected["sha256"])
                    self.assertEqual(report["updates"], expected["updates"])

    def test_a_bound_of_zero_is_synchronous(self):
        self.assertEqual(
            self.train(*SMALL, "--workers", 2, "--sync", "stale:0")["sha256"],
            self.train(*SMALL, "--workers", 2, "--sync", "server")["sha256"],
        )

    def test_one_worker_that_always_tries_is_plain_sgd(self):
        plain = ["--workers", 1, "--optimizer", "sgd"]
        expected = self.train(*SMALL, *plain)["sha256"]
        for sync in ("trylock:1", "async", "stale:3", "round-robin", "hogwild", "local:1"):
            with self.subTest(sync=sync):
                self.assertEqual(self.train(*SMALL, *plain, "--sync", sync)["sha256"], expected)

    def test_local_steps_are_averaged_the_same_way_by_servers_and_by_allreduce(self):
        args = [*SMALL, "--workers", 2, "--sync", "local:4", "--dtype", "f64", "--optimizer", "sgd"]
        by_allreduce, _ = self.parameters(*args)
        by_servers, _ = self.parameters(*args, "--servers", 2)
        for name, values in by_allreduce.items():
            self.assertLess(abs(values - by_servers[name]).max(), 1e-12, name)

    def test_every_mode_learns(self):
        for sync in ASYNCHRONOUS:
            with self.subTest(sync=sync):
                # Plain SGD: staleness acts like momentum, and together with momentum so small a run is unsteady.
                report = self.train(
                    *SMALL, "--workers", 2, "--sync", sync, "--epochs", 10, "--optimizer", "sgd", "--lr", 0.1
                )
                self.assertLess(report["epochs"][-1]["loss"], 0.6 * report["epochs"][0]["loss"])
                self.assertGreater(report["epochs"][-1]["test_accuracy"], 0.5)
                self.assertEqual(report["sync"], sync)
                server = report["metrics"].get("server 0", {}).get("model 0")
                if sync == "round-robin":
                    self.assertLessEqual(server["staleness"]["max"], 2)
                if sync == "stale:2":
                    self.assertLessEqual(server["age"]["max"], 2)

    def test_who_never_tries_never_updates(self):
        before = self.train(*SMALL, "--workers", 2, "--epochs", 0)["sha256"]
        report = self.train(*SMALL, "--workers", 2, "--sync", "trylock:0")
        self.assertEqual(report["sha256"], before)
        self.assertEqual(
            report["metrics"]["server 0"]["model 0"]["dropped"], 3 * 10 * 2
        )  # epochs, steps, pieces of a step

    def test_rules_for_gradients(self):
        plain = self.train(*SMALL, "--workers", 1, "--sync", "async")
        for args in (["--clip", 0.01], ["--weight-decay", 0.1]):
            self.assertNotEqual(self.train(*SMALL, "--workers", 1, "--sync", "async", *args)["sha256"], plain["sha256"])
        for rule in ("inverse", "compensated"):  # with one worker nothing is stale
            self.assertEqual(
                self.train(*SMALL, "--workers", 1, "--sync", "async", "--stale-gradients", rule)["sha256"],
                plain["sha256"],
            )

    def test_the_rate_is_the_share_of_a_step(self):
        half = [
            *SMALL,
            "--workers",
            2,
            "--optimizer",
            "sgd",
            "--sync",
            "round-robin",
        ]
        # The order of workers is fixed, and so are the bits, unless one of them was quick enough to take a piece that
        # is the other's as a rule: then once more. With a wrong rate they would never be the same.
        shares, full = set(), set()
        for _ in range(6):
            shares.add(self.train(*half)["sha256"])
            full.add(self.train(*half, "--rate", "full", "--lr", 0.01)["sha256"])
            if shares & full:
                break
        self.assertTrue(shares & full)
        report = self.train(*half, "--rate", "full")
        self.assertNotEqual(report["sha256"], self.train(*half)["sha256"])
        self.assertEqual(report["rate"], "full")
        (self.folder / "full.toml").write_text(
            'model = "mlp:32"\ndata = "synthetic:300"\nsync = "async"\nworkers = 2\nepochs = 1\nrate = "full"\n'
        )
        self.assertEqual(self.train("full.toml")["rate"], "full")

    def test_one_worker_has_the_bits_of_shared_with_momentum(self):
        expected = self.train(*SMALL, "--workers", 1)["sha256"]
        for sync in ("trylock:1", "async", "stale:3", "round-robin", "hogwild"):
            with self.subTest(sync=sync):
                self.assertEqual(self.train(*SMALL, "--workers", 1, "--sync", sync)["sha256"], expected)

    def test_what_cannot_be_is_refused(self):
        for sync in ("shared", "allreduce", "server", "stale:0", "local:4"):
            self.refused(
                "train",
                *SMALL,
                "--sync",
                sync,
                "--rate",
                "full",
                says=["rate 'full'", f"'{sync}'", "one by one"],
                code=2,
            )
        self.refused("train", *SMALL, "--sync", "hogwild", "--rate", "ful", says=["did you mean 'full'"], code=2)
        self.refused("train", *SMALL, "--servers", 1, says=["--servers 1", "shared"], code=2)
        self.refused("train", *SMALL, "--sync", "stale", says=["stale:S"], code=2)
        self.refused("train", *SMALL, "--sync", "asynk", says=["did you mean 'async'"], code=2)
        self.refused("train", *SMALL, "--clip", -1, says=["clip must be a norm of at least 0"], code=2)
        self.refused("train", *SMALL, "--on-nan", "stopp", says=["'stopp'", "did you mean 'stop'"], code=2)
        self.refused("train", *SMALL, "--straggler", "one", says=["WORKER:FACTOR"], code=2)
        self.refused("serve", says=["--servers"], code=2)
        self.refused("ctl", "--job", "x", says=["ctl"], code=2)

    def test_a_mode_with_a_comma_can_be_compared(self):
        result = support.run(
            "compare",
            *SMALL[:3],
            "--workers",
            2,
            "--epochs",
            1,
            "--sync",
            "shared,elastic:4,0.3,local:4",
            cwd=self.folder,
        )
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"(?m)^elastic:4,0\.3 ")
        with open(self.folder / "out" / "compare.csv", newline="") as file:
            self.assertEqual(
                [(row["mode"], row["epoch"]) for row in csv.DictReader(file)],
                [("shared", "1"), ("elastic:4,0.3", "1"), ("local:4", "1")],
            )

    def test_launched_programs_find_servers(self):
        result = support.run(
            "launch", "-n", 2, "--servers", 2, "--", "sh", "-c", "echo $TRIREME_SERVERS of $TRIREME_SIZE"
        )
        self.assertEqual(result.stdout.count("2 of 2"), 2, result.stdout + result.stderr)


def job_of(server):
    """The job of a server's process: its door's name in the table of sockets is .../ps/JOB/NUMBER."""
    sockets = {os.readlink(entry) for entry in pathlib.Path(f"/proc/{server}/fd").iterdir()}
    for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and "/ps/" in fields[7] and f"socket:[{fields[6]}]" in sockets:
            return fields[7].split("/ps/")[1].split("/")[0]
    raise AssertionError(f"process {server} has no door")


def members(*args):
    """What `trireme ctl status` says, by member."""
    lines = [json.loads(line) for line in support.run("ctl", "status", *args).stdout.splitlines()]
    return {line["member"]: line for line in lines}


class Deaths(support.CommandTest):
    def begin(self, *args, workers=2, servers=2):
        process = support.start("train", *ENDLESS, "--workers", workers, "--servers", servers, *args, cwd=self.folder)
        self.addCleanup(self.end, process)
        for line in process.stdout:
            if line.startswith("epoch 1 "):
                break
        pids = support.children(process.pid)
        found = {kind: [pid for pid in pids if role(pid) == kind] for kind in ("worker", "server")}
        self.assertEqual(
            (len(found["worker"]), len(found["server"])),
            (workers, servers),
            process.stderr.read() if process.poll() else "",
        )
        return process, found

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()

    def expect_end(self, process, found, since, says):
        _, text = process.communicate(timeout=SOON + 10)
        self.assertLess(time.monotonic() - since, SOON, text)
        self.assertNotEqual(process.returncode, 0)
        for part in says:
            self.assertIn(part, text)
        pids = found["worker"] + found["server"]
        self.assertTrue(support.wait_until(lambda: not any(map(support.alive, pids)), 2), "somebody is still there")

    def test_a_killed_server_is_named(self):
        for sync in ("server", "async", "round-robin", "local:5"):
            for server in (0, 1):
                with self.subTest(sync=sync, server=server):
                    process, found = self.begin("--sync", sync)
                    since = time.monotonic()
                    os.kill(found["server"][server], signal.SIGKILL)
                    self.expect_end(
                        process, found, since, [f"server {server} (process {found['server'][server]})", "SIGKILL"]
                    )

    def test_a_killed_worker_is_named(self):
        for sync in ("server", "async", "stale:1", "round-robin"):
            with self.subTest(sync=sync):
                process, found = self.begin("--sync", sync)
                since = time.monotonic()
                os.kill(found["worker"][1], signal.SIGKILL)
                self.expect_end(process, found, since, [f"rank 1 (process {found['worker'][1]})", "SIGKILL"])

    def test_a_stopped_server_is_noticed_at_the_deadline(self):
        process, found = self.begin("--sync", "server", "--timeout", 2)
        since = time.monotonic()
        os.kill(found["server"][1], signal.SIGSTOP)
        self.expect_end(process, found, since + 2, ["server 1", "has waited 2 s"])

    def test_an_interrupted_run_saves_its_model(self):
        for sync in ("server", "async", "round-robin", "local:5", "elastic:5,0.3", "hogwild"):
            with self.subTest(sync=sync):
                save = self.folder / f"{sync[:4]}.safetensors"
                servers = 0 if sync == "hogwild" else 1
                process, found = self.begin("--sync", sync, "--save", save, servers=servers)
                process.send_signal(signal.SIGINT)
                out, error = process.communicate(timeout=20)
                self.assertEqual(process.returncode, 130, error)
                self.assertIn("stopped on request", out, error)
                self.assertGreater(len(support.read_safetensors(save)), 0)
                self.assertFalse(any(map(support.alive, found["worker"] + found["server"])))

    def test_control(self):
        process, found = self.begin("--sync", "async", servers=1)
        job = ("--job", job_of(found["server"][0]))  # other tests' jobs may run beside this one
        status = lambda: members(*job)["server 0"]["metrics"]["model 0"]  # noqa: E731
        before = members(*job)
        self.assertEqual(list(before), ["rank 0", "rank 1", "server 0", "launcher"])
        self.assertEqual(
            [line["process"] for line in before.values()], [*found["worker"], *found["server"], process.pid]
        )
        self.assertEqual(before["launcher"]["metrics"], {"started": 3, "ended": 0, "deaths": 0, "restarts": 0})
        self.assertGreater(before["server 0"]["metrics"]["model 0"]["pushes"], 0)
        for worker in range(2):
            clock = before["server 0"]["metrics"][f"model 0, worker {worker}"]["clock"]
            self.assertTrue(clock is None or clock >= 0, clock)  # none between two epochs
            self.assertGreater(before[f"rank {worker}"]["metrics"]["updates"], 0)
        self.assertIn("no worker 7", support.run("ctl", "delay", 7, 5, *job).stderr)
        told = support.run("ctl", "delay", 1, 500, *job)
        self.assertIn("worker 1", told.stdout)
        time.sleep(0.6)
        start = status()
        time.sleep(1.5)
        end = status()
        self.assertGreater(end["held"], start["held"])  # worker 1's pushes wait
        self.assertGreater(end["updates"] - start["updates"], 20)  # and worker 0 does not

    def test_status_names_all_jobs(self):
        """With servers and without, several at a time: each line says whose it is."""
        first, with_server = self.begin("--sync", "async", servers=1)
        second, without = self.begin("--sync", "shared", servers=0)
        jobs = {}
        for line in support.run("ctl", "status").stdout.splitlines():
            line = json.loads(line)
            jobs.setdefault(line["job"], []).append(line)
        found = {
            tuple(line["process"] for line in lines): [line["member"] for line in lines] for lines in jobs.values()
        }
        self.assertEqual(
            found[*with_server["worker"], *with_server["server"], first.pid],
            ["rank 0", "rank 1", "server 0", "launcher"],
        )
        self.assertEqual(found[*without["worker"], second.pid], ["rank 0", "rank 1", "launcher"])
        self.assertEqual(jobs[job_of(with_server["server"][0])][3]["process"], first.pid)
        shared = members("--job", next(job for job in jobs if jobs[job][0]["process"] == without["worker"][0]))
        self.assertEqual(list(shared), ["rank 0", "rank 1", "launcher"])
        for rank in range(2):
            metrics = shared[f"rank {rank}"]["metrics"]
            self.assertGreater(metrics["updates"], 0)
            self.assertEqual((metrics["epochs"], metrics["epoch_steps"]), (100000, 32))
            self.assertGreater(metrics["backward_seconds"]["sum"], 0)
        self.assertIn("there is no job 'x'", support.run("ctl", "status", "--job", "x").stderr)
        os.kill(without["worker"][1], signal.SIGSTOP)
        stopped = support.run("ctl", "status", "--job", shared["rank 0"]["job"])
        self.assertEqual([json.loads(line)["member"] for line in stopped.stdout.splitlines()], ["rank 0", "launcher"])
        self.assertIn(f"process {without['worker'][1]} has not answered", stopped.stderr)


class Reports(support.CommandTest):
    def test_metrics_of_all_members(self):
        for args, workers, servers in (
            (["--workers", 2], 2, 0),
            (["--workers", 3, "--sync", "async", "--servers", 2], 3, 2),
            (["--workers", 2, "--accumulate", 2], 2, 0),
        ):
            with self.subTest(args=args):
                report = self.train(*SMALL, *args)
                metrics = report["metrics"]
                self.assertEqual(
                    list(metrics), [f"rank {r}" for r in range(workers)] + [f"server {s}" for s in range(servers)]
                )
                ranks = [metrics[f"rank {r}"] for r in range(workers)]
                self.assertEqual(sum(rank["samples"] for rank in ranks), 3 * 300)  # epochs, samples of an epoch
                updates = [rank["updates"] for rank in ranks]
                self.assertEqual(sum(updates) if servers else updates[0], report["updates"])
                accumulate = args[-1] if "--accumulate" in args else 1
                for rank in ranks:
                    self.assertEqual(rank["micro_batches"], accumulate * rank["updates"])
                    for phase, times in (("forward", accumulate), ("backward", accumulate), ("exchange", 1)):
                        histogram = rank[f"{phase}_seconds"]
                        self.assertEqual(histogram["count"], times * rank["updates"])
                        self.assertEqual(sum(count for _, count in histogram["buckets"]), histogram["count"])
                        self.assertLessEqual(histogram["max"], histogram["sum"])
                    self.assertEqual({span["name"] for span in rank["spans"]}, {"forward", "backward", "exchange"})
                if servers:  # a push for each chunk of the model, and none is lost
                    self.assertEqual(
                        sum(metrics[f"server {s}"]["model 0"]["pushes"] for s in range(servers)) % sum(updates), 0
                    )


if __name__ == "__main__":
    support.main()
