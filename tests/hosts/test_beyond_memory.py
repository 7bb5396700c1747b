"""A model that does not fit into a host's memory is trained by four hosts with ZeRO 3: the example, as it is."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

import hosts

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "beyond_memory"


class BeyondMemory(unittest.TestCase):
    def test_stage_3_trains_where_stage_0_is_killed(self):
        done = subprocess.run(
            [EXAMPLE, "--steps", "2"], capture_output=True, text=True, timeout=250, env={**os.environ}
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        whole, shared = (json.loads(line) for line in done.stdout.splitlines())
        self.assertEqual((whole["zero"], whole["trained"]), (0, False))
        self.assertEqual((shared["zero"], shared["trained"]), (3, True))
        self.assertLess(shared["peak_mb"], shared["limit_mb"])


def no_limits():
    """Why this machine cannot limit the memory of hosts, or None."""
    if reason := hosts.unavailable():
        return reason
    kinds = pathlib.Path("/proc/filesystems").read_text()
    return (
        None
        if "cgroup" in kinds and os.access("/sys/fs/cgroup", os.W_OK)
        else "there are no memory cgroups to write to"
    )


if __name__ == "__main__":
    if reason := no_limits():
        print(f"skipped: {reason}")
        sys.exit(hosts.SKIPPED)
    unittest.main()
