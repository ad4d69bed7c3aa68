#!/bin/sh
# dist/quorumlog_VERSION_ARCHITECTURE.deb of the wheel in dist for the python3 of the Debian that this runs on, with all
# that it needs beside the interpreter: packaging/debian/build.sh path/of/uv
set -eu
uv=$1
root=build/deb
python=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
next=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % (sys.version_info[0], sys.version_info[1] + 1))')
wheel=$(ls dist/quorumlog-*-cp"$(echo "$python" | tr -d .)"-*.whl) || { echo "make wheels first" >&2; exit 1; }
# So that a development version sorts before its release.
version=$(basename "$wheel" | cut -d- -f2 | sed 's/\.dev/~dev/')

rm -rf $root dist/*.deb
umask 022
mkdir -p $root/DEBIAN $root/etc/quorumlog $root/usr/bin $root/usr/lib/systemd/system $root/usr/lib/sysusers.d \
    $root/usr/share/doc/quorumlog
"$uv" venv --quiet --relocatable --python /usr/bin/python3 $root/opt/quorumlog
"$uv" pip install --quiet --link-mode copy --python $root/opt/quorumlog/bin/python "$wheel[admin,tls]"
rm -f $root/opt/quorumlog/.lock $root/opt/quorumlog/.gitignore $root/opt/quorumlog/CACHEDIR.TAG \
    $root/opt/quorumlog/bin/*activate*
/usr/bin/python3 -m compileall -q -s $root $root/opt/quorumlog/lib
ln -s /opt/quorumlog/bin/quorumlog $root/usr/bin/quorumlog
cp packaging/systemd/quorumlog.service $root/usr/lib/systemd/system/
cp packaging/systemd/quorumlog.sysusers $root/usr/lib/sysusers.d/quorumlog.conf
cp CHANGELOG.md docs/*.md $root/usr/share/doc/quorumlog/
cp LICENSE $root/usr/share/doc/quorumlog/copyright

cat > $root/DEBIAN/control <<END
Package: quorumlog
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: quorumlog <quorumlog@quorumlog.example>
Section: database
Priority: optional
Depends: python3 (>= $python), python3 (<< $next), libstdc++6, systemd | systemd-standalone-sysusers
Installed-Size: $(du -sk --exclude=DEBIAN $root | cut -f1)
Description: Raft-replicated commit log
 Members of a replicated log, of a key-value store and of a message store, and their commands.
END
# Members restart one at a time, each when the one before is back: an upgrade leaves that to who does it.
cat > $root/DEBIAN/postinst <<'END'
#!/bin/sh
set -e
systemd-sysusers quorumlog.conf
chgrp quorumlog /etc/quorumlog
chmod 0750 /etc/quorumlog
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
END
cat > $root/DEBIAN/prerm <<'END'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl disable --now quorumlog; fi
END
chmod 755 $root/DEBIAN/postinst $root/DEBIAN/prerm
dpkg-deb --root-owner-group -Zxz -z1 --build $root dist
