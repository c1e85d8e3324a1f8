"""Every kept input is taken as its target says: what once crashed a parser does so no more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bendybus.errors import WireError
from fuzz.corpus import NAMES, kept, kept_folder, load
from fuzz.engines import Mutator
from fuzz.target import Judge, SlowInput, Target, refusals


@pytest.mark.parametrize("name", NAMES)
def test_every_kept_input_is_taken(name: str) -> None:
    judge = Judge(load(name), kept(name))
    for path in sorted(kept_folder(name).iterdir()):
        try:
            judge(path.read_bytes())
        except BaseException as crash:
            crash.add_note(f"the input is {path}")
            raise
    assert judge.inputs >= 10


@pytest.mark.parametrize("name", NAMES)
def test_a_few_mutations_of_the_kept_inputs_are_taken(name: str) -> None:
    # The search that runs where atheris cannot; `make fuzz` runs millions.
    target, seeds = load(name), kept(name)
    judge = Judge(target, seeds)
    mutator = Mutator(seeds, target.words, target.length_max, random.Random(5))
    for _ in range(300):
        data = mutator.next()
        try:
            judge(data)
        except BaseException as crash:
            crash.add_note(f"the input is {data!r}")
            raise


# -- the judge -------------------------------------------------------------------------------


def _target(check) -> Target:
    return Target("test", "nothing", check, (WireError,), 1)


def test_an_error_that_the_target_does_not_name_is_a_crash() -> None:
    def check(data: bytes) -> None:
        with refusals(WireError):
            raise WireError("named") if data != b"crash" else KeyError("not named")

    judge = Judge(_target(check), [b"seed"])
    judge(b"fine")
    with pytest.raises(KeyError):
        judge(b"crash")


def test_an_error_whose_text_cannot_be_sent_is_a_crash() -> None:
    with pytest.raises(UnicodeEncodeError), refusals(WireError):
        raise WireError("half of a pair: \ud800")


def test_an_input_that_takes_the_square_of_its_length_is_a_crash() -> None:
    def check(data: bytes) -> None:
        steps = len(data) ** 2 if data.startswith(b"square") else len(data)
        for _ in range(steps):
            pass

    judge = Judge(_target(check), [b"x" * length for length in (100, 200, 400)])
    judge(b"x" * 4000)
    with pytest.raises(SlowInput, match="times as long"):
        judge(b"square".ljust(4000))


def test_every_target_has_a_corpus_and_nothing_else_has() -> None:
    assert {path.name for path in (Path(__file__).parent / "corpus").iterdir()} == set(NAMES)
