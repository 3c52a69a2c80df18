"""Made-up worlds: a healthy one is quiet, each fault is named once with what to do, and none hides another."""

import json
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.standin import models
from tests.standin.machines import machine
from workflow_scripts import config, files
from workflow_scripts.doctor import datasets, examine, findings, host, servers, store, target
from workflow_scripts.doctor.findings import Finding
from workflow_scripts.errors import PlainError
from workflow_scripts.machine import Machine
from workflow_scripts.run import Run
from workflow_scripts.serving import builds, environment, known_flags, launch, model
from workflow_scripts.serving.known_flags import Known
from workflow_scripts.sources import hub

FLAGS = Path(__file__).parents[1] / "data" / "sglang_flags.json"


class World:
    """A run on a recorded machine: eight H100, a Qwen3.6 that fits, an environment that is built, all well."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machine: Machine = machine("8x_h100")
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps(models.QWEN36_27B))
        (self.model / "chat_template.jinja").write_text(models.QWEN35_TEMPLATE)
        with (self.model / "model.safetensors").open("wb") as file:
            file.truncate(55 * models.GB)
        self.config: dict[str, Any] = {
            "name": "world",
            "results": str(folder / "results"),
            "sources": {"a": {"dataset": "o/n", "take": 100}},
            "model": {"path": str(self.model)},
            "sampling": {"max_tokens": 4096, "thinking": True},
            "servers": {"count": 8, "args": {"context-length": 8192}},
            "publish": {"store": "s3", "bucket": "bucket"},
        }
        self.store: str | None = None
        self.hub: Callable[[str], int] = lambda dataset: 1000

    def run(self) -> Run:
        return Run(self.folder / "results" / "world-12345678", config.parse(self.config, "world.yaml"))

    def found(self, *, brief: bool = False, needs: examine.Needs | None = None) -> list[Finding]:
        return examine.examine(self.run(), needs or examine.Needs(), brief=brief, machine=self.machine)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(builds, "system_glibc", lambda: (2, 39))
    monkeypatch.setattr(environment, "is_built", lambda env: True)
    listing = Known.from_json(json.loads(FLAGS.read_text()))
    monkeypatch.setattr(known_flags, "listing", lambda env, engine: listing)
    monkeypatch.setattr(known_flags, "remembered", lambda env, engine: listing)
    monkeypatch.setattr(host, "_date_of", lambda url: None)

    def rights(run: Run) -> list[Finding]:
        return findings.errors("store", made.store) if made.store else []

    def resolve(dataset: str, *_: Any) -> hub.Resolved:
        return hub.Resolved(dataset, "0" * 40, [hub.HubFile("a.parquet", made.hub(dataset), None, None)])

    monkeypatch.setattr(store, "rights", rights)
    monkeypatch.setattr(hub, "resolve", resolve)
    monkeypatch.setattr(hub, "unreachable", lambda: None)
    return made


def test_a_healthy_world_is_quiet(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 4096))  # a job raises its limit itself
    assert world.found(brief=True) == []
    assert world.found() == [
        Finding("sources", "note", "0.00 GB of datasets are downloaded, where they are not here yet")
    ]
    assert not world.run().folder.exists()  # nothing is made


def raising(error: Exception) -> Callable[[str], int]:
    def resolve(dataset: str) -> int:
        raise error

    return resolve


def broken(world: World, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Put one fault into the world."""
    args, settings = world.config["servers"]["args"], world.config["servers"]
    if fault == "old driver":
        driver = world.machine.driver
        assert driver is not None
        world.machine = Machine(
            type(driver)("550.163.01", (12, 4)), world.machine.gpus, world.machine.devices, True, None, True
        )
    elif fault in ("no_gpu", "dead_driver"):
        world.machine = machine(fault)
    elif fault == "busy":
        world.machine = machine("busy")
        settings["count"] = 2
    elif fault == "too many servers":
        settings["count"] = 9
    elif fault == "no compiler":
        was = world.machine
        world.machine = Machine(was.driver, was.gpus, was.devices, was.linked, was.toolkit, False)
    elif fault == "unknown flag":
        args["mamba-scheduler-strategy"] = "no_buffer"
    elif fault == "flag of ours":
        args["port"] = 30000
    elif fault == "weights missing":
        files.write_json(world.model / "model.safetensors.index.json", {"weight_map": {"a": "model-2.safetensors"}})
    elif fault == "too large":
        with (world.model / "model.safetensors").open("wb") as file:
            file.truncate(150 * models.GB)
    elif fault == "fa3 on sm120":
        world.machine = machine("8x_rtx_pro_6000")
        args["attention-backend"] = "fa3"
    elif fault == "no thinking":
        (world.model / "chat_template.jinja").write_text("{{ messages }} tools")
    elif fault == "no template":
        (world.model / "chat_template.jinja").unlink()
    elif fault == "no tools":
        (world.model / "chat_template.jinja").write_text("enable_thinking")
        world.config["sources"]["a"]["shape"] = "tools_query_answers"
    elif fault == "gated":
        world.hub = raising(hub.Unavailable("gated", "o/n is gated: accept its terms"))
    elif fault == "no split":
        world.hub = raising(PlainError("o/n has no split 'train'; there are: test"))
    elif fault == "store":
        world.store = "s3://bucket: Access Denied: it needs s3:PutObject"
    elif fault == "no environment":
        settings["python"] = str(world.folder / "nowhere" / "python")
    elif fault == "broken toolkit":
        world.machine = machine("broken_toolkit")
        python = world.folder / "python"
        python.touch()
        settings["python"] = str(python)
    elif fault == "model's config":
        (world.model / "config.json").write_text('{"architectures": [')
    elif fault == "desktop":
        world.machine = machine("8x_h100")
        world.machine.devices[0] = replace(
            world.machine.devices[0], gpu=replace(world.machine.devices[0].gpu, used=6000)
        )
    elif fault == "inodes":
        monkeypatch.setattr(host, "_inodes", lambda folder: (1_000_000, 10))
    elif fault == "open files":
        monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 256))
    elif fault == "ports":
        monkeypatch.setattr(host, "_bind", raising_os("Cannot assign requested address"))
    elif fault == "clock":
        monkeypatch.setattr(host, "_date_of", lambda url: 1.0)
    else:
        raise AssertionError(fault)


