"""GPT reaches the same validation loss in every layout of one machine."""
import support
from language import LanguageTest
from layouts import LONG, SPEC, compare

LAYOUTS = {
    "1 worker": ("--workers", 1),
    "data 2": ("--workers", 2),
    "data 2, zero 1": ("--workers", 2, "--zero", 1),
    "data 2, zero 2": ("--workers", 2, "--zero", 2),
    "data 2, zero 3": ("--workers", 2, "--zero", 3),
    "data 2 × tensor 2": ("--workers", 4, "--tensor", 2),
    "tensor 2": ("--workers", 2, "--tensor", 2),
    "data 2 × tensor 2, zero 3": ("--workers", 4, "--tensor", 2, "--zero", 3),
}


class Layouts(LanguageTest):
    def test_all_reach_the_same_loss(self):
        compare(self, LAYOUTS, lambda *flags: self.train(*SPEC, *flags, limit=900 if LONG else 120))


if __name__ == "__main__":
    support.main()
