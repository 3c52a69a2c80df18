"""Candidates, the sample, answers compared, what /metrics says, and the winner laid over the config."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.standin import models
from tests.standin.machines import machine
from tests.unit.test_completions import prompt, reply
from tests.unit.test_config import with_changes
from workflow_scripts import config as configs
from workflow_scripts import files, identity, planning
from workflow_scripts.completions.faults import Fault
from workflow_scripts.completions.replies import Answerer
from workflow_scripts.config import Config, Sampling
from workflow_scripts.errors import PlainError
from workflow_scripts.run import Run
from workflow_scripts.serving import given as given_to
from workflow_scripts.serving import launch, model_facts
from workflow_scripts.serving.flags import SPEED_FLAGS
from workflow_scripts.serving.known_flags import Known, mistakes
from workflow_scripts.tuning import candidates, winner
from workflow_scripts.tuning.answers import Compared, Likeness, Probe, Token, compare, likeness, read
from workflow_scripts.tuning.candidates import Candidate, laid_over, name_of, together
from workflow_scripts.tuning.measure import read_metrics
from workflow_scripts.tuning.sample import BANDS, ordered

FLAGS = Path(__file__).parents[1] / "data" / "sglang_flags.json"


def config(**changes: Any) -> Config:
    return configs.parse(with_changes(changes), "my.yaml")


# --- the config ---


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"tune.candidates": [{"args": {}}]}, "my.yaml: tune.candidates.0.args: must not be empty"),
        (
            {"tune.candidates": [{"args": {"kv-cache-dtype": "fp8_e4m3"}}]},
            "my.yaml: tune.candidates.0.args: 'kv-cache-dtype' decides what is answered",
        ),
        ({"tune.candidates": [{"args": {"max_running": 1}}]}, "my.yaml: tune.candidates.0.args: write the flag"),
        ({"tune.seconds": 0}, "my.yaml: tune.seconds: 0 should be greater than 0"),
        ({"servers.tuned": "yes"}, "my.yaml: servers.tuned: 'yes' should be true or false"),
        ({"servers": {"tuned": True, "urls": ["http://h:1"]}}, "my.yaml: servers: `tuned` is for servers"),
    ],
)
def test_mistakes_are_told(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(PlainError) as told:
        config(**changes)
    assert str(told.value).startswith(line)


# --- candidates ---


def test_the_servers_as_they_are_come_first_and_the_users_own_next() -> None:
    mine = config(**{"tune.candidates": [{"args": {"page-size": 64}}, {"name": "both", "args": {"page-size": 32}}]})
    found = candidates.listing(mine, False, lambda tried: tried.servers.args)
    assert [one.name for one in found[:3]] == ["as_is", "page-size 64", "both"] and len(found) > 8
    only = mine.model_copy(update={"tune": mine.tune.model_copy(update={"usual": False})})
    assert len(candidates.listing(only, False, lambda tried: tried.servers.args)) == 3


def test_of_several_that_start_the_same_server_only_the_first_is_tried() -> None:
    mine = config(**{"servers.args": {"max-running-requests": 64, "disable-radix-cache": True}})
    names = [one.name for one in candidates.listing(mine, False, lambda tried: tried.servers.args)]
    assert "running_128" in names and not {"running_64", "radix_off"} & set(names)


def test_a_candidate_whose_flags_cannot_be_given_stays_to_be_told() -> None:
    def refuse(tried: Config) -> dict[str, Any]:
        if "mem-fraction-static" in tried.servers.args:
            raise PlainError("no room")
        return tried.servers.args

    assert "memory_90" in [one.name for one in candidates.listing(config(), False, refuse)]


def test_hybrids_get_their_strategies_and_cpus_no_share_of_a_gpus_memory() -> None:
    names = [one.name for one in candidates.listing(config(), True, lambda tried: tried.servers.args)]
    assert {"no_buffer", "extra_buffer", "extra_buffer_lazy"} < set(names)
    cpu = config(**{"servers.engine": "sglang-cpu"})
    names = [one.name for one in candidates.listing(cpu, False, lambda tried: tried.servers.args)]
    assert "memory_90" not in names and "running_32" in names


def test_what_the_card_and_the_model_get_anyway_is_not_tried_again(tmp_path: Path) -> None:
    """A hybrid model on H200s has its cache of prefixes off as it is."""
    model = tmp_path / "model"
    files.write_json(model / "config.json", models.QWEN36_27B)
    (model / "model.safetensors").touch()
    os.truncate(model / "model.safetensors", 55 * 10**9)  # sparse
    hybrid = "hybrid" in model_facts.read(model).traits
    seen = machine("8x_h200")
    mine = config(**{"servers.args": {"context-length": 8192}})
    found = candidates.listing(mine, hybrid, lambda tried: given_to.flags_of(tried, 0, model, 0, seen).flags)
    names = [one.name for one in found]
    assert hybrid and names[:4] == ["as_is", "no_buffer", "extra_buffer", "extra_buffer_lazy"]
    assert "radix_off" not in names and "running_128" in names


def test_two_of_one_name_are_a_mistake() -> None:
    twice = {"tune.candidates": [{"name": "eager", "args": {"page-size": 64}}]}
    with pytest.raises(PlainError, match="two are called 'eager'"):
        candidates.listing(config(**twice), False, lambda tried: tried.servers.args)


def test_all_usual_flags_are_of_speed_and_known_to_sglang() -> None:
    known = Known.from_json(json.loads(FLAGS.read_text()))
    for listed in (candidates.USUAL, candidates.ON_GPUS, candidates.OF_HYBRIDS, candidates.ON_CPU):
        for args in listed.values():
            assert set(args) <= SPEED_FLAGS and mistakes(args, known, args) == []


@given(
    st.dictionaries(
        st.sampled_from(["page-size", "schedule-policy", "disable-radix-cache"]),
        st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.sampled_from(["lpm", "fcfs"])),
        min_size=1,
    )
)
def test_names_tell_flags_apart(args: dict[str, Any]) -> None:
    name = name_of(args)
    assert name.count(",") == len(args) - 1 and all(flag in name for flag in args)
    assert name_of({"a": None, "b": True, "c": -1}) == "without a, b, c=-1"


def test_what_is_better_is_put_together_unless_it_contradicts_or_was_tried() -> None:
    radix, some, more = (
        Candidate("radix_off", {"disable-radix-cache": True}),
        Candidate("running_64", {"max-running-requests": 64}),
        Candidate("running_128", {"max-running-requests": 128}),
    )
    both = {"max-running-requests": 128, "disable-radix-cache": True}
    assert together([more, some, radix], [more, some, radix]) == Candidate("running_128 + radix_off", both)
    assert together([some, more], [some, more]) is None and together([radix], [radix]) is None
    assert together([], []) is None
    assert together([more, radix], [more, radix, Candidate("mine", both)]) is None


# --- the sample ---


def manifest(sizes: dict[str, int]) -> pl.DataFrame:
    rows = [
        {"prompt_id": identity.digest([source, number], 64), "source": source, "length": (number * 7919) % 1000}
        for source, size in sizes.items()
        for number in range(size)
    ]
    return pl.DataFrame(rows)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 400), min_size=1), st.floats(0.0, 1.0))
def test_every_beginning_of_the_sample_is_like_the_whole(sizes: dict[str, int], share: float) -> None:
    whole = manifest(sizes)
    found = ordered(whole)
    assert sorted(found["prompt_id"]) == sorted(whole["prompt_id"])
    taken = round(share * len(whole))
    head = found.head(taken)
    for source, size in sizes.items():
        expected = size * taken / len(whole)
        assert abs(head.filter(pl.col("source") == source).height - expected) <= BANDS * len(sizes)
        # Of each source the long and the short ones are in it alike.
        rows = whole.filter(pl.col("source") == source)
        long = set(rows.sort("length", "prompt_id").tail(size // 2)["prompt_id"])
        here = head.filter(pl.col("source") == source)
        assert abs(len(long & set(here["prompt_id"])) - here.height / 2) <= BANDS + 1


def test_the_order_is_the_same_every_time() -> None:
    whole = manifest({"a": 50, "b": 70})
    assert ordered(whole.reverse()).equals(ordered(whole))


# --- answers ---


def said(text: str, logprob: float = -0.1, **others: float) -> list[Token]:
    return [
        Token(ord(one), one.encode(), logprob, {one.encode(): logprob, **{k.encode(): v for k, v in others.items()}})
        for one in text
    ]


def test_equal_answers_are_the_same_and_an_end_is_a_token_too() -> None:
    assert likeness(said("yes."), said("yes.")) == "same"
    assert likeness(said("yes."), said("yes")) == "different"
    assert likeness([], []) == "same"


def test_a_near_tie_is_allowed_where_both_servers_saw_it_so() -> None:
    one = [*said("ab"), *said("c", -0.7, d=-0.8)]
    other = [*said("ab"), *said("d", -0.7, c=-0.75), *said("xyz")]
    assert likeness(one, other) == likeness(other, one) == "near_tie"
    sure = [*said("ab"), *said("d", -0.01, c=-4.8)]
    assert likeness(one, sure) == likeness(sure, one) == "different"
    unknown = [*said("ab"), *said("e", -0.7, c=-0.7)]  # of which the first server has not heard
    assert likeness(one, unknown) == likeness(unknown, one) == "different"


TOKENS = st.lists(
    st.builds(
        Token,
        st.integers(0, 3),
        st.sampled_from([b"a", b"b", b"c"]),
        st.floats(-3, 0),
        st.dictionaries(st.sampled_from([b"a", b"b", b"c"]), st.floats(-3, 0)),
    ),
    max_size=6,
)


@given(TOKENS, TOKENS)
def test_likeness_is_mutual_and_everything_is_like_itself(one: list[Token], other: list[Token]) -> None:
    assert likeness(one, other) == likeness(other, one) and likeness(one, one) == "same"


def test_answers_are_counted_and_how_far_log_probabilities_moved() -> None:
    first = {"p": said("abc"), "q": said("abc"), "r": said("x")}
    later = {"p": said("abc", -0.3), "q": said("abd", -0.1)}
    found = compare(first, [first, later])
    assert found.likeness == Counter(same=4, different=1) and found.differing == 0.2
    assert found.moved == pytest.approx(3 * 0.2 / (7 + 3 + 2))
    assert compare({}, [first]).moved is None and compare({}, [first]).differing == 0.0


@pytest.mark.parametrize(("own", "different", "more"), [(0, 0, False), (0, 1, True), (4, 8, False), (4, 9, True)])
def test_an_answer_too_many_is_one_beyond_twice_what_the_first_differs_from_itself(
    own: int, different: int, more: bool
) -> None:
    mine, others = (
        Compared(Counter[Likeness]({"same": 16 - count, "different": count}), None) for count in (own, different)
    )
    assert others.differs_more_than(mine) == more
    assert not others.differs_more_than(others)


def test_a_probe_asks_greedily_for_one_turn_with_log_probabilities() -> None:
    asked = prompt(1, "Hello?")
    asked["messages"] += [{"role": "assistant", "content": "Old."}, {"role": "user", "content": "And?"}]
    probe = Probe(asked, Sampling(temperature=0.9, top_k=5, thinking=True))
    body = probe.request("m", "r")
    assert body["messages"] == [{"role": "user", "content": "Hello?"}]
    assert (body["temperature"], body["logprobs"], body["chat_template_kwargs"]) == (0, True, {"enable_thinking": True})
    answer = reply()
    entry = {"token": "Hi", "bytes": [72, 105], "logprob": -0.5}
    top = {"token": "Ho", "bytes": [72, 111], "logprob": -1.5}
    answer["choices"][0]["logprobs"] = {"content": [entry | {"top_logprobs": [entry, top]}] * 2}
    probe.take(answer, "r", Answerer("s"), 1, 0.5)
    assert probe.ended == "complete"
    assert probe.said[0] == Token(4, b"Hi", -0.5, {b"Hi": -0.5, b"Ho": -1.5}) and probe.said[1].id == 5
    with pytest.raises(Fault, match="no log-probabilities"):
        read(reply())


# --- measuring ---

METRICS = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0",pp_rank="0"} 12.0
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0",pp_rank="0",dp_rank="1"} 3.0
sglang:realtime_tokens_total{mode="prefill_compute",model_name="m"} 5e+06
sglang:realtime_tokens_total{mode="decode",model_name="m"} 1234.0
sglang:realtime_tokens_total{mode="decode",model_name="m",dp_rank="1"} 1.5e+03
sglang:num_retracted_requests_total{model_name="m"} 2.0
sglang:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 7.0
"""


