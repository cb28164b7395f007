"""Where a claimer looks, and in which order."""

import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from milepost.store.limits import Look
from milepost.worker.floors import AGED, AT_ONCE, HINTS, LEASES_MOST, Floors, LeaseFloors
from milepost.worker.loop import SWITCH_SECONDS, _short_switches


def looked_at(floors: Floors) -> set[str]:
    return {line.queue for line in floors.line(0.0)}


def test_a_hint_is_followed_once_and_before_anybody_is_asked():
    floors = Floors()
    floors.know(["slow"])
    floors.expect({"mail"})
    assert floors.follow_hint()
    assert looked_at(floors) == {"mail"}
    assert not floors.follow_hint()


def test_without_a_hint_it_is_asked_which_queues_have_work():
    floors = Floors()
    floors.expect(())
    assert not floors.follow_hint()


def test_many_hints_are_none_because_to_ask_is_cheaper():
    floors = Floors()
    floors.expect(f"q{number}" for number in range(HINTS + 1))
    assert not floors.follow_hint()


def test_a_hint_does_not_hide_the_other_queues():
    floors = Floors()
    floors.expect({"mail"})
    floors.follow_hint()
    floors.know(["mail", "slow"])
    assert looked_at(floors) == {"mail", "slow"}


def test_a_worker_leaves_the_turns_of_threads_as_it_found_them():
    usual = sys.getswitchinterval()
    with _short_switches():
        assert sys.getswitchinterval() <= SWITCH_SECONDS * 1.01
    assert sys.getswitchinterval() == usual


def claimed(seq: int, *, priority: int = 0, queue: str = "default") -> Any:
    return SimpleNamespace(queue=queue, priority=priority, queued_seq=seq)


def test_a_priority_that_was_not_met_is_looked_at_by_every_claim_and_not_from_the_bottom():
    floors = Floors()
    floors.know(["default"])
    for now, seqs in ((0.0, (1, 2, 3)), (0.1, (4, 5)), (1.5, (6, 7)), (1.6, (8,))):
        floors.line(now)
        floors.learn([claimed(seq) for seq in seqs], came_to_end=True, began=now, ended=now)
    looked = {(line.priority, line.floor) for line in floors.line(1.7)}
    assert looked == {(0, 8), *((priority, 5) for priority in range(1, 10))}


def test_what_stands_behind_the_line_costs_no_look():
    floors = Floors()
    floors.know(["default"])
    floors.line(0.0)
    floors.learn([claimed(1, priority=8)], came_to_end=True, began=0.0, ended=0.0)
    assert {line.priority for line in floors.line(0.1)} == {8, 9}


def looked_at_bottom(floors: Floors, *seqs: int, at: float, took: float) -> None:
    floors.whole_next = True
    floors.line(at)
    assert floors.whole
    floors.learn([claimed(seq) for seq in seqs], came_to_end=True, began=at, ended=at + took)


def test_where_a_look_at_the_bottom_takes_long_it_comes_less_often():
    """Behind an old snapshot: it was one claim in fifty, and the slowest ones all of them."""
    floors = Floors()
    floors.know(["default"])
    looked_at_bottom(floors, 7, at=0.0, took=0.001)
    assert [floors.due(at) for at in (0.9, 1.1)] == [False, True]
    looked_at_bottom(floors, 8, at=10.0, took=0.02)
    assert [floors.due(at) for at in (14.9, 15.1)] == [False, True]
    looked_at_bottom(floors, 9, at=20.0, took=1.0)
    assert [floors.due(at) for at in (25.9, 26.1)] == [False, True]


def test_an_empty_line_is_looked_at_from_where_numbers_stood_while_its_bottom_is_costly():
    floors = Floors()
    floors.know(["default"])
    looked_at_bottom(floors, 7, at=0.0, took=0.001)
    looked_at_bottom(floors, at=1.0, took=0.001)
    assert floors.due(1.01)
    looked_at_bottom(floors, at=2.0, took=0.02)
    for _ in range(2 * AGED):
        line = floors.line(2.03)
        assert not floors.whole
        assert {place.priority for place in line} == set(range(10))
        assert {place.floor for place in line} == {7}
    assert not floors.due(6.9)
    assert floors.due(7.1)


def test_each_queue_is_the_first_of_its_priority_in_turn():
    """The same one of three came first at each look, and two had nothing while it was full."""
    floors = Floors()
    firsts = []
    for now in range(60):
        floors.know(["a", "b", "c"])
        firsts.append(floors.line(100.0 * now)[0].queue)
    assert set(firsts) == {"a", "b", "c"}


def test_each_queue_is_the_first_in_turn_where_the_lowest_priority_comes_first():
    floors = Floors()
    firsts = []
    for turn in range(1, 60 * AGED + 1):
        floors.know(["a", "b", "c"])
        line = floors.line(100.0 * turn)
        if turn % AGED == 0:
            firsts.append((line[0].queue, line[0].priority))
    assert set(firsts) == {("a", 0), ("b", 0), ("c", 0)}


