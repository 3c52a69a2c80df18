"""Completions become token-exact training shards.

In:   every chunk of completions, and every redrive; none of them with `training.answers: recorded`, which exports what
      the sources' shards hold.
Out:  RUN/training/HASH/training.json, which names the shards beside it; HASH is of the config's `training` and of the
      redrives, and begins with `recorded-` where the rows are off-policy.
"""

TRAINING = f"{RUN}/training/{PLAN.training_hash}"
LOST_SHARDS = PLAN.lost_shards()


rule export:
    """Write input_ids and loss_mask of every turn that is kept, and what else `training` asks for."""
    input:
        ancient(PLAN.recorded_of),
        expand(f"{RUN}/completions/{{chunk}}.json", chunk=CHUNKS + PLAN.redrives),
    output:
        index=f"{TRAINING}/training.json",
        lost=LOST_SHARDS,
    log:
        f"{RUN}/logs/training.log",
    conda:
        "../envs/pipeline.yaml"
    message:
        "Training shards"
    shell:
        "exec python -m workflow_scripts.training.export {output.index:q} 2> {log:q}"


rule training:
    """Target: the training shards."""
    input:
        f"{RUN}/manifest.parquet",  # see `prompts`
        f"{TRAINING}/training.json",
        LOST_SHARDS,
