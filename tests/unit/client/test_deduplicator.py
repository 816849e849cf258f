from __future__ import annotations

import asyncio
import threading

import pytest

from tarry.client import Attempt, MemoryDeduplicator

ID = "0a0a0a0a-0b0b-5c0c-8d0d-0e0e0e0e0e0e"
FIRST = Attempt("orders", "m-1", content="c")
RETRY = Attempt("orders", "m-1", retry_id=ID, round=1)


def work(guard: MemoryDeduplicator, attempt: Attempt) -> bool:
    with guard.once(attempt) as todo:
        return todo


def test_a_second_delivery_of_an_attempt_does_nothing_and_a_retry_runs() -> None:
    guard = MemoryDeduplicator()
    assert [work(guard, attempt) for attempt in (FIRST, FIRST, RETRY, RETRY)] == [True, False, True, False]


def test_what_failed_is_not_remembered() -> None:
    guard = MemoryDeduplicator()
    with pytest.raises(ValueError, match="no"), guard.once(FIRST):
        raise ValueError("no")
    assert work(guard, FIRST)


def test_the_same_message_in_two_queues_is_two() -> None:
    guard = MemoryDeduplicator()
    assert work(guard, FIRST)
    assert work(guard, Attempt("invoices", "m-1", content="c"))


def test_messages_that_share_an_id_are_two_unless_their_content_agrees() -> None:
    guard = MemoryDeduplicator()
    deliveries = [(b"a", {"t": 1}), (b"a", {"t": 1, "x-delivery-count": 1}), (b"b", {"t": 1}), (b"a", {"t": 2})]
    attempts = [Attempt.read(headers, "orders", "ORDER-4711", body) for body, headers in deliveries]
    assert [work(guard, attempt) for attempt in attempts] == [True, False, True, True]


def test_a_first_delivery_whose_body_is_not_known_is_never_held_back() -> None:
    guard = MemoryDeduplicator()
    assert [work(guard, Attempt.read({}, "orders", "m-1")) for _ in range(2)] == [True, True]


def test_messages_without_an_id_are_never_held_back() -> None:
    guard = MemoryDeduplicator()
    assert [work(guard, Attempt("orders")) for _ in range(2)] == [True, True]


def test_the_oldest_are_forgotten() -> None:
    guard = MemoryDeduplicator(most=2)
    for number in range(3):
        work(guard, Attempt("orders", f"m-{number}", content="c"))
    assert work(guard, Attempt("orders", "m-0", content="c"))
    assert not work(guard, Attempt("orders", "m-2", content="c"))


def test_a_thread_at_work_on_the_same_is_waited_for() -> None:
    guard, answers = MemoryDeduplicator(), list[bool]()
    second = threading.Thread(target=lambda: answers.append(work(guard, FIRST)))
    with guard.once(FIRST):
        second.start()
        second.join(0.05)
        assert answers == []
    second.join(5)
    assert answers == [False]


def test_a_task_on_the_same_message_is_awaited_without_blocking_the_loop() -> None:
    async def deliver(guard: MemoryDeduplicator, done: list[bool]) -> None:
        async with guard.once_async(FIRST) as todo:
            await asyncio.sleep(0)
            done.append(todo)

    async def main() -> list[bool]:
        guard, done = MemoryDeduplicator(), list[bool]()
        await asyncio.wait_for(asyncio.gather(*(deliver(guard, done) for _ in range(3))), 5)
        return done

    assert asyncio.run(main()) == [True, False, False]
