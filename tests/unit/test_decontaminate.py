"""Benchmark text in prompts: found where it stands, never where it does not."""

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.errors import PlainError
from workflow_scripts.prompts import benchmarks, decontaminate
from workflow_scripts.prompts.decontaminate import BenchmarkRow, Decontaminate, rolling, words
from workflow_scripts.prompts.filters import stretches

QUESTION = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many?"


def candidates(*texts: str | list[Any]) -> pl.DataFrame:
    conversations = [[{"role": "user", "content": text}] if isinstance(text, str) else text for text in texts]
    return pl.DataFrame({"messages": [json.dumps(messages) for messages in conversations]}, {"messages": pl.String})


def rows(*texts: str) -> list[BenchmarkRow]:
    return [BenchmarkRow(f"b:{number}", [text]) for number, text in enumerate(texts)]


def test_words_are_letters_and_digits_in_lower_case() -> None:
    assert words("It's has_close_elements(x: 1.5)") == ["it", "s", "has", "close", "elements", "x", "1", "5"]
    assert words("ÉTÉ e\u0301te\u0301 ﬁn") == ["été", "été", "fin"]
    assert words("日本語のtext") == [*"日本語の", "text"]
    assert words("... \n") == []


def test_a_hit_names_the_row_and_the_words_of_both() -> None:
    found = Decontaminate(rows("Another row that is long enough to have an n-gram, and stands before it.", QUESTION))
    hits = found.check(
        candidates(
            "Natalia sold clips to 48 of her friends in April, and THEN she - sold half of them",
            "Natalia sold clips to 48 of her friends in April",
            f"Solve: {QUESTION} Think first.",
        )
    )
    assert {at: hit.repeats for at, hit in hits.items()} == {0: "b:1", 2: "b:1"}
    assert hits[0].detail == "natalia sold clips to 48 of her friends in april and then she sold half"
    assert hits[2].detail == " ".join(words(QUESTION))


def test_n_grams_do_not_reach_over_an_end() -> None:
    left, right = "a b c d e f g", "h i j k l m n"
    middle = "c d e f g h i j k l"
    apart = Decontaminate([BenchmarkRow("b:0", [left, right])], n=7)
    assert apart.check(candidates(middle)) == {}
    assert apart.check(candidates(f"{left} {right}"))[0].detail == left
    whole = Decontaminate(rows(f"{left} {right}"), n=10)
    assert list(whole.check(candidates(middle))) == [0]
    assert whole.check(candidates([{"role": "system", "content": left}, {"role": "user", "content": right}])) == {}


def test_answers_and_what_follows_are_not_looked_at() -> None:
    later = [{"role": "assistant", "content": QUESTION}, {"role": "user", "content": QUESTION}]
    found = Decontaminate(rows(QUESTION))
    assert found.check(candidates([{"role": "user", "content": "Hello"}, *later])) == {}
    system = [{"role": "system", "content": QUESTION}, {"role": "user", "content": "Hello"}]
    assert list(found.check(candidates(system))) == [0]


def test_short_rows_match_as_a_whole() -> None:
    found = Decontaminate(
        [
            BenchmarkRow("b:0", ["What is the capital of France?", "Paris"]),
            BenchmarkRow("b:1", ["Who are you?"]),
            BenchmarkRow("b:2", ["..."]),
        ]
    )
    hits = found.check(
        candidates(
            "Tell me, what is the capital of France",
            "What is the capital of Italy?",
            "Paris",
            "Who are you",
            "Who are you, and why?",
            "",
        )
    )
    assert {at: hit.repeats for at, hit in hits.items()} == {0: "b:0", 3: "b:1"}


def test_a_threshold_asks_for_a_share_of_the_row() -> None:
    text = " ".join(f"w{n}" for n in range(22))  # ten 13-grams
    found = Decontaminate(rows(text, "x " + text), threshold=0.5)
    parts = [" ".join(f"w{n}" for n in range(count)) for count in (16, 17, 22)]  # four, five and ten of them
    assert list(found.check(candidates(*parts))) == [1, 2]
    doubled = Decontaminate(rows(text), threshold=1.0)
    assert list(doubled.check(candidates(f"{parts[0]} {parts[0]}", f"{parts[1]} and {parts[2]}"))) == [1]


