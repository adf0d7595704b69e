#!/usr/bin/env bash
# Debian's Prometheus reads a running job, with the rules of configs/observe: promtool accepts and
# tests them, a scrape has the metrics, and an alert fires when a worker is stopped.
# Run: tests/launchers/prometheus.sh [BUILD_DIR], from the root of the tree. 77: a package is missing.
set -euo pipefail

build=${1:-build}
for program in prometheus promtool curl; do
  command -v "$program" >/dev/null || { echo "skipped: $program is not installed"; exit 77; }
done
promtool check config configs/observe/prometheus.yml
promtool test rules configs/observe/alerts_test.yml

work=$(mktemp -d)
job='' server=''
cleanup() {
  for pid in $server $job; do kill -KILL "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

# A port that is free now.
free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# await SECONDS WHAT COMMAND...: until the command succeeds.
await() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [[ $SECONDS -lt $end ]] || { echo "failed: $what"; tail -n 20 "$work"/*.log; exit 1; }
    sleep 0.2
  done
}

"$build/bin/tandem" run configs/delimited.textproto --set train.epochs=1000000 --no-checkpoint \
  --out "$work/out" >"$work/job.log" 2>&1 &
job=$!
await 60 "the job serves no status" test -s "$work/out/http"
url=$(<"$work/out/http")
await 60 "the job does not train" curl -sf "$url/readyz" -o "$work/ready"

listen=127.0.0.1:$(free_port)
sed -e "s/127.0.0.1:9109/${url#http://}/" -e 's/_interval: 5s/_interval: 1s/' \
  configs/observe/prometheus.yml >"$work/prometheus.yml"
cp configs/observe/alerts.yml "$work"
prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" \
  --web.listen-address="$listen" >"$work/prometheus.log" 2>&1 &
server=$!

# query EXPRESSION: succeeds if it has a result.
query() {
  curl -sfG "http://$listen/api/v1/query" --data-urlencode "query=$1" -o "$work/answer" &&
    python3 -c 'import json, sys; sys.exit(not json.load(open(sys.argv[1]))["data"]["result"])' "$work/answer"
}

await 60 "no scrape" query 'up{job="tandem"} == 1'
await 60 "no steps" query 'tandem_steps_total > 0'
await 60 "no staleness" query 'tandem_version_staleness_count > 0'
await 60 "no memory" query 'tandem_process_resident_bytes{process="worker 1"} > 0'
if query 'ALERTS{alertstate="firing"}'; then echo "failed: an alert of a healthy job"; exit 1; fi

# A stopped worker is silent for a few seconds; then the scheduler declares it dead.
worker=$("$build/bin/tandem" status "$work/out" --json |
  python3 -c 'import json, sys; print([n["pid"] for n in json.load(sys.stdin)["nodes"] if n["name"] == "worker 1"][0])')
kill -STOP "$worker"
await 30 "no alert" query 'ALERTS{alertname="TandemProcessSilent",process="worker 1",alertstate="firing"}'
kill -CONT "$worker"
echo "passed: a scrape, and an alert about worker 1"
