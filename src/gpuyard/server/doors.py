"""All that stands between the network and the routes, put together."""

from __future__ import annotations

from gpuyard.config import Settings
from gpuyard.server.access import Access
from gpuyard.server.admission import Admission
from gpuyard.server.hosts import Hosts
from gpuyard.server.permissions import Permissions
from gpuyard.server.submitters import Submitters
from gpuyard.server.trail import Trail


class Doors:
    """Who may come in, by which name, and what is written down of them."""

    def __init__(self, settings: Settings, permissions: Permissions, access: Access | None = None) -> None:
        self.settings = settings
        self.access = access or Access()
        self.admission = Admission(settings, permissions, self.access)
        self.hosts = Hosts(settings)
        self.submitters = Submitters(settings)
        self.trail = Trail(self.access)