def test_a_share_is_taken_as_it_is_written() -> None:
    text = " ".join(f"w{n}" for n in range(112))  # a hundred 13-grams
    parts = [" ".join(f"w{n}" for n in range(count)) for count in (66, 67)]  # 54 and 55
    assert list(Decontaminate(rows(text), threshold=0.55).check(candidates(*parts))) == [1]


def test_a_header_that_all_rows_share_is_no_hit_of_each() -> None:
    header = " ".join(f"h{n}" for n in range(20))
    found = Decontaminate(rows(*(f"{header} {n} " + f"x{n} " * 11 for n in range(3000))), threshold=0.5)
    asked = [f"{header} {n} " + f"x{n} " * 11 if n % 2 else f"{header} and no more" for n in range(20)]
    hits = found.check(candidates(*asked))
    assert {at: hit.repeats for at, hit in hits.items()} == {n: f"b:{n}" for n in range(1, 20, 2)}


def test_long_prompts_are_looked_at_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decontaminate, "CHARACTERS_AT_ONCE", 500)
    found = Decontaminate(rows(QUESTION))
    prompts = [QUESTION if n % 3 else "word " * 200 for n in range(10)]
    assert list(found.check(candidates(*prompts))) == [n for n in range(10) if n % 3]


@given(lengths=st.lists(st.integers(0, 9)), most=st.integers(1, 5), characters=st.integers(0, 12))
def test_stretches_are_whole_and_bounded(lengths: list[int], most: int, characters: int) -> None:
    cut = list(stretches(lengths, most, characters))
    assert [at for stretch in cut for at in stretch] == list(range(len(lengths)))
    for stretch in cut:
        assert len(stretch) == 1 or (len(stretch) <= most and sum(lengths[at] for at in stretch) <= characters)


letters = st.lists(st.sampled_from("abc"), max_size=12).map(" ".join)


def naive(row: str, prompt: str, n: int, threshold: float) -> bool:
    """The rule, as plainly as can be said."""
    row_words, prompt_words = row.split(), prompt.split()
    if not row_words:
        return False
    if len(row_words) < n and len(row_words) < 5:
        return row_words == prompt_words
    size = min(n, len(row_words))

    def grams(found: list[str]) -> set[tuple[str, ...]]:
        return {tuple(found[at : at + size]) for at in range(len(found) - size + 1)}

    share = len(grams(row_words) & grams(prompt_words)) / len(grams(row_words))
    return share >= threshold if threshold else share > 0


@given(
    benchmark=st.lists(letters, max_size=5),
    prompts=st.lists(letters, max_size=5),
    n=st.integers(5, 8),
    threshold=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
)
def test_hits_are_those_of_the_rule(benchmark: list[str], prompts: list[str], n: int, threshold: float) -> None:
    hits = Decontaminate(rows(*benchmark), n, threshold).check(candidates(*prompts))
    expected = {at for at, prompt in enumerate(prompts) if any(naive(row, prompt, n, threshold) for row in benchmark)}
    assert set(hits) == expected
    for at, hit in hits.items():
        assert hit.repeats is not None
        assert naive(benchmark[int(hit.repeats.removeprefix("b:"))], prompts[at], n, threshold)
        assert hit.detail in prompts[at] and hit.detail in benchmark[int(hit.repeats.removeprefix("b:"))]


@given(prompts=st.lists(letters, min_size=1, max_size=8), benchmark=st.lists(letters, max_size=5))
def test_a_prompt_is_judged_by_itself(prompts: list[str], benchmark: list[str]) -> None:
    found = Decontaminate(rows(*benchmark), 5)
    together = found.check(candidates(*prompts))
    alone = {at: hits[0] for at, prompt in enumerate(prompts) if (hits := found.check(candidates(prompt)))}
    assert together == alone


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(1, 6))
def test_equal_runs_have_equal_hashes(numbers: list[int], n: int) -> None:
    import numpy as np

    hashes = rolling(np.array(numbers, np.int64), n)
    assert len(hashes) == max(0, len(numbers) - n + 1)
    seen = {tuple(numbers[at : at + n]): value for at, value in enumerate(hashes.tolist())}
    assert all(seen[tuple(numbers[at : at + n])] == value for at, value in enumerate(hashes.tolist()))


