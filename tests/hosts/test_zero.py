"""What a machine holds of a model, with ZeRO and with tensor parallelism: measured on hosts of one rank each, against
the formulas. TRIREME_LONG=1 measures eight hosts too, and prints a table."""
import os
import re
import unittest

import training
from training import support

LINE = re.compile(r"rank \d+ of \d+: segment (\S+) at most (\S+), resident (\S+) at most (\S+), (.*), \S+ ms a step")
LONG = os.environ.get("TRIREME_LONG") == "1"
FORMULAS = {0: lambda n: 16, 1: lambda n: 8 + 8 / n, 2: lambda n: 4 + 12 / n, 3: lambda n: 16 / n}


class Memory(training.HostsTest):
    """Adam in f32 on 100 MB of parameters; bytes per parameter."""

    HOSTS = 8 if LONG else 4

    def measure(self, machines, name, *arguments):
        spec = ",".join(f"{host}:1" for host in self.hosts.names[:machines])
        program = support.PROGRAMS / f"program_{name}"
        process = self.start("launch", "--hosts", spec, "--remote", self.remote(), "--", program, *arguments)
        out, error = process.communicate(timeout=150)
        self.assertEqual(process.returncode, 0, out + error)
        found = [(*(float(figure) for figure in line[:4]), line[4]) for line in LINE.findall(out)]
        self.assertEqual(len(found), machines, out + error)
        return found

    def show(self, what, machines, wanted, found, beyond=0.0):
        if LONG:
            figures = [max(figure) for figure in zip(*(line[:4] for line in found))]
            texts = (f"{figure:.2f}" for figure in (wanted, beyond, *figures))
            print("|", what, "|", machines, "|", " | ".join(texts), "|", flush=True)

    def zero(self, machines):
        """tests/programs/zero_memory.cpp"""
        for stage in (1, 2, 3):
            wanted = FORMULAS[stage](machines)
            found = self.measure(machines, "zero_memory", stage, 3)
            self.show(f"zero {stage}", machines, wanted, found, float(found[0][4].split()[1]))
            for rest, most, resident, most_resident, more in found:
                where, window = f"zero {stage} on {machines} machines", float(more.split()[1])
                self.assertLess(rest, 1.05 * wanted, where)
                self.assertLess(most, 1.05 * wanted + window, f"{where}, within a step")
                self.assertLess(resident, 1.05 * wanted, f"{where}, in the process")
                self.assertGreater(most_resident, 0.9 * (wanted - 4 / machines), f"{where}: nothing was measured")

    def tensor(self, machines):
        """tests/programs/tensor_memory.cpp"""
        found = self.measure(machines, "tensor_memory")
        self.show("tensor", machines, 16 / machines, found)
        for rest, most, resident, _, more in found:
            where = f"tensor {machines}: {more}"
            self.assertLess(most, 1.1 * 16 / machines, where)
            self.assertGreater(rest, 0.95 * 16 / machines, where)
            self.assertLess(resident, 1.1 * 16 / machines, f"{where}, in the process")

    def test_two_machines(self):
        self.zero(2)
        self.tensor(2)

    def test_four_machines(self):
        self.zero(4)
        self.tensor(4)

    @unittest.skipUnless(LONG, "TRIREME_LONG=1")
    def test_eight_machines(self):
        self.zero(8)
        self.tensor(8)


if __name__ == "__main__":
    training.main()
