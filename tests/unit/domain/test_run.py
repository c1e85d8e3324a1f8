from __future__ import annotations

import sys
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from bendybus.domain.messages import Message
from bendybus.domain.run import Run
from bendybus.names import SequenceNumber


def message(number: int) -> Message:
    made = Message(None, size=1)
    made.sequence_number = SequenceNumber(number)
    return made


def run_of(numbers: Iterable[int]) -> Run:
    run = Run()
    run.extend(map(message, numbers))
    return run


def numbers(messages: Iterable[Message]) -> list[int]:
    return [each.sequence_number for each in messages]


def test_the_front_is_taken_first() -> None:
    run = run_of(range(1, 6))
    assert numbers(run.take(2)) == [1, 2]
    assert numbers(run.take(10)) == [3, 4, 5]
    assert run.take(1) == []
    assert len(run) == 0


def test_asking_for_none_or_fewer_takes_nothing() -> None:
    run = run_of([1, 2])
    assert run.take(0) == run.take(-1) == []
    assert run.starting_at(SequenceNumber(0), -1) == []
    assert numbers(run) == [1, 2]


def test_what_comes_back_stands_in_its_old_place() -> None:
    run = run_of(range(1, 9))
    first, second, third = run.take(3)
    run.insert([third, first])
    assert numbers(run) == [1, 3, 4, 5, 6, 7, 8]
    run.insert([second])
    assert numbers(run.take(3)) == [1, 2, 3]


def test_a_number_is_found_and_removed_wherever_it_stands() -> None:
    run = run_of([2, 4, 6, 8])
    run.take(1)
    assert run.find(SequenceNumber(2)) is None
    assert run.find(SequenceNumber(5)) is None
    assert run.find(SequenceNumber(9)) is None
    found = run.find(SequenceNumber(6))
    assert found is not None
    run.remove(found)
    assert numbers(run) == [4, 8]


def test_a_message_taken_is_not_kept_alive() -> None:
    first = message(1)
    run = Run()
    run.extend([first, *map(message, range(2, 10))])
    before = sys.getrefcount(first)
    assert run.take(1) == [first]
    assert sys.getrefcount(first) == before - 1


@given(st.data())
def test_a_run_is_a_sorted_list(data: st.DataObject) -> None:
    run = Run()
    model: list[int] = []
    away: list[Message] = []
    next_number = 1
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["extend", "take", "take these", "insert", "remove"])):
            case "extend":
                added = [message(next_number + each) for each in range(data.draw(st.integers(0, 8)))]
                next_number += len(added)
                run.extend(added)
                model += numbers(added)
            case "take":
                taken = run.take(data.draw(st.integers(0, 8)))
                assert numbers(taken) == model[: len(taken)]
                del model[: len(taken)]
                away += taken
            case "take these":
                asked = data.draw(st.lists(st.integers(0, next_number)))
                taken = run.take_these(map(SequenceNumber, asked))
                assert numbers(taken) == sorted(set(asked) & set(model))
                model = [number for number in model if number not in asked]
                away += taken
            case "insert":
                back = data.draw(st.lists(st.sampled_from(away), unique=True)) if away else []
                away = [each for each in away if each not in back]
                run.insert(back)
                model = sorted(model + numbers(back))
            case "remove" if model:
                chosen = run.find(SequenceNumber(data.draw(st.sampled_from(model))))
                assert chosen is not None
                run.remove(chosen)
                model.remove(chosen.sequence_number)
                away.append(chosen)
        start = data.draw(st.integers(0, next_number))
        assert numbers(run) == model
        assert len(run) == len(model)
        assert numbers(run.starting_at(SequenceNumber(start), 3)) == [n for n in model if n >= start][:3]
    assert numbers(run.first(3)) == model[:3]
