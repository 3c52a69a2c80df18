"""What the hub's answers mean; what needs a hub is in tests/integration/test_hub.py."""

import httpx2
import pytest
from huggingface_hub import errors
from huggingface_hub.utils._http import hf_raise_for_status

from tests.standin.hub import running_hub
from workflow_scripts.errors import PlainError
from workflow_scripts.sources import hub
from workflow_scripts.sources.hub import HubFile, Unavailable


def refusal(status: int, headers: dict[str, str] | None = None) -> errors.HfHubHTTPError:
    request = httpx2.Request("GET", "https://hub/api/datasets/o/d")
    with pytest.raises(errors.HfHubHTTPError) as error:
        hf_raise_for_status(httpx2.Response(status, headers=headers or {}, request=request))
    return error.value


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"ratelimit": '"api";r=0;t=55', "ratelimit-policy": '"fixed window";"api";q=500;w=300'}, 55.0),
        ({"ratelimit": '"api";r=10;t=55'}, None),
    ],
)
def test_pauses_that_the_hub_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    assert hub.asked_pause(refusal(429, headers)) == seconds


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_answers_that_pass_never_make_a_dataset_unavailable(status: int) -> None:
    error = refusal(status)
    assert hub.is_passing(error)
    assert not isinstance(hub.explained(error, "o/d"), Unavailable)


@pytest.mark.parametrize(
    ("status", "headers", "kind"),
    [
        (401, {"X-Error-Code": "GatedRepo"}, "gated"),
        (403, {"X-Error-Code": "GatedRepo"}, "gated"),
        (401, {"X-Error-Code": "RepoNotFound"}, "missing"),
        (404, {"X-Error-Code": "RepoNotFound"}, "missing"),
        (401, {}, "missing"),  # of an https hub, and of a repository: so the real one answers
        (403, {"X-Error-Message": "Access to this resource is disabled."}, "missing"),
    ],
)
def test_answers_that_make_a_dataset_unavailable(status: int, headers: dict[str, str], kind: str) -> None:
    error = refusal(status, headers)
    explained = hub.explained(error, "o/d")
    assert not hub.is_passing(error)
    assert isinstance(explained, Unavailable) and explained.kind == kind


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (400, {}),
        (403, {}),
        (404, {}),
        (404, {"X-Error-Code": "RevisionNotFound"}),
        (404, {"X-Error-Code": "EntryNotFound"}),
        (401, {"X-Error-Message": "Invalid credentials in Authorization header"}),
    ],
)
def test_other_refusals_are_mistakes(status: int, headers: dict[str, str]) -> None:
    error = refusal(status, headers)
    assert not hub.is_passing(error)
    assert not isinstance(hub.explained(error, "o/d", "main"), Unavailable)


def test_connections() -> None:
    assert hub.is_passing(httpx2.ConnectError("refused"))
    assert hub.is_passing(httpx2.ReadTimeout("silence"))
    assert not hub.is_passing(httpx2.UnsupportedProtocol("no scheme"))
    assert not hub.is_passing(errors.OfflineModeIsEnabled("offline"))


@pytest.mark.parametrize("path", ["../x.jsonl", "/etc/x.jsonl", "a//x.jsonl", "a/./x.jsonl", "a\nb.jsonl", ""])
def test_names_that_would_leave_their_folder(path: str) -> None:
    with pytest.raises(PlainError, match="is no name for a file"):
        hub.checked("o/d", HubFile(path, 1, None, None))


def test_hashes_that_would_leave_their_folder() -> None:
    with pytest.raises(PlainError, match="which is no hash"):
        hub.checked("o/d", HubFile("a.jsonl", 1, None, "../../x"))
    assert hub.checked("o/d", HubFile("a b/ü.jsonl", 1, "0" * 64, "f" * 40))


def test_a_hub_is_reached_where_it_answers_whatever_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        assert hub.unreachable() is None
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert hub.unreachable() == "[Errno 111] Connection refused"
