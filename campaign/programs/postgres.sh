#!/usr/bin/env bash
# A PostgreSQL cluster from nothing: initdb, the server, pgbench with four clients, a clean stop.
set -eu
bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
# pg_ctl waits for a minute by default, which a busy host may need under the tracer.
export PGCTLTIMEOUT=600
export PGDATA=$PWD/data PGHOST=$PWD PGDATABASE=postgres
"$bin/initdb" -A trust -N --no-instructions > initdb.log
"$bin/pg_ctl" -w -l server.log -o "-k '$PWD' -c listen_addresses='' -c fsync=off" start > start.log
"$bin/pgbench" -q -i -s 1 2> pgbench.log
"$bin/pgbench" -c 4 -j 2 -t "${1:-50}" > bench.log 2>> pgbench.log
"$bin/psql" -qtc 'select count(*) from pgbench_history' | grep -qw "$((4 * ${1:-50}))"
"$bin/pg_ctl" -w stop > stop.log
