"""The manifest of a world whose right manifest is known."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.standin.shards import read_already, shard_row
from tests.standin.world import SOURCES, THRESHOLD, World, made_up, overlap
from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.prompts import arrange, candidates, mix
from workflow_scripts.prompts.filters import Hit
from workflow_scripts.prompts.manifest import build
from workflow_scripts.prompts.near import text_of
from workflow_scripts.prompts.split import write_chunks
from workflow_scripts.records import Message
from workflow_scripts.run import Run
from workflow_scripts.sources import shard
from workflow_scripts.sources.conversion import ShardRow, batch_of

Built = tuple[pl.DataFrame, pl.DataFrame, dict[str, Any]]


@pytest.fixture(scope="module")
def world() -> World:
    return made_up(4)


def built(tmp_path: Path, world: World, **config: Any) -> Built:
    manifest, dropped, account = build(read_already(tmp_path, config, world.shards()))
    check(world, manifest, dropped, account)
    return manifest, dropped, account


def check(world: World, manifest: pl.DataFrame, dropped: pl.DataFrame, account: dict[str, Any]) -> None:
    """Rows in = rows out + drops + not drawn, for each source, and every duplicate repeats a taken prompt."""
    taken, gone = (Counter(frame["source"]) for frame in (manifest, dropped))
    for source in account["sources"]:
        name = source["source"]
        assert source["available"] == len(world.rows[name]) == taken[name] + gone[name] + source["not_drawn"]
        assert sum(source["dropped"].values()) == gone[name] and source["not_drawn"] >= 0
        assert source["own"] + sum(source["stood_in_for"].values()) + source["filled"] == taken[name]
        assert source["own"] + sum(source["substituted"].values()) == source["taken"]
    assert sum(taken.values()) == account["taken"] == len(manifest)
    rows = pl.concat([manifest.select("source", "row"), dropped.select("source", "row")])
    assert rows.is_unique().all()
    repeats = dropped.filter(pl.col("reason").str.ends_with("duplicate"))["repeats"]
    assert set(repeats) <= set(manifest["prompt_id"])
    assert manifest["prompt_id"].is_unique().all()


def test_of_equal_prompts_in_one_source_the_first_stays(tmp_path: Path) -> None:
    rows = [shard_row(number, talk("Why?", f"answer {number}")) for number in range(3)]
    for exact in (True, False):
        config = {"chunks": {"count": 1}, "prompts": {"dedupe": {"exact": exact}}}
        manifest, dropped, _ = build(read_already(tmp_path / str(exact), config, {"a": rows}))
        assert manifest["row"].to_list() == [0] and dropped["row"].to_list() == [1, 2]
        assert set(dropped["detail"]) == {"the same prompt"}


def test_under_turns_all_whole_conversations_are_told_apart(tmp_path: Path) -> None:
    def asks(*questions: str) -> list[Message]:
        turns: list[Message] = []
        for question in questions:
            turns += [{"role": "user", "content": question}, {"role": "assistant", "content": f"to {question}"}]
        return turns

    conversations = [asks("Hi", "Why?"), asks("Hi", "How?"), asks("Hi"), asks("hi", "why? "), asks("Hi", "Why?")]
    rows = [shard_row(number, messages) for number, messages in enumerate(conversations)]
    for exact in (True, False):
        config = {"chunks": {"count": 1}, "prompts": {"turns": "all", "dedupe": {"exact": exact}}}
        run = read_already(tmp_path / str(exact), config, {"a": rows})
        manifest, dropped, account = build(run)
        taken = sorted(manifest["row"].to_list())
        assert len(taken) == (3 if exact else 4) and {1, 2} <= set(taken)
        assert set(manifest["prompt_id"]) == {rows[row].all_id for row in taken}
        assert [rows[row].first_id for row in manifest["row"]] == manifest["first_id"].to_list()
        assert set(dropped["repeats"]) <= set(manifest["prompt_id"]) and account["taken"] == len(taken)
        manifest.write_parquet(run.manifest)
        files.write_json(run.manifest_json, account)
        write_chunks(run, ["00000"])
        prompts = list(files.read_jsonl_zst(run.prompts("00000")))
        assert [prompt["messages"] for prompt in prompts] == [conversations[row] for row in manifest["row"]]
        assert [prompt["prompt_id"] for prompt in prompts] == manifest["prompt_id"].to_list()


@pytest.mark.parametrize("near", [False, THRESHOLD])
def test_the_right_manifest(tmp_path: Path, world: World, near: float | bool) -> None:
    manifest, dropped, account = built(tmp_path, world, prompts={"dedupe": {"near": near}})
    right = world.right(near=bool(near))
    assert set(manifest.select("source", "prompt_id").iter_rows()) == {key for key, why in right.items() if not why}
    found = {(row["source"], row["prompt_id"]): row for row in dropped.iter_rows(named=True)}
    same = [row for row in found.values() if row["detail"] == "the same prompt"]
    assert len(same) == 4  # whose ids are those of taken prompts
    for key, why in right.items():
        if why is not None:
            assert (found[key]["reason"], found[key]["repeats"]) == why
    assert len(found) == sum(why is not None for why in right.values())
    assert account["sources"][16]["dropped"] == Counter(
        why.reason for (source, _), why in right.items() if why and source == "s16"
    )


def test_no_near_duplicate_stays_and_none_that_is_dropped_is_not_one(tmp_path: Path, world: World) -> None:
    manifest, dropped, _ = built(tmp_path, world, prompts={"dedupe": {"near": THRESHOLD}})
    by_id = {row.prompt_id: row for row in world.all()}
    near = dropped.filter(pl.col("reason") == "near_duplicate")
    assert len(near) > 8
    for row in near.iter_rows(named=True):
        similarity = overlap(by_id[row["prompt_id"]].text, by_id[row["repeats"]].text)
        assert similarity >= THRESHOLD and row["detail"] == f"Jaccard {similarity:.3f}"
    taken = set(manifest["prompt_id"])
    for pair in world.pairs:
        both = {pair.first.prompt_id, pair.second.prompt_id} <= taken
        assert both == (pair.similarity < THRESHOLD), pair.similarity


def test_the_same_seed_gives_the_same_manifest_and_another_seed_another(tmp_path: Path, world: World) -> None:
    takes = {name: {"take": 5} for name in SOURCES}
    prompts = {"dedupe": {"near": THRESHOLD}, "eval": 0.1}
    one, again, other = (
        built(tmp_path / str(number), world, sources=takes, prompts=prompts | {"seed": seed})
        for number, seed in enumerate((0, 0, 1))
    )
    assert all(a.equals(b) for a, b in zip(one[:2], again[:2], strict=True)) and one[2] == again[2]
    assert not one[0].equals(other[0])
    assert [row["taken"] for row in one[2]["sources"]] == [5] * 17


def test_the_manifest_does_not_depend_on_how_many_are_compared_at_once(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: dict[str, Any] = {
        "sources": {name: {"take": 5} for name in SOURCES[1:]} | {"s00": {"take": 60, "substitutes": ["s01", "s02"]}},
        "prompts": {"dedupe": {"near": THRESHOLD}, "total": 108, "fill": ["s03"]},
    }
    one = built(tmp_path / "many", world, **config)
    monkeypatch.setattr(mix, "AT_LEAST", 1)
    other = built(tmp_path / "few", world, **config)
    assert one[0].equals(other[0]) and one[1].equals(other[1]) and one[2] == other[2]
    assert one[2]["taken"] == 108 and one[2]["sources"][0]["substituted"].keys() == {"s01", "s02"}


def test_the_side_of_a_prompt_does_not_depend_on_the_seed(tmp_path: Path, world: World) -> None:
    words = [f"word{number}" for number in range(400)]
    sources: dict[str, list[ShardRow]] = {"a": []}
    for chain in range(12):
        world.chance.shuffle(words)
        # Each is near its neighbours only, and which of them are taken is the seed's.
        said = [" ".join([f"chain{chain}", *words[: 30 + 3 * at]]) for at in range(6)]
        sources["a"] += [shard_row(6 * chain + at, talk(text, "x")) for at, text in enumerate(said)]
    sides: dict[str, str] = {}
    taken = []
    for seed in range(4):
        config = {
            "prompts": {"seed": seed, "eval": 0.5, "dedupe": {"near": 0.85}},
            "sources": {"a": {"take": 18}},
            "chunks": {"count": 1},
        }
        manifest, _, _ = build(read_already(tmp_path / str(seed), config, sources))
        taken.append(set(manifest["prompt_id"]))
        for prompt_id, split in manifest.select("prompt_id", "split").iter_rows():
            assert sides.setdefault(prompt_id, split) == split
    assert len(sides) > 30 and set(sides.values()) == {"train", "eval"}
    assert taken[0] != taken[1] != taken[2]


def test_the_evaluation_sets_are_nested(tmp_path: Path, world: World) -> None:
    smaller: set[str] = set()
    for number, share in enumerate((0.0, 0.1, 0.3, 0.5)):
        prompts = {"dedupe": {"near": THRESHOLD}, "eval": share}
        manifest, _, account = built(tmp_path / str(number), world, prompts=prompts)
        apart = set(manifest.filter(pl.col("split") == "eval")["prompt_id"])
        assert smaller <= apart and abs(len(apart) / len(manifest) - share) < 0.1
        assert account["split"]["prompts"] == {"train": len(manifest) - len(apart), "eval": len(apart)}
        for prompt_id in manifest["prompt_id"]:
            assert (prompt_id in apart) == (int(prompt_id, 16) / 2**256 < share)
        smaller = apart


class Short:
    """Drops texts below a number of characters."""

    reason = "too_short"

    def __init__(self, least: int) -> None:
        self.least = least
        self.seen: list[int] = []

    def check(self, found: pl.DataFrame) -> dict[int, Hit]:
        self.seen.append(len(found))
        assert {"row", "first_id", "all_id", "messages", "tools", "meta", "dedupe_key"} <= set(found.columns)
        sizes = [len(orjson.loads(messages)[0]["content"]) for messages in found["messages"]]
        return {index: Hit(None, str(size)) for index, size in enumerate(sizes) if size < self.least}


def test_filters_look_before_anything_is_drawn(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "AT_ONCE", 7)
    first, second = Short(300), Short(600)
    second.reason = "still_too_short"
    monkeypatch.setattr("workflow_scripts.prompts.manifest.filters_of", lambda run: [first, second])
    manifest, dropped, account = built(tmp_path, world, sources={"s03": {"take": 5}})
    assert max(first.seen) == 7 and sum(second.seen) < sum(first.seen)
    assert account["sources"][3]["taken"] == 5 and account["sources"][3]["not_drawn"] > 0
    sizes = {row.prompt_id: len(row.messages[0]["content"]) for row in world.all()}
    assert min(sizes[prompt_id] for prompt_id in manifest["prompt_id"]) >= 600
    for row in dropped.filter(pl.col("reason") != "duplicate").iter_rows(named=True):
        size = sizes[row["prompt_id"]]
        assert (row["reason"], row["repeats"], row["detail"]) == (
            "too_short" if size < 300 else "still_too_short",
            None,
            str(size),
        )
        assert size < 600


def test_a_mix_that_falls_short_shows_the_whole_table(tmp_path: Path, world: World) -> None:
    config: dict[str, Any] = {
        "sources": {
            "s00": {"take": 500, "substitutes": {"s02": {"path": "s02.jsonl", "shape": "messages"}}},
            "s02": {"take": 3},
        },
        "prompts": {"dedupe": {"near": THRESHOLD}},
    }
    run = read_already(tmp_path, config, world.shards())
    with pytest.raises(PlainError) as error:
        build(run)
    lines = str(error.value).splitlines()
    assert lines[1].split() == ["source", "asked", "usable", "repeated", "near", "taken"]
    assert len({len(line) for line in lines[1:-1]}) == 1
    assert [line.split()[0] for line in lines[2:-2]] == ["s00", "s02", *SOURCES[1:]]
    assert lines[-1].endswith("set prompts.allow_short: true")
    config["prompts"]["allow_short"] = True
    check(world, *build(read_already(tmp_path / "short", config, world.shards())))


@settings(max_examples=40)
@given(data=st.data())
def test_every_prompt_of_every_shard_is_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, world: World, data: st.DataObject
) -> None:
    """Whoever stands in for whom, whatever can't be read, whatever is asked."""
    names = data.draw(st.lists(st.sampled_from(SOURCES[:6]), min_size=1, max_size=5, unique=True))
    gone = data.draw(st.sets(st.sampled_from(names)))
    others = {name: [other for other in names if other != name] for name in names}
    sources = {
        name: {
            "take": data.draw(st.sampled_from(["all", 1, 3, 8, 30])),
            "substitutes": data.draw(st.permutations(others[name]))[: data.draw(st.integers(0, 3))],
        }
        for name in names
    }
    total = data.draw(st.none() | st.integers(1, 60))
    near = data.draw(st.sampled_from([False, THRESHOLD]))
    prompts = {"allow_short": True, "dedupe": {"exact": data.draw(st.booleans()), "near": near}, "total": total}
    if total is not None:
        prompts["fill"] = data.draw(st.permutations(names))[: data.draw(st.integers(0, 3))]
    shards = world.shards()
    folder = tmp_path_factory.mktemp("made")
    run = read_already(folder, {"sources": sources, "prompts": prompts}, {name: shards[name] for name in names})
    cannot_be_read(run, gone)
    manifest, dropped, account = build(run)
    rows = {name: [] if name in gone else world.rows[name] for name in names}
    check(World(rows=rows), manifest, dropped, account)
    assert sum(row["taken"] for row in account["sources"]) + sum(account["filled"].values()) == account["taken"]
    assert all(row["asked"] == "all" or row["taken"] <= row["asked"] for row in account["sources"])
    assert total is None or (account["taken"] <= total and account["short"] == (account["taken"] < total))


