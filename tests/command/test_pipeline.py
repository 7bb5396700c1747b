"""Models in stages: whatever the pipeline and its schedule, the model is that of one worker."""
import json
import os
import signal
import time
import xml.etree.ElementTree

import support
from language import TEXT, LanguageTest
from test_model_parallel import Reference, furthest

TINY = ("gpt:layers=2,width=32,heads=4,context=16", "--data", f"text:{TEXT}", "--batch", 8)
SHORT = ("--max-steps", 6, "--test", 0.005)
IMAGES = ("--data", "synthetic:240", "--batch", 24)
SCHEDULES = ("gpipe", "1f1b", "interleaved:2", "zero-bubble")
# Stage 0 sends while stage 1 sends: nobody receives.
DEADLOCK = """trireme-schedule 1
stages 2
micro 2
stage 0: F0 sa0 F1 sa1 rg0 B0 rg1 B1
stage 1: ra0 F0 B0 sg0 ra1 F1 B1 sg1
"""


class Stages(LanguageTest):
    def test_every_schedule_trains_the_model_of_one_worker(self):
        alone, report = self.parameters(*TINY, *SHORT, "--dtype", "f64", "--clip", 0.5, "--workers", 1)
        for schedule in SCHEDULES:
            with self.subTest(schedule=schedule):
                ours, its = self.parameters(
                    *TINY, *SHORT, "--dtype", "f64", "--clip", 0.5, "--workers", 2, "--pipeline", 2, "--micro", 4,
                    "--schedule", schedule,
                )  # fmt: skip
                self.assertEqual(its["mesh"], {"data": 1, "pipeline": 2, "tensor": 1})
                self.assertEqual((its["micro"], its["schedule"]), (4, schedule))
                self.assertEqual(its["parameters"], report["parameters"])
                self.assertLessEqual(furthest(ours, alone), 1e-9)
                for key in ("loss", "test_loss", "test_accuracy"):
                    self.assertAlmostEqual(its["epochs"][-1][key], report["epochs"][-1][key], places=9)

    def test_losses_are_those_of_an_independent_program(self):
        initial, _ = self.parameters(*TINY, "--epochs", 0, "--test", 0.005, "--workers", 1)
        training, test = Reference(initial, 0.005).run(20, 1e-3)
        # 8 samples in 3 micro-batches: unevenly
        flags = ("--max-steps", 20, "--test", 0.005, "--lr", 1e-3, "--pipeline", 2, "--micro", 3)
        for workers, tensor, zero, schedule in (
            (2, 1, 0, "gpipe"), (2, 1, 0, "1f1b"), (2, 1, 0, "interleaved:2"), (2, 1, 0, "zero-bubble"),
            (8, 2, 1, "zero-bubble"), (4, 1, 2, "1f1b"),
        ):  # fmt: skip
            with self.subTest(workers=workers, tensor=tensor, zero=zero, schedule=schedule):
                mesh = ("--workers", workers, "--tensor", tensor, "--zero", zero, "--schedule", schedule)
                report = self.train(*TINY, *flags, *mesh)
                self.assertAlmostEqual(report["epochs"][-1]["loss"], training, delta=1e-5)
                self.assertAlmostEqual(report["epochs"][-1]["test_loss"], test, delta=1e-5)

    def test_models_of_layers_in_a_row(self):
        for model, stages in (("mlp:32,16", 3), ("lenet", 2)):
            with self.subTest(model=model):
                same = (model, *IMAGES, "--dtype", "f64", "--epochs", 2, "--memory-format", "default")
                alone, report = self.parameters(*same, "--workers", 1)
                ours, its = self.parameters(*same, "--workers", stages, "--pipeline", stages)
                self.assertLessEqual(furthest(ours, alone), 1e-9)
                for key in ("loss", "test_loss", "test_accuracy"):
                    self.assertAlmostEqual(its["epochs"][-1][key], report["epochs"][-1][key], places=9)

    def test_batch_norms_see_micro_batches_as_with_accumulation(self):
        same = ("--data", "synthetic:60", "--batch", 12, "--max-steps", 3, "--dtype", "f64")
        same += ("--memory-format", "default")
        for model in ("resnet18", "lenet-bn"):
            with self.subTest(model=model):
                alone, report = self.parameters(model, *same, "--workers", 1, "--accumulate", 2)
                ours, its = self.parameters(model, *same, "--workers", 2, "--pipeline", 2, "--micro", 2)
                self.assertLessEqual(furthest(ours, alone), 1e-8)
                self.assertAlmostEqual(its["epochs"][-1]["loss"], report["epochs"][-1]["loss"], places=8)
                self.assertAlmostEqual(its["epochs"][-1]["test_loss"], report["epochs"][-1]["test_loss"], places=8)

    def test_what_goes_with_it(self):
        alone, report = self.parameters(*TINY, *SHORT, "--workers", 1)
        more = (("--recompute",), ("--sync", "allreduce"), ("--on-nan", "skip"), ("--mean", "plain"))
        for flags in more:
            with self.subTest(flags=flags):
                _, its = self.parameters(*TINY, *SHORT, "--workers", 4, "--pipeline", 2, *flags)
                self.assertAlmostEqual(its["epochs"][-1]["loss"], report["epochs"][-1]["loss"], delta=1e-5)
        _, its = self.parameters(*TINY, *SHORT, "--workers", 2, "--pipeline", 2, "--precision", "bf16")
        self.assertAlmostEqual(its["epochs"][-1]["loss"], report["epochs"][-1]["loss"], delta=0.02)
        images = ("lenet", *IMAGES, "--max-steps", 3, "--workers", 2, "--pipeline", 2)
        self.train(*images, "--memory-format", "auto")
        self.train(*images, "--memory-format", "channels-last", "--straggler", "1:2")

    def test_updates_ahead_of_their_norm(self):
        counts, hashes = {}, set()
        for ahead in (("--ahead", "always"), ("--ahead", "always", "--ahead-bytes", 0), ("--ahead", "never")):
            report = self.train(*TINY, *SHORT, "--clip", 1000, "--workers", 2, "--pipeline", 2, *ahead)
            counts[ahead] = sum(rank.get("updates_ahead", 0) for rank in report["metrics"].values())
            hashes.add(report["sha256"])
        self.assertEqual(list(counts.values()), [12, 0, 0])
        self.assertEqual(len(hashes), 1)

    def test_a_checkpoint_goes_on_on_another_mesh(self):
        spec = (*TINY, "--dtype", "f64", "--test", 0.005)
        straight, _ = self.parameters(*spec, "--workers", 1, "--max-steps", 8)
        meshes = {
            "alone": ("--workers", 1),
            "stages": ("--workers", 4, "--pipeline", 2, "--tensor", 2, "--zero", 1, "--schedule", "zero-bubble"),
            "copies": ("--workers", 4, "--pipeline", 2, "--schedule", "interleaved:2"),
        }
        for first, second in (("stages", "alone"), ("alone", "stages"), ("stages", "copies")):
            with self.subTest(first=first, second=second):
                keep = ("--checkpoint", f"run-{first}-{second}")
                self.train(*spec, *keep, *meshes[first], "--max-steps", 4)
                goes_on, report = self.parameters(*spec, *keep, *meshes[second], "--resume", "latest", "--max-steps", 8)
                self.assertEqual(report["updates"], 8)
                self.assertLessEqual(furthest(goes_on, straight), 1e-9)

    def test_weights_to_begin_with_reach_all_stages(self):
        spec = (*TINY, "--dtype", "f64", "--test", 0.005)
        self.train(*spec, "--workers", 1, "--max-steps", 4, "--checkpoint", "run")
        anew = (*spec, "--resume", "run", "--resume-weights-only", "--max-steps", 2)
        alone, _ = self.parameters(*anew, "--workers", 1)
        ours, _ = self.parameters(*anew, "--workers", 2, "--pipeline", 2)
        self.assertLessEqual(furthest(ours, alone), 1e-9)

    def test_the_first_lines_say_who_has_what(self):
        out = self.succeeds("train", *TINY, *SHORT, "--workers", 2, "--pipeline", 2, "--micro", 4)
        self.assertIn("data 1 × pipeline 2, all on one machine", out)
        self.assertRegex(out, r"stage 0 has .* \(\d+ parameters, \d+ % of the time\); stage 1 has ")
        self.assertIn("tokens.weight is on 2 of them", out)
        self.assertIn("schedule 1f1b, 4 micro-batches: by formula stages wait 20.0 % of the time", out)
        self.assertIn("holds at a time: 2, 1", out)
        self.assertNotIn("warning", out)
        few = ("--workers", 3, "--pipeline", 3, "--micro", 2)
        out = self.succeeds("train", "lenet-bn", *IMAGES, "--max-steps", 1, *few)
        self.assertIn("warning: ", out)
        self.assertIn("fewer micro-batches (2) than stages (3): the stages wait for", out)
        self.assertIn("each micro-batch is normalized by its own statistics, as with --accumulate", out)

    def test_a_stopped_run_saves_what_one_worker_loads(self):
        model = self.folder / "stopped.safetensors"
        process = support.start(
            "train", *TINY, "--test", 0.005, "--epochs", 1000, "--workers", 2, "--pipeline", 2, "--save", model,
            "--stop", "time=2s",
        )  # fmt: skip
        out, error = process.communicate(timeout=support.LIMIT)
        self.assertEqual(process.returncode, 0, out + error)
        self.assertIn("tokens.weight", support.read_safetensors(model))

    def test_a_killed_stage_ends_the_job_by_name(self):
        endless = (*TINY, "--test", 0.005, "--epochs", 100000, "--workers", 4, "--pipeline", 2)
        for rank in (1, 2):  # of the first copy's last stage, and of the other one's first
            with self.subTest(rank=rank):
                process = support.start("train", *endless)
                try:
                    started = any(line.startswith("schedule 1f1b") for line in process.stdout)
                    self.assertTrue(started, "it ended early")
                    time.sleep(0.5)  # in the middle of steps, not before the first
                    victim = support.children(process.pid)[rank]
                    os.kill(victim, signal.SIGKILL)
                    _, error = process.communicate(timeout=30)
                finally:
                    if process.poll() is None:
                        process.kill()
                        process.communicate()
                self.assertNotEqual(process.returncode, 0)
                for part in (f"rank {rank}", "SIGKILL"):
                    self.assertIn(part, error)


