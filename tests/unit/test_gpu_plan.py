"""What each recorded machine gives a server of each kind of model, and everything that can't work, told at once."""

from dataclasses import replace
from typing import Any

import pytest

from tests.standin import models
from tests.standin.machines import machine
from workflow_scripts import config
from workflow_scripts.config import Config
from workflow_scripts.errors import PlainError
from workflow_scripts.serving import builds, gpu_flags, gpu_memory, gpu_plan, model_facts
from workflow_scripts.serving.model_facts import ModelFacts


def made(args: dict[str, Any] | None = None, servers: dict[str, Any] | None = None, **sections: Any) -> Config:
    """A small config."""
    values = {
        "name": "x",
        "sources": {"a": {"path": "a.jsonl"}},
        "model": {"path": "m"},
        "servers": {"args": args or {}, **(servers or {})},
        **sections,
    }
    return config.parse(values, "test")


def planned(name: str, model: ModelFacts, settings: Config | None = None, server: int = 0) -> gpu_plan.Plan:
    settings = settings or made()
    return gpu_plan.plan(settings, model, gpu_plan.devices_of(server, settings, machine(name)))


QWEN36 = {"reasoning-parser": "qwen3", "tool-call-parser": "qwen3_coder", "disable-radix-cache": True}
QWEN3 = {"reasoning-parser": "qwen3", "tool-call-parser": "qwen"}
GPT_OSS = {"reasoning-parser": "gpt-oss", "tool-call-parser": "gpt-oss"}


@pytest.mark.parametrize(
    ("name", "model", "flags"),
    [
        ("8x_rtx_pro_6000", models.qwen36_27b(), {"attention-backend": "flashinfer", **QWEN36}),
        ("8x_h100", models.qwen36_27b(), QWEN36),
        ("8x_h200", models.qwen36_27b(), QWEN36),
        ("8x_b200", models.qwen36_27b(), QWEN36),
        ("8x_rtx_pro_6000", models.qwen3_32b(), {"attention-backend": "flashinfer", **QWEN3}),
        ("4x_a100", models.qwen3_32b(), QWEN3),
        ("8x_rtx_pro_6000", models.qwen3_30b_a3b_fp8(), {"attention-backend": "flashinfer", **QWEN3}),
        ("8x_h100", models.qwen3_30b_a3b_fp8(), QWEN3),
        ("8x_rtx_pro_6000", models.gpt_oss_120b(), {"attention-backend": "triton", **GPT_OSS}),
        ("8x_h100", models.gpt_oss_120b(), GPT_OSS),
        (
            "8x_rtx_pro_6000",
            models.llama_70b_nvfp4(),
            {"attention-backend": "flashinfer", "tool-call-parser": "llama3"},
        ),
    ],
)
def test_the_flags_of_a_card_and_a_model(name: str, model: ModelFacts, flags: dict[str, Any]) -> None:
    assert planned(name, model).flags == flags


def test_what_the_user_says_wins_and_is_not_told_as_ours() -> None:
    mine = {"attention-backend": "triton", "disable-radix-cache": False, "reasoning-parser": None}
    plan = planned("8x_rtx_pro_6000", models.qwen36_27b(), made(mine))
    assert plan.flags == {"tool-call-parser": "qwen3_coder"}
    assert not any("attention-backend" in line for line in plan.reasons)


def test_every_choice_is_told_with_its_reason() -> None:
    reasons = planned("8x_rtx_pro_6000", models.qwen36_27b()).reasons
    assert reasons[0] == "model: hybrid, Qwen3_5ForConditionalGeneration"
    assert reasons[1] == (
        "memory: weights 55.0 of 91.9 GB, room for about 296,378 tokens, 113 state slots, "
        "about 72 whole answers at once"
    )
    assert "--attention-backend flashinfer: FlashAttention 3 and TensorRT-LLM's kernels are not for SM120" in reasons
    assert any(line.startswith("--disable-radix-cache: no prompt is sent twice") for line in reasons)


