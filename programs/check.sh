# Checks busybox's shell: pipelines, substitution, redirections, background jobs, files.
set -e
# The program itself, which is named relative to the first working directory.
case $1 in /*) bb=$1 ;; *) bb=$PWD/$1 ;; esac
count=${2:-1000}
fail() { echo "check.sh: $1"; exit 1; }
mkdir -p /tmp/shell.$$
cd /tmp/shell.$$
PATH=$PWD
for tool in seq sort uniq wc tr head tail cat grep sed awk rm rmdir cut mkdir ls cp mv md5sum; do
    [ -e $tool ] || "$bb" ln -s "$bb" $tool 2> /dev/null || "$bb" ln "$bb" $tool 2> /dev/null ||
        "$bb" cp "$bb" $tool
done
[ "$(seq 1 $count | wc -l)" = $count ] || fail "seq | wc"
[ "$(seq 1 $count | sort -rn | head -n 1)" = $count ] || fail "sort | head"
[ "$(seq 1 $count | tr 0-9 a | sort | uniq | tail -n 1 | wc -c)" = $((${#count} + 1)) ] ||
    fail "tr | sort | uniq | tail | wc"
sum=$(seq 1 $count | awk '{ s += $1 } END { print s }')
[ "$sum" = $((count * (count + 1) / 2)) ] || fail "awk"
seq 1 $count > numbers
cp numbers copy
mv copy moved
[ "$(cat numbers | md5sum)" = "$(cat moved | md5sum)" ] || fail "cp, mv, md5sum"
[ "$(grep -c 7 < numbers)" = "$(sed -n /7/p numbers | wc -l)" ] || fail "grep, sed"
for job in 1 2 3 4; do
    seq 1 $count | sort -n | tail -n 1 > job.$job &
done
wait
[ "$(cat job.1 job.2 job.3 job.4 | uniq | wc -l)" = 1 ] || fail "background jobs"
(exit 7) && fail "status" || [ $? = 7 ] || fail "status of a subshell"
cat > here << END
$((6 * 7))
END
[ "$(cat here)" = 42 ] || fail "here document"
cd /
/tmp/shell.$$/rm -r /tmp/shell.$$
echo "shell: $count numbers through pipelines"
