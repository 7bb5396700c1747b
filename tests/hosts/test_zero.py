"""What a machine holds with ZeRO 1, 2 and 3: measured on hosts of one rank each, against the formulas."""
import re

import training
from training import support

LINE = re.compile(r"rank \d+ of \d+: segment (\S+) at most (\S+), resident (\S+) at most (\S+), window (\S+), ")


class Memory(training.HostsTest):
    """tests/programs/zero_memory.cpp: Adam in f32 on 100 MB of parameters; bytes per parameter."""

    HOSTS = 4

    def measure(self, stage, machines):
        spec = ",".join(f"{host}:1" for host in self.hosts.names[:machines])
        program = support.PROGRAMS / "program_zero_memory"
        process = self.start("launch", "--hosts", spec, "--remote", self.remote(), "--", program, stage, 3)
        out, error = process.communicate(timeout=150)
        self.assertEqual(process.returncode, 0, out + error)
        found = [[float(figure) for figure in line] for line in LINE.findall(out)]
        self.assertEqual(len(found), machines, out + error)
        return found

    def check(self, machines):
        formulas = {1: 8 + 8 / machines, 2: 4 + 12 / machines, 3: 16 / machines}
        plain = max(resident for _, _, resident, _, _ in self.measure(0, machines))
        for stage, wanted in formulas.items():
            for rest, most, resident, _, window in self.measure(stage, machines):
                where = f"zero {stage} on {machines} machines"
                self.assertLess(rest, 1.05 * wanted, where)
                self.assertLess(most, 1.05 * wanted + window, f"{where}, within a step")
                # The process has more than the model: libtorch's, and what its allocator keeps of freed tensors.
                self.assertGreater(plain - resident, 0.8 * (16 - wanted), f"{where}, saved in the process")

    def test_two_machines(self):
        self.check(2)

    def test_four_machines(self):
        self.check(4)


if __name__ == "__main__":
    training.main()
