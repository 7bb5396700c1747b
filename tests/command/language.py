"""What the tests of language models share. The text is of the package fortunes-min."""
import json
import pathlib

import support

TEXT = pathlib.Path("/usr/share/games/fortunes/literature")


class LanguageTest(support.CommandTest):
    def succeeds(self, *args, **settings):
        result = support.run(*args, cwd=self.folder, **settings)
        self.assertEqual(result.returncode, 0, f"{args}\n{result.stderr}{result.stdout}")
        return result.stdout

    def evaluation(self, *args):
        return json.loads(self.succeeds("evaluate", *args, "--json"))

    def learned(self, model, *flags, data=TEXT, **settings):
        """A model of two workers; returns its file and its report."""
        path = self.folder / f"{model.split(':')[0]}.safetensors"
        return path, self.train(model, "--data", f"text:{data}", "--workers", 2, *flags, "--save", path, **settings)