class Records(LanguageTest):
    def test_what_happened_beside_what_was_planned(self):
        run = (*TINY, *SHORT, "--workers", 4, "--pipeline", 2, "--micro", 4)
        picture, lines = self.folder / "steps.svg", self.folder / "steps.txt"
        out = self.succeeds("train", *run, "--record-schedule", picture)
        self.assertRegex(out, r"the stages did in the last step is in .*steps.svg; they waited \d+\.\d % of its")
        text = "".join(xml.etree.ElementTree.parse(picture).getroot().itertext())
        self.assertIn("planned", text)
        self.assertIn("happened", text)
        self.succeeds("train", *run, "--schedule", "zero-bubble", "--record-schedule", lines)
        head, *spans = map(json.loads, lines.read_text().splitlines())
        self.assertEqual((head["stages"], head["micro"], head["chunks"]), (2, 4, 1))
        done = {(s["stage"], s["action"], s["micro"]): s for s in spans}
        for micro in range(4):  # what came first on one stage was first by the other's clock, too
            self.assertLessEqual(done[0, "forward", micro]["end"], done[1, "forward", micro]["begin"])
            self.assertLessEqual(done[1, "backward-input", micro]["end"], done[0, "backward-input", micro]["begin"])
            self.assertIn((1, "backward-weight", micro), done)
        self.succeeds("schedule", "zero-bubble", "--stages", 2, "--micro", 4, "--happened", lines, "--out", picture)


