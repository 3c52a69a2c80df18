"""Who is slower, who is measured again, who wins; and when work is steady."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.tuning.decide import (
    Measured,
    Pace,
    Race,
    Speed,
    apart,
    combined,
    measured,
    no_surer_than_most,
    paces,
    start_spread,
)
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
    assert start_spread([[Measured(100, 1, 60)], [Measured(50, 1, 60)]]) == pytest.approx(0.02)
    same = [[Measured(100, 0, 60)] * 3] * 4
    assert start_spread(same) < 0.015
    moved = [[Measured(90, 0, 60), Measured(110, 0, 60)]] * 4
    assert start_spread(moved) > 0.05
    # What they moved by within is no start's.
    assert start_spread([[Measured(90, 15, 60), Measured(110, 15, 60)]] * 4) < 0.02


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
    assert len(sizes) <= rounds and sizes[0] >= len(true)
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
    assert apart(1, 1) == apart(2, 1) == pytest.approx(1.96, abs=0.01)
    assert apart(2, 1) < apart(2, 3) < apart(6, 3) < apart(12, 3) < 4


def noisy(chance: random.Random, speed: float, seconds: int) -> Measured:
    """A measurement whose seconds are off by 8 %, of which each keeps 70 % of the one before; its start by 1.5 %."""
    rate, drift, tokens, points = speed * chance.gauss(1.0, 0.015), 0.0, 0.0, [(0.0, 0.0)]
    for second in range(seconds):
        drift = 0.7 * drift + chance.gauss(0.0, 0.08 * math.sqrt(1 - 0.7**2))
        tokens += rate * (1 + drift)
        points.append((second + 1.0, tokens))
    found = measured(points)
    assert found is not None
    return found


def noisy_race(true: dict[str, float], seed: int, slots: int = 1) -> Race:
    chance = random.Random(seed)
    race = Race(list(true), 3, slots)
    while entrants := race.next_round():
        for name in entrants:
            race.add(name, noisy(chance, true[name], 60 * 2 ** (race.round - 1)))
    return race


@pytest.mark.parametrize(("candidates", "slots"), [(2, 1), (6, 1), (6, 8)])
def test_where_all_are_alike_one_is_called_slower_in_five_of_a_hundred_races_at_most(
    candidates: int, slots: int
) -> None:
    alike = {"as_is": 100.0, **{f"c{number}": 100.0 for number in range(1, candidates)}}
    races = [noisy_race(alike, seed, slots) for seed in range(200)]
    called = sum(any(race.standing(name) == "slower" for name in alike) for race in races)
    assert called <= 10
    assert sum(race.best() != "as_is" for race in races) <= called


def test_a_difference_of_a_fifth_is_found_all_the_same() -> None:
    true = {"as_is": 100.0, "a": 100.0, "fast": 120.0, "b": 100.0}
    assert sum(noisy_race(true, seed).best() == "fast" for seed in range(50)) >= 48


def test_a_calm_measurement_is_not_taken_for_surer_than_most() -> None:
    found = no_surer_than_most({"a": [Measured(100, 1, 60)], "b": [Measured(200, 4, 60)], "c": [Measured(50, 2, 240)]})
    assert [one.error for many in found.values() for one in many] == pytest.approx([2.0, 4.0, 2.0])
    noisy_ones = {name: [Measured(100, 50, 60)] for name in "bcd"}  # that hang, say
    assert no_surer_than_most({"a": [Measured(100, 0.5, 60)], **noisy_ones})["a"][0].error == pytest.approx(1.5)


# --- servers of unequal speed ---


def test_servers_that_differ_by_chance_count_as_alike() -> None:
    wrong = 0
    for seed in range(200):
        chance = random.Random(seed)
        found = paces({server: noisy(chance, 100.0, 60) for server in range(8)})
        wrong += any(pace != Pace() for pace in found.values())
    assert wrong <= 20
    assert paces({}) == {} and paces({0: Measured(5, 1, 60)}) == {0: Pace()}


@pytest.mark.parametrize("servers", [2, 8])
def test_a_slow_servers_measurements_are_evened_out(servers: int) -> None:
    """One has 70 % of the others' speed: what it measures is no candidate's fault, and less sure."""
    speeds = [100.0] * (servers - 1) + [70.0]
    found = paces({server: Measured(speed, 1.0, 60.0) for server, speed in enumerate(speeds)})
    middle = {2: 85.0, 8: 100.0}[servers]
    evened = [found[server].evened(Measured(2 * speed, 2.0, 60.0)) for server, speed in enumerate(speeds)]
    assert [one.rate for one in evened] == pytest.approx([2 * middle] * servers)
    assert evened[-1].error > 2.0 * middle / 70.0


def test_what_there_is_now_is_on_all_servers_first() -> None:
    race = Race(["as_is", *"abcdefghij"], rounds=2, slots=4)
    assert race.next_round() == ["as_is"] * 4 + list("abcdefghij")
    few = Race(["as_is", "a"], rounds=2, slots=4)
    assert few.next_round() == ["as_is"] * 4 + ["a"] * 4
    assert Race(["as_is"], rounds=2, slots=4).next_round() == ["as_is"] * 4


# --- what is good, together ---


def test_what_is_better_is_told_and_one_more_joins_for_a_last_round() -> None:
    race = Race(["as_is", "a", "b", "c", "odd"], rounds=1)
    race.next_round()
    for name, rate in {"as_is": 100.0, "a": 130.0, "b": 160.0, "c": 101.0, "odd": 900.0}.items():
        race.add(name, Measured(rate, 1.0, 60.0))
    race.drop("odd")
    assert race.next_round() == [] and race.best() == "b" and race.better() == ["b", "a"]
    assert race.joined("b + a") == ["b", "b + a"] and race.round == 2
    race.add("b", Measured(160.0, 1.0, 120.0))
    race.add("b + a", Measured(240.0, 1.0, 120.0))
    assert race.best() == "b + a" and race.standing("b") == "slower" and race.standing("as_is") == "slower"


def test_a_new_one_that_is_not_told_apart_does_not_take_the_best_ones_place() -> None:
    race = Race(["as_is", "a", "b"], rounds=1)
    race.next_round()
    for name, rate in {"as_is": 100.0, "a": 130.0, "b": 160.0}.items():
        race.add(name, Measured(rate, 1.0, 60.0))
    race.joined("b + a")
    race.add("b + a", Measured(161.0, 1.0, 120.0))
    assert race.best() == "b" and race.standing("b + a") == "tie"


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
    assert race.next_round() == ["as_is"] * 8 + ["other"] * 8
    for name in ("as_is", "other"):
        race.add(name, Measured(100.0, 5.0, 60.0))
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


def test_prompts_that_fail_at_once_do_not_end_the_ramp_but_use_up_the_sample() -> None:
    watch = Watch(seconds=60.0, sample=100)
    assert not watch.is_enough(Look(0.0, 0.0, 10, 0.0), 10, 0, failed=40)
    assert not watch.settled
    assert not watch.is_enough(Look(1.0, 100.0, 10, 0.0), 10, 10, failed=40) and watch.settled
    assert watch.is_enough(Look(2.0, 200.0, 10, 0.0), 10, 20, failed=70) and watch.used_up


def test_a_sample_smaller_than_the_seats_tells_nothing() -> None:
    watch = Watch(seconds=60.0, sample=5)
    assert watch.is_enough(Look(0.0, 0.0, 5, 0.0), 5, 0)
    assert watch.used_up and watch.speed() is None


def test_a_hopeless_one_is_cut_short_when_a_quarter_is_measured() -> None:
    watch = Watch(seconds=60.0, sample=10_000, hopeless=lambda so_far: so_far.rate < 200)
    watched(watch, seats=10, seconds_an_answer=10.0, rate=100.0, ramp_rate=100.0)
    speed = watch.speed()
    assert watch.cut_short and speed is not None and speed.seconds == 15.0
