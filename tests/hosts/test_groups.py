"""Meshes whose ranks are on two hosts: groups that train a model each, with batch norm over the group; one model in
parts."""
import training
from training import support


class Groups(training.HostsTest):
    """tests/programs/mesh_training.cpp compares with one process that has the whole batch."""

    def launch(self, spec):
        process = self.start(
            "launch", "--hosts", spec, "--remote", self.remote(), "--", support.PROGRAMS / "program_mesh_training"
        )
        out, error = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out + error)
        return out

    def check(self, spec, machines):
        out = self.launch(spec)
        for rank in range(4):
            group = "ranks 0, 2" if rank % 2 == 0 else "ranks 1, 3"
            line = f"rank {rank}: {group} of epoch 0 on {machines} machines, same parameters, same statistics"
            self.assertIn(line, out)

    def test_data_groups_across_hosts(self):
        self.check("a:2,b:2", 2)

    def test_one_host_has_one_rank(self):
        """The group of ranks 0 and 2 is on one host, that of ranks 1 and 3 on two."""
        out = self.launch("a:3,b:1")
        for rank, machines in enumerate((1, 2, 1, 2)):
            self.assertRegex(out, rf"rank {rank}: .* on {machines} machines, same parameters, same statistics")


class Parts(training.HostsTest):
    """tests/programs/mesh_parts.cpp compares with one process that has the whole model and batch."""

    def check(self, spec, inside, across):
        """On how many hosts a rank's data and tensor groups are, by rank: for both orders of the axes."""
        program = support.PROGRAMS / "program_mesh_parts"
        process = self.start("launch", "--hosts", spec, "--remote", self.remote(), "--", program, self.folder)
        out, error = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out + error)
        for axes, hosts in (("data 2 × tensor 2", inside), ("tensor 2 × data 2", across)):
            for rank, (data, tensor) in enumerate(hosts):
                where = f"data on {data}, tensor on {tensor} machines"
                self.assertIn(f"rank {rank}, {axes}: {where}, same parameters, same checkpoint", out)

    def test_parts_inside_a_host_and_across(self):
        self.check("a:2,b:2", [(2, 1)] * 4, [(1, 2)] * 4)

    def test_one_host_has_one_rank(self):
        """One replica is on one host, the other one on two."""
        self.check("a:3,b:1", [(1, 1), (2, 1), (1, 2), (2, 2)], [(1, 1), (1, 2), (2, 1), (2, 2)])


if __name__ == "__main__":
    training.main()
