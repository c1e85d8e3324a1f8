"""Where inputs come from: libFuzzer, guided by coverage, or mutations alone where there is no atheris.

Both start from the kept inputs and change them. libFuzzer keeps what reaches new branches and goes on from
there, so it gets much deeper. Atheris has wheels for Linux on x86-64; elsewhere it needs clang, and the
mutations run instead.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from fuzz.corpus import kept, kept_folder, load, save_crash, work_folder
from fuzz.target import Judge

__all__ = ["CRASHED", "has_coverage", "mutate_only", "with_coverage"]

# Exit code of a search that found a crash.
CRASHED: Final = 70

# Instrumented: our parsers, and those that we rely on for bytes of strangers.
INSTRUMENTED: Final = ["bendybus", "jwt", "uvicorn.protocols", "wsproto"]

MEMORY_MB_MAX: Final = 1024


def has_coverage() -> bool:
    try:
        import atheris  # noqa: F401
    except ImportError:
        return False
    return True


def with_coverage(name: str, inputs: int, seconds: int, seed: int) -> NoReturn:
    """Search with libFuzzer; ends the process."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        target = load(name)
    judge = Judge(target, kept(name))
    words = work_folder(name).with_suffix(".dict")
    words.write_text("".join(f'"{_quoted(word)}"\n' for word in target.words))
    argv = [
        *("fuzz", str(work_folder(name)), str(kept_folder(name))),
        *(f"-runs={inputs}", f"-max_total_time={seconds}", f"-seed={seed}", f"-dict={words}"),
        *(f"-max_len={target.length_max}", f"-rss_limit_mb={MEMORY_MB_MAX}", "-timeout=60"),
        *(f"-artifact_prefix={work_folder(name).parent}/{name}-", "-print_final_stats=1"),
    ]

    def check(data: bytes) -> None:
        try:
            judge(data)
        except BaseException:
            _report(name, data)
            raise

    atheris.Setup(argv, check)
    atheris.Fuzz()
    raise AssertionError("libFuzzer ends the process")


def mutate_only(name: str, inputs: int, seconds: int, seed: int) -> int:
    """Search with mutations of the kept inputs; how many inputs were tried."""
    target = load(name)
    seeds = kept(name)
    judge = Judge(target, seeds)
    mutator = Mutator(seeds, target.words, target.length_max, random.Random(seed))
    ends_at = time.monotonic() + seconds if seconds else float("inf")
    while judge.inputs < inputs and (judge.inputs % 256 or time.monotonic() < ends_at):
        data = mutator.next()
        try:
            judge(data)
        except BaseException:
            _report(name, data)
            traceback.print_exc()
            sys.exit(CRASHED)
    return judge.inputs


def _report(name: str, data: bytes) -> None:
    path = save_crash(name, data)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    print(f"CRASH in {name}: {len(data)} bytes kept in {shown}", flush=True)  # noqa: T201


def _quoted(word: bytes) -> str:
    return "".join(f"\\x{octet:02x}" for octet in word)


class Mutator:
    """Changes inputs: a few small changes to one of the seeds, or to two of them joined."""

    def __init__(
        self, seeds: Sequence[bytes], words: Sequence[bytes], length_max: int, entropy: random.Random
    ) -> None:
        self._seeds = seeds
        self._words = words or (b"\x00",)
        self._length_max = length_max
        self._entropy = entropy

    def next(self) -> bytes:
        entropy = self._entropy
        data = bytearray(entropy.choice(self._seeds))
        for _ in range(1 + int(entropy.expovariate(0.5))):
            self._change(data)
        return bytes(data[: self._length_max])

    def _change(self, data: bytearray) -> None:
        entropy = self._entropy
        at = entropy.randrange(len(data) + 1)
        length = 1 + int(entropy.expovariate(0.25))
        match entropy.randrange(8):
            case 0:
                data[at : at + 1] = entropy.randbytes(1)
            case 1:
                if at < len(data):
                    data[at] ^= 1 << entropy.randrange(8)
            case 2:
                del data[at : at + length]
            case 3:
                data[at:at] = entropy.randbytes(length)
            case 4:
                data[at:at] = data[at : at + length] * entropy.randrange(1, 8)
            case 5:
                word = entropy.choice(self._words)
                data[at : at + entropy.choice((0, len(word)))] = word
            case 6:
                data[at : at + length] = bytes((entropy.choice((0x00, 0x01, 0x7F, 0x80, 0xFF)),)) * length
            case 7:
                other = entropy.choice(self._seeds)
                start = entropy.randrange(len(other) + 1)
                data[at:] = other[start:]
