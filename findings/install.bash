# Sourced by each finding. `install PACKAGE==VERSION ..` puts pinned public packages into a temporary environment, which
# is removed at the end; `python` is then that environment's. TORCH_INDEX: where pip finds torch's builds for a CPU
# besides its own index; an empty one is left out. Nothing is compiled ahead: a few of the modules are ever imported.
set -euo pipefail
TORCH_INDEX=${TORCH_INDEX-https://download.pytorch.org/whl/cpu}

install() {
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    "${PYTHON:-python3}" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$@"
    PATH=$folder/bin:$PATH
    unset PYTHONPATH
    cd "$folder" # nothing of this repository is on the path
    export OMP_NUM_THREADS=1
}