def test_the_schedulers_counters_are_summed_up_over_ranks() -> None:
    found = read_metrics(METRICS, 3.0)
    assert (found.at, found.tokens, found.running, found.retracted) == (3.0, 2734.0, 15.0, 2.0)
    with pytest.raises(KeyError, match="realtime_tokens_total"):
        read_metrics("sglang:num_running_reqs 1.0\n", 0.0)


# --- the winner ---


def tuned_run(tmp_path: Path, told: Any) -> Run:
    run = Run(tmp_path / "r", config(**{"servers.tuned": True, "servers.args": {"page-size": 1, "dtype": "bfloat16"}}))
    files.write_json(winner.path(run), {"run": "r"} | told)
    return run


def test_only_flags_of_speed_are_laid_over_args(tmp_path: Path) -> None:
    args = {"page-size": 64, "disable-radix-cache": False, "dtype": "float16", "quantization": "fp8"}
    run = tuned_run(tmp_path, {"winner": {"name": "x", "args": args}})
    found = winner.found(run)
    assert found is not None
    laid = laid_over(run.config, found).servers.args
    assert laid == {"page-size": 64, "dtype": "bfloat16", "disable-radix-cache": False}
    assert launch.words(laid) == ["--page-size", "64", "--dtype", "bfloat16"]


