"""Near-duplicates: the sets that are compared, their sketches, and what is found of what is there."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.standin.world import World, compared, overlap
from workflow_scripts.prompts import minhash, near
from workflow_scripts.prompts.minhash import BandIndex, Hashes, band_hashes, band_width, jaccard, runs, sketches
from workflow_scripts.prompts.mix import Ref, Text
from workflow_scripts.prompts.near import NearDuplicates, text_of

TEXTS = st.text(min_size=5, max_size=60)


@given(one=TEXTS, other=TEXTS)
def test_the_similarity_is_that_of_the_sets_of_runs(one: str, other: str) -> None:
    assert jaccard(runs(one), runs(other)) == overlap(one, other)
    assert jaccard(runs(one), runs(one)) == 1


def test_texts_below_five_characters_have_one_run() -> None:
    assert len(runs("hi")) == 1 and len(runs("")) == 0
    assert jaccard(runs("hi"), runs("hi")) == 1 and jaccard(runs("hi"), runs("ho")) == 0
    assert jaccard(runs(""), runs("")) == 1


def test_a_sketch_depends_on_its_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(3)
    texts = [world.text() for _ in range(50)] + ["hi", "日本語のテキストです", "hi"]
    whole = sketches(texts)
    assert whole.shape == (53, 128) and np.array_equal(whole[50], whole[52])
    monkeypatch.setattr(minhash, "CHARACTERS_AT_ONCE", 3000)
    assert np.array_equal(sketches(texts), whole)
    assert np.array_equal(sketches(texts[::-1]), whole[::-1])
    assert sketches([]).shape == (0, 128)


def test_two_sketches_share_about_as_much_as_the_texts() -> None:
    world = World(4)
    errors = []
    for _ in range(40):
        base = world.text(150)
        text, similarity = world.edited(base, 0.3, 0.9)
        one, other = sketches([compared(base), compared(text)])
        errors.append(float((one == other).mean()) - similarity)
    assert abs(sum(errors) / len(errors)) < 0.02 and max(map(abs, errors)) < 0.17  # four standard deviations


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.5, 0.8, 0.95, 1.0])
def test_bands_miss_few_pairs_at_the_threshold(threshold: float) -> None:
    width = band_width(threshold)
    assert (1 - threshold**width) ** (128 // width) <= 0.002
    assert width == 128 or (1 - threshold ** (width + 1)) ** (128 // (width + 1)) > 0.002 or 128 % (width + 1)


@given(st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3), min_size=1, max_size=40), st.integers(1, 7))
def test_the_index_finds_whoever_shares_a_band(rows: list[list[int]], size: int) -> None:
    hashes = (np.array(rows) + np.arange(0, 300, 100)).astype(np.uint64)
    index = BandIndex()
    for start in range(0, len(rows), size):
        part = hashes[start : start + size]
        index.add(np.arange(start, start + len(part)), part)
    found = index.sharing(hashes)
    for row, mine in enumerate(rows):
        expected = [number for number, other in enumerate(rows) for a, b in zip(mine, other, strict=True) if a == b]
        assert sorted(np.concatenate(found[row]).tolist()) == expected


def test_bands_of_the_same_values_are_told_apart_by_their_place() -> None:
    assert len(set(band_hashes(np.ones((2, 128), np.uint32), 8).ravel().tolist())) == 16


def found(texts: list[Text], batch: int) -> list[tuple[Ref, float] | None]:
    near = NearDuplicates(0.8)
    results = []
    for start in range(0, len(texts), batch):
        some = texts[start : start + batch]
        near.begin(some)
        results += [near.place(index, Ref("a", start + index)) for index in range(len(some))]
    return results


def test_what_is_found_does_not_depend_on_batches_and_is_the_first() -> None:
    world = World(5)
    chance = random.Random(5)
    texts: list[Text] = []
    for _ in range(12):
        base = world.text(100)
        texts += [Text(compared(base), "")]
        texts += [Text(compared(world.edited(base, 0.9, 0.99)[0]), "") for _ in range(4)]
    chance.shuffle(texts)
    results = found(texts, 1000)
    assert [found(texts, batch) for batch in (1, 7)] == [results] * 2
    taken: list[int] = []
    for number, (text, result) in enumerate(zip(texts, results, strict=True)):
        near = [(one, overlap(texts[one].turns, text.turns)) for one in taken]
        expected = next((((Ref("a", one), similarity)) for one, similarity in near if similarity >= 0.8), None)
        assert result == expected
        if expected is None:
            taken.append(number)
    assert len(taken) >= 12


def test_in_a_crowd_no_text_is_taken_apart_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    words = World(8).text(100).split()
    texts = [Text(" ".join(words[at : at + 40]), "") for at in range(60)]  # each near a few of those before it
    counted: list[str] = []

    def counting(text: str) -> Hashes:
        counted.append(text)
        return runs(text)

    monkeypatch.setattr(near, "runs", counting)
    results = found(texts, 60)
    taken = results.count(None)
    assert 60 < len(counted) <= 60 + taken
    counted.clear()
    monkeypatch.setattr(near, "KNOWN_BYTES", 3000)  # of which a text takes about 1800
    assert found(texts, 60) == results
    assert len(counted) > 60 + taken  # again and again


def test_only_the_taken_drop_others() -> None:
    world = World(6)
    world.plant_chain()
    ((one, two, three),) = world.chains
    a, b, c = (Text(row.text, "") for row in (one, two, three))
    assert [near and near[0].row for near in found([a, b, c], 2)] == [None, 0, None]
    assert [near and near[0].row for near in found([c, a, b], 2)] == [None, None, 0]
    assert [near and near[0].row for near in found([b, c, a], 2)] == [None, 0, 0]


def test_the_whole_and_the_turns_must_be_near() -> None:
    world = World(7)
    long, question, other = world.text(300), f"user: {world.text(30)}", f"user: {world.text(30)}"
    results = found(
        [
            Text(question, ""),
            Text(question, f"system: {long}"),  # another system prompt
            Text(other, f"system: {long}"),  # another question
            Text(question, f"system: {long} {world.text(3)}"),  # near the second
            Text(question + " ok", ""),
        ],
        10,
    )
    assert [result and result[0].row for result in results] == [None, None, None, 1, 0]


def test_what_is_compared_of_a_prompt() -> None:
    messages = (
        '[{"role":"system","content":"Be  Kind"},{"role":"user","content":"Who\\nIS it?"},'
        '{"role":"assistant","content":"I"},{"role":"user","content":"more"}]'
    )
    assert text_of(messages, None) == Text("who is it?", "be kind")
    assert text_of(messages, '[{"a": 1}]').frame == 'be kind\n[{"a":1}]'
    one, other = (text_of(f'[{{"role":"user","content":"{text}"}}]', None).turns for text in "ab")
    assert jaccard(runs(one), runs(other)) == 0  # nothing in common but the role'