def test_planted_contamination_is_found_and_nothing_else() -> None:
    """500 of 5,000 prompts hold a row, cut and reworded around; the vocabulary is one, so words alone tell nothing."""
    chance = random.Random(0)
    vocabulary = [f"w{n}" for n in range(3000)]

    def text(low: int, high: int) -> list[str]:
        return chance.choices(vocabulary, k=chance.randint(low, high))

    benchmark = [text(20, 80) for _ in range(1000)]
    found = Decontaminate(rows(*(" ".join(row) for row in benchmark)))
    planted = {}
    prompts = []
    for at in range(5000):
        prompt = text(10, 200)
        if at % 10 == 0:
            planted[at] = row = chance.randrange(len(benchmark))
            start = chance.randint(0, len(benchmark[row]) - 13)
            place = chance.randint(0, len(prompt))
            prompt[place:place] = benchmark[row][start : start + chance.randint(13, 60)]
        prompts.append(", ".join(prompt).upper())
    hits = found.check(candidates(*prompts))
    assert {at: hit.repeats for at, hit in hits.items()} == {at: f"b:{row}" for at, row in planted.items()}


# --- benchmark files ---


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_rows_of_every_kind_of_file(tmp_path: Path) -> None:
    row = {"question": "Q one", "choices": {"text": ["A1", "B2"], "label": [0, 1]}, "n": 3, "none": None}
    lines = write(tmp_path / "a.jsonl", json.dumps(row) + "\n" + json.dumps(row) + "\n")
    assert list(benchmarks.read(lines, [])) == [(0, ["Q one", "A1", "B2"]), (1, ["Q one", "A1", "B2"])]
    assert list(benchmarks.read(lines, ["choices.text"])) == [(0, ["A1", "B2"]), (1, ["A1", "B2"])]
    assert list(benchmarks.read(lines, ["answer", "question"])) == [(0, ["Q one"]), (1, ["Q one"])]
    pl.DataFrame([row]).write_parquet(tmp_path / "a.parquet")
    assert list(benchmarks.read(tmp_path / "a.parquet", [])) == [(0, ["Q one", "A1", "B2"])]
    table = write(tmp_path / "a.csv", '\ufeffquestion,answer\n"Q, one\ntwo",A\nQ three,B\n')
    assert list(benchmarks.read(table, ["question"])) == [(0, ["Q, one\ntwo"]), (1, ["Q three"])]
    plain = write(tmp_path / "a.txt", "Q one\nQ two\n")
    assert [[text.strip() for text in texts] for _, texts in benchmarks.read(plain, [])] == [["Q one"], ["Q two"]]


@pytest.mark.parametrize(
    ("name", "data", "columns", "message"),
    [
        ("a.jsonl", b'{"q": "x"}\n', ["question"], r"a\.jsonl has no column question; it has q"),
        ("a.jsonl", b'{"q": 5}\n{"q": null}\n', ["q"], r"a\.jsonl holds no text in q$"),
        ("a.jsonl", b'{"q": null, "r": "x"}\n', ["q"], r"a\.jsonl holds no text in q$"),
        ("a.jsonl", b'{"q": "...", "n": 5}\n', [], r"a\.jsonl holds no text in q, n$"),
        ("a.jsonl", b"", [], r"a\.jsonl holds no rows"),
        ("a.csv", b"q,q\nA,B\n", [], r"a\.csv names the column 'q' twice"),
        ("a.csv", b"q,r\nA,B,\nA, B,C\n", ["s"], r"a\.csv: row 1 has more fields than the header"),
        ("a.jsonl", b"{half\n", [], r"a\.jsonl: row 0 can't be read"),
        ("a.csv", b"q\n\xff\n", [], r"a\.csv can't be read"),
        ("a.parquet", b"PAR1", [], r"a\.parquet"),
    ],
)
def test_a_benchmark_that_cannot_be_read_is_said(
    tmp_path: Path, name: str, data: bytes, columns: list[str], message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(PlainError, match=message):
        list(benchmarks.read(tmp_path / name, columns))
