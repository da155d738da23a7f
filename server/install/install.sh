#!/bin/sh
# Installs a tunefarm worker on this machine for the service that served this script. Read it first. It needs
# Python 3.11 or newer with venv, and changes only:
#
#   PREFIX: /opt/tunefarm, or ~/.local/share/tunefarm without root    a virtual environment, this script
#   /etc/tunefarm/worker.env, or ~/.config/tunefarm/worker.env without root    settings, with the token
#   /etc/systemd/system/tunefarm-worker.service    with --unit
#
# It downloads tunefarm from the service, and its dependencies as wheels from pip's package index. It reads
# the token from TUNEFARM_WORKER_TOKEN, or asks for it.
usage='sh install [--name NAME] [--gpu [INDEX] | --build] [--unit | --no-unit] [--updates | --no-updates]
           [--server HOST:PORT] [--ca FILE] [--cert FILE --key FILE] [--prefix DIR]
sh PREFIX/install --update

  --name     the name of the worker in the service; by default the name of this machine
  --gpu      measure an NVIDIA GPU: the only one, or the one with this index
  --build    compile for slower devices, and measure nothing
  --unit     let systemd run the worker (needs root); by default the script asks
  --updates  with --unit: let the administrators of the service update this worker; by default the script asks
  --server   the address at which workers reach the service, if it is not the default
  --ca       the authority that signed the certificate of the service; --cert and --key are for mutual TLS
  --update   install the current version of the service'
set -eu

service=@service@ workers=@workers@ tls=@tls@ token_needed=@token_needed@ version=@version@

fail() {
    echo "install: $1" >&2
    exit "${2:-8}"
}

# Ask a question on the terminal. Without a terminal, the answer is empty.
ask() {
    answer=
    if { true </dev/tty; } 2>/dev/null; then
        printf '%s ' "$1" >/dev/tty
        read -r answer </dev/tty || true
    fi
}

wants() {
    ask "$1 [y/N]"
    case $answer in [yY]*) echo 1 ;; esac
}

work=$(mktemp -d)
trap 'rm -rf "$work"; stty echo 2>/dev/null </dev/tty || true' EXIT

# Download a file from the service.
fetch() {
    "$python" - "$service/$1" "$2" "$ca" "$cert" "$key" <<'END'
import shutil, ssl, sys, urllib.request
url, path, ca, cert, key = sys.argv[1:]
try:
    context = ssl.create_default_context(cafile=ca or None)
    if cert:
        context.load_cert_chain(cert, key)
    with urllib.request.urlopen(url, timeout=60, context=context) as answer, open(path, "wb") as file:
        shutil.copyfileobj(answer, file)
except (OSError, ValueError) as error:
    sys.exit(f"install: {url} can't be fetched: {error}")
END
}

name='' gpu='' build='' unit='' updates='' ca='' cert='' key='' update=''
if [ "$(id -u)" -eq 0 ]; then
    usual_prefix=/opt/tunefarm config=/etc/tunefarm
