"""The servers' environment and the target model, in the cache that runs and clones share.

In:   envs/ENGINE*.txt and the config's model, read when a job runs: a new pin redoes no finished run.
Out:  RUN/setup/environment.json, RUN/setup/model.json: stamps at fixed paths, which the chunk rule takes as ancient().

Nothing is built where no chunk is left to generate, or where servers run already.

The target `doctor` looks at everything that the run needs, and makes nothing.
"""


rule environment:
    """Build the pinned environment that the servers run in."""
    output:
        f"{RUN}/setup/environment.json",
    log:
        f"{RUN}/logs/environment.log",
    conda:
        "../envs/pipeline.yaml"
    message:
        "The servers' environment"
    shell:
        "exec python -m workflow_scripts.serving.setup {output:q} 2> {log:q}"


rule model:
    """Make sure of the target model's files."""
    input:
        ancient(f"{RUN}/setup/environment.json"),
    output:
        f"{RUN}/setup/model.json",
    log:
        f"{RUN}/logs/model.log",
    conda:
        "../envs/pipeline.yaml"
    message:
        "The target model"
    shell:
        "exec python -m workflow_scripts.serving.setup {output:q} 2> {log:q}"


rule doctor:
    """Target: look at everything that the run needs, and tell all that is in its way; nothing else wants it."""
    log:
        f"{RUN}/logs/doctor.log",
    conda:
        "../envs/pipeline.yaml"
    message:
        "The doctor"
    shell:
        "exec python -m workflow_scripts.doctor {log:q} 2> {log:q}"
