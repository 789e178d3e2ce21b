"""Settings: from flags, then the environment, then a file, then defaults.

The file is TOML: `config.toml` in ~/.config/gpuyard, or /etc/gpuyard for root. Every setting has an environment
variable, `GPUYARD_` and its name in capitals.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpuyard.errors import UserError, suggest
from gpuyard.units import parse_duration, parse_size

SOCKET_NAME = "gpuyard.sock"
_SYSTEM = Path("/run/gpuyard")
SECRETS = ("mail",)
"""Settings that are not shown."""
DURATIONS = (
    "interference_after", "default_estimate", "grace", "half_life", "lease_idle", "learned_limit", "queue_timeout",
    "keep_logs", "keep_history", "record_period", "keep_samples", "keep_minutes", "keep_hours",
)  # fmt: skip
SIZES = ("output_limit", "gpu_buffer")
_SWITCHES = ("cgroups", "force_policy", "offers", "page", "preempt", "record", "single_user")
_YES, _NO = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_NUMBERS = ("max_priority", "memory_margin", "offer_most", "oom_retries")
_WHOLE = ("offer_most", "oom_retries")
_RANGES = {
    "memory_margin": (1, "a part from 0 to 1, as in 0.05"),
    **dict.fromkeys(_WHOLE, (100, "a whole number from 0 to 100")),
}
"""Upper limits of numbers that are not negative, and the range in words."""
_CHOICES = {
    "over_memory": ("warn", "stop-largest-offender", "stop"),
    "foreign": ("avoid", "count"),
    "admission": ("requests", "usage"),
}
TOKENS = ("auto", "required", "none")
FLAGS = {"bind": "--host", "force_policy": "--force", "tokens": "--token"}
"""Flags whose names differ from their settings'."""
PORT = 62333
"""Default TCP port, if it is free."""
NO_PORT = -1
_PREFIX = "GPUYARD_"
_OTHER_VARIABLES = (
    "config", "cache_dir", "job_id", "attempt", "gpus", "run", "restart_count", "progress", "adaptive", "budget",
    "deadline", "control", "host", "ca", "page_user", "simulate_use",
)  # fmt: skip
_OTHER_PREFIXES = ("fault", "chaos_", "array_", "checkpoint", "lease", "prometheus_")


