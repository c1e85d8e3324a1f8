"""One search, in a process of its own: `python -m fuzz.worker NAME ENGINE INPUTS SECONDS SEED`.

A crash of the interpreter, or libFuzzer's end of the process, then costs the runner nothing.
"""

from __future__ import annotations

import sys

from fuzz.engines import mutate_only, with_coverage


def main(name: str, engine: str, inputs: str, seconds: str, seed: str) -> None:
    if engine == "coverage":
        with_coverage(name, int(inputs), int(seconds), int(seed))
    tried = mutate_only(name, int(inputs), int(seconds), int(seed))
    # As libFuzzer says it.
    print(f"stat::number_of_executed_units: {tried}")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
