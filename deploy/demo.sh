# Starts the demo for scripts that test it from outside. Sourced by scripts, not run.
# shellcheck shell=bash

# demo SCRIPT: starts the built demo, and waits until it responds. Sets $demo to its process id, $address to its URL, and $work to a
# folder with its log ($work/log) and data ($work/data). At exit, the process is stopped and the folder deleted.
demo() {
    local script="$1"
    work="$(mktemp -d)"
    demo=
    end() {
        [ -z "$demo" ] || kill "$demo" 2>/dev/null || true
        [ -z "$demo" ] || wait "$demo" || true
        rm -rf "$work"
    }
    trap end EXIT
    "${CARGO_TARGET_DIR:-target}/debug/backstitch" demo --json --data-dir "$work/data" --listen 127.0.0.1:0 >"$work/output" 2>"$work/log" &
    demo=$!
    for _ in $(seq 300); do
        [ ! -s "$work/output" ] || break
        kill -0 "$demo" 2>/dev/null || break
        sleep 0.2
    done
    address="$(grep -o 'http://[0-9.:]*' "$work/output" | head -1 || true)"
    if [ -z "$address" ]; then
        cat "$work/log" >&2
        fail "$script" 'the demo did not start; its log is above'
    fi
}
