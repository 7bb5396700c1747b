"""The programs of docs/api.md do what the page says, alone and on two ranks."""
import concurrent.futures
import os
import subprocess
import sys
import unittest

import support

sys.path.insert(0, str(support.ROOT / "scripts"))
import page_programs  # noqa: E402

PROGRAMS = os.environ.get("API_PROGRAMS", str(support.ROOT / "build" / "tests" / "api_programs"))
PAGE = support.ROOT / "docs" / "api.md"


def run(command):
    environment = {**support.environment(), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=support.LIMIT
    )


class Api(unittest.TestCase):
    def expect(self, command, lines, ordered):
        result = run(command)
        said = f"{command}\n{result.stdout}{result.stderr}"
        self.assertEqual(result.returncode, 0, said)
        printed = result.stdout.splitlines()
        self.assertEqual(printed if ordered else sorted(printed), lines if ordered else sorted(lines), said)

    def check(self, program):
        if not program.flags:
            self.expect([PROGRAMS, program.name], program.prints.get("", "").splitlines(), True)
        both = program.prints.get("-n 2")
        lines = both.splitlines() if both else [f"[0] {line}" for line in program.prints[""].splitlines()]
        launch = [support.TRIREME, "launch", "-n", "2", *program.flags.split(), "--", PROGRAMS, program.name]
        self.expect(launch, lines, both is None)

    def test_programs(self):
        _, programs = page_programs.read(PAGE)
        self.assertGreater(len(programs), 10)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            checks = [(program, pool.submit(self.check, program)) for program in programs]
        for program, check in checks:
            with self.subTest(program=program.name):
                self.assertTrue(program.prints, "the page does not say what it prints")
                check.result()


if __name__ == "__main__":
    support.main()