def cannot_be_read(run: Run, names: Iterable[str]) -> None:
    unavailable = {"kind": "gated", "reason": "o/d is gated"}
    lock = files.read_json(run.lock)
    for name in names:
        lock["sources"][name] = {"unavailable": unavailable}
        files.write_json(run.source(name), {"source": name, "unavailable": unavailable})
    files.write_json(run.lock, lock)


def test_a_source_that_nothing_stands_in_for_is_told(tmp_path: Path, world: World) -> None:
    def run(name: str, substitutes: list[str], **prompts: Any) -> Built:
        config = {"sources": {"s00": {"substitutes": substitutes}}, "prompts": prompts}
        run = read_already(tmp_path / name, config, world.shards())
        cannot_be_read(run, ["s00"])
        return build(run)

    with pytest.raises(PlainError) as error:
        run("drained", ["s01"])  # which gives all itself
    lines = str(error.value).splitlines()
    assert lines[0] == "nothing stands in for s00:" and lines[3].strip() == "can't be read: o/d is gated"
    assert lines[-1].endswith("or set prompts.allow_short: true")
    manifest, _, account = run("short", ["s01"], allow_short=True)
    assert account["short"] and account["unreplaced"] == ["s00"] and len(manifest) == account["taken"]
    _, _, account = run("total", ["s01"], total=20)
    assert not account["short"] and account["taken"] == 20


