"""What this machine has for servers on GPUs: cards, driver, CUDA toolkit. Everything is asked through a `Host`.

host       the one seam to the machine: tools, files, environment
gpus       cards, what holds them, what a process may use of them
toolkit    nvcc, headers and libraries, as kernels that are built at a server's start find them
"""

from dataclasses import dataclass

from workflow_scripts.machine import gpus, toolkit
from workflow_scripts.machine.gpus import Device, Driver, Gpu, Holder
from workflow_scripts.machine.host import Host, here
from workflow_scripts.machine.toolkit import Toolkit

__all__ = ["Device", "Driver", "Gpu", "Holder", "Host", "Machine", "Toolkit", "gpu_count", "here", "look"]


@dataclass(frozen=True)
class Machine:
    """One machine, at one moment. `devices` are those that this process may use, in its order."""

    driver: Driver | None
    gpus: list[Gpu]
    devices: list[Device]
    linked: bool  # whether NVLink joins any two of the cards
    toolkit: Toolkit | None
    compiler: bool  # g++, which nvcc needs
    refusal: str = ""  # what nvidia-smi says where it tells of no card
    unknown: str | None = None  # the name in CUDA_VISIBLE_DEVICES that is no device here

    def summary(self) -> str:
        """One line: how many of which cards, the driver, the CUDA version that it serves."""
        if self.driver is None or not self.gpus:
            return "no NVIDIA GPU"
        kinds = [f"{gpu.name} (SM{gpu.sm}, {gpu.gigabytes:.0f} GB)" for gpu in self.gpus]
        cards = ", ".join(f"{kinds.count(kind)}x {kind}" for kind in dict.fromkeys(kinds))
        cuda = f", CUDA {toolkit.dotted(self.driver.cuda)}" if self.driver.cuda else ""
        return f"{cards}; driver {self.driver.version}{cuda}"


def look(host: Host | None = None) -> Machine:
    """Read the machine. A tool that is missing or fails leaves its part empty; nothing is raised."""
    host = host or here()
    found = gpus.cards(host)
    allowed = host.environ.get("CUDA_VISIBLE_DEVICES")
    return Machine(
        driver=gpus.driver(host),
        gpus=found,
        devices=gpus.devices(found, allowed),
        linked=gpus.linked(host),
        toolkit=toolkit.find(host),
        compiler=host.run(["g++", "--version"]) is not None,
        refusal="" if found else gpus.refusal(host),
        unknown=gpus.unknown(found, allowed),
    )


def gpu_count(host: Host | None = None) -> int:
    """How many devices this process may use; a MIG instance is one."""
    host = host or here()
    return len(gpus.devices(gpus.cards(host), host.environ.get("CUDA_VISIBLE_DEVICES")))
