#!/bin/sh
# Builds fio's engine for Gabion, target/fio/gabion.so, with libgabion.so.0 beside it.
#
#   bench/fio/build.sh [PROFILE]      PROFILE: release (default), ci, dev
#
# fio has no stable interface for engines, so its headers come from Debian's source package of the
# installed fio. Changes nothing outside target/, and does not download again what is there.
# Needs: cargo, gcc, make, apt-get, and dpkg-source (Debian package dpkg-dev).
set -eu
profile=${1:-release}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=$(cd "$root" && mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
case $profile in dev) built=$target/debug ;; *) built=$target/$profile ;; esac
out=$target/fio

say() { echo "bench/fio/build.sh: $*" >&2; }
fail() { say "$*"; exit 1; }

for tool in fio gcc make apt-get dpkg-query dpkg-source; do
    command -v $tool >/dev/null || fail "$tool is missing: apt-get install fio gcc make dpkg-dev"
done
version=$(dpkg-query -W -f '${source:Version}' fio) || fail "fio is not Debian's: apt-get install fio"
mkdir -p "$out"

[ -n "${GABION_LIB_IS_BUILT:-}" ] ||
    (cd "$root" && cargo build --quiet --profile "$profile" --package gabion-capi)
[ -f "$built/libgabion.so" ] || fail "there is no $built/libgabion.so"

source=$out/fio-$version
if [ ! -f "$source/config-host.h" ]; then
    say "fetching Debian's source of fio $version"
    apt=$out/apt
    rm -rf "$source" "$source.new"
    mkdir -p "$apt/lists/partial" "$apt/archives/partial"
    # Uses Debian's own servers for this, because the system's lists may lack source packages.
    code=$(. /etc/os-release && echo "$VERSION_CODENAME")
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    {
        echo "deb-src [signed-by=$keys] http://deb.debian.org/debian $code main"
        echo "deb-src [signed-by=$keys] http://deb.debian.org/debian-security $code-security main"
    } >"$apt/sources.list"
    only="-q -o Dir::Etc::SourceList=$apt/sources.list -o Dir::Etc::SourceParts=/dev/null
        -o Dir::State::Lists=$apt/lists -o Dir::Cache=$apt -o APT::Sandbox::User=root"
    # apt checks the signature of the list, and the checksums of the package against the list.
    (
        cd "$apt"
        apt-get $only update
        apt-get $only source --download-only "fio=$version"
        dpkg-source --no-check -x fio_*.dsc "$source.new"
    ) >"$out/fetch.log" 2>&1 || { tail "$out/fetch.log" >&2; fail "fio's source can't be had"; }
    (cd "$source.new" && ./configure --disable-native) >"$out/configure.log" 2>&1 ||
        { tail "$out/configure.log" >&2; fail "fio's configure failed"; }
    mv "$source.new" "$source"
fi

# The loader looks for the name with the ABI version.
soname=$(sed -n 's/^#define GABION_ABI \([0-9]*\)$/libgabion.so.\1/p' "$root/crates/capi/include/gabion.h")
cp "$built/libgabion.so" "$out/$soname.new"
mv "$out/$soname.new" "$out/$soname"
ln -sf "$soname" "$out/libgabion.so"
gcc -std=gnu99 -O2 -g -Wall -Werror -fPIC -shared -D_GNU_SOURCE -include "$source/config-host.h" \
    -I "$source" -I "$root/crates/capi/include" -o "$out/gabion.so.new" "$here/gabion.c" \
    -L "$out" -lgabion -Wl,-rpath,'$ORIGIN'
mv "$out/gabion.so.new" "$out/gabion.so"
echo "$out/gabion.so"
