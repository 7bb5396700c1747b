"""The engine "stream" between hosts: the bits of the others, with and without certificates; deaths; who may not."""
import hashlib
import os
import signal

import training
from training import support

MODEL = ["mlp:40,30", "--data", "synthetic:300", "--batch", 30, "--epochs", 2, "--lr", 0.02]
ENDLESS = ["mlp:64", "--data", "synthetic:2000", "--epochs", 100000, "--batch", 64]


class Stream(training.HostsTest):
    def certificates(self, name="tls"):
        folder = self.folder / name
        result = support.run("tls", "init", folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        return folder

    def sha(self, *args):
        """Of a model trained on two hosts, and what was printed."""
        _, _, printed = self.train("a:1,b:1", *MODEL, *args)
        return hashlib.sha256((self.folder / "model.safetensors").read_bytes()).hexdigest(), printed

    def test_the_bits_of_the_others(self):
        gloo, printed = self.sha("--engine", "gloo")
        self.assertIn("for trusted networks", printed)
        self.assertEqual(printed.count("for trusted networks"), 1)
        stream, printed = self.sha("--engine", "stream")
        self.assertIn("encrypted streams between 2 machines", printed)
        self.assertNotIn("trusted", printed)
        self.assertEqual(stream, gloo)
        with_tls, printed = self.sha("--tls", self.certificates())
        self.assertIn("encrypted streams between 2 machines", printed, "auto takes it with certificates")
        self.assertEqual(with_tls, gloo)

    def test_what_sends_in_the_clear_is_refused_beside_certificates(self):
        folder = self.certificates()
        process = self.start_train("a:1,b:1", *MODEL, "--engine", "gloo", "--tls", folder)
        out, error = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 2, out + error)
        for part in ("in the clear", "--engine stream", "gloo:insecure"):
            self.assertIn(part, error)
        _, printed = self.sha("--engine", "gloo:insecure", "--tls", folder)
        self.assertIn("for trusted networks", printed)

    def test_a_killed_rank_is_named(self):
        process = self.start_train("a:1,b:1", *ENDLESS, "--engine", "stream")
        for line in process.stdout:
            if line.startswith("epoch 1 "):
                break
        os.kill(self.workers("b")[0], signal.SIGKILL)
        out, error = process.communicate(timeout=30)
        self.assertNotEqual(process.returncode, 0)
        self.assertRegex(out + error, r"rank 1\b.*(killed|signal 9)")

    def test_those_who_are_left_meet_anew(self):
        """A worker dies, another takes its place: new groups, over new connections."""
        process = self.start_train(
            "a:1,b:1", *ENDLESS, "--engine", "stream", "--on-failure", "replace", "--workers", "2:2"
        )
        for line in process.stdout:
            if line.startswith("epoch 2 "):
                break
        os.kill(self.workers("b")[0], signal.SIGKILL)
        epochs = 0
        for line in process.stdout:
            epochs += line.startswith("epoch ")
            if epochs == 4:
                break
        self.assertEqual(epochs, 4, "it did not go on")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


if __name__ == "__main__":
    training.main()
