# What looks at the demo from outside has in common. It is read by scripts, not run.
# shellcheck shell=bash

# demo WHO: starts the demo that was built, and waits until it answers. $demo is its process, $address where it answers, $work a folder with
# what it logs ($work/log) and holds ($work/data); both go at the end.
demo() {
    local who="$1"
    work="$(mktemp -d)"
    demo=
    end() {
        [ -z "$demo" ] || kill "$demo" 2>/dev/null || true
        [ -z "$demo" ] || wait "$demo" || true
        rm -rf "$work"
    }
    trap end EXIT
    "${CARGO_TARGET_DIR:-target}/debug/backstitch" demo --json --data-dir "$work/data" --listen 127.0.0.1:0 >"$work/said" 2>"$work/log" &
    demo=$!
    for _ in $(seq 300); do
        [ ! -s "$work/said" ] || break
        kill -0 "$demo" 2>/dev/null || break
        sleep 0.2
    done
    address="$(grep -o 'http://[0-9.:]*' "$work/said" | head -1 || true)"
    if [ -z "$address" ]; then
        cat "$work/log" >&2
        fail "$who" 'the demo does not run'
    fi
}
