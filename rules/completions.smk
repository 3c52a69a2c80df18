"""Chunks of prompts become chunks of completions.

In:   ancient() stamps and flag: a new pin, another cache folder or a newer manifest redoes no finished chunk.
Out:  RUN/completions/CHUNK.jsonl.zst, CHUNK.failures.jsonl.zst, and CHUNK.json, the sidecar, written last.

A job leases a server, which is started when the first job needs it; `lease` bounds how many run at once. Jobs wait
for servers and use next to no CPU, so they count no threads.

Planning time grows with every file that a rule names for each chunk, so the rules name its sidecar alone. The target
adds what got lost beside a sidecar: Snakemake does not miss a file that nobody names.
"""


rule chunk:
    """Answer one chunk of prompts, from where its journal ends."""
    input:
        ancient(f"{RUN}/prompts/split.json"),
        ancient(f"{RUN}/setup/model.json"),
    output:
        completions=f"{RUN}/completions/{{chunk}}.jsonl.zst",
        failures=f"{RUN}/completions/{{chunk}}.failures.jsonl.zst",
        sidecar=f"{RUN}/completions/{{chunk}}.json",
    log:
        f"{RUN}/logs/completions/{{chunk}}.log",
    priority: lambda wildcards: len(CHUNKS) - int(wildcards.chunk)
    retries: 2
    conda:
        "../envs/pipeline.yaml"
    threads: 0
    resources:
        lease=1,
    message:
        "Chunk {wildcards.chunk}"
    shell:
        "exec python -m workflow_scripts.completions {output.sidecar:q} 2> {log:q}"


rule redriven:
    """Ask what failed for good once more, as one more chunk."""
    input:
        ancient(expand(f"{RUN}/completions/{{chunk}}.json", chunk=CHUNKS)),
        lambda wildcards: [
            ancient(str(PLAN.run.sidecar(before)))
            for before in PLAN.run.redrives_before(wildcards.redrive)
        ],
    output:
        completions=f"{RUN}/completions/{{redrive}}.jsonl.zst",
        failures=f"{RUN}/completions/{{redrive}}.failures.jsonl.zst",
        sidecar=f"{RUN}/completions/{{redrive}}.json",
    log:
        f"{RUN}/logs/completions/{{redrive}}.log",
    retries: 2
    conda:
        "../envs/pipeline.yaml"
    threads: 0
    resources:
        lease=1,
    message:
        "Redrive {wildcards.redrive}"
    shell:
        "exec python -m workflow_scripts.completions {output.sidecar:q} 2> {log:q}"


rule completions:
    """Target: every chunk of completions, and every redrive."""
    input:
        f"{RUN}/manifest.parquet",  # see `prompts`
        expand(f"{RUN}/completions/{{chunk}}.json", chunk=CHUNKS + PLAN.redrives),
        PLAN.lost_chunk_files(),
