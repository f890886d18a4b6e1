# Runs redis-server and redis-benchmark over a Unix socket: redis.sh REQUESTS. `campaign/servers`
# runs it in the kernel.
b=./busybox
s="-s /tmp/redis.sock"
./redis-server --port 0 --unixsocket /tmp/redis.sock --save "" --dir /tmp > /tmp/redis.log 2>&1 &
i=0
while ! [ -e /tmp/redis.sock ] && [ $i -lt 100 ]; do $b usleep 100000; i=$((i + 1)); done
rates() { ./redis-benchmark $s -n "$@" -q | $b tr '\r' '\n' | $b grep 'requests per'; }
rates "$1" -c 20 -t ping,set,get,incr,lpush,mset || exit 1
rates "$1" -c 20 -P 16 --threads 3 -t set,get || exit 1
./redis-cli $s set key value | $b grep -q OK || exit 1
[ "$(./redis-cli $s get key)" = value ] || exit 1
./redis-cli $s bgsave > /dev/null
i=0
while ! $b grep -q 'terminated with success' /tmp/redis.log && [ $i -lt 100 ]; do
    $b usleep 100000; i=$((i + 1))
done
[ $i -lt 100 ] || exit 1
./redis-cli $s shutdown nosave
wait
$b rm -f /tmp/redis.log /tmp/redis.sock /tmp/dump.rdb
echo "redis: $1 requests of each kind"
