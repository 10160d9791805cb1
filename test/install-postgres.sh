#!/bin/sh
# Installs the Postgres server that the tests start for themselves. Only Debian and its kin are known; elsewhere install Postgres
# by hand, so that initdb is in the PATH.
set -eu
if ! command -v apt-get >/dev/null; then
	echo "Postgres is missing: install it, so that initdb is in the PATH" >&2
	exit 1
fi
sudo=
[ "$(id -u)" -eq 0 ] || sudo=sudo
# The tests start servers of their own: the package is not to make one.
$sudo mkdir -p /etc/postgresql-common/createcluster.d
echo 'create_main_cluster = false' | $sudo tee /etc/postgresql-common/createcluster.d/kubase-tests.conf >/dev/null
$sudo apt-get update -q
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -q -y --no-install-recommends postgresql
