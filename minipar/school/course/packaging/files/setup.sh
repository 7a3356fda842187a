#!/usr/bin/env bash
# Gradescope runs this once, as root, when it builds the image.  Grading needs Python 3.11 and NumPy;
# the image may have an older Python, so uv brings one, in a place that is not root's home.
set -euo pipefail
root=${AUTOGRADER:-/autograder}
export UV_PYTHON_INSTALL_DIR=$root/python PIP_BREAK_SYSTEM_PACKAGES=1    # Ubuntu 24.04 asks for it
for python in python3.14 python3.13 python3.12 python3.11 python3; do
  if command -v $python >/dev/null && $python -c 'import sys; sys.exit(sys.version_info < (3, 11))'
  then found=$(command -v $python); break; fi
done
python3 -m pip install --quiet uv || {
  apt-get update && apt-get install -y python3-pip && python3 -m pip install --quiet uv; }
python3 -m uv venv --quiet --python "${found:-3.12}" "$root/venv"
python3 -m uv pip install --quiet --python "$root/venv/bin/python" 'numpy>=2.0'
# The student's processes are other users: what is here is not for them.
chmod -R go= "$root/source"
