"""The book-keeping of tickets, and the same against a plain model of it."""

from __future__ import annotations

import random

from rollout.tickets import TicketBook
from tests.fakes import make_ticket


def test_tickets_are_taken_in_the_order_of_their_grants():
    book = TicketBook()
    for id in (5, 3, 9):
        book.grant(make_ticket(id))
    assert [book.take("a").id for _ in range(3)] == [5, 3, 9]
    assert book.take("a") is None
    assert (len(book), book.waiting, book.held("a")) == (3, 0, 3)


def test_a_lost_ticket_comes_back_in_its_old_place():
    book = TicketBook()
    for id in range(4):
        book.grant(make_ticket(id))
    first, second = book.take("a"), book.take("a")
    assert book.release("a", keep=[second.key]) == 1
    assert book.release("a", keep=[second.key]) == 0
    assert (book.held("a"), book.waiting) == (1, 3)
    assert [book.take("b").id for _ in range(3)] == [first.id, 2, 3]


def test_a_ticket_that_is_out_is_not_granted_twice_but_another_attempt_is():
    book = TicketBook()
    for attempt in (0, 0, 1):
        book.grant(make_ticket(1, attempt=attempt))
    assert [book.take("a").attempt for _ in range(2)] == [0, 1]
    assert book.take("a") is None


def test_two_holders_and_the_first_to_finish():
    book = TicketBook()
    book.grant(make_ticket(1))
    key = book.take("a").key
    book.release("a")
    book.take("b")
    assert book.adopt("a", [key, ("train", 77, 0)]) == [("train", 77, 0)]
    assert book.release("a") == 0  # b still has it
    book.adopt("a", [key])
    assert book.finish(key) == {"a", "b"}
    assert (book.finish(key), book.get(key), book.held("a"), book.held("b"), len(book)) == (set(), None, 0, 0, 0)


def test_a_finished_ticket_that_is_granted_again_waits_once():
    book = TicketBook()
    book.grant(make_ticket(1))
    book.finish(("train", 1, 0))
    book.grant(make_ticket(1))
    assert book.take("a").id == 1
    assert book.take("a") is None


def test_any_order_of_events_keeps_every_ticket_in_exactly_one_place():
    rng = random.Random(5)
    for _ in range(200):
        book, out, holders = TicketBook(), set(), {}
        for step in range(60):
            worker = rng.choice("abc")
            match rng.randrange(5):
                case 0:
                    book.grant(make_ticket(step))
                    out.add(("train", step, 0))
                case 1:
                    free = [key for key in out if not holders.get(key)]
                    ticket = book.take(worker)
                    assert (ticket.key if ticket else None) == min(free, default=None)
                    if ticket:
                        holders[ticket.key] = {worker}
                case 2:
                    kept = set(rng.sample(sorted(out), k=min(2, len(out))))
                    before = sum(bool(h) for h in holders.values())
                    for key, names in holders.items():
                        if key not in kept:
                            names.discard(worker)
                    assert book.release(worker, keep=kept) == before - sum(bool(h) for h in holders.values())
                case 3 if out:
                    key = rng.choice(sorted(out))
                    out.remove(key)
                    assert book.finish(key) == holders.pop(key, set())
                case 4 if out:
                    key = rng.choice(sorted(out))
                    assert book.adopt(worker, [key, ("eval", 0, 0)]) == [("eval", 0, 0)]
                    holders.setdefault(key, set()).add(worker)
            assert len(book) == len(out)
            assert book.waiting == sum(not holders.get(key) for key in out)
            for name in "abc":
                assert book.held(name) == sum(name in names for names in holders.values())