class Refusals(LanguageTest):
    def refuses(self, *flags, says):
        self.refused("train", *flags, says=says, code=2)

    def test_flags_without_effect(self):
        two = ("--workers", 2)
        self.refuses(*TINY, *two, "--micro", 4, says=("--micro has no effect without --pipeline P", "use --accumulate"))
        self.refuses(*TINY, *two, "--schedule", "gpipe", says=("--schedule has no effect without --pipeline",))
        self.refuses(*TINY, *two, "--record-schedule", "a.svg", says=("--record-schedule has no effect without",))
        self.refuses(*TINY, *two, "--ahead", "never", says=("--ahead has no effect without --pipeline P",))
        self.refuses(*TINY, *two, "--ahead-bytes", 1, says=("--ahead-bytes has no effect without --pipeline P",))
        self.refuses(*TINY, *two, "--pipeline", 2, "--ahead", "allways", says=("did you mean 'always'", "idle"))
        for pipeline in ((), ("--pipeline", 2)):
            self.refuses(
                *TINY, *two, *pipeline, "--schedule", "cosine",
                says=("cosine is a schedule of the learning rate: --lr-schedule cosine",),
            )  # fmt: skip
        self.refuses(*TINY, *two, "--pipeline", 2, "--schedule", "1f2b", says=("1f2b",))
        self.refuses(*TINY, *two, "--pipeline", 0, says=("--pipeline",))

    def test_what_cannot_be_staged(self):
        two = (*TINY, "--workers", 2, "--pipeline", 2)
        self.refuses(*TINY, "--workers", 3, "--pipeline", 2, says=("3 workers do not divide", "pipeline 2"))
        for sync in ("async", "hogwild", "local:4", "server"):
            self.refuses(*two, "--sync", sync, says=("pipeline 2", sync, "shared"))
        self.refuses(*two, "--zero", 3, says=("zero 3", "zero 2 or less"))
        self.refuses(*two, "--accumulate", 4, says=("accumulate 4", "--micro 4"))
        norms = ("lenet-bn", *IMAGES, "--workers", 2, "--pipeline", 2, "--sync-batch-norm")
        self.refuses(*norms, says=("a batch norm sees one micro-batch at a time",))
        self.refuses(*TINY, "--workers", 4, "--pipeline", 2, "--batch", 1, says=("copies of the model (2)",))
        self.refuses("linear", *IMAGES, "--workers", 2, "--pipeline", 2, says=("cannot be cut into 2 parts",))
        self.refuses("mlp:8", *IMAGES, "--workers", 3, "--pipeline", 3, says=("cut into 3 parts", "at most 2 stages"))
        self.refuses(*two, "--schedule", "interleaved:9", says=("cannot be cut into 18 parts",))

    def test_schedules_of_ones_own(self):
        two = (*TINY, *SHORT, "--workers", 2, "--pipeline", 2)
        (self.folder / "bad.schedule").write_text(DEADLOCK)
        self.refuses(*two, "--schedule", "file:bad.schedule", says=("bad.schedule", "deadlock", "stage 0", "stage 1"))
        self.refused(
            "train", *two, "--schedule", "file:none.schedule", says=("cannot open none.schedule", "--save"), code=2
        )
        self.succeeds("schedule", "gpipe", "--stages", 2, "--micro", 4, "--save", "good.schedule")
        self.assertEqual(self.train(*two, "--schedule", "file:good.schedule")["micro"], 4)
        self.refuses(*two, "--schedule", "file:good.schedule", "--micro", 8, says=("good.schedule", "8"))
        self.refuses(*two, "--schedule", "file:good.schedule", "--batch", 2, says=("a copy of the model 2 samples",))


if __name__ == "__main__":
    support.main()