def raising_os(said: str) -> Callable[[], None]:
    def bind() -> None:
        raise OSError(99, said)

    return bind


FAULTS = {
    "old driver": ("gpus", "error", ["driver 550.163.01 is too old", "Install a newer driver"]),
    "no_gpu": ("gpus", "error", ["there is no NVIDIA driver here", "sglang-cpu"]),
    "dead_driver": ("gpus", "error", ["is loaded, but nvidia-smi tells of no GPU", "reboot"]),
    "busy": ("gpus", "error", ["GPU 0 is in use", "process 41523", "End it"]),
    "too many servers": ("gpus", "error", ["servers.count 9", "two servers never share one", "set servers.count to 8"]),
    "no compiler": ("toolkit", "error", ["no g++", "apt-get install g++"]),
    "unknown flag": ("flags", "error", ["mamba-scheduler-strategy", "it is called mamba-radix-cache-strategy"]),
    "flag of ours": ("flags", "error", ["servers.args.port: can't be set here", "free port"]),
    "weights missing": ("model", "error", ["lacks 1 of its weight files"]),
    "too large": ("model", "error", ["150.0 GB", "set servers.gpus_per_server: 4"]),
    "fa3 on sm120": ("model", "error", ["fa3 does not work on", "take flashinfer or triton"]),
    "no thinking": ("template", "warning", ["knows no enable_thinking", "leave it out"]),
    "no template": ("template", "warning", ["no chat template", "servers.args.chat-template"]),
    "no tools": ("template", "warning", ["a source has tools", "choose a model that takes tools"]),
    "gated": ("sources", "error", ["sources.a: o/n is gated", "accept its terms"]),
    "no split": ("sources", "error", ["no split 'train'; there are: test"]),
    "store": ("store", "error", ["Access Denied", "s3:PutObject"]),
    "no environment": ("environment", "error", ["nowhere/python is not there", "name the python"]),
    "model's config": ("doctor", "error", ["model/config.json is not valid JSON", "copy the model's files anew"]),
    "desktop": ("gpus", "warning", ["GPU 0 is in use: 5.9 of 79.6 GiB"]),
    "inodes": ("disk", "error", ["10 inodes free", "another disk"]),
    "open files": ("limits", "error", ["only 256 files may be open", "opens up to 576", "nofile"]),
    "ports": ("ports", "error", ["nothing can listen on 127.0.0.1", "loopback"]),
    "clock": ("clock", "error", ["ahead of", "timedatectl"]),
}