class Settings(NamedTuple):
    """What can be set. A field's type says how its text is read."""

    data_dir: Path
    """Where the store and the jobs' output are."""
    socket: Path
    """Where the daemon listens."""
    simulate_gpus: str = ""
    """Simulated GPUs in place of real ones, as in 4x16G."""
    policy: str = "multifactor"
    discipline: str = ""
    """How strictly the policy's order is kept; easy, unless the policy preempts."""
    placement: str = "pack"
    force_policy: bool = False
    """Whether the configured policy, a trained one, decides though it has not passed its gate."""
    learned_limit: float = 0.05
    """Seconds that a trained policy may take to rank the queue; 0: as long as it likes."""
    default_estimate: float = 86400.0
    """Seconds that a job is taken to run if it has neither an estimate nor a time limit."""
    grace: float = 10.0
    """Seconds between asking a job to end and making it end."""
    half_life: float = 7 * 86400.0
    """Seconds after which used GPU time counts half in fair shares; 0: it counts in full for ever."""
    preempt: bool = True
    """Whether preemptible jobs are stopped for jobs of higher priority, or of users who have less than their share."""
    output_limit: int = 2**30
    """Bytes of output that are kept of each attempt."""
    gpu_buffer: int = 2**29
    """Bytes of each shared GPU that no job gets."""
    memory_margin: float = 0.05
    """How much more than was measured a share by `auto` is, while there are few measurements; 0.05 is 5 %."""
    over_memory: str = "stop-largest-offender"
    """Action on a job that uses more GPU memory than its share: `warn` logs it, `stop` ends it at once, and
    `stop-largest-offender` ends the job with the largest excess once the other jobs might not get their shares."""
    oom_retries: int = 3
    """How often a job that runs out of GPU memory is run again with more, unless the job says otherwise."""
    interference_after: float = 10.0
    """Seconds for which two jobs must be seen together before it counts what they do to each other."""
    foreign: str = "avoid"
    """Use of a GPU that has a foreign process: `avoid` it, or `count` what the process uses and share the rest."""
    lease_idle: float = 60.0
    """Seconds without a child, after its first use, that end the lease of an interactive shell; 0: never."""
    offers: bool = True
    """Whether adaptive running jobs are lent idle GPUs that no waiting job can use."""
    offer_most: int = 1
    """How many GPUs one job may have on loan."""
    cgroups: bool | str = "auto"
    """Whether each job gets a cgroup of its own, so that no process can hide from its end; `auto`: where that works."""
    single_user: bool = False
    """Whether a daemon of root serves root alone; one of another user never serves anybody else."""
    admin_group: str = "gpuyard-admin"
    """The Unix group whose members may do to everybody's jobs what their owners may, and set the policy."""
    max_priority: float | None = None
    """The highest priority that users other than admins may ask for. Not said: 0 where the daemon serves several
    users, and any (`inf`) where it serves one."""
    bind: str = "127.0.0.1"
    """The address to listen at on TCP; any but a loopback address wants tokens."""
    port: int | None = None
    """The port there; `none`: do not listen on TCP at all. Not said: 62333, if it is free."""
    tokens: str = "auto"
    """Who needs a token on TCP: `auto`, whom the kernel cannot name, and everybody where the daemon listens beyond
    this machine; `required`, everybody; `none`, nobody, to look at the queue and to wait in it."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, besides this machine's own, by which people may reach the daemon on TCP; through a proxy, say."""
    tls_cert: str = ""
    """A certificate for TCP, with its chain, in a file (PEM)."""
    tls_key: str = ""
    """Its key, unless it is in the same file."""
    page: bool = True
    """Whether there is a page to look at, where the daemon listens on TCP: a process of its own serves it."""
    mail: str = ""
    """How mail goes to bare addresses: a URL of apprise, as in mailtos://USER:PASSWORD@HOST?from=ADDRESS. A secret."""
    notify_retry: str = "10s,1m,5m,30m,2h"
    """When a notification that could not be sent is tried again, and then again; the last holds until a day is over."""
    queue_timeout: float = 300.0
    """Seconds without a heartbeat after which a remote request for GPUs is dropped."""
    keep_logs: float = 90 * 86400.0
    """Seconds for which the output of a job is kept after its end; 0 for ever."""
    keep_history: float = 0.0
    """Seconds for which it is known, after its end, that there was a job; 0 for ever."""
    record: bool = True
    """Whether it is written down what GPUs do."""
    record_period: float = 1.0
    """Seconds between what is written down while a GPU is in use; of an idle one it is less often."""
    keep_samples: float = 7 * 86400.0
    """Seconds for which every sample is kept; then the least, the mean and the most of each minute."""
    keep_minutes: float = 90 * 86400.0
    """Seconds for which those are kept; then those of each hour."""
    keep_hours: float = 0.0
    """Seconds for which those are kept; 0 for ever."""
    dcgm_job_mapping: str = ""
    """A folder for files that tell dcgm-exporter which jobs are on which GPU; not said: none are written."""
    admission: str = "requests"
    """Which jobs may share a GPU: by what they ask for (`requests`), or by what they and their like really use
    (`usage`)."""
    traces: str = ""
    """A folder of traces that everybody may simulate on the page; not said: `traces` in the data directory."""

    @property
    def shared(self) -> bool:
        """Whether the daemon serves all users of this machine, and runs jobs as their owners."""
        return _is_root() and not self.single_user

    @property
    def highest_priority(self) -> float:
        """The highest priority that users other than admins may ask for."""
        if self.max_priority is not None:
            return self.max_priority
        return 0.0 if self.shared else math.inf

    @property
    def local(self) -> bool:
        """Whether the daemon can be reached from this machine only."""
        return self.bind == "localhost" or self.bind == "::1" or self.bind.startswith("127.")

    @property
    def page_socket(self) -> Path:
        """The socket of the page's process, for the daemon only."""
        return self.socket.with_name(f"{self.socket.stem}-page{self.socket.suffix}")

    @property
    def database(self) -> Path:
        return self.data_dir / "gpuyard.db"

    @property
    def traces_dir(self) -> Path:
        """Traces that the page offers."""
        return Path(self.traces).expanduser().absolute() if self.traces else self.data_dir / "traces"

    @property
    def jobs_dir(self) -> Path:
        """Output of attempts."""
        return self.data_dir / "jobs"