else
    usual_prefix=$HOME/.local/share/tunefarm
    case ${XDG_CONFIG_HOME:-} in /*) config=$XDG_CONFIG_HOME/tunefarm ;; *) config=$HOME/.config/tunefarm ;; esac
fi
prefix=$usual_prefix
while [ $# -gt 0 ]; do
    case $1 in
    --gpu)
        gpu=only
        case ${2:-} in [0-9]*) gpu=$2 && shift ;; esac
        ;;
    --build) build=1 ;;
    --unit) unit=yes ;;
    --no-unit) unit=no ;;
    --updates) updates=yes ;;
    --no-updates) updates=no ;;
    --update) update=1 ;;
    --name | --server | --ca | --cert | --key | --prefix)
        [ $# -gt 1 ] || fail "$1 needs a value; $usage" 2
        case $1 in
        --name) name=$2 ;;
        --server) workers=$2 ;;
        --ca) ca=$(realpath "$2") ;;
        --cert) cert=$(realpath "$2") ;;
        --key) key=$(realpath "$2") ;;
        --prefix) prefix=$2 ;;
        esac
        shift
        ;;
    --help) echo "$usage" && exit ;;
    *) fail "$1 is no flag of this script; $usage" 2 ;;
    esac
    shift
done
[ -z "$gpu" ] || [ -z "$build" ] || fail "a worker measures a GPU or builds: leave out --gpu or --build" 2

case $(uname -s)-$(uname -m) in
Linux-x86_64 | Linux-aarch64) ;;
*) fail "a worker needs 64-bit Linux on x86-64 or Arm, this is $(uname -s) on $(uname -m)" ;;
esac
python=
for one in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$one" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$one && break; fi
done
[ -n "$python" ] || fail "a worker needs Python 3.11 or newer: install python3.11 and python3.11-venv"
"$python" -c 'import ensurepip' 2>/dev/null ||
    fail "this Python can't make virtual environments: install python3-venv (apt install python3-venv)"

if [ -n "$update" ]; then
    prefix=$(dirname "$(realpath "$0")")
    # shellcheck source=/dev/null
    . "$prefix/installed"
else
    mkdir -p "$prefix"
    prefix=$(realpath "$prefix")
    extras=worker,verify
    [ -z "$gpu" ] || extras=$extras,cuda
    [ -z "$build" ] || extras=$extras,cross
    token=${TUNEFARM_WORKER_TOKEN:-}
    if [ -z "$token" ] && [ -n "$token_needed" ]; then
        stty -echo 2>/dev/null </dev/tty || true
        ask "Token with the scope worker (tunefarm token create --name NAME --scope worker):"
        if stty echo 2>/dev/null </dev/tty; then echo >/dev/tty; fi
        token=$answer
        [ -n "$token" ] || fail "a worker of this service needs a token: set TUNEFARM_WORKER_TOKEN" 2
    fi
    case $token in *[\'\\]*) fail "a token has no quotes and no backslashes: was it pasted whole?" 2 ;; esac
    [ -n "$name" ] || name=$(uname -n)
    if [ -z "$unit" ] && [ "$(id -u)" -eq 0 ] && [ -d /run/systemd/system ]; then
        unit=$(wants "Shall systemd run the worker, now and whenever this machine starts?")
    fi
    [ "$unit" != no ] || unit=
    [ -z "$unit" ] || [ "$(id -u)" -eq 0 ] || fail "--unit needs root: run this script with sudo"
    if [ -z "$updates" ] && [ -n "$unit" ]; then
        updates=$(wants "May the administrators of the service update this worker? They install packages as root then.")
    fi
    [ "$updates" != no ] || updates=
fi

# Packages
fetch install/worker.tar "$work/worker.tar"
tar -xf "$work/worker.tar" -C "$work" --no-same-owner
[ -x "$prefix/bin/python" ] || "$python" -m venv "$prefix"
wheel=$(echo "$work"/tunefarm-*.whl)
runtime=$(echo "$work"/tunefarm_runtime-*.whl)
[ -f "$runtime" ] || runtime=
echo "installing $(basename "$wheel") and what it needs into $prefix: some minutes"
"$prefix/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: \
    --constraint "$work/constraints.txt" "${wheel}[$extras]" ${runtime:+"$runtime"} ||
    fail "pip could not install the packages: see above; PIP_INDEX_URL names another index"
if [ -n "$update" ]; then
    echo "updated to tunefarm $version or newer"
    exit
fi

# Settings
printf "extras='%s' ca='%s' cert='%s' key='%s'\n" "$extras" "$ca" "$cert" "$key" >"$prefix/installed"
fetch install "$prefix/install"
# Measured code may read the prefix, so the token is stored elsewhere. A worker in another prefix has its own
# file.
settings=$config/worker.env
[ -n "$unit" ] || [ "$prefix" = "$(realpath -m "$usual_prefix")" ] ||
    settings=$config/worker$(printf %s "$prefix" | tr / -).env
rm -f "$prefix/worker.env" "$settings"
(umask 077 && mkdir -p "$config" && : >"$settings")
setting() { [ -z "$2" ] || printf "TUNEFARM_WORKER_%s='%s'\n" "$1" "$2" >>"$settings"; }
setting SERVER "$workers"
setting TOKEN "$token"
setting NAME "$name"
setting TLS "$tls"
setting CA "$ca"
setting CERT "$cert"
setting KEY "$key"
setting GPU "$gpu"
setting BUILD "$build"
setting UPDATES "${unit:+${updates:+1}}"

if [ -n "$unit" ]; then
    sed "s|/opt/tunefarm|$prefix|g" "$work/tunefarm-worker.service" >/etc/systemd/system/tunefarm-worker.service
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        systemctl enable --quiet tunefarm-worker
        systemctl restart tunefarm-worker
        echo "the worker $name runs: journalctl --unit tunefarm-worker --follow"
    else
        echo "the worker $name starts with this machine: systemd doesn't run now"
    fi
else
    printf '#!/bin/sh\nset -a\n. "%s"\nexec "%s/bin/tunefarm" worker "$@"\n' "$settings" "$prefix" >"$prefix/start"
    chmod +x "$prefix/start"
    echo "start the worker $name with $prefix/start"
fi