def told(found: list[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.severity != "note"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_once_with_what_to_do(world: World, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    broken(world, monkeypatch, fault)
    check, severity, words = FAULTS[fault]
    (finding,) = told(world.found())
    assert (finding.check, finding.severity) == (check, severity)
    assert all(word in finding.text for word in words), finding.text


def test_no_fault_hides_another(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    together = [
        *("busy", "no compiler", "unknown flag", "weights missing", "no tools", "gated", "store", "inodes"),
        *("open files", "ports", "clock"),
    ]
    for fault in together:
        broken(world, monkeypatch, fault)
    found = told(world.found())
    assert len(found) == len(together)
    for fault in together:
        check, severity, words = FAULTS[fault]
        fitting = [one for one in found if one.check == check and all(word in one.text for word in words)]
        assert [one.severity for one in fitting] == [severity], fault
    assert [one.severity for one in found] == ["error"] * (len(together) - 1) + ["warning"]  # worst first


def test_a_toolkit_of_the_users_own_is_told_part_by_part(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(world, monkeypatch, "broken toolkit")
    lines = [finding.text for finding in world.found() if finding.check == "toolkit"]
    assert [line.split(":")[0] for line in lines] == [
        "nvcc is of CUDA 13.3, the headers in /usr/local/cuda/include are of 13.0",
        "/usr/local/cuda/include has no nv/target",
        "/usr/local/cuda/lib64 has no libcudart.so",
        "the linker finds no libcuda.so",
    ]
    del world.config["servers"]["python"]  # the pinned environment has a toolkit of its own
    assert not [finding for finding in world.found() if finding.check == "toolkit"]


def test_only_what_the_remaining_jobs_need_is_looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for fault in ("no_gpu", "gated", "store"):
        broken(world, monkeypatch, fault)

    def checks(*rules: str) -> set[str]:
        return {finding.check for finding in told(world.found(needs=examine.Needs.of(set(rules))))}

    assert checks("source", "manifest", "split") == {"sources"}
    assert checks("chunk", "export") == {"gpus"}
    assert checks("publish_batch") == {"store"}
    assert checks("source", "chunk", "publish_start") == {"gpus", "sources", "store"}


def test_a_model_that_cannot_be_read_hides_no_fault(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for fault in ("model's config", "no compiler", "gated", "store"):
        broken(world, monkeypatch, fault)
    assert {finding.check for finding in told(world.found())} == {"doctor", "toolkit", "sources", "store"}


def test_of_a_run_that_is_answered_no_server_is_looked_at(world: World) -> None:
    world.config["sources"]["a"]["take"] = 1
    run = world.run()
    assert examine.Needs.left(run) == examine.Needs()
    for chunk in run.chunks():
        files.write_json(run.sidecar(chunk), {})
    run.manifest.touch()
    assert examine.Needs.left(run) == examine.Needs(servers=False, sources=False)


def test_flags_of_ours_that_the_users_sglang_does_not_know_are_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.machine = machine("8x_rtx_pro_6000")
    names = ("context-length", "disable-radix-cache", "tool-call-parser")
    older = Known("0.5.2", {**dict.fromkeys(names), "attention-backend": ["triton"], "reasoning-parser": ["kimi"]})
    monkeypatch.setattr(known_flags, "listing", lambda env, engine: older)
    ours = "which Draftmill sets unless servers.args does: SGLang 0.5.2"
    assert [finding.text for finding in told(world.found())] == [
        f"--attention-backend, {ours} knows no 'flashinfer'; allowed: triton",
        f"--reasoning-parser, {ours} knows no 'qwen3'; allowed: kimi",
    ]
    # What the user says stands in for ours, null for none.
    world.config["servers"]["args"] |= {"attention-backend": "triton", "reasoning-parser": None}
    assert [finding.check for finding in told(world.found())] == ["template"]


def test_a_hub_that_cannot_be_reached_is_told_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "unreachable", lambda: "Name or service not known")
    monkeypatch.setattr(model, "commit", raising(AssertionError("asked")))
    monkeypatch.setattr(model, "cached", lambda name, revision: None)
    world.hub = raising(AssertionError("asked"))
    world.config["sources"]["b"] = {"dataset": "o/other", "take": 100}
    world.config["prompts"] = {"max_prompt_tokens": 100}
    world.config["model"]["path"] = "Qwen/Nowhere"
    broken(world, monkeypatch, "store")
    assert [(finding.check, finding.text.split(",")[0]) for finding in told(world.found())] == [
        ("network", "https://huggingface.co can't be reached (Name or service not known)"),
        ("store", "s3://bucket: Access Denied: it needs s3:PutObject"),
    ]
    # Who asks it nothing does not miss it.
    world.config["sources"] = {"a": {"path": "a.jsonl"}}
    world.config["model"]["path"] = str(world.model)
    assert {finding.check for finding in told(world.found())} == {"store"}


def test_a_start_asks_nothing_outside_this_machine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for fault in ("gated", "store", "clock"):
        broken(world, monkeypatch, fault)
    assert world.found(brief=True) == []


def test_a_source_that_others_stand_in_for_is_a_warning(world: World) -> None:
    world.config["sources"]["a"]["substitutes"] = {"b": {"dataset": "o/b"}}

    def gated(dataset: str) -> int:
        if dataset == "o/n":
            raise hub.Unavailable("gated", "o/n is gated: accept its terms")
        return 5_000_000_000

    world.hub = gated
    (finding,) = told(datasets.sources(world.run()))
    assert finding.severity == "warning" and finding.text.endswith(". b stand in for it")
    world.hub = raising(hub.Unavailable("missing", "there is no such dataset"))
    assert [one.severity for one in told(datasets.sources(world.run()))] == ["warning", "warning"]


def test_sources_that_the_run_has_bound_are_not_asked_again(world: World) -> None:
    world.hub = raising(PlainError("not asked"))
    run = world.run()
    files.write_json(run.lock, {})
    assert datasets.sources(run) == []


def test_servers_that_run_already_are_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = "http://127.0.0.1:1", "http://127.0.0.1:2"
    world.config["servers"] = {"urls": [one, two, one], "args": {"context-length": 8192}}

    def granted(url: str, key: str | None) -> launch.Granted:
        if url == two:
            raise PlainError(f"{url}: no answer (refused)")
        return launch.Granted(8, 1000, 4000, 4096, "0.5.23", "m", "m", {}, {})

    monkeypatch.setattr(launch, "granted", granted)
    world.machine = machine("no_gpu")  # which is nothing to them
    assert [finding.text for finding in told(world.found())] == [
        f"servers.urls names {one} twice, for twice the load: name it once",
        f"{one} grants a context of 4,096, and servers.args.context-length is 8,192: start it with --context-length "
        f"8192, or lower that",
        f"{two}: no answer (refused)",
    ]


def test_a_run_on_the_cpu_asks_no_gpu(world: World) -> None:
    world.config["servers"] = {"engine": "sglang-cpu"}
    world.machine = machine("no_gpu")
    assert told(world.found()) == []


def test_an_environment_that_is_not_built_needs_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "is_built", lambda env: False)
    env = servers.chosen_environment(world.run(), world.machine)
    assert env is not None and env.name == "sglang-cuda"
    (finding,) = servers.environment_there(env)
    assert finding.severity == "note" and "is built first: about 10,100 MB" in finding.text
    monkeypatch.setattr(environment, "RECIPES", {"sglang-cuda": environment.Recipe(10**9, ())})
    (finding,) = servers.environment_there(env)
    assert finding.severity == "error" and "make room" in finding.text


def test_a_check_that_fails_itself_is_a_finding(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(run: Run) -> list[Finding]:
        raise OSError(5, "Input/output error", "/results")

    monkeypatch.setattr(host, "disk", fails)
    assert [finding.text for finding in told(world.found())] == ["/results: Input/output error"]


def test_findings_as_text_and_json() -> None:
    found = [
        Finding("a", "note", "n"),
        Finding("b", "error", "e"),
        Finding("b", "error", "e"),
        Finding("c", "warning", "w"),
    ]
    assert findings.lines(found) == ["error: b: e", "warning: c: w", "note: a: n"]
    said = findings.to_json("run", found)
    assert not said["ok"] and [one["check"] for one in said["findings"]] == ["b", "c", "a"]
    assert findings.to_json("run", found[:1])["ok"]


def test_a_mistake_with_lines_quoted_below_it_is_one_finding() -> None:
    def quoted() -> None:
        raise PlainError("the build fails:\n  one\n  two")

    def several() -> None:
        raise PlainError("one\ntwo")

    assert [one.text for one in findings.caught("x", quoted)] == ["the build fails: one two"]
    assert [one.text for one in findings.caught("x", several)] == ["one", "two"]


def test_a_reasoning_parser_that_is_left_out_is_told(world: World) -> None:
    world.config["servers"]["args"]["reasoning-parser"] = None
    (finding,) = target.template(world.run().config, models.qwen36_27b())
    assert "thinking becomes part of the answer" in finding.text