def test_who_sets_the_cache_of_prefixes_keeps_it() -> None:
    """SGLang forgets its strategy without it, and refuses a hierarchy of none."""
    for mine in ({"mamba-radix-cache-strategy": "extra_buffer"}, {"enable-hierarchical-cache": True}):
        assert "disable-radix-cache" not in planned("8x_rtx_pro_6000", models.qwen36_27b(), made(mine)).flags
    assert planned("8x_rtx_pro_6000", models.qwen36_27b(), made({"enable-hierarchical-cache": False})).flags[
        "disable-radix-cache"
    ]


def test_models_that_flashinfer_does_not_take_get_another_backend_on_sm120() -> None:
    def backend(**keys: Any) -> Any:
        model = model_facts.of({**models.QWEN3_30B_A3B_FP8, **keys}, 31 * models.GB, None)
        return planned("8x_rtx_pro_6000", model).flags.get("attention-backend")

    assert backend() == "flashinfer"
    assert backend(add_swa_attention_sink_bias=True) == "triton"
    assert backend(kv_lora_rank=512) == "triton"
    assert backend(kv_lora_rank=512, index_topk=2048) is None  # SGLang's own, dsa


def test_where_prompts_come_again_a_hybrid_model_keeps_its_cache_of_prefixes() -> None:
    for again in ({"sampling": {"n": 2}}, {"prompts": {"turns": "all"}}):
        assert "disable-radix-cache" not in planned("8x_rtx_pro_6000", models.qwen36_27b(), made(**again)).flags


def test_the_cache_of_prefixes_costs_a_hybrid_models_seats() -> None:
    devices = machine("8x_rtx_pro_6000").devices[:1]
    seats = [
        gpu_memory.fit(models.qwen36_27b(), devices, flags).seats
        for flags in ({"disable-radix-cache": True}, {"mamba-radix-cache-strategy": "no_buffer"}, {})
    ]
    assert seats == [72, 37, 22]


def test_a_model_that_is_too_large_is_refused_with_the_number_of_gpus() -> None:
    with pytest.raises(PlainError) as caught:
        planned("1x_rtx_4090", models.qwen3_32b())
    assert str(caught.value) == (
        "the model's weights take 65.0 GB, and 1 GPU of a server can give 21.9 GB: set servers.gpus_per_server: 4"
    )
    with pytest.raises(PlainError, match=r"16 GPUs of a server|set servers.gpus_per_server: 16"):
        planned("8x_h100", models.deepseek_v3(), made(servers={"gpus_per_server": 8}))
    assert planned("8x_b200", models.deepseek_v3(), made(servers={"gpus_per_server": 8})).flags["tool-call-parser"]
    with pytest.raises(PlainError, match="1 MIG instance of a server can give"):
        planned("mig", models.qwen3_32b())


def test_a_conversation_that_does_not_fit_beside_the_weights_is_refused_with_what_does() -> None:
    model = models.qwen3_32b()
    with pytest.raises(PlainError, match=r"room for about [\d,]+ tokens, and one conversation may have 40,960: set"):
        planned("4x_a100", model, made({"context-length": 40960, "mem-fraction-static": 0.85}))
    assert planned("4x_a100", model, made({"context-length": 4608})).flags
    # By itself a model's own context is no demand: SGLang then takes what fits.
    assert planned("4x_a100", model).flags


def test_a_context_beyond_the_models_own_is_refused_unless_stretched(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlainError, match="65,536 is more than the model's own 40,960"):
        planned("8x_h200", models.qwen3_32b(), made({"context-length": 65536}))
    stretched = made({"context-length": 65536, "json-model-override-args": '{"rope_scaling": {}}'})
    assert planned("8x_h200", models.qwen3_32b(), stretched).flags
    monkeypatch.setenv(gpu_plan.LONGER_CONTEXT, "1")
    assert planned("8x_h200", models.qwen3_32b(), made({"context-length": 65536})).flags


def test_values_that_cannot_work_on_a_card_are_refused_together() -> None:
    mine = made({"attention-backend": "fa3", "fp8-gemm-backend": "deep_gemm", "context-length": 99999})
    with pytest.raises(PlainError) as caught:
        planned("8x_rtx_pro_6000", models.qwen3_30b_a3b_fp8(), mine)
    told = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in told] == [
        "servers.args.attention-backend",
        "servers.args.fp8-gemm-backend",
        "servers.args.context-length",
    ]
    assert "fa3 does not work on NVIDIA RTX PRO 6000 Blackwell Server Edition (SM120)" in told[0]
    assert planned("8x_h100", models.qwen3_30b_a3b_fp8(), made({"attention-backend": "fa3"})).flags


