"""Message trees: one prompt a tree, at its root, and every other row accounted for, in any order of the rows."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.config import Columns
from workflow_scripts.sources.readers import SourceRow
from workflow_scripts.sources.rejects import BadRow
from workflow_scripts.sources.shapes import column_names, converter, gather
from workflow_scripts.sources.shapes.trees import gather as gather_trees


def message(name: Any, parent: Any, role: str, **other: Any) -> dict[str, Any]:
    return {"message_id": name, "parent_id": parent, "role": role, "text": f"text of {name}", **other}


def said(rows: list[Any]) -> list[Any]:
    """For each row the names of its thread's messages, or its class."""
    numbered = [SourceRow("x.jsonl", 2 * index, index, row) for index, row in enumerate(rows)]
    found = list(gather("message_tree", column_names("message_tree", Columns()), numbered))
    assert [one._replace(row={}) for one in found] == [one._replace(row={}) for one in numbered]
    return [
        one.row.kind
        if isinstance(one.row, BadRow)
        else [turn["text"].removeprefix("text of ") for turn in one.row["text"]]
        for one in found
    ]


def test_the_main_thread() -> None:
    rows = [
        message("reply 2", "root", "assistant", rank=1),
        message("below", "reply", "prompter"),
        message("root", None, "prompter", rank=None),
        message("unranked", "root", "assistant", rank=None),
        message("reply", "root", "assistant", rank=0),
        message("best but deleted", "root", "assistant", rank=-1, deleted=True),
    ]
    assert said(rows) == [*["part_of_a_tree"] * 2, ["root", "reply", "below"], *["part_of_a_tree"] * 3]


def test_ties_go_to_the_first_and_null_ranks_come_last() -> None:
    root = message("root", None, "prompter")
    for rows, best in [
        ([message("a", "root", "assistant", rank=1), message("b", "root", "assistant", rank=1)], "a"),
        ([message("a", "root", "assistant"), message("b", "root", "assistant", rank=None)], "a"),
        ([message("a", "root", "assistant", rank=True), message("b", "root", "assistant", rank=5)], "b"),
        ([message("a", "root", "assistant", rank="0"), message("b", "root", "assistant", rank=5.0)], "b"),
    ]:
        assert said([root, *rows])[0] == ["root", best]


def test_other_rows() -> None:
    bad = BadRow("malformed_json", "", "{")
    rows = [
        message("a", None, "prompter", deleted=True),
        message("b", "a", "assistant"),
        message("c", "nowhere", "assistant"),
        message("d", "e", "assistant"),
        message("e", "d", "assistant"),
        message("f", None, "prompter"),
        message("f", None, "prompter"),
        message(None, None, "prompter"),
        message("g", 7, "prompter"),
        bad,
    ]
    assert said(rows) == [
        "deleted_message", "part_of_a_tree", "no_root", "no_root", "no_root", ["f"], "doubled_message", "bad_messages",
        "bad_messages", "malformed_json",
    ]  # fmt: skip


def test_a_thread_becomes_a_conversation() -> None:
    rows = [message("a", None, "prompter", words="Q"), message("b", "a", "assistant", words="A")]
    columns = Columns(prompt="words")
    numbered = [SourceRow("x", index, index, row) for index, row in enumerate(rows)]
    first = next(iter(gather("message_tree", column_names("message_tree", columns), numbered))).row
    assert isinstance(first, dict)
    conversation = converter("message_tree", column_names("message_tree", columns))(first)
    assert conversation.messages == [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    assert conversation.roles == ["prompter", "assistant"]


names = st.sampled_from(["a", "b", "c", "d", None, 3])
rows = st.fixed_dictionaries(
    {},
    optional={
        "message_id": names,
        "parent_id": names,
        "role": st.sampled_from(["prompter", "assistant", "x", 1]),
        "text": st.none() | st.text(),
        "rank": st.none() | st.integers() | st.floats() | st.text(),
        "deleted": st.none() | st.booleans() | st.text(),
    },
)


@given(rows=st.lists(rows, max_size=12))
def test_every_row_comes_out_once_in_its_place(rows: list[Any]) -> None:
    numbered = [SourceRow("x", index, index, row) for index, row in enumerate(rows)]
    found = list(gather_trees(numbered, "text"))
    assert [one.in_source for one in found] == list(range(len(rows)))
    roots = {row.get("message_id") for row in rows if row.get("parent_id") is None}
    for one in found:
        if isinstance(one.row, dict):
            assert one.row["message_id"] in roots
            assert len(one.row["text"]) <= len(rows)