def test_no_tuning_is_a_plain_error_that_says_what_to_do(tmp_path: Path) -> None:
    run = tuned_run(tmp_path, {"winner": None})
    with pytest.raises(PlainError, match="names no candidate that could be used: say `snakemake --cores all tune`"):
        winner.found(run)
    winner.path(run).unlink()
    with pytest.raises(PlainError, match=r"tuning\.json is not there: say `snakemake --cores all tune`"):
        winner.require(run)
    winner.require(Run(tmp_path / "r", config()))


@pytest.mark.parametrize(
    ("told", "mistake"),
    [
        ({"run": "other-1", "winner": {"name": "x", "args": {}}}, "is of another run, other-1: say `snakemake"),
        (
            {"winner": {"name": "x", "args": {"page-size": {"a": 1}}}},
            "winner.args.page-size is no value of a flag: say",
        ),
        ({"winner": ["x"]}, "names no candidate"),
    ],
)
def test_a_tuning_that_is_not_this_runs_is_refused(tmp_path: Path, told: dict[str, Any], mistake: str) -> None:
    with pytest.raises(PlainError, match=mistake):
        winner.found(tuned_run(tmp_path, told))


def test_a_torn_tuning_is_refused_with_what_to_do(tmp_path: Path) -> None:
    run = tuned_run(tmp_path, {})
    winner.path(run).write_bytes(winner.path(run).read_bytes()[:5])
    with pytest.raises(PlainError, match=r"is not valid JSON .*; say `snakemake --cores all tune`"):
        winner.found(run)


def test_tuning_is_no_part_of_the_runs_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    (tmp_path / "a.jsonl").write_text("{}\n")
    plain = planning.plan(with_changes({}), "my.yaml")
    changes = {"servers.tuned": True, "tune.candidates": [{"args": {"page-size": 64}}], "tune.seconds": 5}
    plan = planning.plan(with_changes(changes), "my.yaml")
    assert plan.run.name == plain.run.name
    assert plan.with_tuned(tunes=False) == plan  # as long as there is nothing to lay over
    files.write_json(winner.path(plan.run), {"run": plan.run.name, "winner": {"name": "x", "args": {"page-size": 64}}})
    tuned = plan.with_tuned(tunes=False)
    assert tuned.config.servers.args == {"page-size": 64} == tuned.run.config.servers.args
    assert (
        tuned.run.name == plan.run.name
        and tuned.tuned is not None
        and tuned.tuned.name == "x"
        and plan.with_tuned(tunes=True) == plan
    )
    elsewhere = planning.plan(with_changes({"servers.urls": ["http://127.0.0.1:9"]}), "my.yaml")
    with pytest.raises(PlainError, match=r"there is nothing to tune here"):
        elsewhere.with_tuned(tunes=True)