def test_heads_that_cannot_be_split_are_told() -> None:
    odd = made(servers={"gpus_per_server": 3})
    odds = r"64 attention heads \(8 of keys and values\) can't be split over 3 GPUs; take one of 1, 2, 4, 8, 16"
    with pytest.raises(PlainError, match=odds):
        planned("8x_h200", models.qwen3_32b(), odd)
    # 24 heads can be split over three, 4 of keys and values can't.
    with pytest.raises(PlainError, match=r"servers.gpus_per_server: 24 attention heads .* take one of 1, 2, 4, 8$"):
        planned("8x_h200", models.qwen36_27b(), odd)
    with pytest.raises(PlainError, match=r"servers.args.tp-size: 24 attention heads"):
        planned("8x_h200", models.qwen36_27b(), made({"tp-size": 3}, servers={"gpus_per_server": 3}))
    assert planned("8x_h200", models.qwen3_32b(), made({"dp-size": 3}, servers={"gpus_per_server": 3})).flags


def test_a_mixed_machine_gives_each_server_its_cards_flags() -> None:
    small = model_facts.of(models.QWEN3_32B, 16 * models.GB, models.QWEN3_TEMPLATE)
    assert planned("mixed", small, server=0).flags["attention-backend"] == "flashinfer"
    assert "attention-backend" not in planned("mixed", small, server=1).flags


DEALT = [
    ("8x_h100", {}, {}, []),
    ("8x_h100", {"count": 8}, {}, []),
    ("8x_h100", {"count": 9}, {}, ["servers.count 9 of 1 GPU(s) each takes 9, and 8 can be used here"]),
    (
        "8x_h100",
        {"count": 3, "gpus_per_server": 4},
        {},
        ["takes 12, and 8 can be used here; two servers never share one"],
    ),
    ("1x_rtx_4090", {"gpus_per_server": 2}, {}, ["one server of 2 GPU(s) each takes 2, and 1 can be used here"]),
    ("8x_h100", {}, {"CUDA_VISIBLE_DEVICES": "0,1,1"}, ["CUDA_VISIBLE_DEVICES names GPU-"]),
    ("8x_h100", {"count": 8}, {"CUDA_VISIBLE_DEVICES": "0,1"}, ["takes 8, and 2 can be used here"]),
    ("mig", {"gpus_per_server": 2}, {}, ["MIG instances can't work together; set it to 1"]),
    (
        "8x_h100",
        {"args": {"tp-size": 4}},
        {},
        ["servers.args (tp-size: 4) spreads a server over 4 GPUs, and servers.gpus_per_server gives it 1: set"],
    ),
    ("8x_h100", {"args": {"tp-size": 2, "dp-size": 2}, "gpus_per_server": 4}, {}, []),
    (
        "8x_h100",
        {"args": {"tp-size": 4, "dp-size": 4, "enable-dp-attention": True}, "gpus_per_server": 4},
        {},
        [],
    ),
    ("mixed", {"gpus_per_server": 2}, {}, ["server 0 would lie on GPUs of unequal memory (NVIDIA GeForce RTX 4090, "]),
    ("mixed", {"gpus_per_server": 2}, {"CUDA_VISIBLE_DEVICES": "1,2"}, []),
]


@pytest.mark.parametrize(("name", "servers", "environ", "told"), DEALT)
def test_how_servers_and_devices_are_dealt_out(
    name: str, servers: dict[str, Any], environ: dict[str, str], told: list[str]
) -> None:
    found = gpu_plan.device_problems(made(servers=servers), machine(name, environ))
    assert len(found) == len(told)
    assert all(words in line for words, line in zip(told, found, strict=True))


