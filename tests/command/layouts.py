"""GPT learns a text equally well however it is divided: what the tests of that share. TRIREME_LONG=1 trains longer, in
all layouts, and prints a table."""
import os
import time

from language import TEXT

LONG = os.environ.get("TRIREME_LONG") == "1"
SPEC = ("gpt:tiny", "--data", f"text:{TEXT}", "--batch", 32, "--epochs", 60 if LONG else 14)
LEARNED = 2.8  # untrained it is 5.5, the logarithm of 256 tokens; to know how often each comes gives 3.25


def compare(test, layouts, train):
    """`layouts`: flags by name, the first of them one worker's; `train(*flags)` returns a report. All have learned, and
    to the same loss within 1 %. In short the first and the last two are tried."""
    alone = updates = None
    for name, flags in layouts.items() if LONG else [*layouts.items()][:1] + [*layouts.items()][-2:]:
        begun = time.monotonic()
        report = train(*flags)
        updates = updates or report["updates"]
        test.assertEqual(report["updates"], updates)
        loss = report["epochs"][-1]["test_loss"]
        alone = alone or loss
        if LONG:
            seconds = time.monotonic() - begun
            print(f"| {name} | {loss:.4f} | {100 * (loss / alone - 1):+.3f} % | {seconds:.0f} s |", flush=True)
        test.assertLess(loss, LEARNED, name)
        test.assertLess(abs(loss / alone - 1), 0.01, f"{name}: {loss}, one worker {alone}")
