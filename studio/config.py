"""The options of ``slm studio``."""

import ipaddress
from dataclasses import dataclass, field

from slm.data.errors import UserError


@dataclass(frozen=True, kw_only=True)
class StudioConfig:
    """Where the page is, who may open it, and which folders it may read."""

    host: str = "127.0.0.1"
    port: int = 8765
    password: str | None = None
    """What a person types to come in. Needed where other machines may; ``SLM_STUDIO_PASSWORD`` gives it, too."""
    folders: list[str] = field(default_factory=list)
    """Folders besides the current one: text to train on, GGUF files of other programs."""
    upload_gb: float = 20.0
    """The most of one upload, GB."""
    open: bool = True
    """Whether a browser is opened, where there is a desktop."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UserError(f"port must be from 0 to 65535, not {self.port}")
        if self.upload_gb <= 0:
            raise UserError(f"upload_gb must be above 0, not {self.upload_gb:g}")
        if not self.is_local and not self.password:
            raise UserError(
                f"host={self.host} lets other machines in, and who opens the page may start commands and read files: "
                "set password=... or SLM_STUDIO_PASSWORD"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can open the page."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
