"""The servers' flags, measured on the run's own prompts.

In:   the chunks of prompts, ancient(): a sample of them is answered, and thrown away.
Out:  RUN/tuning.json and tuning.txt, undeclared: they are made anew each time, and make nothing else anew. With
      `servers.tuned: true` the best flags of speed are laid over `servers.args`.
"""


rule tune:
    """Target: try flags on every server side by side, and tell which are fastest; nothing else wants it."""
    input:
        ancient(f"{RUN}/prompts/split.json"),
        ancient(f"{RUN}/setup/model.json"),
        manifest=ancient(f"{RUN}/manifest.parquet"),
    log:
        f"{RUN}/logs/tuning.log",
    conda:
        "../envs/pipeline.yaml"
    threads: 0
    message:
        "Tune the servers' flags"
    shell:
        "exec python -m workflow_scripts.tuning {input.manifest:q} 2> {log:q}"
