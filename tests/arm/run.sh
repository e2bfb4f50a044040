#!/usr/bin/env bash
# The small suite of this folder on emulated aarch64. No privileges are needed but for qemu itself: Debian's arm64 Python is
# unpacked (not installed) into a folder, aarch64 wheels beside it, and qemu-aarch64-static runs the interpreter.
#
#   tests/arm/run.sh [pytest options]        METASTABLE_ARM=folder to keep the files elsewhere than .arm/
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
folder=${METASTABLE_ARM:-$repository/.arm}
python=${PYTHON:-$repository/.venv/bin/python}
root=$folder/root
packages=$folder/packages

say() { echo "test-arm: $*"; }

if [ "$(uname -m)" = aarch64 ]; then
  say "this machine is aarch64: running on it"
  cd "$repository"
  exec "$python" -m pytest -q tests/arm "$@"
fi

if ! command -v qemu-aarch64-static >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing qemu-user-static"
    apt-get update -qq && apt-get install -y -qq qemu-user-static >/dev/null
  else
    say "qemu-aarch64-static is missing; install the package qemu-user-static"
    exit 1
  fi
fi

# Debian 12's Python 3.11 for arm64 and the libraries that it and the wheels link to.
debs=(python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libgcc-s1 libstdc++6 libcrypt1 libexpat1 zlib1g
  libssl3 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libgomp1)

if [ ! -e "$root/.unpacked" ]; then
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || { say "apt-get and dpkg-deb are needed to fetch Debian's arm64 Python"; exit 1; }
  keys=/usr/share/keyrings/debian-archive-keyring.gpg
  [ -e "$keys" ] || { say "$keys is missing; install the package debian-archive-keyring"; exit 1; }
  rm -rf "$root" && mkdir -p "$root" "$folder"/apt/{lists/partial,cache/archives/partial,debs}
  : >"$folder/apt/status"
  for suite in bookworm bookworm-updates; do
    echo "deb [signed-by=$keys] http://deb.debian.org/debian $suite main"
  done >"$folder/apt/sources.list"
  # An apt of its own: neither the lists nor the architectures of this machine are touched.
  private=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::Etc::SourceList="$folder/apt/sources.list"
    -o Dir::Etc::SourceParts=- -o Dir::State::Lists="$folder/apt/lists" -o Dir::State::status="$folder/apt/status"
    -o Dir::Cache="$folder/apt/cache" -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1)
  say "fetching Debian's arm64 Python"
  apt-get "${private[@]}" update -qq
  (cd "$folder/apt/debs" && apt-get "${private[@]}" download -qq "${debs[@]}")
  for deb in "$folder"/apt/debs/*.deb; do dpkg-deb --extract "$deb" "$root"; done
  touch "$root/.unpacked"
fi

# The versions that the tests of this machine use, as wheels for aarch64.
wanted=$("$python" - <<'PY'
from importlib.metadata import requires, version
from packaging.requirements import Requirement

seen, queue = {}, ["numpy", "scipy", "numba", "lazy-loader", "xarray", "zarr", "tomli-w", "rich", "pytest", "hypothesis"]
while queue:
    name = queue.pop()
    if name in seen:
        continue
    seen[name] = version(name)
    for line in requires(name) or []:
        requirement = Requirement(line)
        # The host is Linux with CPython as well; only the processor differs, which no dependency of these asks about.
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            queue.append(requirement.name)
print("\n".join(sorted(f"{name}=={number}" for name, number in seen.items())))
PY
)
if [ "$(cat "$packages/.wanted" 2>/dev/null)" != "$wanted" ]; then
  say "fetching wheels for aarch64"
  rm -rf "$packages"
  # shellcheck disable=SC2086
  "$python" -m pip install --quiet --no-deps --only-binary :all: --target "$packages" \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 \
    --platform manylinux2014_aarch64 --implementation cp --python-version 3.11 --abi cp311 --abi abi3 --abi none $wanted
  echo "$wanted" >"$packages/.wanted"
fi

cd "$repository"
export PYTHONPATH=$repository/src:$packages PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=$folder/numba
exec qemu-aarch64-static -L "$root" "$root/usr/bin/python3.11" -m pytest -q -p no:cacheprovider tests/arm "$@"
