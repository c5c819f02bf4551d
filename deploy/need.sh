# What the scripts here share: messages, and commands that are installed where they are missing. It is read by them, not run.
# shellcheck shell=bash
# Who reads it has set $dir and $cache.
# shellcheck disable=SC2154

say() { printf '%s: %s\n' "$1" "$2" >&2; }

fail() {
    say "$1" "$2"
    exit 1
}

# need WHO COMMAND PACKAGE…: makes sure that a command is there. What installing it says goes into the folder $dir.
need() {
    local who="$1" command="$2"
    shift 2
    PATH="$PATH:/usr/sbin:$(compgen -G '/usr/lib/postgresql/*/bin' | sort -V | tail -1 || true)"
    command -v "$command" >/dev/null && return
    [ "$(id -u)" = 0 ] || fail "$who" "$command is missing; install it: apt-get install $*"
    command -v apt-get >/dev/null || fail "$who" "$command is missing, and there is no apt-get"
    say "$who" "installing $*"
    {
        apt-get update -q
        # Their own services are not wanted.
        RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
    } >"$dir/install-$who.log" 2>&1 || fail "$who" "not installed; see $dir/install-$who.log"
    PATH="$PATH:$(compgen -G '/usr/lib/postgresql/*/bin' | sort -V | tail -1 || true)"
    command -v "$command" >/dev/null || fail "$who" "$command is still missing"
}

# jars WHO POM: the jars that a list names, fetched once for each version of it into the folder $cache.
jars() {
    local who="$1" pom="$2" target
    need "$who" java default-jre-headless
    target="$cache/jars/$who-$(sha256sum "$pom" | cut -c1-12)"
    if [ ! -d "$target" ]; then
        need "$who" mvn maven
        say "$who" "fetching its jars"
        rm -rf "$target.new"
        mvn -q -B -f "$pom" dependency:copy-dependencies -DoutputDirectory="$target.new" \
            >"$dir/install-$who.log" 2>&1 || fail "$who" "no jars; see $dir/install-$who.log"
        mv "$target.new" "$target"
    fi
    printf '%s' "$target"
}

# venv WHO KEY ARGUMENT…: the folder of a Python with what pip installs by these arguments, made once for each key in the folder $cache.
venv() {
    local who="$1" target="$cache/$1-$2"
    shift 2
    need "$who" pip3 python3-pip python3-venv
    if [ ! -d "$target" ]; then
        rm -rf "$target.new"
        python3 -m venv "$target.new"
        "$target.new/bin/python" -m pip install --quiet --disable-pip-version-check "$@" \
            >"$dir/install-$who.log" 2>&1 || fail "$who" "pip did not install $*; see $dir/install-$who.log"
        mv "$target.new" "$target"
    fi
    printf '%s' "$target"
}
