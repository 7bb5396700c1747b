"""Groups of a mesh whose ranks are on two hosts train at the same time, each its own model with batch norm over the group."""
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


if __name__ == "__main__":
    training.main()
