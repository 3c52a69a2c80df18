"""Each dataset of the mix becomes one normalized shard of prompts.

In:   the source's files, whose content is part of RUN.
Out:  RUN/sources/SOURCE.json, which names the shard in results/sources/ that the run uses.
"""

from workflow_scripts.sources import workers


rule source:
    """Read a source row by row: prompts into its shard, every other row into its rejects."""
    output:
        f"{RUN}/sources/{{source}}.json",
    log:
        f"{RUN}/logs/sources/{{source}}.log",
    conda:
        "../envs/pipeline.yaml"
    threads: lambda wildcards: workers.threads(PLAN.sources.get(wildcards.source))
    message:
        "Source {wildcards.source}"
    shell:
        "exec python -m workflow_scripts.sources.normalize {output:q} --threads {threads} 2> {log:q}"
