"""Who is slower, who is measured again, who wins; and when work is steady."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.tuning.decide import Measured, Race, Speed, apart, combined, measured, start_spread
from workflow_scripts.tuning.steady import LONGEST_RAMP, Look, Watch

RATES = st.floats(1.0, 1e5)
MEASURED = st.builds(Measured, RATES, st.floats(0.0, 100.0), st.floats(1.0, 600.0))


def test_a_constant_speed_has_no_spread_and_few_looks_tell_nothing() -> None:
    found = measured([(float(second), 50.0 * second) for second in range(61)])
    assert found is not None
    assert found.rate == pytest.approx(50.0) and found.seconds == 60.0 and found.error == pytest.approx(0.0, abs=1e-9)
    assert measured([(0.0, 0.0), (1.0, 5.0)]) is None and measured([(1.0, 0.0)] * 5) is None


@given(st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 1e4)), min_size=2, max_size=100))
def test_the_rate_is_all_tokens_by_all_seconds(steps: list[tuple[float, float]]) -> None:
    points = [(0.0, 0.0)]
    for seconds, tokens in steps:
        points.append((points[-1][0] + seconds, points[-1][1] + tokens))
    found = measured(points)
    assert found is not None
    assert found.rate == pytest.approx(points[-1][1] / points[-1][0])
    assert found.error >= 0


def test_the_error_is_that_of_a_mean() -> None:
    """Of 300 measurements of noise, the interval of two errors holds the true rate about as often as it says."""
    chance = random.Random(0)
    held = 0
    for _ in range(300):
        tokens, points = 0.0, [(0.0, 0.0)]
        for second in range(1, 61):
            tokens += chance.gauss(100, 20)
            points.append((float(second), tokens))
        found = measured(points)
        assert found is not None
        held += abs(found.rate - 100) <= 2 * found.error
    assert 0.85 <= held / 300 <= 0.98


@given(st.lists(MEASURED, min_size=1, max_size=6), st.floats(0.0, 0.1))
def test_together_they_lie_between_and_starts_make_them_less_sure(found: list[Measured], spread: float) -> None:
    speed = combined(found, spread)
    rates = [one.rate for one in found]
    assert min(rates) * (1 - 1e-9) <= speed.rate <= max(rates) * (1 + 1e-9)
    assert speed.error >= combined(found, 0.0).error
    assert combined([*found, *found], spread).error <= speed.error + 1e-9


def test_the_spread_from_start_to_start_is_learnt_from_repeats() -> None:
    assert start_spread([[Measured(100, 1, 60)], [Measured(50, 1, 60)]]) == pytest.approx(0.015)
    same = [[Measured(100, 0, 60)] * 3] * 4
    assert start_spread(same) < 0.01
    moved = [[Measured(90, 0, 60), Measured(110, 0, 60)]] * 4
    assert start_spread(moved) > 0.05
    # What they moved by within is no start's.
    assert start_spread([[Measured(90, 15, 60), Measured(110, 15, 60)]] * 4) < 0.015


@given(RATES, RATES, st.floats(0, 1e3), st.floats(0, 1e3))
def test_of_two_at_most_one_is_slower(one: float, other: float, first: float, second: float) -> None:
    a, b = Speed(one, first), Speed(other, second)
    assert not (a.slower_than(b, 2.0) and b.slower_than(a, 2.0))
    if a.slower_than(b, 2.0):
        assert one < other


def race_of(true: dict[str, float], noise: float, seed: int, rounds: int = 3, slots: int = 1) -> tuple[Race, list[int]]:
    """A whole race of candidates of these speeds, measured with this much noise; how many were in each round."""
    chance = random.Random(seed)
    race = Race(list(true), rounds, slots)
    sizes = []
    while entrants := race.next_round():
        sizes.append(len(entrants))
        for name in entrants:
            error = noise * true[name] / math.sqrt(2 ** (race.round - 1))
            race.add(name, Measured(chance.gauss(true[name], error), error, 60.0 * 2 ** (race.round - 1)))
    return race, sizes


@given(
    st.lists(st.floats(10.0, 1000.0), min_size=1, max_size=12),
    st.floats(0.0, 0.1),
    st.integers(0, 1 << 20),
    st.integers(1, 4),
    st.integers(1, 8),
)
def test_every_race_ends_with_a_best_that_nobody_beats_beyond_doubt(
    speeds: list[float], noise: float, seed: int, rounds: int, slots: int
) -> None:
    true = {f"c{number}": speed for number, speed in enumerate(speeds)}
    race, sizes = race_of(true, noise, seed, rounds, slots)
    best = race.best()
    assert best is not None and race.standing(best) == "best"
    assert len(sizes) <= rounds and sizes[0] == len(true) * max(1, slots // len(true))
    last = race._alive
    found = race.speeds()
    assert not any(found[best].slower_than(found[name], 2.0 + len(true)) for name in last)
    assert race.standing(best) == "best"
    # Whoever is called slower was measured slower than the fastest.
    fastest = max(found[name].rate for name in last)
    for name in true:
        if race.standing(name) == "slower":
            assert found[name].rate < fastest


@given(st.lists(st.floats(10.0, 1000.0), min_size=2, max_size=8, unique=True), st.integers(0, 1 << 20))
def test_without_noise_the_fastest_is_best_or_not_told_apart(speeds: list[float], seed: int) -> None:
    true = {f"c{number}": speed for number, speed in enumerate(speeds)}
    race, _ = race_of(true, 0.0, seed)
    top = max(true, key=lambda name: true[name])
    assert race.standing(top) in ("best", "tie")
    best = race.best()
    assert best is not None and true[best] >= 0.95 * true[top]


def test_the_more_there_are_the_further_apart_they_must_be() -> None:
    assert apart(1) == apart(2) == pytest.approx(1.96, abs=0.01)
    assert apart(2) < apart(6) < apart(12) < 3


def test_where_all_are_alike_few_races_have_a_winner() -> None:
    won = sum(
        race_of(dict.fromkeys(["as_is", "a", "b", "c"], 100.0), 0.02, seed)[0].best() != "as_is" for seed in range(200)
    )
    assert won <= 30


def test_losers_are_dropped_after_the_first_round_and_close_ones_are_repeated() -> None:
    true = {"as_is": 100.0, "slow": 50.0, "a": 104.0, "b": 103.0, "half": 60.0}
    race = Race(list(true), rounds=3)
    assert race.next_round() == list(true)
    for name, rate in true.items():
        race.add(name, Measured(rate, 2.0, 60.0))
    assert race.next_round() == ["as_is", "a", "b"]  # the better half, and what there is now
    for name, rate in (("as_is", 90.0), ("a", 120.0), ("b", 90.0)):
        race.add(name, Measured(rate, 0.1, 120.0))
    assert {name: race.standing(name) for name in ("slow", "half")} == {"slow": "slower", "half": "slower"}


def test_one_round_is_enough_where_the_difference_is_beyond_doubt_or_too_small_to_matter() -> None:
    clear, sizes = race_of({"as_is": 100.0, "fast": 200.0}, 0.001, seed=0)
    assert (clear.best(), sizes) == ("fast", [2])
    race = Race(["as_is", "same"], rounds=5)
    race.next_round()
    for name in ("as_is", "same"):
        for _ in range(20):  # of starts that are all alike
            race.add(name, Measured(100.0, 0.0, 60.0))
    assert race.next_round() == [] and race.best() == "as_is" and race.standing("same") == "tie"


def test_what_there_is_now_wins_where_no_other_is_told_apart_from_it() -> None:
    race = Race(["as_is", "other"], rounds=1)
    race.next_round()
    race.add("as_is", Measured(99.0, 1.0, 60.0))
    race.add("other", Measured(100.0, 1.0, 60.0))
    assert race.best() == "as_is" and race.standing("other") == "tie"


def test_who_is_out_is_neither_best_nor_measured_again() -> None:
    race = Race(["as_is", "wrong", "right"], rounds=3)
    race.next_round()
    race.add("as_is", Measured(100.0, 5.0, 60.0))
    race.add("right", Measured(101.0, 5.0, 60.0))
    race.add("wrong", Measured(500.0, 5.0, 60.0))
    race.drop("wrong")
    assert race.next_round() == ["as_is", "right"] and race.best() == "as_is"
    nobody = Race(["as_is"], rounds=3)
    nobody.next_round()
    nobody.drop("as_is")
    assert nobody.next_round() == [] and nobody.best() is None


def test_idle_servers_measure_the_same_candidate_at_once() -> None:
    race = Race(["as_is", "other"], rounds=2, slots=8)
    assert race.next_round() == ["as_is", "other"] * 4


def test_a_candidate_that_is_slower_by_far_is_given_up_early() -> None:
    race = Race(["as_is", "slow", "close"], rounds=2)
    race.next_round()
    race.add("as_is", Measured(100.0, 1.0, 60.0))
    assert race.hopeless("slow", Measured(50.0, 2.0, 15.0))
    assert not race.hopeless("close", Measured(96.0, 2.0, 15.0))
    assert not race.hopeless("as_is", Measured(50.0, 2.0, 15.0))  # it is not measured against itself
    race.drop("as_is")
    assert not race.hopeless("slow", Measured(50.0, 2.0, 15.0))  # nor against one that can't win


def watched(watch: Watch, seats: int, seconds_an_answer: float, rate: float, ramp_rate: float) -> float:
    """Look every second at a server of so many seats until that is enough; when it was."""
    tokens = 0.0
    for second in range(100_000):
        ended = int(max(0.0, second - seconds_an_answer) * seats / seconds_an_answer)
        if watch.is_enough(Look(float(second), tokens, seats, 0.0), seats, ended):
            return second
        tokens += ramp_rate if ended < seats else rate
    raise AssertionError("it never was enough")


def test_the_ramp_is_left_out() -> None:
    watch = Watch(seconds=60.0, sample=10_000)
    end = watched(watch, seats=10, seconds_an_answer=20.0, rate=100.0, ramp_rate=300.0)
    speed = watch.speed()
    assert watch.settled and not watch.used_up and speed is not None
    assert speed.rate == pytest.approx(100.0) and end == 40 + 60  # each seat has answered once in 40 seconds


def test_work_that_never_settles_is_measured_and_told() -> None:
    watch = Watch(seconds=60.0, sample=10_000)
    end = watched(watch, seats=10, seconds_an_answer=5000.0, rate=0.0, ramp_rate=100.0)
    assert not watch.settled and LONGEST_RAMP < end < LONGEST_RAMP + 100 and watch.speed() is not None


def test_the_measurement_ends_before_seats_stay_empty() -> None:
    watch = Watch(seconds=600.0, sample=100)
    watched(watch, seats=10, seconds_an_answer=10.0, rate=100.0, ramp_rate=100.0)
    speed = watch.speed()
    assert watch.used_up and speed is not None and speed.seconds < 100


def test_a_sample_smaller_than_the_seats_tells_nothing() -> None:
    watch = Watch(seconds=60.0, sample=5)
    assert watch.is_enough(Look(0.0, 0.0, 5, 0.0), 5, 0)
    assert watch.used_up and watch.speed() is None


def test_a_hopeless_one_is_cut_short_when_a_quarter_is_measured() -> None:
    watch = Watch(seconds=60.0, sample=10_000, hopeless=lambda so_far: so_far.rate < 200)
    watched(watch, seats=10, seconds_an_answer=10.0, rate=100.0, ramp_rate=100.0)
    speed = watch.speed()
    assert watch.cut_short and speed is not None and speed.seconds == 15.0
