"""Shards become the prompt manifest, and the manifest becomes chunks of prompts.

In:   RUN/sources/SOURCE.json of every source, ancient(): a manifest is frozen once it is made, and so are its chunks.
Out:  RUN/manifest.parquet, RUN/manifest.json, RUN/dropped.parquet, and RUN/prompts/split.json. The chunks' own files
      are not declared: one flag keeps planning fast, and a chunk job that finds its file gone makes it again from the
      manifest.
      The target `prompts` adds RUN/estimate.json, which no other rule takes.
"""


rule manifest:
    """Draw the mix, drop duplicates, give every prompt its chunk and place."""
    input:
        ancient(expand(f"{RUN}/sources/{{source}}.json", source=PLAN.config.sources)),
    output:
        manifest=f"{RUN}/manifest.parquet",
        account=f"{RUN}/manifest.json",
        dropped=f"{RUN}/dropped.parquet",
    log:
        f"{RUN}/logs/manifest.log",
    conda:
        "../envs/pipeline.yaml"
    message:
        "The prompt manifest"
    shell:
        "exec python -m workflow_scripts.prompts.manifest {output.manifest:q} 2> {log:q}"


rule split:
    """Write every chunk of prompts."""
    input:
        ancient(f"{RUN}/manifest.parquet"),
    output:
        f"{RUN}/prompts/split.json",
    log:
        f"{RUN}/logs/split.log",
    conda:
        "../envs/pipeline.yaml"
    message:
        "Chunks of prompts"
    shell:
        "exec python -m workflow_scripts.prompts.split {output:q} 2> {log:q}"


rule estimate:
    """Tell what the run will take: tokens, hours, bytes."""
    input:
        ancient(f"{RUN}/manifest.parquet"),
        ancient(f"{RUN}/prompts/split.json"),
    output:
        f"{RUN}/estimate.json",
    log:
        f"{RUN}/logs/estimate.log",
    conda:
        "../envs/pipeline.yaml"
    message:
        "The estimate"
    shell:
        "exec python -m workflow_scripts.prompts.estimate {output:q} 2> {log:q}"


rule prompts:
    """Target: everything up to the chunks of prompts, and what the run will take; no server is needed."""
    input:
        f"{RUN}/manifest.parquet",  # the others take it as ancient(): alone they would not miss it
        f"{RUN}/prompts/split.json",
        f"{RUN}/estimate.json",
