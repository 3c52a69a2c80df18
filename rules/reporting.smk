"""Every prompt accounted for, and a page that shows the run.

In:   the manifest, the training shards' index, which is made again when any chunk is, and every receipt.
Out:  RUN/summary.json; the run fails here unless prompts = completions + failures, by id.
      RUN/report.html, the same and more for people; `snakemake --report` takes it in.
"""


rule summary:
    """Audit the run by id and write its numbers."""
    input:
        f"{RUN}/manifest.parquet",
        training=f"{TRAINING}/training.json",
        receipts=rules.publish.input,
    output:
        report(
            f"{RUN}/summary.json",
            caption="captions/summary.rst",
            category="Account",
            labels={"file": "the numbers, as JSON"},
        ),
    log:
        f"{RUN}/logs/summary.log",
    conda:
        "../envs/pipeline.yaml"
    message:
        "The account"
    shell:
        "exec python -m workflow_scripts.reporting.summary {output:q}"
        " --training {input.training:q} --receipts {input.receipts:q} 2> {log:q}"


rule report:
    """Target: charts, provenance and sampled conversations in one page that opens offline."""
    input:
        f"{RUN}/summary.json",
        receipts=rules.publish.input,
    output:
        report(
            f"{RUN}/report.html",
            caption="captions/report.rst",
            category="Account",
            labels={"file": "the report"},
        ),
    log:
        f"{RUN}/logs/report.log",
    conda:
        "../envs/pipeline.yaml"
    message:
        "The report"
    shell:
        "exec python -m workflow_scripts.reporting.report {output:q} --receipts {input.receipts:q} 2> {log:q}"
