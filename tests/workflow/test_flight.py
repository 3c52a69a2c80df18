"""Requests in flight: as many as a server grants, and no more."""

from tests.standin.fleet import VOCABULARY
from tests.standin.project import Project
from tests.standin.running import running_fleet
from workflow_scripts import files


def test_a_server_gets_all_the_requests_that_it_granted_seats_for(fresh: Project) -> None:
    fresh.write_rows("questions", [{"prompt": f"Question {n}?", "response": ""} for n in range(300)])
    fresh.make_model(VOCABULARY)
    fresh.config["chunks"] = {"count": 1}
    # All answers are as long, so the first ends when a full server has made 300 tokens: long after the last was sent.
    with running_fleet(servers=1, seats=220, step=0.02, mean=300, sigma=0) as fleet:
        fresh.config["servers"] = {"urls": fleet.urls}
        result = fresh.run()
        assert result.code == 0, result.output
        (server,) = fleet.report()["servers"]
    assert server["most_in_flight"] == 220 and server["requests"] == 312
    assert files.read_json(fresh.made.summary)["output_tokens"] == server["tokens"] == 312 * 300
