"""JupyterHub for a class on one machine: ``.venv-hub/bin/jupyterhub --config hub/jupyterhub_config.py``.

Everybody who may log in to the machine may log in to the hub, by the same name and password, and works there as that
Linux user: nobody's files can be read by others as long as homes are closed (``chmod 700``). Started by root, for
nobody else may start processes for others. It listens on this machine alone: put a web server with TLS before it, or
set ``HUB_ADDRESS`` to what students reach.
"""

import os
import sys
from pathlib import Path

c = get_config()  # noqa: F821, JupyterHub gives it
here = Path(sys.executable).absolute().parent

c.JupyterHub.bind_url = os.environ.get("HUB_ADDRESS", "http://127.0.0.1:8000")
c.JupyterHub.hub_ip = "127.0.0.1"
c.ConfigurableHTTPProxy.command = [str(here.parent / "node_modules" / ".bin" / "configurable-http-proxy")]
c.PAMAuthenticator.allow_all = True  # all users of this machine; or a set of names: c.Authenticator.allowed_users
c.Spawner.cmd = [str(here / "jupyterhub-singleuser")]  # in the environment that has the lab
c.Spawner.ip = "127.0.0.1"
c.Spawner.default_url = "/lab"
c.Spawner.start_timeout = c.Spawner.http_timeout = 120
c.Spawner.environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "PATH": f"{here}:{os.environ['PATH']}"}
# A server that nobody has used for an hour ends, and with it the ranks and parameter servers that its kernels started.
c.Spawner.args = ["--MappingKernelManager.cull_idle_timeout=3600", "--ServerApp.shutdown_no_activity_timeout=3600"]
# All students' kernels have ports on this one machine: without a key nobody hears what another one's kernel prints.
c.Spawner.args += ["--KernelManager.transport_encryption=auto"]
