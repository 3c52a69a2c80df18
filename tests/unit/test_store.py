"""Keys and digests; what needs a server is in tests/integration."""

from pathlib import Path

import pytest

from workflow_scripts.errors import PlainError
from workflow_scripts.publishing import clients
from workflow_scripts.publishing.clients import Access
from workflow_scripts.publishing.digests import Digest, digest
from workflow_scripts.publishing.store import Store


def store(prefix: str = "", protect: tuple[str, ...] = ()) -> Store:
    return Store(clients.embedded(Access("http://127.0.0.1:9", "a", "b")), "bucket", prefix, "demo-1a2b3c4d", protect)


def test_keys_are_below_prefix_and_run() -> None:
    assert store().key("lock.json") == "demo-1a2b3c4d/lock.json"
    assert store("a/b/").key("completions/00000.json") == "a/b/demo-1a2b3c4d/completions/00000.json"


@pytest.mark.parametrize("path", ["", "/x", "x/", "a//b", "../x", "a/../../x", "a/./b", "a\nb", "a\x00b"])
def test_a_path_that_leaves_the_run_is_refused(path: str) -> None:
    with pytest.raises(PlainError, match="no path inside"):
        store().key(path)


@pytest.mark.parametrize(
    ("prefix", "protected"),
    [
        ("", "demo-1a2b3c4d"),
        ("", "demo-1a2b3c4d/completions/"),
        ("", "demo-1a2b3c4d/completions/00000.json"),
        ("", "demo-1a2b3c4d/completions/00000.json/below"),
        ("a/", "a"),
        ("a/b/", "/a/b/"),
    ],
)
def test_a_protected_prefix_is_refused_above_and_below(prefix: str, protected: str) -> None:
    with pytest.raises(PlainError, match="protected prefix"):
        store(prefix, (protected,)).key("completions/00000.json")


@pytest.mark.parametrize(
    "protected", ["completions/", "Demo-1A2B3C4D", "demo-1a2b3c4", "demo", "a", "demo-1a2b3c4d/completions/0"]
)
def test_a_prefix_that_only_begins_alike_is_no_wall(protected: str) -> None:
    assert store("", (protected,)).key("completions/00000.json") == "demo-1a2b3c4d/completions/00000.json"


def test_a_digest_has_the_published_check_values(tmp_path: Path) -> None:
    # CRC-64/NVME's check value, ae8b14860a799888: reveng.sourceforge.io/crc-catalogue
    expected = Digest(9, "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225", "rosUhgp5mIg=")
    (tmp_path / "file").write_bytes(b"123456789")
    assert digest(b"123456789") == digest(tmp_path / "file") == expected


def test_a_digest_goes_on_over_blocks(tmp_path: Path) -> None:
    data = bytes(range(256)) * (5 << 10) + b"tail"
    (tmp_path / "file").write_bytes(data)
    assert digest(tmp_path / "file") == digest(data)
    assert digest(data).bytes == (5 << 18) + 4
