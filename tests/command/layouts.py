"""GPT learns a text equally well however it is divided: what the tests of that share. TRIREME_LONG=1 trains longer, and
prints a table."""
import os
import time

from language import TEXT

LONG = os.environ.get("TRIREME_LONG") == "1"
UPDATES = 2000 if LONG else 150
SPEC = ("gpt:tiny", "--data", f"text:{TEXT}", "--batch", 16, "--test", 0.1 if LONG else 0.05, "--seed", 3,
        "--epochs", 1000, "--max-steps", UPDATES)  # fmt: skip
LEARNED = 2.6 if LONG else 3.1  # untrained it is 5.5, the logarithm of 256 tokens


def compare(test, layouts, train):
    """`layouts`: flags by name, the first of them one worker's; `train(*flags)` returns a report. All have learned, and
    to the same loss within 1 %."""
    alone = None
    for name, flags in layouts.items():
        begun = time.monotonic()
        report = train(*flags)
        test.assertEqual(report["updates"], UPDATES)
        loss = report["epochs"][-1]["test_loss"]
        alone = alone or loss
        if LONG:
            seconds = time.monotonic() - begun
            print(f"| {name} | {loss:.4f} | {100 * (loss / alone - 1):+.3f} % | {seconds:.0f} s |", flush=True)
        test.assertLess(loss, LEARNED, name)
        test.assertLess(abs(loss / alone - 1), 0.01, f"{name}: {loss}, one worker {alone}")
