"""Let pytest run the tests marked `mpi` on real ranks; forget what was measured on this machine."""

import os

os.environ["MINIPAR_CACHE"] = os.path.join(os.path.dirname(__file__), "no_cache")

pytest_plugins = ["minipar.testing.plugin"]
