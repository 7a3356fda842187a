"""Let pytest run the tests marked `mpi` on real ranks."""

pytest_plugins = ["minipar.testing.plugin"]
