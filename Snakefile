"""Draftmill: datasets become prompts, prompts become completions, completions become training data.

The path scheme. RUN is the config's name and a hash of everything that decides the content:

    results/sources/SOURCE-HASH/        a source's normalized shard, shared by runs
    results/RUN/setup/                  stamps: servers' environment, target model
    results/RUN/sources/SOURCE.json     which shard the run uses
    results/RUN/manifest.parquet        every prompt, its chunk and place; dropped.parquet: those not taken
    results/RUN/prompts/CHUNK...        chunks of prompts; split.json names them all
    results/RUN/completions/CHUNK...    chunks of completions, failures, sidecars
    results/RUN/training/HASH/          token-exact shards; training.json names them; recorded-HASH: off-policy ones
    results/RUN/published/HASH/         receipts of what is in the store
    results/RUN/summary.json            the account; report.html: the same and more, for people
    results/RUN/doctor.json             what the doctor found; no rule's input
    results/RUN/tuning.json             the servers' flags, measured; no rule's input either
"""

import sys

from snakemake.utils import min_version

min_version("9.27.1")
sys.path.insert(0, workflow.basedir)

from workflow_scripts import planning, start
from workflow_scripts.errors import PlainError
from workflow_scripts.serving.capacity import lease_count

try:
    PLAN = planning.open_plan(
        config, workflow.config_settings.configfiles, workflow.basedir
    )
    PLAN = PLAN.with_redrive("redrive" in sys.argv).with_tuned("tune" in sys.argv)
    LEASES, NOTE = lease_count(PLAN.config, workflow.cores)
    start.announce(PLAN, NOTE, sys.argv[1:], dry_run=workflow.output_settings.dryrun)
except PlainError as error:
    sys.exit(str(error))

RUN = str(PLAN.run.folder)
CHUNKS = PLAN.chunks
workflow.register_resource("lease", LEASES)


onstart:
    try:
        start.begin(
            PLAN,
            {job.rule.name for job in workflow.dag.needrun_jobs()},
            keep_incomplete=workflow.execution_settings.keep_incomplete,
        )
    except PlainError as error:
        sys.exit(f"error: {error}")


onsuccess:
    try:
        start.end(
            PLAN,
            [
                str(path)
                for job in workflow.dag.targetjobs
                for path in [*job.input, *job.output]
            ],
        )
    except PlainError as error:
        sys.exit(f"error: {error}")


onerror:
    print(start.HOW_TO_GO_ON, file=sys.stderr)


wildcard_constraints:
    chunk=r"\d{5}",
    redrive=r"r[1-9]\d*",
    batch=r"\d{4}|r[1-9]\d*",
    source=r"[a-z0-9][a-z0-9_]*",


include: "rules/setup.smk"
include: "rules/sources.smk"
include: "rules/prompts.smk"
include: "rules/tuning.smk"
include: "rules/completions.smk"
include: "rules/training.smk"
include: "rules/publishing.smk"
include: "rules/reporting.smk"


rule all:
    """Everything: completions in the store, training shards, the account."""
    default_target: True
    input:
        f"{RUN}/manifest.parquet",
        f"{RUN}/manifest.json",
        f"{RUN}/dropped.parquet",
        rules.completions.input,
        rules.training.input,
        rules.publish.input,
        PLAN.account,
    message:
        "All is there"


rule redrive:
    """Everything, with one more try for what failed for good."""
    input:
        rules.all.input,
