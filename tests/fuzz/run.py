"""`make fuzz`: searches each target for inputs that crash it, and says how many inputs it tried.

    python -m fuzz.run [TARGET ...] [--inputs 10000000] [--seconds S] [--jobs 2] [--seed N]
    python -m fuzz.run TARGET --replay FILE      # one input again, with the traceback
    python -m fuzz.run TARGET --keep N           # keep N of the inputs that the last searches found

The targets share the inputs; `--seconds` bounds the time of each target besides. A crash is kept in
tests/fuzz/crashes. When it is fixed, the input moves to tests/fuzz/corpus, where `make test` replays it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fuzz.corpus import NAMES, ROOT, kept, kept_folder, load, work_folder
from fuzz.engines import has_coverage
from fuzz.target import Judge, Target

INPUTS: Final = 10_000_000
NO_LIMIT: Final = 1 << 62

EXECUTED: Final = re.compile(r"stat::number_of_executed_units:\s+(\d+)")


@dataclass(frozen=True, slots=True)
class Outcome:
    target: Target
    inputs: int
    seconds: float
    log: Path
    ended_well: bool


def main() -> int:
    arguments = _arguments()
    names = arguments.targets or NAMES
    if arguments.replay is not None:
        return _replay(names[0], arguments.replay)
    if arguments.keep:
        return _keep(names, arguments.keep)
    engine = "coverage" if has_coverage() and not arguments.mutations else "mutations"
    if engine == "mutations":
        _say(
            "SKIPPED: the search guided by coverage, because atheris is not installed (it has wheels for "
            "Linux on x86-64) or --mutations was given. Inputs are mutations of the kept ones: as many, but "
            "less deep."
        )
    seed = arguments.seed or random.SystemRandom().randrange(1, 1 << 31)
    shares = _shares([load(name) for name in names], arguments.inputs)
    _say(f"{sum(shares.values()):,} inputs for {len(names)} targets, engine: {engine}, --seed {seed}")
    with ThreadPoolExecutor(arguments.jobs) as workers:
        # The longest first, so that the last ones end together.
        waiting = [
            workers.submit(_search, load(name), engine, share, arguments.seconds, seed)
            for name, share in sorted(shares.items(), key=lambda each: -each[1])
        ]
        outcomes = [_told(each.result()) for each in waiting]
    return _sum_up(outcomes, arguments.inputs)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz.run")
    parser.add_argument("targets", nargs="*", choices=[*NAMES, []], metavar="TARGET")
    parser.add_argument("--inputs", type=int, default=INPUTS, help="of all targets together")
    parser.add_argument("--seconds", type=int, default=0, help="for each target; 0: as long as it takes")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="searches at a time")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument(
        "--mutations", action="store_true", help="without coverage, as where atheris is missing"
    )
    parser.add_argument("--replay", type=Path, help="run the target on this file alone")
    parser.add_argument("--keep", type=int, default=0, help="keep so many of the inputs that were found")
    return parser.parse_args()


def _shares(targets: list[Target], inputs: int) -> dict[str, int]:
    whole = sum(target.share for target in targets)
    return {target.name: max(1, inputs * target.share // whole) for target in targets}


def _search(target: Target, engine: str, inputs: int, seconds: int, seed: int) -> Outcome:
    log = work_folder(target.name).with_suffix(".log")
    started = time.monotonic()
    with log.open("wb") as output:
        ended = subprocess.run(
            [sys.executable, "-m", "fuzz.worker", target.name, engine, *map(str, (inputs, seconds, seed))],
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    found = EXECUTED.search(log.read_text(errors="replace"))
    tried = int(found[1]) if found else 0
    return Outcome(target, tried, time.monotonic() - started, log, ended.returncode == 0 and bool(found))


def _told(outcome: Outcome) -> Outcome:
    name, inputs, seconds = outcome.target.name, outcome.inputs, outcome.seconds
    rate = f"{inputs:>10,} inputs {seconds:>7,.0f} s {inputs / seconds:>8,.0f}/s"
    _say(f"{name:11} {rate}  {outcome.target.parses}")
    if not outcome.ended_well:
        log = outcome.log.read_text(errors="replace")
        _say(f"{name:11} CRASHED; the search ended with it. From {outcome.log}:\n")
        start = log.find("CRASH in")
        _say("\n".join(log[start if start >= 0 else -2000 :].splitlines()[:40]))
        _say(f"\nto reproduce: PYTHONPATH=tests {sys.executable} -m fuzz.run {name} --replay FILE")
    return outcome


def _sum_up(outcomes: Sequence[Outcome], wanted: int) -> int:
    tried, crashed = sum(each.inputs for each in outcomes), sum(not each.ended_well for each in outcomes)
    searching_s = sum(each.seconds for each in outcomes)
    _say(f"{tried:,} inputs of {wanted:,} in {searching_s:,.0f} s of searching; crashes: {crashed}")
    return 1 if crashed else 0


def _replay(name: str, path: Path) -> int:
    target = load(name)
    Judge(target, kept(name))(path.read_bytes())
    _say(f"{path}: {name} takes it")
    return 0


def _keep(names: Sequence[str], count: int) -> int:
    """Each input that a search leaves reaches something that those before it do not; some of every length."""
    for name in names:
        have = set(kept(name))
        found = sorted(
            (path for path in work_folder(name).iterdir() if path.read_bytes() not in have), key=_size
        )
        step = max(1, len(found) // count)
        for path in found[::step][:count]:
            shutil.copy(path, kept_folder(name) / f"found-{path.name[:12]}")
        _say(f"{name}: kept {min(count, len(found))} of {len(found)}")
    return 0


def _size(path: Path) -> tuple[int, str]:
    return path.stat().st_size, path.name


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(ROOT / "tests")
    sys.exit(main())
