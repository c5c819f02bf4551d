# Functions that the scripts share: messages, and installation of missing commands. Sourced by scripts, not run.
# shellcheck shell=bash
# The script that sources this file sets $dir and $cache.
# shellcheck disable=SC2154

say() { printf '%s: %s\n' "$1" "$2" >&2; }

fail() {
    say "$1" "$2"
    exit 1
}

# Server commands are not on the path of every user, and PostgreSQL's are on no path.
add_server_paths() {
    local folder
    for folder in /usr/sbin "$(compgen -G '/usr/lib/postgresql/*/bin' | sort -V | tail -1 || true)"; do
        [ -z "$folder" ] || [[ ":$PATH:" == *":$folder:"* ]] || PATH="$PATH:$folder"
    done
}

# need SCRIPT COMMAND PACKAGE…: installs packages if a command is missing.
need() {
    local script="$1" command="$2"
    shift 2
    add_server_paths
    command -v "$command" >/dev/null && return
    need_package "$script" "$@"
    add_server_paths
    command -v "$command" >/dev/null || fail "$script" "$command is still missing"
}

# need_package SCRIPT PACKAGE…: installs packages. Writes the output of apt-get to a file in $dir.
need_package() {
    local script="$1"
    shift
    [ "$(id -u)" = 0 ] || fail "$script" "$* is missing; install it: sudo apt-get install $*"
    command -v apt-get >/dev/null || fail "$script" "$* is missing, and there is no apt-get to install it"
    say "$script" "installing $*"
    apt_install "$@" >"$dir/install-$script.log" 2>&1 || fail "$script" "cannot install $*; see $dir/install-$script.log"
}

# apt_install PACKAGE…: installs packages without starting their services. Waits if another script is installing packages.
apt_install() {
    local lock=(-o DPkg::Lock::Timeout=600)
    apt-get "${lock[@]}" update -q
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get "${lock[@]}" install -q -y --no-install-recommends "$@"
}

# once_at_a_time TARGET COMMAND…: runs a command that creates the folder TARGET, unless it exists. Only one process at a time runs it.
once_at_a_time() {
    local target="$1"
    shift
    [ ! -d "$target" ] || return 0
    mkdir -p "$(dirname "$target")"
    (
        flock 6
        [ -d "$target" ] || { rm -rf "$target.new" && "$@" && mv "$target.new" "$target"; }
    ) 6>"$target.lock"
}

# jars SCRIPT POM: downloads the jars of a POM once for each version of the POM, and prints their folder in $cache.
jars() {
    local script="$1" pom="$2" target
    need "$script" java default-jre-headless
    target="$cache/jars/$script-$(sha256sum "$pom" | cut -c1-12)"
    if [ ! -d "$target" ]; then
        need "$script" mvn maven
        say "$script" "fetching its jars"
    fi
    once_at_a_time "$target" mvn -q -B -f "$pom" dependency:copy-dependencies -DoutputDirectory="$target.new" \
        >"$dir/install-$script.log" 2>&1 || fail "$script" "cannot fetch the jars; see $dir/install-$script.log"
    printf '%s' "$target"
}

make_venv() {
    local folder="$1"
    shift
    python3 -m venv "$folder" && "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

# venv SCRIPT KEY ARGUMENT…: creates a Python environment with the packages of pip's arguments once for each key, and prints its folder
# in $cache.
venv() {
    local script="$1" target="$cache/$1-$2"
    shift 2
    need "$script" pip3 python3-pip python3-venv
    [ -d "$target" ] || say "$script" "installing $* with pip"
    once_at_a_time "$target" make_venv "$target.new" "$@" \
        >"$dir/install-$script.log" 2>&1 || fail "$script" "pip cannot install $*; see $dir/install-$script.log"
    printf '%s' "$target"
}