def test_a_mix_of_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflow_scripts.prompts.manifest.filters_of", lambda run: [Short(10**6)])
    rows = [shard_row(number, talk(f"Why {number}?", "x")) for number in range(3)]
    with pytest.raises(PlainError) as error:
        build(read_already(tmp_path, {}, {"a": rows}))
    lines = str(error.value).splitlines()
    assert lines[0] == "no prompt is left to be taken:" and lines[2].split() == ["a", "all", "3", "0", "3", "0"]
    manifest, dropped, _ = build(read_already(tmp_path / "short", {"prompts": {"allow_short": True}}, {"a": rows}))
    assert len(manifest) == 0 and len(dropped) == 3


# --- the order inside a chunk ---


def talk(question: str, answer: str, system: str | None = None, **more: Any) -> list[Message]:
    said: Any = [{"role": "user", "content": question}, {"role": "assistant", "content": answer, **more}]
    return said if system is None else [{"role": "system", "content": system}, *said]


def ordered(tmp_path: Path, talks: list[list[Message]], tools: dict[int, Any] | None = None) -> list[int]:
    """The talks' numbers in the order of one chunk."""
    rows = [shard_row(number, messages, (tools or {}).get(number)) for number, messages in enumerate(talks)]
    run = read_already(tmp_path, {"chunks": {"count": 1}}, {"a": rows})
    manifest, _, _ = build(run)
    assert manifest["position"].to_list() == list(range(len(talks)))
    return manifest["row"].to_list()


