"""Run one SGLang server: `python -P sglang_server.py FLAGS`, with the server environment's own Python.

This file stands alone: it is started by path, in an environment that doesn't hold this package. To `sglang serve` it
adds:

- the API key comes from the file that DRAFTMILL_SERVER_KEY_FILE names, not from argv, where every user could read it,
  and is masked in the log;
- `--list-flags` prints what flags this SGLang knows, so that they are checked before a model is loaded;
- `--check-imports` imports what a server imports, so that an environment is tried before it counts as one;
- under DRAFTMILL_ENGINE=sglang-cpu, what SGLang 0.5.23 needs to run on a CPU from PyPI's wheels alone.

SGLang's scheduler and detokenizer are spawned processes that import this file again: what must hold in them too is done
at import. Sources: sglang/launch_server.py, srt/server_args.py (prepare_server_args), srt/utils/auth.py of 0.5.23.
"""

import argparse
import importlib
import json
import logging
import os
import shutil
import sys
import types
from pathlib import Path
from typing import Any, NoReturn

KEY_FILE_VARIABLE = "DRAFTMILL_SERVER_KEY_FILE"
ENGINE_VARIABLE = "DRAFTMILL_ENGINE"

# What SGLang's CPU engine imports from sgl_kernel, which has no CPU wheel. All serve speculative decoding.
SGL_KERNEL_NAMES = (
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "verify_tree_greedy_cpu",
)


def prepare_cpu() -> object:
    """Make SGLang importable without CUDA and without sgl_kernel; returns what must stay alive.

    - Without SGLANG_USE_CPU_ENGINE sglang looks for CUDA and then imports vllm.
    - PyPI's torchvision carries operators built for CUDA, which do not load beside a CPU build of torch; its import
      needs the schemas of two of them.
    - The names from sgl_kernel raise when called, which happens in speculative decoding only.
    """
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    import torch

    torchvision = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        torchvision.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    kernel = types.ModuleType("sgl_kernel")
    for name in SGL_KERNEL_NAMES:
        setattr(kernel, name, _no_kernel)
    sys.modules.setdefault("sgl_kernel", kernel)
    return torchvision


def _no_kernel(*_args: object, **_kwargs: object) -> NoReturn:
    raise NotImplementedError("this SGLang runs without sgl_kernel: no speculative decoding on the CPU engine")


def read_key() -> str | None:
    """The server's API key; None if no file is named."""
    path = os.environ.get(KEY_FILE_VARIABLE)
    return Path(path).read_text(encoding="ascii").strip() if path else None


def mask_in_logs(key: str) -> None:
    """Keep `key` out of every log line of this process: SGLang logs its arguments, the key among them."""
    make = logging.getLogRecordFactory()

    def masked(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        try:
            text = record.getMessage()
        except Exception:  # a faulty logging call: logging reports it when it formats the record
            return record
        if key in text:
            record.msg, record.args = text.replace(key, "[key]"), None
        return record

    logging.setLogRecordFactory(masked)


def list_flags() -> None:
    """Print this SGLang's version and its flags as JSON: `{"version", "flags": {"--name": [choices] or null}}`."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="sglang serve", allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    flags = {
        option: sorted(map(str, action.choices)) if action.choices else None
        for action in parser._actions
        for option in action.option_strings
    }
    print(json.dumps({"version": importlib.import_module("sglang").__version__, "flags": flags}))


def main() -> None:
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    server_args = prepare_server_args(sys.argv[1:])
    if KEY is not None:
        server_args.api_key = KEY
    try:
        run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def check_imports() -> None:
    """Import what a server imports; the builder of the environment runs this."""
    import sglang.launch_server
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.scheduler

    if os.environ.get(ENGINE_VARIABLE) != "sglang-cpu":
        import flashinfer  # noqa: F401
        import sgl_kernel  # noqa: F401
        import torch

        if shutil.which("ninja") is None:
            sys.exit("error: No such file or directory: 'ninja'")  # as it is said where a kernel is built
        if torch.version.cuda is None:
            sys.exit(f"error: torch {torch.__version__} is a build without CUDA")
        if os.path.exists("/proc/driver/nvidia/version"):  # noqa: PTH110
            torch.cuda.init()  # says what is wrong with the driver
    print(f"sglang {sglang.__version__} imports")


KEEP_ALIVE = prepare_cpu() if os.environ.get(ENGINE_VARIABLE) == "sglang-cpu" else None
KEY = read_key()
if KEY:
    mask_in_logs(KEY)

if __name__ == "__main__":
    if sys.argv[1:] == ["--check-imports"]:
        check_imports()
    elif sys.argv[1:] == ["--list-flags"]:
        list_flags()
    else:
        main()
