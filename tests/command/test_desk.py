"""Every job has a desk: on one machine it is in the launcher, and says who is left when a rank dies."""
import unittest

import support

PROGRAM = support.PROGRAMS / "program_going_on"


class Desk(unittest.TestCase):
    def test_all_ranks_come_to_it(self):
        done = support.run("launch", "-n", 3, "--", PROGRAM, "end")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), [f"[{rank}] sum 6" for rank in range(3)])

    def test_a_lost_rank_ends_the_job_by_default(self):
        done = support.run("launch", "-n", 3, "--", PROGRAM, "dies", 1)
        self.assertEqual(done.returncode, 137, done.stdout + done.stderr)
        self.assertIn("rank 1", done.stderr)
        self.assertNotIn("epoch 1", done.stdout)

    def test_the_others_go_on_if_the_policy_says_so(self):
        for victim in range(3):
            done = support.run("launch", "-n", 3, "--on-failure", "continue", "--", PROGRAM, "dies", victim)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            left = [rank for rank in range(3) if rank != victim]
            lines = done.stdout.splitlines()
            self.assertEqual(len(lines), 2, lines)
            for rank in left:
                text = f"[{rank}] ranks {left[0]}, {left[1]} of epoch 1: sum {left[0] + left[1] + 2}; "
                self.assertTrue(any(line.startswith(text) and f"rank {victim}" in line for line in lines), lines)
            self.assertIn(f"rank {victim} was lost; the others went on without it", done.stderr)

    def test_nobody_left(self):
        done = support.run("launch", "-n", 1, "--on-failure", "continue", "--", PROGRAM, "dies", 0)
        self.assertEqual(done.returncode, 137, done.stdout + done.stderr)
        self.assertIn("rank 0", done.stderr)


if __name__ == "__main__":
    unittest.main()
