"""The bucket: reachable, ours, and creating without overwriting."""

from workflow_scripts.doctor.findings import Finding, caught
from workflow_scripts.run import Run


def rights(run: Run) -> list[Finding]:
    """What publishing's own preflight finds; it claims the run's prefix, as the run does first of all."""
    if run.config.publish.store != "s3":
        return []  # the embedded one is started by the run, with rights of its own
    from workflow_scripts.publishing import preflight  # boto3 takes a second

    return caught("store", lambda: preflight.check_rights(run))
