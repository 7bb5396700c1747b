"""GPT reaches the same validation loss in every layout of several hosts."""
import training
from training import support  # noqa: F401, it has put tests/command in the path

from layouts import LONG, SPEC, compare

LAYOUTS = {
    "1 worker": ("a:1",),
    "2 hosts": ("a:1,b:1",),
    "2 hosts, zero 1": ("a:1,b:1", "--zero", 1),
    "2 hosts, zero 2": ("a:1,b:1", "--zero", 2),
    "2 hosts, tensor 2": ("a:2,b:2", "--tensor", 2),
    "2 hosts, zero 3": ("a:1,b:1", "--zero", 3),
    "2 hosts, tensor 2, zero 3": ("a:2,b:2", "--tensor", 2, "--zero", 3),
}


class Layouts(training.HostsTest):
    def test_all_reach_the_same_loss(self):
        compare(self, LAYOUTS, lambda spec, *flags: self.train(spec, *SPEC, *flags, limit=900 if LONG else 120)[1])


if __name__ == "__main__":
    training.main()
