#!/usr/bin/env bash
# Thirty pipelines.
set -eu -o pipefail
total=0
for i in $(seq 1 30); do
    n=$(seq 1 "$((i * 100))" | awk '{ print $1 % 7 }' | sort | uniq -c | tail -n 1 |
        tr -s ' ' | cut -d ' ' -f 3)
    total=$((total + n))
done
[ "$total" = 180 ]
