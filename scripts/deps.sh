#!/usr/bin/env bash
# Installs what the verbs of the Makefile need and the machine does not have:
#   deps.sh [postgres] [e2e] [bench] [cc]
# Silent and without network when nothing is missing. Needs root and apt-get to
# install; says in one sentence what to do otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=() # Debian packages

have() { command -v "$1" >/dev/null 2>&1; }

# have_server follows the same places as test/pgtest/pgserver/find.go.
have_server() {
    local dir
    for dir in "${PGBIN:-}" /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/local/pgsql/bin \
        "$(pg_config --bindir 2>/dev/null || true)"; do
        if [ -n "$dir" ] && [ -x "$dir/postgres" ] && [ -x "$dir/initdb" ]; then return 0; fi
    done
    have postgres && have initdb
}

# have_psycopg looks where test/pgtest/python.go does.
have_psycopg() {
    local py
    for py in .cache/venv/bin/python python3 /usr/bin/python3; do
        if "$py" -c 'import psycopg' >/dev/null 2>&1; then return 0; fi
    done
    return 1
}

cannot_install() { ! have apt-get || [ "$(id -u)" -ne 0 ]; }

# venv is the way to psycopg without root: pip, into a folder of this clone.
venv() {
    have python3 || return 1
    echo "installing psycopg into .cache/venv" >&2
    python3 -m venv .cache/venv </dev/null >&2 && .cache/venv/bin/pip install -q 'psycopg[binary]==3.2.9' </dev/null >&2
}

want_postgres() { if ! have_server || ! have psql; then missing+=(postgresql postgresql-client); fi; }
want_e2e()      { if ! have_psycopg && ! { cannot_install && venv; }; then missing+=(python3 python3-psycopg); fi; }
want_bench()    { if ! have pgbouncer; then missing+=(pgbouncer); fi; }
want_cc()       { if ! have gcc && ! have cc; then missing+=(gcc libc6-dev); fi; }

# no_services keeps Debian's packages from making a cluster on port 5432 and
# from starting daemons; the files go away with this script.
cluster_conf=/etc/postgresql-common/createcluster.d/multipooler-tests.conf
policy=/usr/sbin/policy-rc.d
no_services() {
    mkdir -p "${cluster_conf%/*}"
    echo 'create_main_cluster = false' >"$cluster_conf"
    trap 'rm -f "$cluster_conf"' EXIT
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        trap 'rm -f "$cluster_conf" "$policy"' EXIT
    fi
}

for want in "$@"; do
    case $want in
    postgres | e2e | bench | cc) "want_$want" ;;
    *) echo "deps.sh: unknown group '$want' (postgres, e2e, bench, cc)" >&2 && exit 2 ;;
    esac
done
[ ${#missing[@]} -eq 0 ] && exit 0

if cannot_install; then
    echo "Missing here: ${missing[*]} (Debian's names). Install them, for example with: sudo apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
fi
echo "installing ${missing[*]}" >&2
no_services
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq </dev/null >&2
apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends "${missing[@]}" </dev/null >&2
