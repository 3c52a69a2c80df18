"""Finished files become verified objects in S3, created once and never overwritten.

In:   what is finished: the manifest, chunks in batches of 50, the training shards.
Out:  RUN/published/HASH/: a receipt a job. start.json first, then the batches, training.json, and index.json last.
      HASH is of where the objects go; with `publish.store: none` there are none of these jobs.
"""

PUBLISHED = f"{RUN}/published/{PLAN.publish_hash}"
BATCHES = PLAN.batches


rule publish_start:
    """Publish what a reader needs first: whose prefix it is, the lock, the manifest."""
    input:
        f"{RUN}/manifest.parquet",
        f"{RUN}/manifest.json",
        f"{RUN}/dropped.parquet",
    output:
        f"{PUBLISHED}/start.json",
    log:
        f"{RUN}/logs/published/start.log",
    priority: len(CHUNKS) + 2
    conda:
        "../envs/pipeline.yaml"
    message:
        "Publish the manifest"
    shell:
        "exec python -m workflow_scripts.publishing.publish start {output:q} 2> {log:q}"


rule publish_batch:
    """Publish a batch of finished chunks, while others are generated."""
    input:
        f"{PUBLISHED}/start.json",
        lambda wildcards: [
            str(path)
            for chunk in BATCHES[wildcards.batch]
            for path in PLAN.run.chunk_files(chunk)
        ],
    output:
        f"{PUBLISHED}/{{batch}}.json",
    log:
        f"{RUN}/logs/published/{{batch}}.log",
    priority: len(CHUNKS) + 1
    conda:
        "../envs/pipeline.yaml"
    message:
        "Publish batch {wildcards.batch}"
    shell:
        "exec python -m workflow_scripts.publishing.publish batch {output:q} 2> {log:q}"


rule publish_training:
    """Publish the training shards."""
    input:
        f"{PUBLISHED}/start.json",
        training=f"{TRAINING}/training.json",
    output:
        f"{PUBLISHED}/training.json",
    log:
        f"{RUN}/logs/published/training.log",
    conda:
        "../envs/pipeline.yaml"
    message:
        "Publish the training shards"
    shell:
        "exec python -m workflow_scripts.publishing.publish training {output:q} {input.training:q} 2> {log:q}"


rule publish_index:
    """Publish the card and the list of all objects, last: a reader who sees it sees a whole run."""
    input:
        f"{PUBLISHED}/start.json",
        expand(f"{PUBLISHED}/{{batch}}.json", batch=BATCHES),
        f"{PUBLISHED}/training.json",
    output:
        f"{PUBLISHED}/index.json",
    log:
        f"{RUN}/logs/published/index.log",
    conda:
        "../envs/pipeline.yaml"
    message:
        "Publish the index"
    shell:
        "exec python -m workflow_scripts.publishing.publish index {output:q} {input:q} 2> {log:q}"


rule publish:
    """Target: everything in the store, as far as the config names one."""
    input:
        expand(
            f"{PUBLISHED}/{{receipt}}.json",
            receipt=["start", *BATCHES, "training", "index"] if BATCHES else [],
        ),


rule verify:
    """Target: ask the store about every object that the receipts name; nothing else wants it."""
    input:
        rules.publish.input,
        run=f"{RUN}/manifest.parquet",
    log:
        f"{RUN}/logs/published/verify.log",
    conda:
        "../envs/pipeline.yaml"
    message:
        "Verify what is published"
    shell:
        "exec python -m workflow_scripts.publishing.verify {input.run:q} 2> {log:q}"
