"""Cards, driver, and what this process may use: read from nvidia-smi and /proc/driver/nvidia.

Formats: `nvidia-smi --help-query-gpu`, `--help-query-compute-apps`, `-L` and `topo -m` of drivers 535 to 595.
"""

import re
from dataclasses import dataclass, field

from workflow_scripts.machine.host import Host

CARD_FIELDS = "index,uuid,name,compute_cap,memory.total,memory.used,mig.mode.current"
USE_FIELDS = "index,name,utilization.gpu,memory.used,memory.total"
HOLDER_FIELDS = "gpu_uuid,pid,process_name,used_memory"
VERSION_FILE = "/proc/driver/nvidia/version"
MEBIBYTES_A_GIGABYTE = 1e9 / (1 << 20)

CARD = re.compile(r"^GPU (\d+): .*\(UUID: (GPU-[\w-]+)\)")
INSTANCE = re.compile(r"^\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[\w/-]+)\)")
PROFILE_GIGABYTES = re.compile(r"\.(\d+)gb")
ENDS = ("", "-1", "NoDevFiles")  # how one says that no more GPUs are to be used
NVLINK = re.compile(r"\bNV\d+\b")


@dataclass(frozen=True)
class Driver:
    """The loaded driver: its version, and the newest CUDA that it serves."""

    version: str
    cuda: tuple[int, int] | None

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


@dataclass(frozen=True)
class Holder:
    """A process with memory on a card; the driver tells no sizes to some containers."""

    pid: int
    name: str
    mebibytes: int | None


@dataclass(frozen=True)
class Use:
    """How busy a card is: `percent` of its time, `used` of `total` MiB; None where the driver doesn't tell."""

    index: str
    name: str
    percent: float | None
    used: float | None
    total: float | None


@dataclass(frozen=True)
class Instance:
    """A MIG instance: a slice of a card, to CUDA a device of its own."""

    uuid: str
    profile: str  # "3g.40gb"

    @property
    def mebibytes(self) -> int:
        found = PROFILE_GIGABYTES.search(self.profile)
        return int(found[1]) * 1024 if found else 0


@dataclass(frozen=True)
class Gpu:
    """A card. Memory in MiB; `capability` is CUDA's compute capability: (12, 0) is SM120."""

    index: int
    uuid: str
    name: str
    capability: tuple[int, int]  # (0, 0) where the card does not answer any more
    mebibytes: int  # 0 where the driver doesn't tell: memory that card and processor share
    used: int
    mig: bool = False
    instances: list[Instance] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)

    @property
    def sm(self) -> int:
        return self.capability[0] * 10 + self.capability[1]

    @property
    def gigabytes(self) -> float:
        return self.mebibytes / MEBIBYTES_A_GIGABYTE

    @property
    def lost(self) -> bool:
        """Whether it fell off the bus, or answers no more for another reason."""
        return self.sm == 0


@dataclass(frozen=True)
class Device:
    """What CUDA gives a process as one device: a card or a MIG instance. `name` is for CUDA_VISIBLE_DEVICES."""

    name: str
    gpu: Gpu
    instance: Instance | None = None

    @property
    def mebibytes(self) -> int:
        return self.gpu.mebibytes if self.instance is None else self.instance.mebibytes

    @property
    def key(self) -> str:
        """The same for the same device, however it is named."""
        return self.gpu.uuid if self.instance is None else self.instance.uuid


def driver(host: Host) -> Driver | None:
    """The driver that is loaded; None without one."""
    version = _first(r"Kernel Module(?:\s+for\s+\S+)?\s+(\d+\.\d+(?:\.\d+)?)", host.read(VERSION_FILE))
    banner = _smi(host)
    version = version or _first(r"(?:Driver|KMD) Version: (\d+\.\d+(?:\.\d+)?)", banner)
    if version is None:
        return None
    cuda = _first(r"CUDA (?:UMD )?Version: (\d+\.\d+)", banner)  # newer drivers tell the user-mode driver's apart
    major, minor = cuda.split(".") if cuda else ("", "")
    return Driver(version, (int(major), int(minor)) if cuda else None)


def _first(pattern: str, text: str | None) -> str | None:
    found = re.search(pattern, text or "")
    return found[1] if found else None


def _smi(host: Host, *options: str) -> str:
    """What nvidia-smi prints; where one card is lost or has a damaged infoROM it lists them all, and fails too."""
    answer = host.ask(["nvidia-smi", *options])
    return answer.text if answer is not None else ""


