"""Every prompt accounted for.

In:   the manifest, the training shards' index, which is made again when any chunk is, and every receipt.
Out:  RUN/summary.json; the run fails here unless prompts = completions + failures, by id.
"""


rule summary:
    """Audit the run by id and write its numbers."""
    input:
        f"{RUN}/manifest.parquet",
        training=f"{TRAINING}/training.json",
        receipts=rules.publish.input,
    output:
        f"{RUN}/summary.json",
    log:
        f"{RUN}/logs/summary.log",
    conda:
        "../envs/pipeline.yaml"
    message:
        "The account"
    shell:
        "exec python -m workflow_scripts.reporting.summary {output:q}"
        " --training {input.training:q} --receipts {input.receipts:q} 2> {log:q}"
