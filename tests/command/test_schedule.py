"""`trireme schedule`: pictures, numbers, files of one's own, and what is said of those that do not work out."""
import json
import re
import xml.etree.ElementTree

import support


class Schedule(support.CommandTest):
    def show(self, *args, warns=None):
        result = support.run("schedule", *args, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(warns, result.stderr) if warns else self.assertEqual(result.stderr, "")
        return result.stdout

    def test_prints_a_picture_and_its_numbers(self):
        self.assertEqual(
            self.show("1f1b", "--stages", 2, "--micro", 3).splitlines(),
            [
                "1f1b: 2 stages, 3 micro-batches",
                "stage 0  F0--- F1--- ............B0--------- F2--- B1--------- ......B2--------- ",
                "stage 1  ......F0--- B0--------- F1--- B1--------- F2--- B2--------- ............",
                "bubble            25.0 % of 12; by formula 25.0 %",
                "peak activations  2 1 (by stage)",
            ],
        )

    def test_every_schedule_has_its_bubble_and_its_memory(self):
        for name, bubble, peak in (
            ("gpipe", "27.3 % of 33; by formula 27.3 %", "8 8 8 8"),
            ("1f1b", "27.3 % of 33; by formula 27.3 %", "4 3 2 1"),
            ("interleaved:2", "15.8 % of 28.5; by formula 15.8 %", "11 9 7 5"),
            ("zero-bubble", "11.1 % of 27; by formula 11.1 %", "4 4 4 4"),
        ):
            with self.subTest(name=name):
                text = self.show(name, "--stages", 4, "--micro", 8)
                self.assertIn(f"\nbubble            {bubble}\n", text)
                self.assertIn(f"\npeak activations  {peak} (by stage)\n", text)
                self.assertEqual(len(re.findall(r"(?m)^stage 3 ", text)), 3 if name == "interleaved:2" else 1)

    def test_costs_are_the_users(self):
        numbers = ["--forward", 2, "--backward", 3]
        self.assertIn("of 20; by formula 25.0 %", self.show("gpipe", "--stages", 2, "--micro", 3, *numbers))
        few = "fewer micro-batches"
        text = self.show("gpipe", "--stages", 2, "--micro", 1, *numbers, "--transfer", 0.5, warns=few)
        self.assertIn("bubble            54.5 % of 11\n", text)  # 2 + 0.5 + 2 + 3 + 0.5 + 3
        text = self.show("zero-bubble", "--stages", 2, "--micro", 1, "--input", 1, "--weight", 4, warns=few)
        self.assertIn("of 8\n", text)  # F F I, then stage 0: I W
        case = ["schedule", "1f1b", "--stages", 2, "--micro", 2]
        self.refused(*case, "--input", 2, says=["--input and --weight"], code=2)

    def test_few_micro_batches_are_warned_of(self):
        sentence = "warning: there are fewer micro-batches (4) than stages (8): the stages wait for 64 % of the time."
        text = self.show("1f1b", "--stages", 8, "--micro", 4, warns=sentence)
        self.assertIn("bubble            63.6 %", text)

    def test_draws(self):
        self.show("zero-bubble", "--stages", 3, "--micro", 4, "--out", "z.svg")
        root = xml.etree.ElementTree.parse(self.folder / "z.svg").getroot()
        bars = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if len(e)]
        self.assertEqual(len(bars), 3 * 4 * 3)
        said = self.refused("schedule", "1f1b", "--stages", 2, "--micro", 2, "--out", "no/such.svg", code=1)
        self.assertIn("cannot write no/such.svg: No such file or directory", said)

    def test_draws_what_happened(self):
        spans = [{"trireme-timeline": 1, "name": "gpipe", "stages": 2, "micro": 1, "chunks": 1}]
        for stage, action, begin, end in (
            (0, "forward", 5.0, 5.5),
            (1, "forward", 5.6, 6.1),
            (1, "backward", 6.1, 7.1),
            (0, "backward", 7.2, 8.2),
        ):
            spans.append({"stage": stage, "action": action, "micro": 0, "chunk": 0, "begin": begin, "end": end})
        (self.folder / "run.jsonl").write_text("".join(json.dumps(span) + "\n" for span in spans))
        case = ["gpipe", "--stages", 2, "--micro", 1, "--out", "both.svg", "--happened"]
        self.show(*case, "run.jsonl", warns="fewer micro-batches")
        svg = (self.folder / "both.svg").read_text()
        self.assertIn("planned, at the median costs: bubble 50.0 % of 3 s", svg)
        self.assertIn("happened: bubble 53.1 % of 3.2 s", svg)
        (self.folder / "bad.jsonl").write_text("{}\n")
        self.refused("schedule", *case, "bad.jsonl", says=["bad.jsonl, line 1: 'trireme-timeline' is"], code=2)

    def test_a_file_of_ones_own(self):
        self.show("interleaved:2", "--stages", 2, "--micro", 4, "--save", "my.schedule")
        text = self.show("file:my.schedule", "--check")
        self.assertIn("file:my.schedule: 2 stages, 4 micro-batches, 2 chunks in each stage\nchecked: ", text)
        self.assertIn("\npeak activations  5 3 (by stage)\n", text)
        actions = self.show("file:my.schedule", "--actions")
        self.assertIn((self.folder / "my.schedule").read_text(), actions)
        said = self.refused("schedule", "file:my.schedule", "--micro", 8, code=2)
        self.assertIn("is for 2 stages and 4 micro-batches, not for 2 and 8", said)

    def test_files_that_do_not_work_out(self):
        head = "trireme-schedule 1\nstages 2\nmicro 2\n"
        for rows, says in (
            ("stage 0: F0 sa0 F1 sa1 rg0 B0 rg1 B1\nstage 1: ra0 F0 B0 sg0 ra1 F1 B1 sg1\n", "a deadlock"),
            (
                "stage 0: F0 sa0 F1 sa1 rg0 B0 rg1\nstage 1: ra0 F0 ra1 F1 B0 sg0 B1 sg1\n",
                "stage 0: there is no backward of micro-batch 1, chunk 0",
            ),
            ("stage 0: F0 sa0 Q1\n", "my.schedule, line 4: 'Q1' is no action"),
        ):
            with self.subTest(says=says):
                (self.folder / "my.schedule").write_text(head + rows)
                self.refused("schedule", "file:my.schedule", "--check", says=[says], code=2)
        self.refused("schedule", "file:none", says=["cannot open none: No such file or directory"], code=2)

    def test_bad_input(self):
        for args, says in (
            (["1f1"], "unknown schedule '1f1' (did you mean '1f1b'?)"),
            (["interleaved"], "such as interleaved:2"),
            (["1f1b"], "--stages is needed"),
            (["1f1b", "--stages", 4], "--micro is needed"),
            (["1f1b", "--stages", 0, "--micro", 4], "1 to 4096 stages, not 0"),
            (["1f1b", "--stages", "x", "--micro", 4], "--stages: 'x' is not a number"),
            (["1f1b", "--stages", 4096, "--micro", 60000], "is too large"),
            (["1f1b", "--stages", 4, "--micro", 4, "--forward", -1], "--forward is a number above 0, not -1"),
            (["1f1b", "--stages", 4, "--micro", 4, "--happened", "x"], "--out"),
            (["1f1b", "--stage", 4], "unknown flag '--stage' (did you mean '--stages'?)"),
        ):
            with self.subTest(args=args):
                self.refused("schedule", *args, says=[says], code=2)


if __name__ == "__main__":
    support.main()
