# What the scripts here share: messages, and commands that are installed where they are missing. It is read by them, not run.
# shellcheck shell=bash
# Who reads it has set $dir and $cache.
# shellcheck disable=SC2154

say() { printf '%s: %s\n' "$1" "$2" >&2; }

fail() {
    say "$1" "$2"
    exit 1
}

# Servers are not on the path of every user, and PostgreSQL is on that of none.
add_server_paths() {
    local folder
    for folder in /usr/sbin "$(compgen -G '/usr/lib/postgresql/*/bin' | sort -V | tail -1 || true)"; do
        [ -z "$folder" ] || [[ ":$PATH:" == *":$folder:"* ]] || PATH="$PATH:$folder"
    done
}

# need WHO COMMAND PACKAGE…: makes sure that a command is there.
need() {
    local who="$1" command="$2"
    shift 2
    add_server_paths
    command -v "$command" >/dev/null && return
    need_package "$who" "$@"
    add_server_paths
    command -v "$command" >/dev/null || fail "$who" "$command is still missing"
}

# need_package WHO PACKAGE…: installs packages. The output of apt-get goes into the folder $dir.
need_package() {
    local who="$1"
    shift
    [ "$(id -u)" = 0 ] || fail "$who" "$* is missing; install it: sudo apt-get install $*"
    command -v apt-get >/dev/null || fail "$who" "$* is missing, and there is no apt-get to install it"
    say "$who" "installing $*"
    apt_install "$@" >"$dir/install-$who.log" 2>&1 || fail "$who" "cannot install $*; see $dir/install-$who.log"
}

# apt_install PACKAGE…: installs packages without starting their services. Several scripts may do so at once.
apt_install() {
    local lock=(-o DPkg::Lock::Timeout=600)
    apt-get "${lock[@]}" update -q
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get "${lock[@]}" install -q -y --no-install-recommends "$@"
}

# once_at_a_time TARGET COMMAND…: runs a command that makes the folder TARGET, unless it is there.
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

# jars WHO POM: the jars that a list names, fetched once for each version of it into the folder $cache.
jars() {
    local who="$1" pom="$2" target
    need "$who" java default-jre-headless
    target="$cache/jars/$who-$(sha256sum "$pom" | cut -c1-12)"
    if [ ! -d "$target" ]; then
        need "$who" mvn maven
        say "$who" "fetching its jars"
    fi
    once_at_a_time "$target" mvn -q -B -f "$pom" dependency:copy-dependencies -DoutputDirectory="$target.new" \
        >"$dir/install-$who.log" 2>&1 || fail "$who" "cannot fetch the jars; see $dir/install-$who.log"
    printf '%s' "$target"
}

make_venv() {
    local folder="$1"
    shift
    python3 -m venv "$folder" && "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

# venv WHO KEY ARGUMENT…: the folder of a Python with what pip installs by these arguments, made once for each key in the folder $cache.
venv() {
    local who="$1" target="$cache/$1-$2"
    shift 2
    need "$who" pip3 python3-pip python3-venv
    [ -d "$target" ] || say "$who" "installing $* with pip"
    once_at_a_time "$target" make_venv "$target.new" "$@" \
        >"$dir/install-$who.log" 2>&1 || fail "$who" "pip cannot install $*; see $dir/install-$who.log"
    printf '%s' "$target"
}
