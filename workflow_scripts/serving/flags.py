"""Which of SGLang's flags decide what is answered, and which only how fast. The parse uses it: stdlib only."""

from collections.abc import Mapping
from typing import Any

# Flags of SGLang 0.5.23 that don't change what a model answers, but for the rounding that any change of batch brings:
# scheduling, memory, parallelism, kernels, caches, loading, logging, ports. A flag that isn't here counts as content,
# so a new or unknown one can cost a new run, and never mixes two kinds of answers in one.
_SPEED_FLAGS_BY_TOPIC = {
    "scheduling and batching": """
    max-running-requests max-queued-requests chunked-prefill-size prefill-decode-interval enable-dynamic-chunking
    prefill-decode-interval-min-bs max-prefill-tokens prefill-max-requests schedule-policy enable-priority-scheduling
    disable-priority-preemption default-priority-value abort-on-priority-when-disabled
    schedule-low-priority-values-first priority-scheduling-preemption-threshold retraction-policy
    schedule-conservativeness disable-overlap-schedule num-continuous-decode-steps scheduler-recv-interval
    enable-mixed-chunk stream-interval batch-notify-size enable-prefill-delayer prefill-delayer-max-delay-passes
    prefill-delayer-token-usage-low-watermark prefill-delayer-forward-passes-buckets
    prefill-delayer-wait-seconds-buckets prefill-delayer-queue-min-ratio prefill-delayer-max-delay-ms
    min-free-slots-delay enable-two-batch-overlap enable-single-batch-overlap tbo-token-distribution-threshold
    enable-pdmux pdmux-config-path sm-group-num enable-dynamic-batch-tokenizer dynamic-batch-tokenizer-batch-size
    dynamic-batch-tokenizer-batch-timeout enable-tokenizer-batch-encode disable-tokenizer-batch-decode
    tokenizer-backend tokenizer-worker-num detokenizer-worker-num gc-threshold sleep-on-idle
    """,
    "memory and caches": """
    mem-fraction-static max-total-tokens page-size c128-page-size swa-full-tokens-ratio disable-hybrid-swa-memory
    radix-eviction-policy radix-eviction-policy-config radix-cache-backend disable-radix-cache
    disable-chunked-prefix-cache enable-page-major-kv-layout enable-unified-memory enable-memory-saver
    enable-weights-cpu-backup max-mamba-cache-size mamba-max-states-per-path mamba-full-memory-ratio
    mamba-radix-cache-strategy mamba-track-interval enable-hierarchical-cache enable-hicache hicache-host-memory-mode
    hicache-host-memory-fraction hicache-ratio hicache-size hicache-write-policy hicache-io-backend hicache-mem-layout
    hicache-storage-backend hicache-storage-prefetch-policy hicache-storage-backend-extra-config
    hicache-storage-prefetch-retry-poll-interval hicache-storage-prefetch-retry-max-attempts enable-lmcache
    lmcache-config-file enable-flexkv flexkv-config-file cpu-offload-gb offload-group-size offload-num-in-group
    offload-prefetch-step offload-mode
    """,
    "devices and parallelism": """
    device base-gpu-id gpu-id-step numa-node nnodes node-rank nccl-port dist-timeout dist-init-addr nccl-init-addr
    tp-size tensor-parallel-size pp-size pipeline-parallel-size pp-max-micro-batch-size pp-async-batch-depth dp-size
    data-parallel-size load-balance-method enable-dp-attention enable-dp-lm-head dcp-size decode-context-parallel-size
    dcp-comm-backend attn-dp-size attention-data-parallel-size attn-cp-size attention-context-parallel-size moe-dp-size
    moe-data-parallel-size ep-size expert-parallel-size ep moe-a2a-backend moe-dense-tp-size deepep-mode deepep-config
    enable-eplb eplb-algorithm eplb-rebalance-num-iterations eplb-rebalance-layers-per-chunk
    eplb-min-rebalancing-utilization-threshold ep-num-redundant-experts ep-dispatch-algorithm init-expert-location
    disable-custom-all-reduce enable-mscclpp enable-torch-symm-mem enable-nccl-nvls enable-symm-mem enable-p2p-check
    pre-warm-nccl
    """,
    "kernels": """
    attention-backend decode-attention-backend prefill-attention-backend mm-attention-backend sampling-backend
    fp8-gemm-backend fp4-gemm-backend bf16-gemm-backend mamba-backend linear-attn-backend linear-attn-decode-backend
    linear-attn-prefill-backend linear-attn-verify-backend moe-runner-backend disable-flashinfer-autotune
    flashinfer-autotune-skip-ops flashinfer-mla-disable-ragged triton-attention-num-kv-splits
    triton-attention-split-tile-size enable-fused-qk-norm-rope enable-fused-moe-sum-all-reduce
    disable-shared-experts-fusion enforce-shared-experts-fusion enable-flashinfer-allreduce-fusion
    flashinfer-allreduce-fusion-backend enforce-disable-flashinfer-allreduce-fusion enable-aiter-allreduce-fusion
    disable-cuda-graph cuda-graph-config cuda-graph-backend-decode cuda-graph-backend-prefill cuda-graph-max-bs-decode
    cuda-graph-max-bs-prefill cuda-graph-bs-decode cuda-graph-bs-prefill cuda-graph-prefill-max-context context-bucket
    cuda-graph-max-seq-len-prefill disable-prefill-cuda-graph disable-decode-cuda-graph disable-cuda-graph-padding
    enable-profile-cuda-graph enable-cudagraph-gc debug-cuda-graph enable-layerwise-nvtx-marker enable-torch-compile
    enable-torch-compile-debug-mode torch-compile-max-bs
    """,
    # The accept thresholds, which change what is answered, are content.
    "speculative decoding": """
    speculative-algorithm speculative-draft-model-path speculative-draft-model speculative-draft-model-revision
    speculative-draft-load-format speculative-num-steps speculative-eagle-topk speculative-num-draft-tokens
    speculative-dflash-block-size speculative-token-map speculative-attention-mode speculative-draft-attention-backend
    speculative-draft-kv-cache-dtype speculative-draft-window-size speculative-moe-runner-backend
    speculative-moe-a2a-backend speculative-draft-model-quantization enable-multi-layer-eagle speculative-adaptive
    speculative-adaptive-config
    """,
    "loading, time limits, logs, metrics": """
    startup-weight-load-mode weight-loader-disable-mmap
    weight-loader-prefetch-checkpoints weight-loader-prefetch-num-threads weight-loader-drop-cache-after-load
    download-dir skip-server-warmup warmups watchdog-timeout soft-watchdog-timeout log-level log-level-http
    log-requests log-requests-level log-requests-format log-requests-target uvicorn-access-log-exclude-prefixes
    crash-dump-folder show-time-cost enable-metrics enable-mfu-metrics enable-metrics-for-all-schedulers
    bucket-time-to-first-token bucket-inter-token-latency bucket-e2e-request-latency prompt-tokens-buckets
    generation-tokens-buckets gc-warning-threshold-secs decode-log-interval enable-request-time-stats-logging
    enable-cache-report enable-trace trace-modules otlp-traces-endpoint otlp-service-name export-metrics-to-file
    export-metrics-to-file-dir
    """,
}
SPEED_FLAGS = frozenset(name for names in _SPEED_FLAGS_BY_TOPIC.values() for name in names.split())


def content_flags(args: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of `servers.args` that count as content, sorted; null and false say what leaving a flag out says."""
    return {name: args[name] for name in sorted(args) if name not in SPEED_FLAGS and not _left_out(args[name])}


def speed_flags(args: Mapping[str, Any]) -> dict[str, Any]:
    """The other ones, sorted."""
    return {name: args[name] for name in sorted(args) if name in SPEED_FLAGS and not _left_out(args[name])}


def _left_out(value: Any) -> bool:
    return value is None or value is False