def test_queues_that_a_look_at_the_bottom_did_not_come_to_are_looked_at_by_the_next():
    """Until the bottom was looked at again only the queue that had filled that look was known."""
    floors = Floors()
    floors.know(["a", "b"])
    full = floors.line(0.0)[0].queue
    floors.learn([claimed(5, queue=full)], came_to_end=False, began=0.0, ended=0.0)
    [other] = {"a", "b"} - {full}
    line = floors.line(0.1)
    assert {place.floor for place in line if place.queue == other} == {0}
    assert {place.queue for place in line if place.priority == 0} == {other, full}
    floors.learn([claimed(7, queue=other)], came_to_end=True, began=0.1, ended=0.1)
    assert {(place.queue, place.floor) for place in floors.line(0.2) if place.priority == 0} == {
        (full, 5),
        (other, 7),
    }


def test_queues_that_are_gone_are_forgotten():
    floors = Floors()
    for number in range(9):
        floors.know([f"q{number}", f"q{number + 1}"])
        floors.whole_next = True
        line = floors.line(float(number))
        full = claimed(number, queue=line[0].queue, priority=line[0].priority)
        floors.learn([full], came_to_end=False, began=0.0, ended=0.0)
    assert {queue for queue, _ in floors._unseen} <= {"q8", "q9"}


def test_of_many_full_queues_a_look_names_a_few_in_turn():
    """Each of them has ten priorities, and each is asked: with 200 a claim took 50 ms."""
    floors = Floors()
    floors.know(f"q{number}" for number in range(20))
    first = floors.line(0.0)[0]
    full = claimed(1, queue=first.queue, priority=first.priority)
    floors.learn([full], came_to_end=False, began=0.0, ended=0.0)
    seen: set[str] = set()
    for _ in range(200):
        line = floors.line(0.1)
        assert len({place.queue for place in line}) <= AT_ONCE
        seen |= {place.queue for place in line}
    assert len(seen) == 20


def test_full_queues_take_turns_by_the_jobs_that_they_have_had():
    """Chance alone gave one of three nothing in 300 jobs, at times."""
    for _ in range(20):
        floors = Floors()
        floors.know("abc")
        had = Counter()
        for seq in range(30):
            line = floors.line(seq * 0.01)
            first, most = line[0].queue, 1 + 63 * (seq % 2)
            floors.learn(
                [claimed(seq, queue=first)] * most, came_to_end=False, began=0.0, ended=0.0
            )
            had[first] += most
        assert max(had.values()) - min(had.values()) <= 4 * 64, had


def test_what_a_queue_had_long_ago_gives_others_no_right_to_come_first():
    floors = Floors()
    floors.know(["late"])
    floors.line(0.0)
    floors.learn([claimed(1, queue="late")] * 1000, came_to_end=False, began=0.0, ended=0.0)
    floors.know(["late", "new"])
    turns = []
    for look in range(200):
        queue = floors.line(look * 0.01)[0].queue
        floors.learn([claimed(look, queue=queue)] * 10, came_to_end=False, began=0.0, ended=0.0)
        turns.append(queue)
    assert turns.index("late") < 60
    assert 65 <= turns[-140:].count("late") <= 75


def a_look(*, took_us: int, leases=None) -> Look:
    return Look(16, 10, 0, 2, None, None, None, took_us=took_us, leases=leases)


def told(floors: LeaseFloors, now: float):
    floors.begin(now)
    return floors.known


def test_floors_of_leases_are_known_where_looks_take_long_and_counted_anew_after_a_while():
    floors = LeaseFloors()
    floors.learn(a_look(took_us=500))
    assert told(floors, 1.0) is None
    floors.learn(a_look(took_us=9_000))
    assert told(floors, 1.0) == []
    floors.learn(a_look(took_us=9_000, leases=(("job", "0/r/a", 7), ("queue", "q", None))))
    assert told(floors, 2.0) == [("job", "0/r/a", 7)]
    floors.learn(a_look(took_us=500, leases=(("job", "0/r/a", 8), ("queue", "q", 9))))
    assert told(floors, 3.0) == [("job", "0/r/a", 8), ("queue", "q", 9)]
    assert told(floors, 199.0) == []
    floors.learn(a_look(took_us=500, leases=(("job", "0/r/a", 8),)))
    assert told(floors, 200.0) is None


def test_floors_of_leases_are_dropped_where_somebody_claimed_by_hand_and_beyond_a_number():
    floors = LeaseFloors()
    many = tuple(("job", f"0/r/{n}", n) for n in range(LEASES_MOST + 9))
    floors.learn(a_look(took_us=9_000))
    floors.learn(a_look(took_us=9_000, leases=many))
    known = told(floors, 1.0)
    assert known is not None
    assert known == [list(many)[n] for n in range(9, LEASES_MOST + 9)]
    floors.learn(a_look(took_us=9_000, leases=(("job", "0/r/9", None),)))
    assert len(told(floors, 1.0) or ()) == LEASES_MOST - 1


def test_where_no_lease_lives_they_are_counted_from_a_number_that_is_on_the_disk():
    """A server that crashed may give numbers again of which nobody's claim was committed."""
    floors = LeaseFloors()
    floors.learn(a_look(took_us=9_000))
    none_lives = (("job", "0/r/a", 0),)
    floors.learn(replace(a_look(took_us=9_000, leases=none_lives), drawn=40))
    assert told(floors, 1.0) == []
    floors.learn(a_look(took_us=9_000, leases=none_lives))
    assert told(floors, 1.0) == [("job", "0/r/a", 40)]
    floors.forget()
    floors.learn(a_look(took_us=9_000, leases=none_lives))
    assert told(floors, 1.0) == []
