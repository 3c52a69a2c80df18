"""The fleet's model of continuous batching, on a clock of its own."""

import math

import orjson
import pytest

from tests.benchmarks.simulation import SEATS, even, lower_bound, one_pool, simulate
from tests.standin.fleet import Batch, Lengths, Text


def test_a_step_takes_half_as_long_when_next_to_no_seat_is_taken() -> None:
    batch: Batch[str] = Batch(seats=4, step=1.0)
    assert batch.next_end() == math.inf
    assert batch.join(0.0, 8, "long") == []
    assert batch.next_end() == 8 * 0.625  # one of four seats
    batch.join(2.5, 2, "short")  # four of the long one's steps are done
    assert batch.next_end() == 2.5 + 2 * 0.75
    assert batch.advance(4.0) == ["short"]
    assert batch.advance(4.0 + 2 * 0.625) == ["long"]
    assert (batch.running, batch.tokens) == (0, 10)
    assert batch.busy == 2.5 + 2 * 1.5 + 1.25


def test_requests_beyond_the_seats_wait_in_their_order() -> None:
    batch: Batch[int] = Batch(seats=2, step=1.0)
    for number, tokens in enumerate((1, 2, 3, 1)):
        batch.join(0.0, tokens, number)
    assert batch.running == 2
    assert batch.advance(1.0) == [0]
    assert batch.advance(10.0) == [1, 3, 2]  # 2 joins at 1.0, 3 at 2.0; 2 is alone from 3.0 on
    assert [moment for moment, _, _ in batch.history] == [0.0] * 4 + [1.0, 2.0, 3.0, 3.75]


def test_a_late_look_ends_each_request_at_its_own_time() -> None:
    often: Batch[int] = Batch(seats=3, step=0.1)
    once: Batch[int] = Batch(seats=3, step=0.1)
    for number in range(7):
        often.join(0.0, 5 + number, number)
        once.join(0.0, 5 + number, number)
    ended = []
    for tenth in range(1, 60):
        ended += often.advance(tenth / 10)
    assert once.advance(5.9) == ended == list(range(7))
    assert once.busy == pytest.approx(often.busy) == pytest.approx(once.busy_until(5.9))
    assert once.busy_until(0.05) == pytest.approx(3 * 0.05)


def test_a_request_that_is_given_up_frees_its_seat() -> None:
    batch: Batch[str] = Batch(seats=1, step=1.0)
    first, second, third = "first", "second", "third"
    for item in (first, second, third):
        batch.join(0.0, 4, item)
    batch.leave(1.0, second)
    batch.leave(2.0, first)
    assert batch.next_end() == 6.0
    assert batch.leave(6.0, first) == ["third"]
    assert batch.tokens == 4


def test_lengths_are_the_same_every_time_and_capped() -> None:
    lengths = Lengths(mean=100, seed=1)
    some = [lengths.tokens(f"prompt {number}") for number in range(2000)]
    assert some == [lengths.tokens(f"prompt {number}") for number in range(2000)]
    assert some != [Lengths(mean=100, seed=2).tokens(f"prompt {number}") for number in range(2000)]
    assert max(some) == 300 and 80 < sum(some) / 2000 < 100
    assert max(Lengths(mean=100, capped=False).tokens(f"prompt {number}") for number in range(2000)) > 600
    assert {Lengths(mean=100, sigma=0).tokens(f"prompt {number}") for number in range(9)} == {100}


def test_a_reply_has_as_many_ids_as_it_says() -> None:
    reply = orjson.loads(Text().reply('a "name"', 3, 5))
    (choice,) = reply["choices"]
    assert reply["id"] == 'a "name"' and reply["usage"] == {"prompt_tokens": 3, "completion_tokens": 5}
    assert (len(choice["prompt_token_ids"]), len(choice["response_token_ids"])) == (3, 5)
    assert len(choice["message"]["content"].split()) == 5


def test_no_arrangement_beats_the_lower_bound() -> None:
    lengths = [Lengths(mean=50).tokens(str(number)) for number in range(2000)]
    steps = [0.01, 0.01, 0.015]
    for chunks, leases in ((even(lengths, 100), 1), (even(lengths, 100), 4), (one_pool(lengths, 1), SEATS)):
        assert simulate(chunks, leases, steps).times_bound > 1
    assert lower_bound([1000], steps) == 1000 * 0.01 * (0.5 + 0.5 / SEATS)


def test_leases_fill_the_tails_of_chunks() -> None:
    lengths = [Lengths(mean=250).tokens(str(number)) for number in range(4000)]
    seats = [simulate(even(lengths, 100), leases, [0.02, 0.02]).seats for leases in (1, 2, 4)]
    assert seats[0] < 0.6 < seats[1] < 0.9 < seats[2]