def test_the_longest_recorded_answer_comes_first(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "5" * 25}}
    talks: list[list[Message]] = [
        talk("one", "x" * 10),
        talk("two", "x" * 30),
        talk("three", ""),
        [{"role": "user", "content": "four"}],  # none was recorded
        talk("five", "x" * 5, reasoning_content="y" * 15),
        talk("six", "", tool_calls=[call]),
        [*talk("seven", "x"), *talk("and?", "x" * 99)],
    ]
    order = ordered(tmp_path, talks)
    assert order[:5] == [1, 5, 4, 0, 6] and set(order[5:]) == {2, 3}


def test_prompts_that_begin_alike_stand_together(tmp_path: Path) -> None:
    system, beginning, tool = "s" * 512, "b" * 600, [{"type": "function", "function": {"name": "f" * 600}}]
    talks = [
        talk("one", "x" * 10, system),
        talk("two", "x" * 90),
        talk("three", "x" * 70, system),
        talk("four", "x" * 80, "s" * 400),  # short: computed again, rather than out of order
        talk("five", "x" * 20, "s" * 400),
        talk(beginning + "six", "x" * 5),
        talk(beginning + "seven", "x" * 75),
        talk("eight", "x" * 60),
        talk("nine", "x" * 65),
        talk("ten", "x" * 1),
    ]
    assert ordered(tmp_path, talks, {8: tool, 9: tool}) == [1, 3, 6, 5, 2, 0, 8, 9, 7, 4]


