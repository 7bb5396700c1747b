"""`trireme launch --hosts` of ranks that die and come: a rank that its agent replaces, a host that dies, one that joins."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import hosts

TRIREME = os.environ["TRIREME"]
PROGRAM = pathlib.Path(TRIREME).parent / "tests" / "program_elastic"
ON_HOST = pathlib.Path(__file__).parent / "on_host"
SOON = 60  # seconds


class ElasticHosts(unittest.TestCase):
    def setUp(self):
        self.hosts = hosts.Hosts(3)
        self.hosts.__enter__()
        self.addCleanup(self.hosts.__exit__)
        folder = tempfile.TemporaryDirectory(prefix="trireme-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = {**os.environ, "TRIREME_TOKEN": "secret"}
        self.lines = []

    def start(self, host, *arguments):
        process = self.hosts.run(
            host,
            [TRIREME, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        reader = threading.Thread(target=self.read, args=(process.stdout,))
        reader.start()
        self.addCleanup(reader.join)
        return process

    def read(self, stream):
        with stream:
            for line in stream:
                self.lines.append(line.rstrip("\n"))

    def begin(self, *flags):
        remote = f"{ON_HOST} {self.hosts.prefix} {{host}} {{command}}"
        return self.start(
            "a", "launch", *flags, "--remote", remote, "--port", 7070, "--heartbeat-limit", 2, "--", PROGRAM, self.folder
        )

    def wait_until(self, condition, what):
        end = time.monotonic() + SOON
        while not condition():
            self.assertLess(time.monotonic(), end, f"{what}:\n" + "\n".join(self.lines))
            time.sleep(0.02)

    def pid(self, rank):
        found = [re.fullmatch(rf"\[{rank}\] pid (\d+)", line) for line in self.lines]
        return next((int(match[1]) for match in found if match), None)

    def row(self, *ranks):
        """Waits until all of them are in the crew of exactly these."""
        names = ",".join(map(str, ranks))

        def there():
            found = [re.fullmatch(r"\[(\w+)\] epoch \d+ of ([\d,]+)", line) for line in self.lines]
            latest = {match[1]: match[2] for match in found if match}
            return all(latest.get(str(rank)) == names for rank in ranks)

        self.wait_until(there, f"{names} do not row")

    def ends_well(self, *processes):
        (self.folder / "stop").touch()
        for process in processes:
            self.assertEqual(process.wait(SOON), 0, "\n".join(self.lines))

    def test_a_host_that_joins(self):
        job = self.begin("--ranks", "1:3", "--hosts", "a:1,b:1")
        self.row(0, 1)
        late = self.start("c", "join", f"{self.hosts.address('a')}:7070")
        self.row(0, 1, 2)
        self.ends_well(job, late)

    def test_a_rank_is_replaced_where_it_was(self):
        job = self.begin("--ranks", "1:3", "--hosts", "a:1,b:1")
        self.row(0, 1)
        os.kill(self.pid(1), signal.SIGKILL)
        self.row(0, 2)
        self.ends_well(job)

    def test_a_host_that_dies(self):
        job = self.begin("--ranks", "1:3", "--hosts", "a:1,b:1,c:1", "--on-failure", "continue")
        self.row(0, 1, 2)
        self.hosts.down("c")
        self.row(0, 1)
        self.ends_well(job)


if __name__ == "__main__":
    if reason := hosts.unavailable():
        print(reason)
        sys.exit(hosts.SKIPPED)
    unittest.main(verbosity=2)
