"""From the config to a running server: its command, its environment, its GPUs, and what it granted."""

import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import orjson

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.serving.model_facts import config_of

LAUNCHER = Path(__file__).with_name("sglang_server.py")
KEY_FILE_VARIABLE = "DRAFTMILL_SERVER_KEY_FILE"
ENGINE_VARIABLE = "DRAFTMILL_ENGINE"

# What an engine is started with unless servers.args says otherwise. On the CPU an idle scheduler would burn a core
# without sleep-on-idle, SGLang would grant 4096 requests at once, and the cache would take most of the memory.
DEFAULTS: dict[str, dict[str, Any]] = {
    "sglang": {},
    "sglang-cpu": {
        "device": "cpu",
        "attention-backend": "torch_native",
        "sleep-on-idle": True,
        "max-total-tokens": 32768,
        "max-running-requests": 16,
    },
}

# Flags that are not the user's to set, and what to do instead.
MANAGED = {
    "host": "servers listen on 127.0.0.1 only",
    "port": "each server gets a free port",
    "api-key": "each server gets a random key of its own",
    "admin-api-key": "each server gets a random key of its own",
    "ssl-certfile": "servers listen on 127.0.0.1 only, without TLS",
    "ssl-keyfile": "servers listen on 127.0.0.1 only, without TLS",
    "model": "set model.path",
    "model-path": "set model.path",
    "revision": "set model.revision",
    "served-model-name": "it follows from model.path",
    "enable-metrics": "it is always on",
    "base-gpu-id": "each server sees its own GPUs only; CUDA_VISIBLE_DEVICES says which are used",
    "gpu-id-step": "each server sees its own GPUs only; CUDA_VISIBLE_DEVICES says which are used",
    "config": "write the flags themselves into servers.args",
    "tokenizer-worker-num": "SGLang checks no API key with several tokenizer workers",
}
PARALLEL = {"tp-size", "tensor-parallel-size", "dp-size", "data-parallel-size", "pp-size", "pipeline-parallel-size"}

# Variables that a server has no use for: whatever code runs in it can't read them.
SECRET_VARIABLE = re.compile(r"(TOKEN|SECRET|PASSWORD|CREDENTIALS?|KEY)$", re.IGNORECASE)

# What is kept of /server_info, which shows the key: the settings that decide the answers, and those of speed.
CONTENT_SETTINGS = (
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "context_length",
    "reasoning_parser",
    "tool_call_parser",
    "chat_template",
    "lora_paths",
    "json_model_override_args",
    "sampling_defaults",
    "preferred_sampling_params",
    "enable_deterministic_inference",
    "allow_auto_truncate",
)
SPEED_SETTINGS = (
    "device",
    "tp_size",
    "dp_size",
    "pp_size",
    "ep_size",
    "attention_backend",
    "sampling_backend",
    "mem_fraction_static",
    "max_running_requests",
    "max_total_tokens",
    "chunked_prefill_size",
    "schedule_policy",
    "page_size",
    "disable_radix_cache",
    "disable_cuda_graph",
    "speculative_algorithm",
)
ASKED = ("max-running-requests", "context-length")
SHOWN = ("attention_backend", "mem_fraction_static", "chunked_prefill_size", "tp_size")
MAX_REPLY_BYTES = 16 << 20