SIZES = {"many": 3000, "few": 300}


def test_chunks_are_an_even_spread_of_the_seeded_order(tmp_path: Path, world: World) -> None:
    whole, _, _ = built(tmp_path / "1", world, chunks={"count": 1})
    cut, _, _ = built(tmp_path / "7", world, chunks={"count": 7})
    sizes = Counter(cut["chunk"])
    assert sorted(sizes) == list(range(7)) and max(sizes.values()) - min(sizes.values()) <= 1
    assert set(whole["prompt_id"]) == set(cut["prompt_id"])
    assert cut.equals(cut.sort("chunk", "position"))
    by_chunk = cut.group_by("chunk").agg(pl.col("source").n_unique())
    assert (by_chunk["source"] > 8).all()  # no chunk is of a few sources only


def test_a_source_that_gives_few_of_many_is_spread_as_one_that_gives_all(tmp_path: Path) -> None:
    sources = {name: [shard_row(at, talk(f"{name} {at}", "x")) for at in range(size)] for name, size in SIZES.items()}
    config = {"chunks": {"count": 5}, "sources": {name: {"take": 300} for name in SIZES}}
    manifest, _, _ = build(read_already(tmp_path, config, sources))
    counts = Counter(manifest.select("chunk", "source").iter_rows())
    assert set(Counter(manifest["source"]).values()) == {300}
    # Of 120 from two halves: 60 on average, 4.9 standard deviations wide.
    assert len(counts) == 10 and all(36 < count < 84 for count in counts.values())


def test_long_prompts_are_not_held_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their row groups are small; rows of many would be read as one batch."""
    monkeypatch.setattr(shard, "GROUP_BYTES", 1 << 20)
    size = 1_500_000
    rows = [shard_row(number, talk(f"{number}" * size, "x" * number)) for number in range(10)]
    path = tmp_path / "prompts.parquet"
    writer = shard.PromptsWriter(path)
    for row in rows:
        writer.add(batch_of([row]))
    writer.close()
    held: list[int] = []
    before = pa.total_allocated_bytes()
    real = arrange._traits

    def measured(*what: Any) -> Any:
        held.append(pa.total_allocated_bytes() - before)
        return real(*what)

    monkeypatch.setattr(arrange, "_traits", measured)
    found = arrange.traits(path, pl.Series([7, 0, 3]), "first")
    assert found["answer"].to_list() == [7, 0, 3] and found["prefix"].n_unique() == 3
    assert len(held) == 3 and max(held) < 5 * size


def test_the_text_of_a_world_is_what_near_duplicates_are_told_by(world: World) -> None:
    row = world.all()[0]
    assert row.text == text_of(orjson.dumps(row.messages).decode(), None).turns
