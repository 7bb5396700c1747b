"""`trireme train` on hosts of this machine: what the tests of this folder share."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import hosts

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "command"))
import support  # noqa: E402

TRIREME = os.environ.get("TRIREME", str(ROOT / "build" / "trireme"))
ON_HOST = pathlib.Path(__file__).with_name("on_host")


class HostsTest(unittest.TestCase):
    """Two hosts per class, a folder per test."""

    HOSTS = 2

    @classmethod
    def setUpClass(cls):
        cls.hosts = cls.enterClassContext(hosts.Hosts(cls.HOSTS))

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="trireme-hosts-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def remote(self):
        return f"{ON_HOST} {self.hosts.prefix} {{host}} {{command}}"

    def start(self, *words, host="a", env=None, cwd=None):
        process = self.hosts.run(
            host,
            [TRIREME, *map(str, words)],
            env={**support.environment(), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd or self.folder,
        )
        self.addCleanup(self.end, process)
        return process

    def start_train(self, spec, *args, env=None):
        return self.start("train", args[0], "--hosts", spec, "--remote", self.remote(), *args[1:], env=env)

    def train(self, spec, *args, limit=120):
        """Trains to the end; (parameters, report, what was printed)."""
        save, report = self.folder / "model.safetensors", self.folder / "report.json"
        process = self.start_train(spec, *args, "--save", save, "--report", report)
        out, error = process.communicate(timeout=limit)
        self.assertEqual(process.returncode, 0, out + error)
        return support.read_safetensors(save), json.loads(report.read_text()), out

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()

    def workers(self, host):
        """Pids of the ranks on a host, lowest rank first."""
        found = {}
        for pid in self.hosts.pids(host):
            try:
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                name = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
            except (FileNotFoundError, ProcessLookupError):
                continue
            rank = [int(entry[13:]) for entry in environment if entry.startswith(b"TRIREME_RANK=")]
            if rank and name.startswith("trireme-worker"):
                found[rank[0]] = pid
        return [found[rank] for rank in sorted(found)]


def main():
    if reason := hosts.unavailable():
        print(f"skipped: {reason}")
        sys.exit(hosts.SKIPPED)
    unittest.main(verbosity=2)
