"""After the proof, a table of what it was made of: in the output, and in the file that TURBOSPARK_PROVE_LOG names."""

import os
import re
from collections import Counter
from pathlib import Path

from tests.draft.matrix import PAIRS

RUN = re.compile(r"::test_(one|three)_\w+\[(?P<settings>.+)-(?P<backend>\w+)-(?P<family>\w+)-(?P<drafter>\w+)\]$")
WANTED = {"one": 45, "three": 15}
ABOUT = """`make prove`: tokens equal to plain decoding, token for token, over 1,000 generated tokens a request.

one: a request alone, 15 numbers of proposals (1..15) x temperatures 0, 0.7, 1.3 = 45 runs.
three: three requests at once, each with its own number of proposals and temperature: 15 runs hold each of the 45
settings once. scripted: right by 70 % of the positions, wrong elsewhere. Weights are F32, random, made by the tests.
"""


def pytest_terminal_summary(terminalreporter):
    equal, other = Counter(), []
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            match = RUN.search(getattr(report, "nodeid", ""))
            if match and outcome == "passed":
                equal[match["backend"], match["family"], match["drafter"], match[1]] += 1
            elif match and outcome in ("failed", "error"):
                other.append(report.nodeid)
    if not equal and not other:
        return
    lines = [ABOUT]
    for backend in sorted({backend for backend, *_ in equal}):
        lines.append(f"{backend:10} family     drafter   one     three")
        for family, drafter in PAIRS:
            one, three = (f"{equal[backend, family, drafter, kind]}/{WANTED[kind]}" for kind in WANTED)
            lines.append(f"{'':10} {family:10} {drafter:9} {one:7} {three}")
        lines.append("")
    lines += [f"{sum(equal.values())} runs equal, {len(other)} not.", *other]
    terminalreporter.write_line("\n".join(lines))
    if log := os.environ.get("TURBOSPARK_PROVE_LOG"):
        Path(log).write_text("\n".join(lines) + "\n")