def flags(
    engine: str,
    args: Mapping[str, Any],
    model: Path,
    served_name: str,
    port: int,
    gpus_per_server: int = 1,
    hardware: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """SGLang's flags: the engine's defaults, over them those for the hardware, `servers.args`, and what is ours to say.

    A server of several GPUs is tensor parallel unless `args` says how else. PlainError for a flag that is ours.
    """
    for name in args:
        if name in MANAGED:
            raise PlainError(f"servers.args.{name}: can't be set here: {MANAGED[name]}")
    merged: dict[str, Any] = {**DEFAULTS[engine], **(hardware or {})}
    if engine == "sglang-cpu" and _checkpoint_dtype(model) == "float32":
        merged["dtype"] = "float32"  # `auto` would make it float16, which is slow and poor on a CPU
    if gpus_per_server > 1 and not PARALLEL & set(args):
        merged["tp-size"] = gpus_per_server
    merged |= args
    merged |= {
        "host": "127.0.0.1",
        "port": port,
        "model-path": str(model),
        "served-model-name": served_name,
        "enable-metrics": True,
    }
    return merged


def words(merged: Mapping[str, Any]) -> list[str]:
    """Flags as argv has them: True is a bare flag, False and None leave one out, a list gives its values in turn."""
    return [word for name, value in merged.items() for word in _words(name, value)]


def _words(name: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    if isinstance(value, list | tuple):
        return [f"--{name}", *map(str, value)] if value else []
    return [f"--{name}={value}"] if str(value).startswith("-") else [f"--{name}", str(value)]


def _checkpoint_dtype(model: Path) -> str | None:
    config = config_of(model)
    dtype = config.get("dtype") or config.get("torch_dtype")  # newer and older transformers
    return str(dtype) if dtype else None


def vocabulary(model: Path) -> int | None:
    """The model's vocabulary size (ids are below it), as its config.json says; None where that says nothing.

    Models of several parts (vision, say) hold it in `text_config`.
    """
    config = config_of(model)
    parts = [config, config.get("text_config")]
    sizes = [part["vocab_size"] for part in parts if isinstance(part, dict) and isinstance(part.get("vocab_size"), int)]
    return sizes[0] if sizes else None


def tokenizer_json(model: Path) -> Path | None:
    """The file that holds the model's whole tokenizer, as most have it."""
    path = (model / "tokenizer.json").absolute()
    return path if path.is_file() else None


def tags(path: Path | None, texts: Collection[str]) -> dict[str, int]:
    """Which of the texts are tokens of the model's own, and their ids, as its tokenizer.json says; none without one."""
    if path is None:
        return {}
    added = files.read_json(path, remedy="copy the model's files anew").get("added_tokens", [])
    return {token["content"]: token["id"] for token in added if token["content"] in texts}


def command(python: Path, server_flags: Mapping[str, Any]) -> list[str]:
    """The server's argv. -P keeps the launcher's folder, with modules named `model` and so on, off its sys.path."""
    return [str(python), "-P", str(LAUNCHER), *words(server_flags)]


def shown(argv: Sequence[str], gpus: Sequence[str]) -> str:
    """A command as a line for a log, with its GPUs. Nothing secret is in it: the key is in a file."""
    return " ".join([*([f"CUDA_VISIBLE_DEVICES={','.join(gpus)}"] if gpus else []), shlex.join(argv)])


def environ(engine: str, key_file: Path, gpus: Sequence[str], more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The server's environment variables: ours less every secret, its GPUs, and the 0600 file that holds its key.

    `more` are those that its SGLang needs.
    """
    kept = {name: value for name, value in os.environ.items() if not SECRET_VARIABLE.search(name)}
    for name in [name for name, value in kept.items() if name.endswith("_NUM_THREADS") and value == "0"]:
        del kept[name]  # Snakemake sets them to the threads of the chunk job that starts the server: none
    if engine == "sglang-cpu":
        # Threads that spin where they wait for each other stop a CPU server nearly dead beside any other busy process
        # (measured on two cores: 41 small matrix products a second, 1,134 where they sleep).
        kept.setdefault("OMP_WAIT_POLICY", "passive")
    kept.pop("PYTHONPATH", None)
    return kept | {
        **(more or {}),
        ENGINE_VARIABLE: engine,
        KEY_FILE_VARIABLE: str(key_file),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order of nvidia-smi, by which the GPUs are numbered here
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "HF_HUB_OFFLINE": "1",  # the model is a local folder by now
        "PYTHONUNBUFFERED": "1",
    }


@dataclass(frozen=True)
class Granted:
    """What a server really offers: `seats` requests at once, `token_capacity` tokens of cache in all."""

    seats: int
    token_capacity: int
    max_input_tokens: int
    context_length: int
    version: str
    model_path: str
    served_name: str
    content: dict[str, Any]
    speed: dict[str, Any]


def granted_line(found: "Granted", asked: Mapping[str, Any]) -> str:
    """What a server granted, beside what its flags asked."""
    seats = asked.get("max-running-requests") or "as many as fit"
    context = asked.get("context-length") or "the model's own"
    settings = [f"{name.replace('_', '-')} {found.speed[name]}" for name in SHOWN if found.speed.get(name) is not None]
    return ", ".join(
        [
            f"{found.seats} seats (asked: {seats})",
            f"{found.token_capacity:,} tokens of cache",
            f"a context of {found.context_length:,} (asked: {context})",
            *settings,
        ]
    )


def granted(url: str, key: str | None) -> Granted:
    """Ask a running server. PlainError if it doesn't answer, refuses the key, or isn't SGLang."""
    info = _get(f"{url}/server_info", key)
    models = _get(f"{url}/v1/models", key)
    try:
        # One state per data-parallel rank; each grants the same.
        state, ranks = info["internal_states"][0], int(info.get("dp_size") or 1)
        model = models["data"][0]
        return Granted(
            seats=int(state["effective_max_running_requests_per_dp"]) * ranks,
            token_capacity=int(state["memory_usage"]["token_capacity"]) * ranks,
            max_input_tokens=int(info["max_req_input_len"]),
            context_length=int(model["max_model_len"]),
            version=str(info["version"]),
            model_path=str(info["model_path"]),
            served_name=str(model["id"]),
            content={name: info.get(name) for name in CONTENT_SETTINGS},
            speed={name: info.get(name) for name in SPEED_SETTINGS},
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PlainError(
            f"the server at {url} doesn't say what it grants ({error!r} in /server_info or /v1/models); "
            f"it must be SGLang, 0.5.23 or near it"
        ) from error


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would carry the key to another host: it is an error here."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


def _get(url: str, key: str | None) -> Any:
    local = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    # A proxy of the environment can't reach this machine's own servers.
    opener = build_opener(_NoRedirect, *([ProxyHandler({})] if local else []))
    request = Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with opener.open(request, timeout=60) as reply:
            return orjson.loads(reply.read(MAX_REPLY_BYTES))
    except HTTPError as error:
        with error:
            if error.code in (401, 403):
                raise PlainError(
                    f"{url}: the server refuses the key (HTTP {error.code}); for servers.urls it is the variable "
                    f"DRAFTMILL_SERVER_KEY"
                ) from error
            raise PlainError(f"{url}: HTTP {error.code}; is it an SGLang server?") from error
    except URLError as error:
        raise PlainError(f"{url}: no answer ({error.reason})") from error
    except (OSError, orjson.JSONDecodeError) as error:
        raise PlainError(f"{url}: no proper answer ({error})") from error
