#!/bin/bash
# Compares the processor time per I/O that fio measures with that of `gabion bench io`.
#
#   bench/fio/confirm.sh [read|write]...        default: both
#
# Each round measures, on NULL devices, 4 KiB at random offsets, with the same queue depth:
#   bench   gabion bench io --copy, because fio's data also passes through separate memory
#   fio     fio with the engine that links libgabion, on a cluster of the same shape
#   null    fio with its own engine `null`, same options: the cost of fio itself
# All rounds use one cluster whose processes don't poll, because polling would fill the time that a
# slower client leaves. The result is  ratio = (fio - null) / bench.  The exit code is 1 if the
# median of a row's ratios differs from 1 by more than 15 %. Processor time is that of the client
# and of all processes of the cluster. Beside it stands the busy time of the whole machine, which
# is meaningful only if nothing else uses the machine.
#
# Environment: ROUNDS (3), SECONDS_EACH (4), DEPTH (64), SDS (3), PROFILE (release).
set -euo pipefail
rounds=${ROUNDS:-3} seconds=${SECONDS_EACH:-4} depth=${DEPTH:-64} sds=${SDS:-3}
profile=${PROFILE:-release}
root=$(cd "$(dirname "$0")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
[ $# -gt 0 ] || set -- read write
for what; do
    case $what in read | write) ;; *) sed -n '2,16p' "$0" >&2; exit 2 ;; esac
done

(cd "$root" && cargo build --quiet --profile "$profile" -p gabion -p gabion-capi)
engine=$(GABION_LIB_IS_BUILT=1 "$root/bench/fio/build.sh" "$profile")
case $profile in dev) gabion=$target/debug/gabion ;; *) gabion=$target/$profile/gabion ;; esac

work=$(mktemp -d)
trap '"$gabion" down --dir "$work/c" >"$work/down.log" 2>&1 || cat "$work/down.log"; rm -rf "$work"' EXIT
"$gabion" up --detach --dir "$work/c" --sds "$sds" --spin 0 --device null:1TiB --volume bench:512MiB >"$work/up.log"

# Prints two times in microseconds: used by the cluster's processes, and busy on all cores.
cat >"$work/snap" <<'SNAP'
for file in c/run/*.pid; do
    read -r pid _ <"$file"
    cat /proc/"$pid"/task/*/schedstat
done | awk '{ ns += $1 } END { printf "%.0f ", ns / 1000 }'
awk -v hz="$(getconf CLK_TCK)" '/^cpu / { printf "%.0f\n", ($2 + $3 + $4 + $7 + $8) / hz * 1e6 }' /proc/stat
SNAP

# run_fio PATTERN OPTIONS...: sets `process` and `machine`, microseconds per I/O. Leaves out fio's
# work before and after its job (such as calibrating clocks): it would weigh more in a slower job.
run_fio() {
    local pattern=$1
    shift
    (cd "$work" && fio --name=job --rw=rand"$pattern" --bs=4k --size=512m --iodepth="$depth" --thread=1 \
        --norandommap=1 --randrepeat=0 --time_based --runtime="$seconds" --group_reporting \
        --exec_prerun="sh ./snap" --exec_postrun="sh ./snap" \
        --output-format=terse --terse-version=3 "$@" >fio.out 2>fio.err) ||
        { cat "$work/fio.out" "$work/fio.err" >&2; exit 1; }
    # Fields 6 and 47 are KiB read and written (a request has 4), 9 and 50 are milliseconds, 88 and
    # 89 are the job's user and system time in percent of those.
    read -r process machine < <(awk '
        FILENAME ~ /prerun.txt$/ { split($0, b, " ") }
        FILENAME ~ /postrun.txt$/ { split($0, a, " ") }
        /^3;fio/ { split($0, f, ";"); n = (f[6] + f[47]) / 4; own = (f[88] + f[89]) / 100 * (f[9] + f[50]) * 1000 }
        END { printf "%.3f %.3f\n", (a[1] - b[1] + own) / n, (a[2] - b[2]) / n }' \
        "$work/job.prerun.txt" "$work/job.postrun.txt" "$work/fio.out")
}

# run_bench PATTERN: the same with `gabion bench io`.
run_bench() {
    local json
    json=$("$gabion" bench io --workload "rand$1" --dir "$work/c" --volume bench --copy --depth "$depth" --seconds "$seconds" --json 2>"$work/bench.err") ||
        { cat "$work/bench.err" >&2; exit 1; }
    process=$(grep -oE '"process_us_per_(io|op)": ?[0-9.]+' <<<"$json" | head -1 | grep -oE '[0-9.]+$')
    machine=$(grep -oE '"machine_us_per_(io|op)": ?[0-9.]+' <<<"$json" | head -1 | grep -oE '[0-9.]+$')
}

# Writes the volume, so that reads find data, as those of `bench io` do.
fio --name=fill --rw=write --bs=1m --size=512m --iodepth=8 --thread=1 --ioengine=external:"$engine" \
    --cluster=dir:"$work/c" --volume=bench >"$work/fill.log" 2>&1 || { cat "$work/fill.log" >&2; exit 1; }

printf '%-6s %5s | %23s | %23s | %23s | %7s %7s\n' '' '' 'bench io' 'fio, libgabion' 'fio, null' ratio ratio
printf '%-6s %5s | %11s %11s | %11s %11s | %11s %11s | %7s %7s\n' '4 KiB' round \
    process machine process machine process machine process machine
verdict=0
for what; do
    ratios=
    for round in $(seq "$rounds"); do
        run_bench "$what"; bench=$process bench_all=$machine
        run_fio "$what" --ioengine=external:"$engine" --cluster=dir:"$work/c" --volume=bench
        ours=$process ours_all=$machine
        run_fio "$what" --ioengine=null; null=$process null_all=$machine
        line=$(awk -v b="$bench" -v o="$ours" -v n="$null" -v B="$bench_all" -v O="$ours_all" -v N="$null_all" \
            'BEGIN { printf "%.3f %.3f", (o - n) / b, (O - N) / B }')
        ratios="$ratios ${line% *}"
        printf '%-6s %5s | %8.2f us %8.2f us | %8.2f us %8.2f us | %8.2f us %8.2f us | %7s %7s\n' "$what" \
            "$round" "$bench" "$bench_all" "$ours" "$ours_all" "$null" "$null_all" $line
    done
    median=$(tr ' ' '\n' <<<"$ratios" | grep . | sort -n | awk '{ r[NR] = $1 }
        END { print NR % 2 ? r[(NR + 1) / 2] : (r[NR / 2] + r[NR / 2 + 1]) / 2 }')
    if awk -v m="$median" 'BEGIN { exit !(m >= 0.85 && m <= 1.15) }'; then
        echo "$what: fio confirms it: median ratio $median, promised 0.85 to 1.15"
    else
        echo "$what: NOT confirmed: median ratio $median, promised 0.85 to 1.15"
        verdict=1
    fi
done
exit $verdict
