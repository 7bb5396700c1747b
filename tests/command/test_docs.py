"""Every command of the pages and of `--help` runs as it is written there, or is accounted for (docs.py)."""
import re
import shutil
import subprocess

import docs
import support


class Docs(support.CommandTest):
    def setUp(self):
        super().setUp()
        self.env = docs.prepare(self.folder)

    def test_every_line_is_accounted_for(self):
        lines = docs.all_lines()
        self.assertGreater(len(lines), 30)
        self.assertEqual(
            [f"{line.source}: {line.text}" for line in lines if line.rule() is None],
            [],
            "no rule in tests/command/docs.py says how this is run",
        )

    def test_every_command_of_a_page_is_a_line_that_is_run(self):
        """None stands in a block of another kind, where nobody looks for commands."""
        word = rf"trireme (?:{'|'.join(docs.commands())})|mpirun|srun|sbatch|torchrun|spm_train|make"
        begins = re.compile(rf"\s*(?:export )?(?:[A-Z_]+=\S* )*(?:{word})(?: |$)")
        self.assertTrue(begins.match("TRIREME_TOKEN=... trireme join a:7070"))
        self.assertFalse(begins.match("trireme: rank 1 died first"))
        for page in docs.pages():
            for language, lines in docs.blocks_of_page(page):
                if language != "sh":
                    self.assertEqual([line for line in lines if begins.match(line)], [], f"{page.name}: make it ```sh")

    def test_lines_are_found_wherever_they_stand(self):
        found = {(line.source, line.text) for line in docs.all_lines()}
        self.assertIn(("docs/using-a-model.md", "trireme predict flowers.safetensors --data new.csv"), found)
        self.assertIn(("trireme ctl scale --help", "trireme ctl scale 3"), found)

    def succeeds(self, text):
        result = docs.run_line(text, self.folder, self.env)
        self.assertEqual(result.returncode, 0, f"{text}\n{result.stdout}")
        return result.stdout

    def run_all(self, how, change=lambda text: text):
        texts = {
            line.text: line
            for line in docs.all_lines()
            if line.how() == how and not line.text.startswith("trireme ctl")
        }
        self.assertTrue(texts)
        for text, line in texts.items():
            with self.subTest(source=line.source, line=text):
                if "--checkpoint " in text and "--resume" not in text:  # a new run, in a new folder
                    shutil.rmtree(self.folder / "runs", ignore_errors=True)
                self.succeeds(change(text))

    def test_lines_as_they_are_written(self):
        for text in docs.MODELS:
            self.succeeds(text)
        self.run_all(docs.HERE)

    def test_lines_of_trainings_and_benchmarks_for_a_few_steps(self):
        self.run_all(docs.SHORT, docs.shortened)

    def test_lines_about_a_job_that_runs(self):
        job = support.start(
            "train",
            "lenet",
            "--data",
            "synthetic:2000",
            "--workers",
            2,
            "--servers",
            2,
            "--sync",
            "async",
            "--epochs",
            100000,
            cwd=self.folder,
        )
        elastic = support.start(
            "launch", "-n", 3, "--on-failure", "replace", "--", support.PROGRAMS / "program_elastic", self.folder
        )
        try:
            scaled = lambda: docs.run_line("trireme ctl scale 3", self.folder, self.env).returncode == 0  # noqa: E731
            self.assertTrue(support.wait_until(scaled, 60), "the job whose crew may change has not begun")
            begun = lambda: docs.run_line("trireme ctl delay 0 0", self.folder, self.env).returncode == 0  # noqa: E731
            self.assertTrue(support.wait_until(begun, 150), "the job has not begun")
            texts = {line.text for line in docs.all_lines() if line.text.startswith("trireme ctl")}
            self.assertTrue(texts)
            for text in sorted(texts):
                with self.subTest(line=text):
                    self.succeeds(text)
        finally:
            for started in (job, elastic):
                started.kill()  # its workers end with it
                started.communicate()

    def test_flags_that_are_mentioned_exist(self):
        """`trireme train --hosts` in the middle of a sentence."""
        helps = {name: docs.help_of(name) for name in docs.commands()}
        for name in helps:
            helps[name] += "".join(docs.help_of(name, sub) for sub in docs.commands(name))
        mentions = 0
        for page in docs.pages():
            for name, rest in re.findall(r"`trireme ([a-z]+)([^`\n]*)`", page.read_text()):
                with self.subTest(page=page.name, mention=name + rest):
                    self.assertIn(name, helps)
                    for flag in re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", rest.partition(" -- ")[0]):
                        mentions += 1
                        self.assertRegex(helps[name], rf"{flag}\b")
        self.assertGreater(mentions, 10)


if __name__ == "__main__":
    support.main()
