#!/usr/bin/env bash
# A small repository: commits, a merge, a repack, a clone.
set -eu
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null HOME=$PWD
git init -q -b main one
cd one
for i in 1 2 3 4 5 6; do
    seq "$i" $((i * 500)) > "file$i"
    git add . && git commit -qm "commit $i"
done
git checkout -qb side HEAD~2
seq 1 99 > side && git add . && git commit -qm side
git checkout -q main && git merge -q --no-edit side
git log --stat > /dev/null && git diff HEAD~3 > /dev/null && git blame file3 > /dev/null
git gc -q && git fsck --no-progress
cd .. && git clone -q one two && [ "$(git -C two rev-list --count HEAD)" = 8 ]