def refusal(host: Host) -> str:
    """The first words of nvidia-smi where it fails; "" where it doesn't."""
    answer = host.ask(["nvidia-smi"])
    if answer is None:
        return "there is no nvidia-smi"
    return "" if answer.ok else next((line.strip()[:200] for line in answer.text.splitlines() if line.strip()), "")


def cards(host: Host) -> list[Gpu]:
    """The machine's cards, in nvidia-smi's order, which is CUDA's under CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    listing = _smi(host, f"--query-gpu={CARD_FIELDS}", "--format=csv,noheader,nounits")
    holders = _holders(host)
    instances = _instances(host)
    found = []
    for line in listing.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 7 or not parts[0].isdecimal():
            continue
        index, uuid, name, capability, total, used, mig = parts
        major, _, minor = capability.partition(".")
        found.append(
            Gpu(
                index=int(index),
                uuid=uuid,
                name=name,
                capability=(_whole(major), _whole(minor)),
                mebibytes=_whole(total),
                used=_whole(used),
                mig=mig == "Enabled",
                instances=instances.get(uuid, []),
                holders=holders.get(uuid, []),
            )
        )
    return found


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else 0  # "[N/A]", where the driver doesn't tell; "[GPU is lost]"


def _holders(host: Host) -> dict[str, list[Holder]]:
    listing = _smi(host, f"--query-compute-apps={HOLDER_FIELDS}", "--format=csv,noheader,nounits")
    found: dict[str, list[Holder]] = {}
    for line in listing.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) >= 4 and parts[1].isdigit():
            memory = int(parts[-1]) if parts[-1].isdigit() else None
            found.setdefault(parts[0], []).append(Holder(int(parts[1]), ", ".join(parts[2:-1]), memory))
    return found


def _instances(host: Host) -> dict[str, list[Instance]]:
    found: dict[str, list[Instance]] = {}
    card = ""
    for line in _smi(host, "-L").splitlines():
        if top := CARD.match(line):
            card = top[2]
        elif part := INSTANCE.match(line):
            found.setdefault(card, []).append(Instance(part[2], part[1]))
    return found


def devices(found: list[Gpu], allowed: str | None) -> list[Device]:
    """What this process may use, `allowed` being CUDA_VISIBLE_DEVICES, read as CUDA reads it.

    The first name that is no device ends the list; a UUID may be cut short where that is unique. Of a card in MIG
    mode there are its instances.
    """
    if allowed is None:
        return [device for gpu in found for device in _of(gpu, str(gpu.index))]
    usable: list[Device] = []
    for name in _names(allowed):
        matching = _named(found, name)
        if not matching:
            break
        usable += matching
    return usable


def unknown(found: list[Gpu], allowed: str | None) -> str | None:
    """The first name in CUDA_VISIBLE_DEVICES that is no device, and was meant as one: it ends what CUDA uses."""
    first = next((name for name in _names(allowed or "") if not _named(found, name)), "")
    return None if first in ENDS else first


def _names(allowed: str) -> list[str]:
    return [part.strip() for part in allowed.split(",")]


def _named(found: list[Gpu], name: str) -> list[Device]:
    if name.isdecimal():
        return [device for gpu in found if gpu.index == int(name) for device in _of(gpu, name)]
    if name.startswith("MIG-"):
        parts = [(gpu, part) for gpu in found for part in gpu.instances if part.uuid.startswith(name)]
        return [Device(name, *parts[0])] if len(parts) == 1 else []
    matching = [gpu for gpu in found if name.startswith("GPU-") and gpu.uuid.startswith(name)]
    return _of(matching[0], name) if len(matching) == 1 else []


def _of(gpu: Gpu, name: str) -> list[Device]:
    return [Device(part.uuid, gpu, part) for part in gpu.instances] if gpu.mig else [Device(name, gpu)]


def linked(host: Host) -> bool:
    """Whether NVLink joins any two cards, as the topology matrix says (NV and the number of links)."""
    rows = [line for line in _smi(host, "topo", "-m").splitlines() if re.match(r"^(\x1b\[\d+m)?GPU\d+\s", line)]
    return any(NVLINK.search(row) for row in rows)


def use(host: Host) -> list[Use]:
    """How busy each card is now; none without a driver."""
    listing = _smi(host, f"--query-gpu={USE_FIELDS}", "--format=csv,noheader,nounits")
    rows = [[part.strip() for part in line.split(",")] for line in listing.splitlines()]
    return [Use(row[0], row[1], *map(_told, row[2:])) for row in rows if len(row) == 5 and row[0].isdecimal()]


def _told(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # "[N/A]"