class Explained(NamedTuple):
    """A setting, and where its value comes from."""

    name: str
    value: Any
    origin: str
    """`flag`, `environment`, `file` or `default`."""
    source: str
    """The flag, the variable or the file; empty for a default."""


def settings(flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from flags (those that are not None), the environment, the file, and defaults."""
    environment = os.environ if environment is None else environment
    found: dict[str, Any] = {}
    for _, layer in _layers(flags, environment):
        found |= layer
    return _settle(found, environment)


def explained(flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> list[Explained]:
    """Every setting, and where its value comes from; secrets are masked."""
    environment = os.environ if environment is None else environment
    origins: dict[str, tuple[str, str]] = {}
    found: dict[str, Any] = {}
    for origin, layer in _layers(flags, environment):
        found |= layer
        origins |= {name: (origin, _source(origin, name, environment)) for name in layer}
    settled = _settle(found, environment)
    values = settled._asdict()
    return [
        Explained(name, "***" if name in SECRETS and value else value, *origins.get(name, ("default", "")))
        for name, value in values.items()
    ]


def config_file(environment: Mapping[str, str] | None = None) -> Path:
    environment = os.environ if environment is None else environment
    if given := environment.get("GPUYARD_CONFIG"):
        return Path(given)
    if _is_root():
        return Path("/etc/gpuyard/config.toml")
    return _xdg(environment, "XDG_CONFIG_HOME", ".config") / "config.toml"


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """A message for each variable that looks like a setting and is none; variables of jobs are known."""
    environment = os.environ if environment is None else environment
    known = Settings._fields
    others = [name for name in sorted(environment) if name.startswith(_PREFIX)]
    return [
        f"{variable}: there is no setting '{name}'{suggest(name, known)}"
        for variable, name in ((variable, variable.removeprefix(_PREFIX).lower()) for variable in others)
        if name not in (*known, *_OTHER_VARIABLES) and not name.startswith(_OTHER_PREFIXES)
    ]


def _layers(flags: Mapping[str, Any] | None, environment: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """Settings by origin; later ones win."""
    return [
        ("file", _from_file(config_file(environment))),
        ("environment", _from_environment(environment)),
        ("flag", {name: value for name, value in (flags or {}).items() if value is not None}),
    ]


def _source(origin: str, name: str, environment: Mapping[str, str]) -> str:
    if origin == "flag" and name in FLAGS:
        return FLAGS[name]
    if origin == "flag":
        return f"--{name.replace('_', '-')}"
    return str(config_file(environment)) if origin == "file" else f"{_PREFIX}{name.upper()}"


def _settle(found: dict[str, Any], environment: Mapping[str, str]) -> Settings:
    own_place = "data_dir" in found
    data_dir = Path(found.pop("data_dir", _data_home(environment))).expanduser().absolute()
    beside = data_dir if own_place else _runtime_home(environment, data_dir)
    socket = Path(found.pop("socket", beside / SOCKET_NAME)).expanduser().absolute()
    return Settings(data_dir, socket, **{name: _read(name, value) for name, value in found.items()})


def daemon_socket(flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """The named daemon's socket, or one's own; else the machine's, if one has none."""
    environment = os.environ if environment is None else environment
    own, everybodys = settings(flags, environment).socket, _SYSTEM / SOCKET_NAME
    by_default = own == _runtime_home(environment, _data_home(environment)) / SOCKET_NAME
    return everybodys if by_default and not own.exists() and everybodys.exists() else own


def _read(name: str, value: Any) -> Any:
    """A setting's value from text."""
    if name in _RANGES:
        return _ranged(name, value)
    if not isinstance(value, str):
        return tuple(value) if name == "allowed_hosts" else value
    if name in DURATIONS:
        try:
            seconds = parse_duration(value)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
        if not 0 <= seconds < float("inf"):
            raise UserError(f"{name} is a time of 0 or more, not '{value}'")
        return seconds
    if name == "cgroups" and value.lower() == "auto":
        return "auto"
    if name in _SWITCHES:
        if value.lower() not in (*_YES, *_NO):
            raise UserError(f"{name} is {'on or off' if name == 'page' else 'true or false'}, not '{value}'")
        return value.lower() in _YES
    if name in _NUMBERS:
        return _number(name, value)
    if name in _CHOICES and value not in _CHOICES[name]:
        raise UserError(f"{name} is one of {', '.join(_CHOICES[name])}, not '{value}'")
    if name == "port":
        return _port(value)
    if name == "allowed_hosts":
        return tuple(host.strip().lower() for host in value.split(",") if host.strip())
    if name == "notify_retry":
        retry_delays(value)
    if name == "tokens" and value not in TOKENS:
        raise UserError(f"tokens is one of {', '.join(TOKENS)}, not '{value}'; gpuyard token makes tokens")
    return int(parse_size(value)) if name in SIZES else value


def retry_delays(text: str) -> tuple[float, ...]:
    """Seconds between attempts to send a notification, from `10s,1m,5m`."""
    delays = tuple(parse_duration(part) for part in text.split(",") if part.strip())
    if not delays or not all(0 < delay < math.inf for delay in delays):
        raise UserError(f"notify_retry is a list of times above 0, as in 10s,1m,5m, not '{text}'")
    return delays


def _port(value: str) -> int:
    if value == "none":
        return NO_PORT
    if not value.isdecimal() or int(value) > 65535:
        raise UserError(f"port is a number up to 65535 (0: any that is free), or none, not '{value}'")
    return int(value)


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise UserError(f"{name} is a number, not '{value}'")
    return number


def _ranged(name: str, value: str | float) -> float:
    most, words = _RANGES[name]
    number = _number(name, value) if isinstance(value, str) else value
    if not 0 <= number <= most or (name in _WHOLE and number != int(number)):
        raise UserError(f"{name} is {words}, not '{value}'")
    return int(number) if name in _WHOLE else number


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    names = {f"{_PREFIX}{name.upper()}": name for name in Settings._fields}
    return {name: environment[variable] for variable, name in names.items() if environment.get(variable)}


def _from_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    import tomllib  # lazily: most users have no such file, and submitting must be fast

    try:
        found = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    known = Settings._fields
    for name, value in found.items():
        if name not in known:
            raise UserError(f"{path}: there is no setting '{name}'{suggest(name, known)}")
        if not _fits(name, value):
            raise UserError(f"{path}: {name} cannot be {value!r}; write it as docs/reference/queue.md does")
    return found


def _fits(name: str, value: Any) -> bool:
    """Whether a TOML value fits this setting; texts are checked when they are parsed."""
    if isinstance(value, bool) or name in _SWITCHES:
        return isinstance(value, bool | str) and name in _SWITCHES
    if isinstance(value, list) and name == "allowed_hosts":
        return all(isinstance(host, str) for host in value)
    if isinstance(value, int | float):
        if name == "port":
            return isinstance(value, int) and 0 <= value <= 65535
        return name in _NUMBERS or (name in (*DURATIONS, *SIZES) and 0 <= value < float("inf"))
    return isinstance(value, str)


def _data_home(environment: Mapping[str, str]) -> Path:
    return Path("/var/lib/gpuyard") if _is_root() else _xdg(environment, "XDG_DATA_HOME", ".local/share")


def _runtime_home(environment: Mapping[str, str], data_dir: Path) -> Path:
    if _is_root():
        return _SYSTEM
    runtime = environment.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "gpuyard" if runtime else data_dir


def _xdg(environment: Mapping[str, str], variable: str, default: str) -> Path:
    home = environment.get("HOME") or str(Path.home())
    return Path(environment.get(variable) or Path(home) / default) / "gpuyard"


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0  # Windows has none