@pytest.mark.parametrize(
    ("name", "servers", "told"),
    [
        ("8x_h100", {}, []),
        ("8x_h100", {"gpus_per_server": 2}, []),
        ("8x_rtx_pro_6000", {"gpus_per_server": 2}, ["no NVLink joins the GPUs"]),
        ("mig", {}, ["MIG is on for 1 of 2 cards"]),
        ("mixed", {}, ["cards of 2 kinds (NVIDIA GeForce RTX 4090, NVIDIA RTX PRO 6000 Blackwell Server Edition)"]),
        ("8x_h100", {"count": 6}, ["2 of 8 GPUs stay idle"]),
    ],
)
def test_what_is_worth_knowing(name: str, servers: dict[str, Any], told: list[str]) -> None:
    found = gpu_plan.device_notes(made(servers=servers), machine(name))
    assert len(found) == len(told)
    assert all(words in line for words, line in zip(told, found, strict=True))


def test_what_is_left_out_is_told() -> None:
    typo = gpu_plan.device_notes(made(), machine("8x_h100", {"CUDA_VISIBLE_DEVICES": "0,1,8,3"}))
    assert typo == [
        "CUDA_VISIBLE_DEVICES names 8, which is no GPU that can be used here: CUDA leaves out that and all that follow"
    ]
    cut = machine("mig")
    bare = replace(cut, gpus=[replace(cut.gpus[0], instances=[]), cut.gpus[1]], devices=cut.devices[2:])
    assert gpu_plan.device_notes(made(), bare)[1].startswith("GPU 0 can't be used: MIG is on there without an instance")


def test_a_card_that_fell_off_the_bus_is_told_by_its_number() -> None:
    found = machine("8x_h100")
    lost = replace(found.devices[3], gpu=replace(found.gpus[3], capability=(0, 0), mebibytes=0))
    broken = replace(found, devices=[*found.devices[:3], lost, *found.devices[4:]])
    (told,) = gpu_plan.device_problems(made(), broken)
    assert told.startswith("GPU 3 (NVIDIA H100 80GB HBM3) does not answer: reset it or reboot")
    assert builds.misfits(builds.BUILDS[0], broken, (2, 39), "x86_64") == []  # once is enough


def test_memory_that_the_card_does_not_tell_is_not_reckoned() -> None:
    """As on GB10, where card and processor share theirs."""
    found = machine("8x_h100").devices[0]
    shared = [replace(found, gpu=replace(found.gpu, mebibytes=0))]
    fit = gpu_memory.fit(models.qwen3_32b(), shared, {})
    assert fit.problem is None
    assert fit.line() == "weights 65.0 GB; the card doesn't tell its memory"


def test_every_copy_of_the_model_must_fit_on_its_own_gpus() -> None:
    two = {"gpus_per_server": 2}
    assert planned("8x_h100", models.qwen3_32b(), made({"tp-size": 2, "dp-size": 1}, servers=two)).flags
    with pytest.raises(PlainError, match=r"150\.0 GB, and 1 GPU of a server can give"):
        planned("8x_h100", replace(models.qwen3_32b(), weights=150 * models.GB), made({"dp-size": 2}, servers=two))


def test_a_card_that_others_hold_is_told_with_who() -> None:
    first, second = machine("busy").devices
    assert gpu_plan.busy(first) == (
        "GPU 0 is in use: 69.7 of 79.6 GiB are held by process 41523 (/opt/vllm/bin/python3). End it, or leave the "
        "card out by CUDA_VISIBLE_DEVICES"
    )
    assert gpu_plan.busy(second) is None
    desktop = machine("1x_rtx_4090").devices[0]
    assert gpu_plan.busy(desktop) is None
    assert gpu_plan.crowded(first, {}) and not gpu_plan.crowded(second, {})
    # SGLang leaves more than this free; it is told, and in nobody's way.
    browser = replace(desktop, gpu=replace(desktop.gpu, used=2000))
    assert gpu_plan.busy(browser) and not gpu_plan.crowded(browser, {})
    assert gpu_plan.crowded(browser, {"mem-fraction-static": 0.95})


def test_every_line_of_the_table_has_a_source_and_no_line_is_out_of_reach() -> None:
    seen: dict[str, list[gpu_flags.When]] = {}
    for line in gpu_flags.table():
        assert (
            line.source.endswith((".py", ")")) or "http" in line.source or ", " in line.source or ".py" in line.source
        )
        if not line.refused:
            before = seen.setdefault(line.flag, [])
            assert gpu_flags.When() not in before, f"{line.flag}: nothing gets past an earlier line"
            before.append(line.when)
