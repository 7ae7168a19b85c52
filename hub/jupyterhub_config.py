"""JupyterHub for a class on one machine: ``.venv-hub/bin/jupyterhub --config hub/jupyterhub_config.py``.

All users of the machine can log in to the hub with the same name and password, and work there as that Linux user. If
home folders are private (``chmod 700``), nobody can read the files of others. Start it as root, because only root can
start processes for other users. By default it listens on the loopback interface only: put a web server with TLS in
front of it, or set ``HUB_ADDRESS`` to an address that students can reach.
"""

import os
import sys
from pathlib import Path

c = get_config()  # noqa: F821, defined by JupyterHub
here = Path(sys.executable).absolute().parent

c.JupyterHub.bind_url = os.environ.get("HUB_ADDRESS", "http://127.0.0.1:8000")
c.JupyterHub.hub_ip = "127.0.0.1"
c.ConfigurableHTTPProxy.command = [str(here.parent / "node_modules" / ".bin" / "configurable-http-proxy")]
c.PAMAuthenticator.allow_all = True  # all users of this machine; for some, set c.Authenticator.allowed_users
c.Spawner.cmd = [str(here / "jupyterhub-singleuser")]  # in the lab's environment
c.Spawner.ip = "127.0.0.1"
c.Spawner.default_url = "/lab"
c.Spawner.start_timeout = c.Spawner.http_timeout = 120
c.Spawner.environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "PATH": f"{here}:{os.environ['PATH']}"}
# Stop servers after an idle hour, together with the ranks and parameter servers that their kernels started.
c.Spawner.args = ["--MappingKernelManager.cull_idle_timeout=3600", "--ServerApp.shutdown_no_activity_timeout=3600"]
# All students' kernels have ports on this one machine. Encryption prevents students from reading others' output.
c.Spawner.args += ["--KernelManager.transport_encryption=auto"]
